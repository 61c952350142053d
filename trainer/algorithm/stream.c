/* Token stream: builds the per-token arrays from samples. Called by the learner; main thread. Invariant: exactly the
 * trained response tokens have an entry, in the samples' order. */
#include "trainer/algorithm/stream.h"

#include <stdlib.h>

static int by_member(const void *a, const void *b) {
    const struct clime_member_key *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    if (x->member != y->member) return x->member < y->member ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

struct clime_member_key *clime_members_sorted(const struct clime_sample *const *samples, int n) {
    struct clime_member_key *k = xcalloc((size_t)n + 1, sizeof *k);
    for (int i = 0; i < n; i++) k[i] = (struct clime_member_key){samples[i]->group, samples[i]->member, i};
    qsort(k, (size_t)n, sizeof *k, by_member);
    return k;
}

/* Walks the version runs of a sample token by token. */
struct version_walk {
    const struct clime_sample *s;
    int32_t run, left;
};

static int64_t next_version(struct version_walk *w) { /* -1 = unknown */
    while (w->left == 0 && w->run + 1 < w->s->n_versions) w->left = w->s->versions[++w->run].n;
    if (w->left == 0) return -1;
    w->left--;
    return w->s->versions[w->run].version;
}

/* Fills an entry for each trained token in order; returns their number. s NULL: only counts. */
static int64_t fill_sample(const struct clime_sample *sm, const struct clime_estimate *est, int64_t oldest,
                           struct clime_stream *s, int64_t at) {
    struct version_walk walk = {.s = sm, .run = -1};
    int64_t n = 0;
    for (int32_t j = 0; j < sm->n_response; j++) {
        int64_t version = next_version(&walk);
        if (!sm->mask[j] || sm->removed || version < oldest) continue;
        if (s) {
            int64_t k = at + n;
            s->row[k] = sm->n_prompt - 1 + j;
            s->said[k] = sm->logp ? sm->logp[j] : 0;
            s->behave[k] = sm->kept_n && sm->kept_n[j] ? sm->kept_logp[j] : s->said[k];
            s->old[k] = est && est->old ? est->old[j] : s->behave[k];
            s->adv[k] = !est ? 0 : est->adv ? est->adv[j] : est->advantage;
            s->value[k] = est && est->value ? est->value[j] : 0;
            s->ret[k] = est && est->ret ? est->ret[j] : 0;
            s->version[k] = sm->mixed_kv ? -1 : version;
        }
        n++;
    }
    return n;
}

static void share_members(struct clime_stream *s, const struct clime_sample *const *samples) {
    struct clime_member_key *k = clime_members_sorted(samples, s->n_samples);
    for (int i = 0, end; i < s->n_samples; i = end) {
        int64_t tokens = 0;
        for (end = i; end < s->n_samples && k[end].group == k[i].group && k[end].member == k[i].member; end++)
            tokens += s->first[k[end].index + 1] - s->first[k[end].index];
        for (int m = i; m < end; m++) s->shared[k[m].index] = tokens;
    }
    free(k);
}

void clime_stream_init(struct clime_stream *s, const struct clime_sample *const *samples,
                       const struct clime_estimate *estimate, int n_samples, int64_t oldest) {
    s->n_samples = n_samples;
    s->samples = samples;
    s->first = xcalloc((size_t)n_samples + 1, sizeof *s->first);
    s->shared = xcalloc((size_t)n_samples + 1, sizeof *s->shared);
    for (int i = 0; i < n_samples; i++) s->first[i + 1] = s->first[i] + fill_sample(samples[i], NULL, oldest, NULL, 0);
    s->n = s->first[n_samples];

    size_t n = (size_t)s->n + 1; /* never zero-sized */
    s->row = xcalloc(n, sizeof *s->row);
    s->version = xcalloc(n, sizeof *s->version);
    float **arrays[] = {&s->adv, &s->behave, &s->said, &s->old,   &s->ref, &s->value,
                        &s->ret, &s->w_pg,   &s->w_kl, &s->w_ent, &s->w_ce};
    for (size_t a = 0; a < CLIME_COUNT(arrays); a++) *arrays[a] = xcalloc(n, sizeof(float));
    for (int i = 0; i < n_samples; i++) fill_sample(samples[i], estimate ? &estimate[i] : NULL, oldest, s, s->first[i]);
    share_members(s, samples);
}

void clime_stream_free(struct clime_stream *s) {
    free(s->first);
    free(s->shared);
    free(s->row);
    free(s->version);
    float *const arrays[] = {s->adv, s->behave, s->said, s->old,   s->ref, s->value,
                             s->ret, s->w_pg,   s->w_kl, s->w_ent, s->w_ce};
    for (size_t a = 0; a < CLIME_COUNT(arrays); a++) free(arrays[a]);
    *s = (struct clime_stream){0};
}
