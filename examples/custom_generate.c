/* The calculator of environments/calculator.c as a generate hook: the same turns without a program and without HTTP.
 *
 *   cc -shared -fPIC -O2 -I . -o custom_generate.so examples/custom_generate.c
 *   clime-train rl --custom-generate-function-path ./custom_generate.so --rollout-max-context-len 512 ...
 *
 * The policy writes "=27+35" and gets the result; any other answer ends the task, with reward 1 when it is the label.
 * What stands around an observation is the chat template's: BEFORE and AFTER are those of `clime-train init`'s own. */
#include "trainer/plugin/plugin.h"

#include <stdio.h>
#include <string.h>

#define BEFORE "<|tool|>"
#define AFTER "<|end|><|assistant|>"
#define TURNS 4

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

static int generate(const struct clime_plugin_task *t, char *error, size_t error_bytes) {
    const struct clime_plugin_calls *c = t->calls;
    const struct clime_plugin_turn *turn;
    double reward = 0;
    for (int k = 0; k < TURNS; k++) {
        long long value;
        char observation[128];
        int rc = c->generate(t->session, NULL, 0, 0, NULL, 0, &turn);
        if (rc == CLIME_PLUGIN_LIMIT) break; /* the session's tokens or turns: the policy's doing */
        if (rc) {
            snprintf(error, error_bytes, "%s", c->why(t->session));
            return 1;
        }
        if (strlen(turn->text) != (size_t)turn->text_bytes) break; /* a NUL in it: neither of both */
        if (!calculate(turn->text, &value)) {
            reward = is_label(t->label, turn->text);
            break;
        }
        snprintf(observation, sizeof observation, BEFORE "%lld" AFTER, value);
        if ((rc = c->append_text(t->session, observation))) {
            snprintf(error, error_bytes, "%s", c->why(t->session));
            return 1;
        }
    }
    return c->set_reward(t->session, reward);
}

const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .name = "custom_generate", .generate = generate};
