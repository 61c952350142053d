/* A generate hook that fans out: the calculator of custom_generate.c with a memory that is compacted.
 *
 *   cc -shared -fPIC -O2 -I . -o custom_fan_out.so examples/custom_fan_out.c
 *   clime-train rl --custom-generate-function-path ./custom_fan_out.so --rollout-max-context-len 512 ...
 *
 * The policy writes "=27+35". What follows is a context of its own, the prompt and the result without the policy's
 * call, and the answer to it is judged. So the task has two contexts that do not continue each other: each is kept as a
 * sample, with the task's reward, and together they count as one. */
#include "trainer/plugin/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEFORE "<|tool|>"
#define AFTER "<|end|><|assistant|>"

/* Reads a number of at most 9 digits; NULL when there is none. */
static const char *number(const char *at, long long *out) {
    int n = 0;
    for (*out = 0; at[n] >= '0' && at[n] <= '9' && n < 9; n++) *out = *out * 10 + (at[n] - '0');
    return n ? at + n : NULL;
}

/* Whether text is one calculation; its value. */
static int calculate(const char *text, long long *value) {
    long long a, b;
    const char *op = *text == '=' ? number(text + 1, &a) : NULL;
    const char *end = op && *op ? number(op + 1, &b) : NULL;
    if (!end || *end || !strchr("+-*", *op)) return 0;
    *value = *op == '+' ? a + b : *op == '-' ? a - b : a * b;
    return 1;
}

/* Whether the answer is the label, a JSON string or number without escapes. */
static int is_label(const char *label, const char *answer) {
    size_t n = label ? strlen(label) : 0, quoted = n > 1 && label[0] == '"';
    return n && strlen(answer) == n - 2 * quoted && !strncmp(label + quoted, answer, n - 2 * quoted);
}

/* The prompt and the result, and the policy's answer to them. */
static int answer_result(const struct clime_plugin_task *t, long long value, const struct clime_plugin_turn **turn) {
    const struct clime_plugin_calls *c = t->calls;
    char result[128];
    const int32_t *more;
    int32_t n_more;
    snprintf(result, sizeof result, BEFORE "%lld" AFTER, value);
    int rc = c->tokenize(t->session, result, &more, &n_more);
    if (rc) return rc;
    int32_t *ids = malloc(((size_t)t->n_ids + (size_t)n_more) * sizeof *ids);
    if (!ids) abort();
    memcpy(ids, t->ids, (size_t)t->n_ids * sizeof *ids);
    memcpy(ids + t->n_ids, more, (size_t)n_more * sizeof *ids);
    rc = c->generate(t->session, ids, t->n_ids + n_more, 0, NULL, 0, turn);
    free(ids);
    return rc;
}

static int generate(const struct clime_plugin_task *t, char *error, size_t error_bytes) {
    const struct clime_plugin_calls *c = t->calls;
    const struct clime_plugin_turn *turn;
    long long value;
    int n = 1, rc = c->generate(t->session, NULL, 0, 0, NULL, 0, &turn);
    if (!rc && calculate(turn->text, &value)) {
        rc = answer_result(t, value, &turn);
        if (!rc) n = 2;
        if (rc == CLIME_PLUGIN_LIMIT) rc = 0; /* no turns or tokens left for the answer: the policy's doing */
    }
    double reward = !rc && turn && is_label(t->label, turn->text);
    for (int k = 0; k < n && !rc; k++) {
        rc = c->keep(t->session, k);
        if (!rc) rc = c->set_reward(t->session, reward);
    }
    if (rc) snprintf(error, error_bytes, "%s", c->why(t->session));
    return rc;
}

const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .name = "custom_fan_out", .generate = generate};
