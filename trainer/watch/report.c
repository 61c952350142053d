/* clime-train report: prints a summary of a run from its ledger, also while it runs. Main thread, owns nothing. The
 * plot shows the mean reward per rollout: one column each, or several rollouts averaged into one. */
#include "trainer/watch/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/options/options.h"
#include "common/terminal.h"
#include "trainer/ledger/summary.h"
#include "trainer/watch/eval_table.h"
#include "trainer/watch/now.h"

#define PLOT_WIDTH 64
#define PLOT_HEIGHT 10

static void print_summary(const char *run, const struct clime_summary *s) {
    char begun[32];
    clime_wall_format(s->created_us, begun);
    printf("run        %s (%s), seed %" PRId64 "\n", run, s->name, s->seed);
    printf("begun      %s, %.1f minutes to the last event, %" PRId64 " start%s of the trainer\n", begun,
           (double)(s->last_us - s->created_us) / 60e6, s->incarnations, s->incarnations == 1 ? "" : "s");
    printf("rollouts   %" PRId64 "; %" PRId64 " groups, of them %" PRId64 " failed, %" PRId64
           " dropped by the filter, %" PRId64 " not needed\n",
           s->rollouts, s->groups, s->failed, s->filtered, s->surplus);
    printf("samples    %" PRId64 " completed, %" PRId64 " truncated, %" PRId64 " failed, %" PRId64 " pending; %" PRId64
           " tokens\n",
           s->n_completed, s->n_truncated, s->n_failed, s->n_pending, s->tokens);
    printf("steps      %" PRId64 " done of %" PRId64 " chosen\n", s->steps_done, s->steps);
    if (s->gap_tokens)
        printf("gap        server against trainer: at most %g, over %" PRId64 " tokens\n", s->gap, s->gap_tokens);
    if (s->gap_wrong)
        printf("           not 0 for %" PRId64 " token%s in %" PRId64 " step%s: see the alarms among the events\n",
               s->gap_wrong, s->gap_wrong == 1 ? "" : "s", s->gap_steps, s->gap_steps == 1 ? "" : "s");
    if (s->version >= 0) printf("weights    version %" PRId64 ", sha256 %s\n", s->version, s->sha256);
}

/* Prints how closely the trained tokens match what the agents saw; nothing without sessions. */
static void print_turns(const struct clime_turn_counts *c) {
    int64_t all = clime_turn_counts_all(c);
    const char *head = "sessions";
    for (int i = 0; i < CLIME_N_TURN_KINDS && all; i++) {
        if (!c->n[i]) continue;
        printf("%-10s %" PRId64 " of %" PRId64 " turns %s\n", head, c->n[i], all, clime_turn_kinds[i].words);
        head = "";
    }
}

static void plot(const double *reward, int n) {
    double column[PLOT_WIDTH], low = INFINITY, high = -INFINITY;
    int width = n < PLOT_WIDTH ? n : PLOT_WIDTH;
    for (int c = 0; c < width; c++) {
        int from = (int)((int64_t)c * n / width), to = (int)((int64_t)(c + 1) * n / width);
        column[c] = 0;
        for (int i = from; i < to; i++) column[c] += reward[i] / (to - from);
        if (column[c] < low) low = column[c];
        if (column[c] > high) high = column[c];
    }
    double step = (high - low) / (PLOT_HEIGHT - 1);
    printf("\nmean reward by rollout\n");
    for (int row = high > low ? PLOT_HEIGHT - 1 : 0; row >= 0; row--) {
        printf("%9.4f |", low + row * step);
        for (int c = 0; c < width; c++) putchar(high > low && (int)lround((column[c] - low) / step) != row ? ' ' : '*');
        putchar('\n');
    }
    printf("%9s +", "");
    for (int c = 0; c < width; c++) putchar('-');
    printf("\n%9s  rollout 0 to %d\n", "", n - 1);
}

static void print_text(const char *name, const char *text) {
    printf("  %s\n", name);
    for (const char *at = text; *at;) {
        int n = (int)strcspn(at, "\n");
        printf("    | %.*s\n", n, at);
        at += n + (at[n] == '\n');
    }
}

static enum clime_err print_sample(struct clime_db *db, bool best, struct clime_error *e) {
    char *prompt, *response;
    double reward;
    enum clime_err rc = clime_summary_sample(db, best, &prompt, &response, &reward, e);
    if (!rc && prompt && response) {
        printf("\n%s sample of the newest rollout (reward %g)\n", best ? "best" : "worst", reward);
        print_text("prompt", prompt);
        print_text("response", response);
    }
    free(prompt);
    free(response);
    return rc;
}

static enum clime_err report(const char *run, struct clime_error *e) {
    struct clime_db *db = NULL;
    struct clime_summary s;
    struct clime_turn_counts turns = {{0}};
    double *rewards = NULL;
    int n = 0;
    char *path = xasprintf("%s/ledger.db", run);
    enum clime_err rc = clime_db_open(path, CLIME_DB_READ, &db, e);
    if (rc || (rc = clime_summary_read(db, &s, e)) || (rc = clime_summary_rewards(db, &rewards, &n, e))) goto done;
    if ((rc = clime_summary_turns(db, &turns, e))) goto done;
    print_summary(run, &s);
    print_turns(&turns);
    if (n > 0) plot(rewards, n);
    if ((rc = clime_eval_table_print(db, e)) || (rc = print_sample(db, true, e)) || (rc = print_sample(db, false, e)))
        goto done;
done:
    free(rewards);
    clime_db_close(db);
    free(path);
    return rc;
}

static enum clime_err print_waits(const char *run, struct clime_error *e) {
    char *text;
    enum clime_err rc = clime_now_ask(run, &text, e);
    if (!rc) fputs(text, stdout);
    free(text);
    return rc;
}

int clime_report_main(int argc, char **argv) {
    const char *run[1];
    bool now;
    struct clime_error e = {0};
    const struct clime_opt table[] = {
        {"now", CLIME_OPT_BOOL, &now, NULL, NULL,
         "instead: what the trainer that works on the run waits for, how long at most, and on whom"}};
    enum clime_err rc =
        clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, run, 1,
                            "clime-train report [--now] RUN\nA summary of a run folder, from its ledger.\n", &e);
    if (!rc && !run[0]) rc = clime_fail(&e, CLIME_ERR_INPUT, "which run? clime-train report RUN");
    if (!rc) rc = now ? print_waits(run[0], &e) : report(run[0], &e);
    if (!rc) rc = clime_stdout_whole(&e);
    if (rc) LOG_ERROR("report: %s", e.msg);
    return rc ? 1 : 0;
}
