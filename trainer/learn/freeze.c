/* Freezes rows of the parameter table by name patterns. Called by the learner before it plans memory; owns nothing.
 *
 * As in slime a pattern is a regular expression searched in the name, so plain text matches a substring. The names are
 * Hugging Face's ("model.layers.3.mlp.up_proj.weight"), not Megatron's, which clime does not have. */
#include "trainer/learn/freeze.h"

#include <stdlib.h>
#include <string.h>

#include "text/regex.h"

/* hit[i] |= row i's name matches the pattern. */
static enum clime_err search(const struct clime_layout *l, const char *pattern, bool *hit, struct clime_error *e) {
    struct clime_regex *re = NULL;
    struct clime_matcher *m = clime_matcher_new();
    int n = 0;
    enum clime_err err = clime_regex_new((struct clime_str){pattern, strlen(pattern)}, false, &re, e);
    for (int i = 0; !err && i < l->n_slices; i++) {
        const char *name = l->slices[i].name;
        size_t from, to;
        int found = clime_regex_find(re, m, (struct clime_str){name, strlen(name)}, 0, &from, &to);
        if (found < 0) err = clime_fail(e, CLIME_ERR_LIMIT, "searching '%.100s' in a name takes too long", pattern);
        if (found == 1) hit[i] = true, n++;
    }
    if (!err && n == 0)
        err = clime_fail(e, CLIME_ERR_INPUT,
                         "'%.100s' is in no tensor's name; names are Hugging Face's, such as %s and %s", pattern,
                         l->slices[0].name, l->slices[l->layer[0].w[CLIME_W_DOWN]].name);
    clime_regex_free(re);
    clime_matcher_free(m);
    return err;
}

enum clime_err clime_freeze(struct clime_layout *l, const struct clime_opt_list *only,
                            const struct clime_opt_list *freeze, struct clime_error *e) {
    const struct clime_opt_list *list = only->n ? only : freeze;
    if (only->n && freeze->n)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--only-train-params-name-list and --freeze-params-name-list exclude each other");
    if (!list->n) return CLIME_OK;
    bool *frozen = xcalloc((size_t)l->n_slices, sizeof *frozen);
    enum clime_err err = CLIME_OK;
    for (int i = 0; !err && i < list->n; i++) {
        err = search(l, list->items[i], frozen, e);
        if (err) clime_error_prefix(e, only->n ? "--only-train-params-name-list" : "--freeze-params-name-list");
    }
    for (int i = 0; only->n && i < l->n_slices; i++) frozen[i] = !frozen[i];
    int left = 0; /* tensors a step changes; a bias that only chooses experts has no gradient */
    for (int i = 0; i < l->n_slices; i++) left += !frozen[i] && l->slices[i].update != CLIME_CONSTANT;
    if (!err && !left)
        err = clime_fail(e, CLIME_ERR_INPUT, "all tensors that a step changes are frozen: nothing is left to train");
    if (!err) err = clime_layout_freeze(l, frozen, e);
    free(frozen);
    return err;
}

void clime_freeze_describe(const struct clime_layout *l, struct clime_buf *out) {
    int n = 0;
    for (int i = 0; i < l->n_slices; i++) n += l->slices[i].update != CLIME_FROZEN;
    if (n < l->n_slices)
        clime_buf_printf(out, "trained: %d of %d tensors, %.3f of %.3f M parameters", n, l->n_slices,
                         (double)clime_layout_params(l, true) / 1e6, (double)clime_layout_params(l, false) / 1e6);
}
