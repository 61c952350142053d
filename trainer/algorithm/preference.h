/* Preference losses over pairs of answers: DPO and variants. Pure.
 *
 * With s(y) the sum over y's trained tokens of logp - ref (simpo: of logp), or its mean per token, h = s(chosen) -
 * s(rejected), b = --beta, e = --label-smoothing:
 *   sigmoid    -(1 - e) log sigmoid(b h) - e log sigmoid(-b h), sums (Rafailov et al. 2023, "Direct preference
 *              optimization", eq. 7; e: Mitchell 2023, "A note on DPO with noisy preferences")
 *   dpo_norm   the same with means (Lambert et al. 2024, "Tulu 3", eq. 6)
 *   ipo        (h - 1 / (2 b))^2 with means, as in TRL (Azar et al. 2023, "A general theoretical paradigm", eq. 17)
 *   simpo      sigmoid with b h - gamma for b h, means, no reference (Meng et al. 2024, "SimPO", eq. 6)
 * The loss of a step is the mean over its pairs. */
#ifndef CLIME_TRAINER_ALGORITHM_PREFERENCE_H
#define CLIME_TRAINER_ALGORITHM_PREFERENCE_H

#include "trainer/algorithm/objective.h"
#include "trainer/algorithm/stream.h"

bool clime_preference_needs_ref(const struct clime_objective *o);

struct clime_pair_loss {
    double loss;             /* of the pair, unweighted */
    double chosen, rejected; /* b s of each */
    int64_t n;               /* trained tokens */
};

/* Computes the loss of the stream's samples chosen and rejected, which share a group and have trained tokens each.
 * logp: of those tokens, the chosen answer's first; writes their derivatives times w to g_logp. */
void clime_preference_pair(const struct clime_objective *o, const struct clime_stream *s, int32_t chosen,
                           int32_t rejected, double w, const float *logp, float *g_logp, struct clime_pair_loss *out);

/* The losses' names, for --help and documents. */
#define CLIME_PREFERENCE_NAMES "sigmoid|dpo_norm|ipo|simpo"

#endif
