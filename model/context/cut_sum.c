/* Sums the gradients of a pack's cuts. See cut_sum.h. Called in backward passes, main thread.
 *
 * Invariant: ((0 + 1) + (2 + 3)) + ..., as accumulate does for as many ranks. */
#include "model/context/cut_sum.h"

static int n_levels(const struct clime_cut_sum *s) {
    int n = 1;
    while (!s->own && 1 << n <= s->n) n++;
    return n;
}

void clime_cut_sum_plan(struct clime_cut_sum *s, struct clime_plan *p) {
    const size_t each = s->room * sizeof(float);
    for (int i = 0; i < n_levels(s); i++)
        clime_plan_add(p, "gradients of cuts", s->own ? (size_t)s->n * each : each, (void **)&s->level[i]);
}

float *clime_cut_at(const struct clime_cut_sum *s, int i, size_t shift) {
    int level = 1;
    if (s->own) return s->level[0] + (size_t)i * s->room + shift;
    if (i == 0) return s->level[0] + shift;
    for (; i % 2 == 0; i /= 2) level++;
    return s->level[level] + shift;
}

void clime_cut_made(const struct clime_cut_sum *s, int i, size_t shift, size_t n) {
    for (int size = 1; i & size; size *= 2) {
        const float *right = clime_cut_at(s, i, shift);
        i -= size;
        s->ops->accumulate(s->dev, 1, n, 1, &right, NULL, clime_cut_at(s, i, shift), 0);
    }
}
