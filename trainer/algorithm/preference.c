/* Preference losses over pairs. Called by trainer/algorithm/loss.c between forward and backward of a micro-batch, main
 * thread. A pair is never split: its loss depends on all tokens of both answers. It is linear in each answer, so all
 * tokens of a side have the same derivative. */
#include "trainer/algorithm/preference.h"

#include <math.h>

struct side {
    double s;     /* sum or mean of the token terms */
    double share; /* weight of one token in it */
    int64_t n;
};

bool clime_preference_needs_ref(const struct clime_objective *o) {
    return o->preference != CLIME_PREFERENCE_NONE && o->preference != CLIME_PREFERENCE_SIMPO;
}

static struct side measure(const struct clime_objective *o, const struct clime_stream *s, int32_t i,
                           const float *logp) {
    struct side out = {.n = s->first[i + 1] - s->first[i]};
    bool with_ref = clime_preference_needs_ref(o);
    for (int64_t k = 0; k < out.n; k++) out.s += (double)logp[k] - (with_ref ? (double)s->ref[s->first[i] + k] : 0);
    out.share = o->preference == CLIME_PREFERENCE_SIGMOID ? 1 : 1.0 / (double)out.n;
    out.s *= out.share;
    return out;
}

/* log sigmoid(x) and its derivative sigmoid(-x), for every x. */
static double log_sigmoid(double x, double *slope) {
    double e = exp(-fabs(x));
    *slope = x < 0 ? 1 / (1 + e) : e / (1 + e);
    return (x < 0 ? x : 0) - log1p(e);
}

/* The loss of h and its derivative. */
static double loss_of(const struct clime_objective *o, double h, double *slope) {
    if (o->preference == CLIME_PREFERENCE_IPO) {
        double off = h - 1 / (2 * o->beta);
        *slope = 2 * off;
        return off * off;
    }
    double x = o->beta * h - (o->preference == CLIME_PREFERENCE_SIMPO ? o->simpo_gamma : 0), up, down;
    double right = log_sigmoid(x, &up), wrong = log_sigmoid(-x, &down);
    *slope = -o->beta * ((1 - o->label_smoothing) * up - o->label_smoothing * down);
    return -(1 - o->label_smoothing) * right - o->label_smoothing * wrong;
}

void clime_preference_pair(const struct clime_objective *o, const struct clime_stream *s, int32_t chosen,
                           int32_t rejected, double w, const float *logp, float *g_logp, struct clime_pair_loss *out) {
    CHECK(s->samples[chosen]->group == s->samples[rejected]->group);
    struct side a = measure(o, s, chosen, logp), b = measure(o, s, rejected, logp + a.n);
    double slope;
    CHECK(a.n > 0 && b.n > 0);
    out->loss = loss_of(o, a.s - b.s, &slope);
    out->chosen = o->beta * a.s;
    out->rejected = o->beta * b.s;
    out->n = a.n + b.n;
    for (int64_t k = 0; k < a.n; k++) g_logp[k] = (float)(w * slope * a.share);
    for (int64_t k = a.n; k < out->n; k++) g_logp[k] = (float)(-w * slope * b.share);
}
