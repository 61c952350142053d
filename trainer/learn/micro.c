/* Packs samples into the rows of a micro-batch. Called by the learner and its critic; main thread. Owns the arrays from
 * alloc to free. Invariant: the rows follow the packing's order, which is recorded, so sums over them repeat. */
#include "trainer/learn/micro.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/sample/experts.h"

void clime_micro_alloc(struct clime_micro *mb, size_t rows) {
    *mb = (struct clime_micro){0};
    mb->ids = xcalloc(rows, sizeof *mb->ids);
    mb->start = xcalloc(rows + 1, sizeof *mb->start);
    mb->row = xcalloc(rows, sizeof *mb->row);
    mb->target = xcalloc(rows, sizeof *mb->target);
    float **floats[] = {&mb->inv_temp, &mb->logp, &mb->whole, &mb->entropy, &mb->g_logp, &mb->g_entropy};
    for (size_t i = 0; i < CLIME_COUNT(floats); i++) *floats[i] = xcalloc(rows, sizeof(float));
    mb->routing = xcalloc(rows, sizeof *mb->routing);
    mb->kept_from = xcalloc(rows + 1, sizeof *mb->kept_from);
    mb->index = xcalloc(rows, sizeof *mb->index);
}

void clime_micro_free(struct clime_micro *mb) {
    free(mb->ids);
    free(mb->start);
    free(mb->row);
    free(mb->target);
    free(mb->inv_temp);
    free(mb->logp);
    free(mb->whole);
    free(mb->entropy);
    free(mb->g_logp);
    free(mb->g_entropy);
    free(mb->routing);
    free(mb->index);
    free(mb->given);
    free(mb->kept_from);
    free(mb->kept);
}

enum clime_err clime_micro_check(const struct clime_sample *const *samples, const struct clime_packing *p, size_t rows,
                                 struct clime_error *e) {
    for (int i = 0; i < p->n_micro; i++) {
        size_t n = 0;
        for (int32_t k = p->first[i]; k < p->first[i + 1]; k++) {
            const struct clime_sample *s = samples[p->sample[k]];
            n += (size_t)s->n_prompt + (size_t)s->n_response;
        }
        if (n > rows)
            return clime_fail(e, CLIME_ERR_LIMIT,
                              "micro-batch %d of %d samples has %zu tokens; the memory plan holds %zu", i,
                              p->first[i + 1] - p->first[i], n, rows);
    }
    return CLIME_OK;
}

/* Copies the sampling sets of the tokens that are loss rows, if a sample has any. */
static void fill_kept(struct clime_micro *mb, const struct clime_sample *const *samples, const struct clime_stream *s,
                      const int32_t *which, int n) {
    int64_t room = 0, to = 0;
    int row = 0;
    for (int i = 0; i < n; i++) room += samples[which[i]]->n_kept;
    if (room == 0) return;
    mb->kept = xrealloc(mb->kept, (size_t)room * sizeof *mb->kept);
    for (int i = 0; i < n; i++) {
        const struct clime_sample *sm = samples[which[i]];
        int64_t at = 0;
        int32_t j = 0;
        for (int64_t k = s->first[which[i]]; k < s->first[which[i] + 1]; k++) {
            const int32_t token = s->row[k] + 1 - sm->n_prompt;
            for (; sm->kept_n && j < token; j++) at += sm->kept_n[j];
            const size_t len = sm->kept_n ? sm->kept_n[token] : 0;
            if (len) memcpy(mb->kept + to, sm->kept + at, len * sizeof *mb->kept);
            to += (int64_t)len;
            mb->kept_from[++row] = to;
        }
    }
    mb->b.kept_from = mb->kept_from;
    mb->b.kept = mb->kept;
}

void clime_micro_fill(struct clime_micro *mb, const struct clime_sample *const *samples, const struct clime_stream *s,
                      const int32_t *which, int n) {
    int T = 0, n_loss = 0;
    for (int i = 0; i < n; i++) {
        const struct clime_sample *sm = samples[which[i]];
        int len = sm->n_prompt + sm->n_response;
        mb->start[i] = T;
        memcpy(mb->ids + T, sm->ids, (size_t)len * sizeof *mb->ids);
        for (int64_t k = s->first[which[i]]; k < s->first[which[i] + 1]; k++, n_loss++) {
            mb->index[n_loss] = k;
            mb->row[n_loss] = T + s->row[k];
            mb->target[n_loss] = sm->ids[s->row[k] + 1];
            mb->inv_temp[n_loss] = clime_inv_temp((double)sm->temperature);
        }
        T += len;
    }
    mb->start[n] = T;
    mb->b = (struct clime_packed_batch){.T = T,
                                        .n_seq = n,
                                        .ids = mb->ids,
                                        .start = mb->start,
                                        .n_loss = n_loss,
                                        .row = mb->row,
                                        .target = mb->target,
                                        .inv_temp = mb->inv_temp};
    fill_kept(mb, samples, s, which, n);
}

void clime_micro_give(struct clime_micro *mb, const struct clime_config *c, const struct clime_sample *const *samples,
                      const int32_t *which, int n) {
    bool any = false;
    for (int i = 0; i < n; i++) any = any || samples[which[i]]->experts;
    if (!any) return;
    mb->given = xrealloc(mb->given, (size_t)c->L * (size_t)mb->b.T * (size_t)c->router.k * sizeof *mb->given);
    for (int i = 0; i < n; i++) clime_experts_give(c, samples[which[i]], mb->b.T, mb->start[i], mb->given);
    mb->b.given = mb->given;
}
