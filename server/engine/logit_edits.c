/* Edit lists for sampling. Called by the engine and the step runner, engine thread; owns the table of one sequence.
 *
 * Invariant: entries ascend by id, each id once, as clime_ops.sample wants them.
 * A sorted array with binary search: an output has few distinct tokens, and the list must be sorted anyway.
 */
#include "server/engine/logit_edits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    int32_t id;
    int32_t n_out; /* times sampled */
    float bias;
    bool in_prompt, stops;
};

struct clime_logit_edits {
    const struct clime_sampling_params *p;
    struct entry *entries;
    struct clime_logit_edit *edits; /* [size] */
    int n, size;
};

static struct entry *entry_of(struct clime_logit_edits *x, int32_t id) {
    int lo = 0, hi = x->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (x->entries[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < x->n && x->entries[lo].id == id) return &x->entries[lo];
    if (x->n == x->size) {
        x->size = x->size ? x->size * 2 : 64;
        x->entries = xrealloc(x->entries, (size_t)x->size * sizeof *x->entries);
        x->edits = xrealloc(x->edits, (size_t)x->size * sizeof *x->edits);
    }
    memmove(x->entries + lo + 1, x->entries + lo, (size_t)(x->n - lo) * sizeof *x->entries);
    x->n++;
    x->entries[lo] = (struct entry){.id = id};
    return &x->entries[lo];
}

struct clime_logit_edits *clime_logit_edits_new(const struct clime_sampling_params *p, const int32_t *prompt,
                                                int n_prompt, const int32_t *stop, int n_stop) {
    bool counts = p->frequency_penalty != 0 || p->presence_penalty != 0 || p->repetition_penalty != 1;
    if (!counts && p->n_bias == 0 && p->min_new_tokens == 0) return NULL;
    struct clime_logit_edits *x = xcalloc(1, sizeof *x);
    x->p = p;
    for (int i = 0; i < p->n_bias; i++) entry_of(x, p->bias[i].id)->bias = p->bias[i].add;
    if (p->min_new_tokens > 0)
        for (int i = 0; i < n_stop; i++) entry_of(x, stop[i])->stops = true;
    if (p->repetition_penalty != 1)
        for (int i = 0; i < n_prompt; i++) entry_of(x, prompt[i])->in_prompt = true;
    return x;
}

void clime_logit_edits_free(struct clime_logit_edits *x) {
    if (!x) return;
    free(x->entries);
    free(x->edits);
    free(x);
}

void clime_logit_edits_add(struct clime_logit_edits *x, int32_t id) {
    entry_of(x, id)->n_out++;
}

const struct clime_logit_edit *clime_logit_edits_get(struct clime_logit_edits *x, int n_out, int32_t *n) {
    const struct clime_sampling_params *p = x->p;
    *n = 0;
    for (int i = 0; i < x->n; i++) {
        const struct entry *t = &x->entries[i];
        struct clime_logit_edit d = {.id = t->id, .rep = 1, .add = t->bias};
        if (t->in_prompt || t->n_out > 0) d.rep = (float)p->repetition_penalty;
        if (t->n_out > 0) d.add -= (float)(p->frequency_penalty * t->n_out + p->presence_penalty);
        if (t->stops && n_out < p->min_new_tokens) d.add = -INFINITY;
        if (d.rep != 1 || d.add != 0) x->edits[(*n)++] = d;
    }
    return x->edits;
}
