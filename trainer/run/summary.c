/* Closing lines of a finished run: scores, alarms, file locations, and suggested next commands for the same directory.
 * Called by the loop, main thread; reads the ledger. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/ledger/events.h"
#include "trainer/ledger/summary.h"
#include "trainer/run/run.h"

/* ---- results ---- */

struct scores {
    struct clime_rl *rl;
    char name[256];
    double first, last;
    int n;
};

static void tell_scores(struct scores *s) {
    if (s->n > 1)
        clime_progress_line(&s->rl->progress, "score    %s  %.4f at first, %.4f at last", s->name, s->first, s->last);
    s->n = 0;
}

static void note_score(void *arg, const struct clime_eval_point *p) { /* set by set, in step order */
    struct scores *s = arg;
    if (s->n && strcmp(s->name, p->name)) tell_scores(s);
    if (!s->n++) s->first = p->score;
    s->last = p->score;
    snprintf(s->name, sizeof s->name, "%s", p->name);
}

static void note_alarm(void *arg, const char *detail) {
    bool *raised = arg, now;
    int id = clime_alarm_event(detail, &now);
    if (id >= 0) raised[id] = now;
}

static void tell_alarms(struct clime_rl *rl, const bool *raised) {
    struct clime_buf names;
    clime_buf_init(&names, 4096);
    for (int i = 0; i < CLIME_ALARMS; i++)
        if (raised[i]) clime_buf_printf(&names, "%s%s", names.len ? ", " : "", clime_alarm_rules[i].name);
    if (names.len) clime_progress_line(&rl->progress, "alarms   still raised: %s", names.data);
    clime_buf_free(&names);
}

/* ---- next commands ---- */

/* Quotes a word for the shell. */
static char *quoted(const char *word) {
    struct clime_buf b;
    clime_buf_init(&b, 1 << 16);
    bool plain =
        *word && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:+,@%=")];
    if (plain) {
        clime_buf_adds(&b, word);
    } else {
        clime_buf_addc(&b, '\'');
        for (; *word; word++) *word == '\'' ? clime_buf_adds(&b, "'\\''") : clime_buf_addc(&b, *word);
        clime_buf_addc(&b, '\'');
    }
    return clime_buf_take(&b);
}

/* Path of a sibling program, in the form this one was called. */
static char *program(const char *name) {
    const char *own = program_invocation_name, *slash = strrchr(own, '/');
    char *path = xasprintf("%.*s%s", slash ? (int)(slash + 1 - own) : 0, own, name), *word = quoted(path);
    free(path);
    return word;
}

/* Commands are not wrapped, so that they can be copied. */
static void tell_next(struct clime_rl *rl) {
    bool exported = rl->num_rollout > 0 && !rl->o.save_hf;
    char *run = quoted(rl->o.run), *hf = quoted(rl->hf_dir), *train = program("clime-train"),
         *server = program("clime-server");
    if (rl->progress.quiet) goto done;
    clime_progress_line(&rl->progress, "run      %s  ledger.db, metrics.jsonl, logs/", rl->o.run);
    if (exported) clime_progress_line(&rl->progress, "policy   %s", rl->hf_dir);
    printf("next     %s page %s\n", train, run);
    printf("         %s report %s\n", train, run);
    if (exported) printf("         %s --model-path %s\n", server, hf);
    printf("         sqlite3 -readonly %s/ledger.db\n", run);
    fflush(stdout);
done:
    free(run);
    free(hf);
    free(train);
    free(server);
}

enum clime_err clime_rl_tell_end(struct clime_rl *rl, struct clime_error *e) {
    struct clime_db *db = clime_ledger_reader(rl->ledger);
    struct scores s = {.rl = rl};
    bool raised[CLIME_ALARMS] = {false};
    enum clime_err rc = clime_summary_evals(db, note_score, &s, e);
    tell_scores(&s);
    if (!rc) rc = clime_events_each(db, "alarm", note_alarm, raised, e);
    if (rc) return rc;
    tell_alarms(rl, raised);
    tell_next(rl);
    return CLIME_OK;
}
