/* Loss: policy, KL, entropy and cross-entropy terms, sample by sample. Called by the learner between forward and
 * backward of a micro-batch; main thread. Arithmetic in double: the sums are small beside the forward, and one
 * precision for values and derivatives simplifies the comparison with PyTorch. */
#include "trainer/algorithm/loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/algorithm/custom.h"
#include "trainer/algorithm/estimator.h"
#include "trainer/algorithm/kl.h"
#include "trainer/algorithm/preference.h"

bool clime_loss_is_supervised(const struct clime_objective *o) {
    return o->sft || o->preference != CLIME_PREFERENCE_NONE;
}

bool clime_loss_needs_ref(const struct clime_objective *o) {
    return clime_preference_needs_ref(o) || (!clime_loss_is_supervised(o) && o->use_kl_loss && o->kl_loss_coef != 0);
}

bool clime_reward_needs_ref(const struct clime_objective *o) {
    return !clime_loss_is_supervised(o) && o->kl_coef != 0;
}

bool clime_needs_ref(const struct clime_objective *o) {
    return clime_loss_needs_ref(o) || clime_reward_needs_ref(o);
}

bool clime_loss_needs_old(const struct clime_objective *o) {
    const struct clime_correction_options *c = &o->correction;
    return !clime_loss_is_supervised(o) && (c->use_tis || c->use_rs || c->veto > 0 || c->metrics);
}

bool clime_loss_needs_entropy(const struct clime_objective *o) {
    return !clime_loss_is_supervised(o) && o->entropy_coef != 0;
}

void clime_loss_weights(const struct clime_objective *o, int64_t global_batch, struct clime_stream *s) {
    int64_t step_tokens = 0;
    for (int i = 0; i < s->n_samples; i++) {
        int64_t n = s->first[i + 1] - s->first[i];
        step_tokens += n > 0 ? n : 1;
    }
    for (int i = 0; i < s->n_samples; i++) {
        double per_member = (double)(o->loss_token_divisor ? o->loss_token_divisor : s->shared[i]);
        double w = 1.0 / (o->calculate_per_token_loss ? (double)step_tokens : per_member * (double)global_batch);
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) {
            if (o->sft) {
                s->w_ce[k] = (float)w;
                continue;
            }
            if (o->preference) {
                s->w_pg[k] = (float)(1.0 / (double)global_batch);
                continue;
            }
            s->w_pg[k] = (float)w;
            s->w_kl[k] = clime_loss_needs_ref(o) ? (float)(o->kl_loss_coef * w) : 0;
            s->w_ent[k] = (float)(o->entropy_coef * w);
        }
    }
}

/* Off-policy sequence masking (DeepSeek-V3.2, 2025): masks tokens with A < 0 in a sample whose mean of old - logp
 * exceeds delta. */
static void mask_offpolicy_sample(const struct clime_objective *o, const struct clime_policy_tokens *t, double *w,
                                  struct clime_loss_sums *sums) {
    double kl = 0;
    for (int k = 0; k < t->n; k++) kl += (double)t->old[k] - (double)t->logp[k];
    if (kl / t->n <= o->opsm_delta) return;
    for (int k = 0; k < t->n; k++) {
        if (!(t->adv[k] < 0)) continue;
        w[k] = 0;
        sums->opsm += 1;
    }
}

/* Adds stream entry k's KL term, its derivative, and statistics. */
static void add_token(const struct clime_objective *o, const struct clime_stream *s, int64_t k, double logp,
                      double whole, int64_t version, double *g, struct clime_loss_sums *sums) {
    double old = (double)s->old[k], w = (double)s->w_kl[k];
    sums->ppo_kl += old - logp;
    sums->ois += exp(logp - old);
    if (w != 0) {
        double dkl, ref = (double)s->ref[k];
        double kl = o->use_unbiased_kl ? clime_kl_unbiased(o->kl_loss_type, logp, ref, old, &dkl)
                                       : clime_kl_value(o->kl_loss_type, logp, ref, &dkl);
        *g += w * dkl;
        sums->kl += w * kl;
        sums->kl_token += kl;
        sums->loss += w * kl;
    }
    if (s->version[k] >= 0 && s->version[k] == version) {
        double gap = fabs(whole - (double)s->said[k]);
        sums->gap_tokens++;
        if (gap == 0) return;
        sums->gap_wrong++;
        if (gap <= sums->gap_max || isnan(sums->gap_max)) return; /* a NaN is kept */
        sums->gap_max = gap;
        sums->gap_entry = k;
        sums->gap_logp = whole;
    }
}

