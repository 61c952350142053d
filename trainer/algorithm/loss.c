/* Clipped policy loss, KL, entropy and cross-entropy, token by token. Called by the learner between the forward and
 * the backward of a micro-batch; main thread. All arithmetic in double: the sums are small beside the forward, and one
 * precision for values and derivatives keeps the comparison with PyTorch simple. */
#include "trainer/algorithm/loss.h"

#include <math.h>

bool clime_loss_needs_ref(const struct clime_learner_options *o) {
    return !o->sft && o->use_kl_loss && o->kl_loss_coef != 0;
}

bool clime_loss_needs_entropy(const struct clime_learner_options *o) {
    return !o->sft && o->entropy_coef != 0;
}

void clime_loss_weights(const struct clime_learner_options *o, const float *advantage, int64_t global_batch,
                        struct clime_stream *s) {
    int64_t step_tokens = 0;
    for (int i = 0; i < s->n_samples; i++) {
        int64_t n = s->first[i + 1] - s->first[i];
        step_tokens += n > 0 ? n : 1;
    }
    for (int i = 0; i < s->n_samples; i++) {
        int64_t n = s->first[i + 1] - s->first[i];
        double w = o->calculate_per_token_loss ? 1.0 / (double)step_tokens : 1.0 / ((double)n * (double)global_batch);
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) {
            if (o->sft) {
                s->w_ce[k] = (float)w;
                continue;
            }
            s->adv[k] = advantage[i];
            s->w_pg[k] = (float)w;
            s->w_kl[k] = clime_loss_needs_ref(o) ? (float)(o->kl_loss_coef * w) : 0;
            s->w_ent[k] = (float)(o->entropy_coef * w);
        }
    }
}

double clime_kl_value(enum clime_kl_type type, double logp, double ref, double *grad) {
    double d = logp - ref;
    switch (type) {
    case CLIME_KL_K1:
        *grad = 1;
        return d;
    case CLIME_KL_K2:
        *grad = d;
        return 0.5 * d * d;
    case CLIME_KL_K3:
        *grad = 1 - exp(-d);
        return exp(-d) - 1 + d;
    case CLIME_KL_LOW_VAR: {
        double v = exp(-d) - 1 + d;
        *grad = v > 10 || v < -10 ? 0 : 1 - exp(-d);
        return v > 10 ? 10 : v < -10 ? -10 : v;
    }
    }
    CHECK(!"kl type");
    return 0;
}

/* PPO's clipped surrogate (Schulman et al. 2017, eq. 7) with separate bounds (DAPO's clip-higher):
 * max(-r A, -clip(r, 1 - lo, 1 + hi) A), r = exp(logp - behave). */
static double clipped_surrogate(double r, double adv, double lo, double hi, double *grad, bool *clipped) {
    double bounded = r < 1 - lo ? 1 - lo : r > 1 + hi ? 1 + hi : r;
    double plain = -r * adv, cut = -bounded * adv;
    *clipped = cut > plain;
    *grad = *clipped ? 0 : -r * adv; /* d r / d logp = r */
    return *clipped ? cut : plain;
}

void clime_loss_tokens(const struct clime_learner_options *o, const struct clime_stream *s, const int64_t *index, int n,
                       const float *logp, const float *entropy, int64_t current_version, float *g_logp,
                       float *g_entropy, struct clime_loss_sums *sums) {
    for (int i = 0; i < n; i++) {
        int64_t k = index[i];
        double lp = logp[i], g = 0;
        sums->n += 1;
        if (entropy) sums->entropy += entropy[i];
        if (o->sft) {
            double ce = -s->w_ce[k] * lp;
            sums->ce += ce;
            sums->loss += ce;
            g_logp[i] = -s->w_ce[k];
            continue;
        }
        bool clipped;
        double ratio = exp(lp - s->behave[k]), dpg;
        double pg = clipped_surrogate(ratio, s->adv[k], o->eps_clip, o->eps_clip_high, &dpg, &clipped);
        g = s->w_pg[k] * dpg;
        sums->pg += s->w_pg[k] * pg;
        sums->loss += s->w_pg[k] * pg;
        sums->clipped += clipped;
        sums->ppo_kl += s->behave[k] - lp;
        if (s->w_kl[k] != 0) {
            double dkl, kl = clime_kl_value(o->kl_loss_type, lp, s->ref[k], &dkl);
            g += s->w_kl[k] * dkl;
            sums->kl += s->w_kl[k] * kl;
            sums->kl_token += kl;
            sums->loss += s->w_kl[k] * kl;
        }
        if (entropy) {
            sums->loss -= s->w_ent[k] * entropy[i];
            if (g_entropy) g_entropy[i] = -s->w_ent[k];
        }
        g_logp[i] = (float)g;
        if (s->version[k] >= 0 && s->version[k] == current_version) {
            double gap = fabs(lp - s->behave[k]);
            sums->gap_tokens++;
            if (!(gap <= sums->gap_max)) sums->gap_max = gap; /* a NaN shows */
        }
    }
}
