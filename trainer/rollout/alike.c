/* Alarms for identical rewards (see alike.h). Called by the loop after a rollout and by evaluation; no state. */
#include "trainer/rollout/alike.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/json/write.h"

#define MOST_COMMAND 1200 /* bytes of the command; a log line holds 2048 */
#define MOST_TEXT 600     /* bytes shown of a response: its end, where answers are */

/* Number of rewarded samples if all rewards are equal, else 0. */
static int count_alike(struct clime_sample *const *samples, int n, const struct clime_sample **first) {
    int scored = 0;
    *first = NULL;
    for (int i = 0; i < n; i++) {
        if (!samples[i]->has_reward) continue;
        if (!*first) *first = samples[i];
        if (samples[i]->reward != (*first)->reward) return 0;
        scored++;
    }
    return scored;
}

/* The last `most` bytes of text, starting at a character. */
static struct clime_str end_of(const char *text, size_t most) {
    size_t n = text ? strlen(text) : 0, skip = n > most ? n - most : 0;
    while (skip < n && ((unsigned char)text[skip] & 0xc0) == 0x80) skip++;
    return (struct clime_str){text ? text + skip : "", n - skip};
}

/* {"response", "label"?, "metadata"?} for the shell, in single quotes. False: too long for a line. */
static bool put_question(const struct clime_sample *s, bool metadata, size_t most, struct clime_buf *out) {
    struct clime_buf json;
    struct clime_jw w;
    clime_buf_init(&json, 1 << 20);
    clime_jw_init(&w, &json);
    clime_jw_object(&w);
    clime_jw_put_str(&w, "response", end_of(s->response, most));
    if (s->label) clime_jw_put_raw(&w, "label", clime_str_of(s->label));
    if (metadata && s->metadata) clime_jw_put_raw(&w, "metadata", clime_str_of(s->metadata));
    clime_jw_close(&w);
    for (size_t i = 0; i < json.len; i++)
        if (json.data[i] == '\'')
            clime_buf_adds(out, "\\u0027"); /* in JSON a single quote occurs only in strings */
        else
            clime_buf_addc(out, json.data[i]);
    const bool whole = !json.full;
    clime_buf_free(&json);
    return whole;
}

/* Adds the advice and "printf %s '{...}' | clime-train grade --rm-type T" (some shells' echo interprets \\n) with as
 * much of the response as fits; no command if the label does not fit. */
static void put_advice(const struct clime_rl_options *o, const char *rm_type, const struct clime_sample *s,
                       const char *doubt_of_it, struct clime_buf *out) {
    for (size_t most = MOST_TEXT; most > 0; most /= 2) {
        clime_buf_clear(out);
        clime_buf_printf(out, "%s One of the answers, or its end, graded: printf %%s '", doubt_of_it);
        const bool whole = put_question(s, !rm_type, most, out);
        clime_buf_adds(out, "' | clime-train grade");
        if (rm_type) clime_buf_printf(out, " --rm-type %s", rm_type);
        if (o->custom_rm) clime_buf_printf(out, " --custom-rm-path %s", o->custom_rm);
        if (whole && out->len <= MOST_COMMAND) return;
    }
    clime_buf_clear(out);
    clime_buf_adds(out, doubt_of_it);
}

static bool none_wanted(const char *rm_type) {
    return rm_type && !strcmp(rm_type, "none");
}

static const char *doubt(double reward) {
    return reward == 0 ? "Does the reward fit the labels (clime-train grade --help lists them)?"
                       : "Are the prompts all solved, or does the reward look at something else?";
}

void clime_alike_note(struct clime_alarms *a, const struct clime_rl_options *o, int64_t rollout,
                      struct clime_sample *const *samples, int n) {
    const struct clime_sample *s;
    int scored = none_wanted(o->rm_type) ? 0 : count_alike(samples, n, &s);
    if (scored < 2 || !a) return;
    struct clime_buf advice;
    clime_buf_init(&advice, 1 << 20);
    char *cause = xasprintf("rollout %" PRId64 ": all %d rewards are %g", rollout, scored, s->reward);
    put_advice(o, o->rm_type, s, doubt(s->reward), &advice);
    clime_alarms_note(a, CLIME_ALARM_REWARDS_ALIKE, cause, advice.data);
    clime_buf_free(&advice);
    free(cause);
}

void clime_alike_see_evaluation(struct clime_alarms *a, const struct clime_rl_options *o,
                                const struct clime_eval_record *sets, int n_sets) {
    struct clime_buf advice;
    char *cause = NULL;
    int n_zero = 0;
    clime_buf_init(&advice, 1 << 20);
    for (int i = 0; i < n_sets; i++) {
        const struct clime_sample *s;
        if (none_wanted(sets[i].rm_type)) continue;
        int scored = count_alike(sets[i].samples, sets[i].n, &s);
        if (scored < 2 || s->reward != 0 || n_zero++) continue;
        cause =
            xasprintf("evaluation %s at step %" PRId64 ": all %d rewards are 0", sets[i].name, sets[i].step, scored);
        put_advice(o, sets[i].rm_type, s, doubt(0), &advice);
    }
    clime_alarms_see(a, CLIME_ALARM_EVAL_ZERO, n_zero, cause, cause ? advice.data : NULL);
    clime_buf_free(&advice);
    free(cause);
}
