/* Builds the per-token arrays of a step from its samples. Called by the learner; main thread.
 * Invariant: an entry exists for exactly the response tokens with mask 1, in the samples' order. */
#include "trainer/algorithm/stream.h"

#include <stdlib.h>

static int64_t count_trained(const struct clime_sample *s) {
    int64_t n = 0;
    for (int32_t j = 0; j < s->n_response; j++) n += s->mask[j] != 0;
    return n;
}

void clime_stream_init(struct clime_stream *s, const struct clime_sample *const *samples, int n_samples) {
    s->n_samples = n_samples;
    s->first = xcalloc((size_t)n_samples + 1, sizeof *s->first);
    for (int i = 0; i < n_samples; i++) s->first[i + 1] = s->first[i] + count_trained(samples[i]);
    s->n = s->first[n_samples];

    size_t n = (size_t)s->n + 1; /* never zero-sized */
    s->row = xcalloc(n, sizeof *s->row);
    s->version = xcalloc(n, sizeof *s->version);
    float **arrays[] = {&s->adv, &s->behave, &s->ref, &s->w_pg, &s->w_kl, &s->w_ent, &s->w_ce};
    for (size_t a = 0; a < CLIME_COUNT(arrays); a++) *arrays[a] = xcalloc(n, sizeof(float));

    for (int i = 0; i < n_samples; i++) {
        const struct clime_sample *sm = samples[i];
        int64_t at = s->first[i];
        int32_t run = 0, left = sm->n_versions > 0 ? sm->versions[0].n : 0;
        for (int32_t j = 0; j < sm->n_response; j++) {
            while (left == 0 && run + 1 < sm->n_versions) left = sm->versions[++run].n;
            if (sm->mask[j]) {
                s->row[at] = sm->n_prompt - 1 + j;
                s->behave[at] = sm->logp ? sm->logp[j] : 0;
                s->version[at] = sm->mixed_kv || left == 0 ? -1 : sm->versions[run].version;
                at++;
            }
            if (left > 0) left--;
        }
    }
}

void clime_stream_free(struct clime_stream *s) {
    free(s->first);
    free(s->row);
    free(s->version);
    free(s->adv);
    free(s->behave);
    free(s->ref);
    free(s->w_pg);
    free(s->w_kl);
    free(s->w_ent);
    free(s->w_ce);
    *s = (struct clime_stream){0};
}
