/* First-fit packing. Called by the loop before a step is recorded; main thread; pure.
 *
 * First fit in arrival order, not sorted by length: a step's samples then stay close to (rollout, group, member) order,
 * which keeps a group's shared prompt in neighbouring micro-batches and the record readable. The fill is within a few
 * per cent of best fit for a rollout's length spread. */
#include "trainer/sample/pack.h"

#include <stdlib.h>

#include "common/err.h"

/* Puts the samples into bins (bin[i] = micro-batch of sample i); returns the number of bins. */
static int assign_bins(const int32_t *lengths, int n, const struct clime_pack_options *o, int *bin) {
    int n_bins = 0;
    if (!o->dynamic) {
        int size = o->micro_batch_size > 0 ? o->micro_batch_size : 1;
        for (int i = 0; i < n; i++) bin[i] = i / size;
        return (n + size - 1) / size;
    }
    int64_t *room = xcalloc((size_t)n + 1, sizeof *room);
    int first_open = 0; /* bins before this one are full */
    for (int i = 0; i < n; i++) {
        int b = first_open;
        while (b < n_bins && room[b] < lengths[i]) b++;
        if (b == n_bins) room[n_bins++] = o->max_tokens > lengths[i] ? o->max_tokens : lengths[i];
        room[b] -= lengths[i];
        bin[i] = b;
        while (first_open < n_bins && room[first_open] <= 0) first_open++;
    }
    free(room);
    return n_bins;
}

void clime_pack_make(const int32_t *lengths, int n, const struct clime_pack_options *o, struct clime_packing *out) {
    int *bin = xcalloc((size_t)n + 1, sizeof *bin);
    out->n_micro = assign_bins(lengths, n, o, bin);
    out->first = xcalloc((size_t)out->n_micro + 1, sizeof *out->first);
    out->sample = xcalloc((size_t)n + 1, sizeof *out->sample);
    for (int i = 0; i < n; i++) out->first[bin[i] + 1]++;
    for (int b = 0; b < out->n_micro; b++) out->first[b + 1] += out->first[b];
    int32_t *at = xcalloc((size_t)out->n_micro + 1, sizeof *at);
    for (int i = 0; i < n; i++) out->sample[out->first[bin[i]] + at[bin[i]]++] = i;
    free(at);
    free(bin);
}

void clime_pack_free(struct clime_packing *p) {
    free(p->first);
    free(p->sample);
    p->first = NULL;
    p->sample = NULL;
    p->n_micro = 0;
}