/* Adds the policy terms of sample i, whose tokens are t. */
static enum clime_err add_policy(const struct clime_objective *o, const struct clime_stream *s, int i,
                                 const float *entropy, struct clime_policy_tokens *t, double *w,
                                 struct clime_loss_sums *sums, struct clime_error *e) {
    int64_t at = s->first[i];
    enum clime_err rc = CLIME_OK;
    for (int k = 0; k < t->n; k++) w[k] = (double)s->w_pg[at + k];
    if (o->use_opsm) mask_offpolicy_sample(o, t, w, sums);
    if (o->custom_loss) {
        struct clime_plugin_loss l = {.n = t->n,
                                      .logp = t->logp,
                                      .entropy = entropy,
                                      .w = w,
                                      .eps_clip = o->eps_clip,
                                      .eps_clip_high = o->eps_clip_high};
        memset(t->clipped, 0, (size_t)t->n);
        rc = clime_custom_loss(o->custom_loss, s, i, clime_loss_needs_ref(o), &l, t->pg, t->g, e);
    } else {
        o->estimator->policy(o, t);
    }
    for (int k = 0; k < t->n && !rc; k++) {
        sums->pg += w[k] * t->pg[k];
        sums->loss += w[k] * t->pg[k];
        sums->clipped += t->clipped[k];
    }
    return rc;
}

static void add_cross_entropy(const struct clime_stream *s, int64_t at, int n, const float *logp, float *g_logp,
                              struct clime_loss_sums *sums) {
    for (int k = 0; k < n; k++) {
        sums->loss -= (double)s->w_ce[at + k] * (double)logp[k];
        g_logp[k] = -s->w_ce[at + k];
    }
}

/* Adds pairs: which[2i] is a chosen answer, which[2i + 1] the rejected one. */
static void add_pairs(const struct clime_objective *o, const struct clime_stream *s, const int32_t *which, int n,
                      const float *logp, float *g_logp, struct clime_loss_sums *sums) {
    CHECK(n % 2 == 0);
    for (int64_t i = 0, done = 0; i < n; i += 2) {
        struct clime_pair_loss l;
        double w = (double)s->w_pg[s->first[which[i]]];
        clime_preference_pair(o, s, which[i], which[i + 1], w, logp + done, g_logp + done, &l);
        done += l.n;
        sums->loss += w * l.loss;
        sums->n += (double)l.n;
        sums->pairs += 1;
        sums->pairs_right += l.chosen > l.rejected;
        sums->chosen += l.chosen;
        sums->rejected += l.rejected;
    }
}

static int longest(const struct clime_stream *s, const int32_t *which, int n) {
    int64_t most = 0;
    for (int i = 0; i < n; i++) {
        int64_t len = s->first[which[i] + 1] - s->first[which[i]];
        if (len > most) most = len;
    }
    return (int)most;
}

enum clime_err clime_loss_samples(const struct clime_objective *o, const struct clime_stream *s, const int32_t *which,
                                  int n, const float *logp, const float *whole, const float *entropy, int64_t version,
                                  float *g_logp, float *g_entropy, struct clime_loss_sums *sums,
                                  struct clime_error *e) {
    if (o->preference) {
        add_pairs(o, s, which, n, logp, g_logp, sums);
        return CLIME_OK;
    }
    size_t most = (size_t)longest(s, which, n) + 1;
    double *w = xcalloc(3 * most, sizeof *w);
    uint8_t *clipped = xcalloc(most, 1);
    enum clime_err rc = CLIME_OK;
    for (int64_t i = 0, done = 0; i < n && !rc; i++) {
        int64_t at = s->first[which[i]];
        int len = (int)(s->first[which[i] + 1] - at);
        struct clime_policy_tokens t = {.n = len,
                                        .logp = logp + done,
                                        .old = s->old + at,
                                        .adv = s->adv + at,
                                        .w = w,
                                        .pg = w + most,
                                        .g = w + 2 * most,
                                        .clipped = clipped};
        sums->n += len;
        if (len == 0) continue;
        if (o->sft)
            add_cross_entropy(s, at, len, t.logp, g_logp + done, sums);
        else
            rc = add_policy(o, s, which[i], entropy ? entropy + done : NULL, &t, w, sums, e);
        for (int k = 0; k < len; k++) {
            if (entropy) sums->entropy += (double)entropy[done + k];
            if (o->sft) continue;
            add_token(o, s, at + k, (double)t.logp[k], (double)(whole ? whole[done + k] : t.logp[k]), version, &t.g[k],
                      sums);
            if (entropy) sums->loss -= (double)s->w_ent[at + k] * (double)entropy[done + k];
            if (g_entropy) g_entropy[done + k] = -s->w_ent[at + k];
            g_logp[done + k] = (float)t.g[k];
        }
        done += len;
    }
    free(w);
    free(clipped);
    return rc;
}
