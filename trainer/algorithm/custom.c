/* Custom algorithms: calls into a user's library (custom.h). Called by the learner; main thread.
 *
 * Invariant: the library gets pointers to structs, never arrays of structs, so an older library with shorter structs
 * reads only what it knows. */
#include "trainer/algorithm/custom.h"

#include <stdlib.h>
#include <string.h>

struct rollout_view {
    struct clime_plugin_sample *samples;
    const struct clime_plugin_sample **pointers;
    int32_t *place;
    struct clime_plugin_rollout r;
};

static void places(const struct clime_stream *s, int i, int32_t *out) {
    for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) *out++ = s->row[k] + 1 - s->samples[i]->n_prompt;
}

static void view_open(const struct clime_stream *s, struct rollout_view *v) {
    size_t n = (size_t)s->n_samples + 1;
    v->samples = xcalloc(n, sizeof *v->samples);
    v->pointers = xcalloc(n, sizeof *v->pointers);
    v->place = xcalloc((size_t)s->n + 1, sizeof *v->place);
    for (int i = 0; i < s->n_samples; i++) {
        v->samples[i] = clime_hook_view(s->samples[i]);
        v->pointers[i] = &v->samples[i];
        places(s, i, v->place + s->first[i]);
    }
    v->r = (struct clime_plugin_rollout){
        .n_samples = s->n_samples, .samples = v->pointers, .n_tokens = s->n, .first = s->first, .place = v->place};
}

static void view_close(struct rollout_view *v) {
    free(v->samples);
    free(v->pointers);
    free(v->place);
}

enum clime_err clime_custom_rewards(const struct clime_hook *h, const struct clime_stream *s, double *reward,
                                    struct clime_error *e) {
    struct rollout_view v;
    char reason[CLIME_HOOK_REASON] = "";
    double *out = xcalloc((size_t)s->n_samples + 1, sizeof *out);
    view_open(s, &v);
    v.r.reward = reward;
    memcpy(out, reward, (size_t)s->n_samples * sizeof *out);
    int rc = h->plugin.rewards(&v.r, out, reason, sizeof reason - 1);
    memcpy(reward, out, (size_t)s->n_samples * sizeof *out);
    view_close(&v);
    free(out);
    return rc ? clime_hook_failed(h, "rewards", reason, e) : CLIME_OK;
}

enum clime_err clime_custom_advantages(const struct clime_hook *h, const struct clime_custom_rollout *r,
                                       struct clime_stream *s, struct clime_error *e) {
    struct rollout_view v;
    char reason[CLIME_HOOK_REASON] = "";
    view_open(s, &v);
    v.r.reward = r->reward;
    v.r.old = s->old;
    v.r.ref = r->kl ? s->ref : NULL;
    v.r.kl = r->kl;
    v.r.kl_coef = r->kl_coef;
    v.r.gamma = r->gamma;
    int rc = h->plugin.advantages(&v.r, s->adv, reason, sizeof reason - 1);
    view_close(&v);
    return rc ? clime_hook_failed(h, "advantages", reason, e) : CLIME_OK;
}

enum clime_err clime_custom_loss(const struct clime_hook *h, const struct clime_stream *s, int i, bool has_ref,
                                 const struct clime_plugin_loss *t, double *pg, double *g, struct clime_error *e) {
    char reason[CLIME_HOOK_REASON] = "";
    struct clime_plugin_sample sample = clime_hook_view(s->samples[i]);
    struct clime_plugin_loss l = *t;
    int32_t *place = xcalloc((size_t)t->n + 1, sizeof *place);
    int64_t at = s->first[i];
    places(s, i, place);
    l.sample = &sample;
    l.place = place;
    l.old = s->old + at;
    l.behave = s->behave + at;
    l.ref = has_ref ? s->ref + at : NULL;
    l.adv = s->adv + at;
    int rc = h->plugin.loss(&l, pg, g, reason, sizeof reason - 1);
    free(place);
    return rc ? clime_hook_failed(h, "loss", reason, e) : CLIME_OK;
}
