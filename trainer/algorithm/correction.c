/* TIS, IcePop, MIS and rejection over the stream of a step. Called by the learner; main thread. See correction.h.
 *
 * Sources: truncated importance sampling, Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy
 * RL Training"; masked importance sampling, its levels and the veto, Liu, Li et al. 2025, "When Speed Kills Stability";
 * IcePop, Ling Team 2025. */
#include "trainer/algorithm/correction.h"

#include <math.h>
#include <stdlib.h>

#define MAX_LOG 20 /* bound of a log ratio, so its exponential is finite */

/* rho of each token of one sample, at the configured level. */
static void ratios(enum clime_is_level level, const float *old, const float *behave, int64_t n, double *rho) {
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += (double)old[k] - (double)behave[k];
    for (int64_t k = 0; k < n; k++) {
        double d = level == CLIME_IS_TOKEN      ? (double)old[k] - (double)behave[k]
                   : level == CLIME_IS_SEQUENCE ? sum
                                                : sum / (double)n;
        rho[k] = exp(d > MAX_LOG ? MAX_LOG : d < -MAX_LOG ? -MAX_LOG : d);
    }
}

static bool outside(double rho, double low, double high) {
    return rho < low || rho > high;
}

/* The importance weight of rho; *reject: mode mask removes the token. */
static double weight_of(const struct clime_correction_options *c, double rho, bool *reject) {
    switch (c->tis_mode) {
    case CLIME_IS_TRUNCATE:
        return rho < c->tis_low ? c->tis_low : rho > c->tis_high ? c->tis_high : rho;
    case CLIME_IS_ICEPOP:
        return outside(rho, c->tis_low, c->tis_high) ? 0 : rho;
    case CLIME_IS_MASK:
        *reject = *reject || outside(rho, c->tis_low, c->tis_high);
        return rho;
    }
    CHECK(!"mode");
    return 1;
}

static bool vetoed(double threshold, const float *old, const float *behave, int64_t n) {
    for (int64_t k = 0; threshold > 0 && k < n; k++)
        if ((double)old[k] - (double)behave[k] < log(threshold)) return true;
    return false;
}

/* Weights and rejections of one sample's tokens. */
static void correct_sample(const struct clime_correction_options *c, const float *old, const float *behave, int64_t n,
                           double *rho, double *weight, bool *reject, struct clime_correction_stats *stats) {
    bool veto = vetoed(c->veto, old, behave, n);
    stats->veto += veto;
    ratios(c->rs_level, old, behave, n, rho);
    for (int64_t k = 0; k < n; k++) reject[k] = veto || (c->use_rs && outside(rho[k], c->rs_low, c->rs_high));
    ratios(c->tis_level, old, behave, n, rho);
    for (int64_t k = 0; k < n; k++) {
        weight[k] = c->use_tis ? weight_of(c, rho[k], &reject[k]) : 1;
        stats->rho += rho[k];
        stats->rho_abs += fabs(rho[k] - 1);
        stats->changed += c->use_tis && (weight[k] != rho[k] || (c->tis_mode == CLIME_IS_MASK && reject[k]));
        stats->rejected += reject[k];
    }
}

/* The factor that makes the step's mean weight 1: the mean over its trained tokens, or over its samples where a sample
 * has one weight, since the longest would dominate otherwise. */
static double scale_to_one(const struct clime_correction_options *c, const struct clime_stream *s,
                           const double *weight) {
    double sum = 0, n = 0;
    for (int i = 0; i < s->n_samples; i++) {
        int64_t end = s->first[i + 1];
        if (c->tis_level != CLIME_IS_TOKEN && end > s->first[i]) end = s->first[i] + 1;
        for (int64_t k = s->first[i]; k < end; k++, n++) sum += weight[k];
    }
    return sum > 0 ? n / sum : 1;
}

void clime_correct(const struct clime_objective *o, struct clime_stream *s, struct clime_correction_stats *stats) {
    const struct clime_correction_options *c = &o->correction;
    size_t n = (size_t)s->n + 1;
    double *rho = xcalloc(n, sizeof *rho), *weight = xcalloc(n, sizeof *weight), scale = 1;
    bool *reject = xcalloc(n, sizeof *reject);
    for (int i = 0; i < s->n_samples; i++) {
        int64_t at = s->first[i];
        correct_sample(c, s->old + at, s->behave + at, s->first[i + 1] - at, rho + at, weight + at, reject + at, stats);
    }
    if (c->tis_batch_normalize) scale = scale_to_one(c, s, weight);
    for (int64_t k = 0; k < s->n; k++) {
        s->w_pg[k] = reject[k] ? 0 : (float)((double)s->w_pg[k] * weight[k] * scale);
        if (reject[k]) s->w_kl[k] = s->w_ent[k] = 0;
    }
    free(rho);
    free(weight);
    free(reject);
}
