/* Label check: grades labels as responses. Called by clime-train data, main thread, with its own rewarder. A label that
 * the reward refuses is counted and its first reason shown: its samples would fail in training. */
#include "trainer/cmd/data_labels.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/http/client.h"
#include "common/json/scan.h"

static const struct {
    const char *name, *before, *after;
} forms[] = {{"LABEL", "", ""},
             {"\\boxed{LABEL}", "\\boxed{", "}"},
             {"#### LABEL", "#### ", ""},
             {"Answer: LABEL", "Answer: ", ""},
             {"<answer>LABEL</answer>", "<answer>", "</answer>"},
             {"</think>\\boxed{LABEL}", "<think>\n</think>\n\\boxed{", "}"}};

struct score {
    double sum, highest;
    int n, n_highest, n_failed;
    char why[200]; /* of the first failure */
};

/* Appends the label's text: a JSON string's content, or another value's JSON. */
static void add_label(struct clime_buf *out, const char *label) {
    struct clime_arena a;
    struct clime_json j;
    struct clime_str text = clime_str_of(label);
    struct clime_error e;
    clime_arena_init(&a, CLIME_REWARD_MAX_TEXT);
    clime_json_init(&j, label, strlen(label), &a, &e);
    if (clime_json_peek(&j) == CLIME_JSON_STRING) clime_json_string(&j, &text);
    clime_buf_add(out, text.ptr, text.len);
    clime_arena_free(&a);
}

static void count(struct score *s, const struct clime_reward *r) {
    double v = isnan(r->value) && r->object ? 0 : r->value;
    if (r->error.code) {
        if (!s->n_failed++) snprintf(s->why, sizeof s->why, "%.199s", r->error.msg);
        return;
    }
    s->sum += v;
    s->n++;
    if (v > s->highest) s->n_highest = 0;
    if (v >= s->highest) s->highest = v, s->n_highest++;
}

static enum clime_err grade_form(struct clime_rewarder *r, const struct clime_dataset *d, int most, size_t form,
                                 struct score *s, struct clime_error *e) {
    int n = d->n < most ? d->n : most, pending = 0;
    struct clime_buf text;
    clime_buf_init(&text, CLIME_REWARD_MAX_TEXT);
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < n && !rc; i++) {
        const struct clime_prompt *p = &d->prompts[(int64_t)i * d->n / n];
        if (!p->label) continue;
        clime_buf_clear(&text);
        clime_buf_adds(&text, forms[form].before);
        add_label(&text, p->label);
        clime_buf_adds(&text, forms[form].after);
        const struct clime_reward_request q = {.prompt = clime_str_of(p->text),
                                               .response = clime_buf_str(&text),
                                               .label = clime_str_of(p->label),
                                               .label_is_json = true,
                                               .metadata = clime_str_of(p->metadata)};
        rc = clime_rewarder_submit(r, &q, NULL, e);
        pending += !rc;
    }
    for (void *tag; pending > 0 && !rc; pending--) {
        struct clime_reward reward;
        if (!clime_rewarder_next(r, -1, &tag, &reward)) break;
        count(s, &reward);
        clime_reward_free(&reward);
    }
    clime_buf_free(&text);
    return rc;
}

enum clime_err clime_data_labels(const struct clime_dataset *d, const struct clime_rewarder_options *o, int most,
                                 struct clime_buf *out, double *highest, struct clime_error *e) {
    struct clime_rewarder *r = NULL;
    clime_http_client_global_init();
    enum clime_err rc = clime_rewarder_new(o, &r, e);
    *highest = -DBL_MAX;
    for (size_t f = 0; f < CLIME_COUNT(forms) && !rc; f++) {
        struct score s = {.highest = -DBL_MAX};
        if ((rc = grade_form(r, d, most, f, &s, e))) break;
        clime_buf_printf(out, "  %-24s ", forms[f].name);
        if (s.highest > 0)
            clime_buf_printf(out, "mean %.3f; %.1f %% get %g", s.sum / s.n, 100.0 * s.n_highest / (s.n + s.n_failed),
                             s.highest);
        else
            clime_buf_adds(out, s.n ? "none is above 0" : "no reward");
        if (s.n_failed) clime_buf_printf(out, "; %d refused: %s", s.n_failed, s.why);
        clime_buf_adds(out, "\n");
        if (s.highest > *highest) *highest = s.highest;
    }
    clime_rewarder_free(r);
    return rc;
}
