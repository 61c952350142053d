/* Advantage estimators: from rewards to advantages, with the policy term that belongs to each. One row and one small
 * file each.
 *
 * A row's functions are pure; the learner calls `advantages` once per rollout and `policy` for each sample of each
 * micro-batch. Both see only trained tokens. Formulas and sources: docs/algorithms.md. */
#ifndef CLIME_TRAINER_ALGORITHM_ESTIMATOR_H
#define CLIME_TRAINER_ALGORITHM_ESTIMATOR_H

#include "trainer/algorithm/objective.h"
#include "trainer/algorithm/stream.h"

/* Statistics of a sample's group, by group number, whatever its members' positions and number. A member that fanned out
 * into several samples counts once, with the mean of their rewards and of their squared distances from the group's
 * mean. */
struct clime_peers {
    double mean, std; /* over the group's members; std with n - 1, 0 for one member */
    double own;       /* reward of the sample's member */
    int n;            /* members */
};

struct clime_estimator_input {
    const struct clime_objective *o;
    const struct clime_stream *s;
    const double *reward;            /* [n_samples] minus kl_coef times the sample's KL, unless kl_per_token */
    const struct clime_peers *peers; /* [n_samples] */
    const float *kl;                 /* [s->n] per token, old against reference; NULL without --kl-coef */
};

/* Policy terms of one sample's n tokens, to be minimised. w[t]: the token's weight in the loss. Sets pg[t]
 * (unweighted), g[t] = d(sum_u w[u] pg[u]) / d logp[t], and clipped[t]. */
struct clime_policy_tokens {
    int n;
    const float *logp, *old, *adv;
    const double *w;
    double *pg, *g;
    uint8_t *clipped;
};
typedef void clime_policy_fn(const struct clime_objective *o, const struct clime_policy_tokens *t);

struct clime_estimator {
    const char *name;      /* --advantage-estimator */
    const char *advantage; /* formula, for --explain */
    const char *policy_text;
    void (*advantages)(const struct clime_estimator_input *in, float *adv /* [s->n] */);
    clime_policy_fn *policy;
    bool must_whiten;       /* includes --normalize-advantages */
    bool needs_peers;       /* groups of one have no baseline */
    bool kl_per_token;      /* applies the reward's KL per token; else it is subtracted from the sample's reward */
    bool takes_gamma;       /* discounts within a sample */
    bool needs_critic;      /* reads s->value; uses --lambd, --value-clip and the --critic-* options */
    bool takes_std;         /* divides by the deviation, unless --disable-grpo-std-normalization */
    bool takes_raw;         /* subtracts a mean, unless --disable-rewards-normalization */
    bool without_dual_clip; /* --eps-clip-c does not affect its policy term */
};

/* Every estimator: clime_estimator_NAME in NAME.c. */
#define CLIME_ESTIMATORS(row)                                                                                          \
    row(grpo) row(gspo) row(cispo) row(ppo) row(reinforce_plus_plus) row(reinforce_plus_plus_baseline) row(rloo)

#define CLIME_ESTIMATOR_EXTERN(name) extern const struct clime_estimator clime_estimator_##name;
CLIME_ESTIMATORS(CLIME_ESTIMATOR_EXTERN)

#define CLIME_ESTIMATOR_WORD(name) "|" #name
#define CLIME_ESTIMATOR_NAMES (CLIME_ESTIMATORS(CLIME_ESTIMATOR_WORD) + 1) /* "grpo|gspo|..." */

/* Finds an estimator by name; NULL and CLIME_ERR_INPUT, which lists the names. */
const struct clime_estimator *clime_estimator_find(const char *name, struct clime_error *e);

/* Fills s->adv: group statistics, then the estimator's row. reward[n_samples]; kl as in the input. CLIME_ERR_INTERNAL:
 * a reward is not finite. */
enum clime_err clime_estimate_advantages(const struct clime_objective *o, const struct clime_sample *const *samples,
                                         const double *reward, const float *kl, struct clime_stream *s,
                                         struct clime_error *e);

/* --normalize-advantages: (A - mean) / sqrt(var + 1e-8) over the trained tokens of a rollout, var with n - 1. */
void clime_whiten(float *adv, int64_t n);

/* ---- parts shared by several rows ---- */

/* Each token gets its sample's reward, centred and divided as GRPO does. */
void clime_advantages_grpo(const struct clime_estimator_input *in, float *adv);

/* PPO's clipped surrogate with DAPO's separate bounds and dual clip (docs/algorithms.md), per token. */
clime_policy_fn clime_policy_clip;

/* Value of the clipped surrogate at the ratio r; *grad = its derivative by log r. */
double clime_clip(const struct clime_objective *o, double r, double adv, double *grad, uint8_t *clipped);

/* The critic's loss for n tokens (docs/algorithms.md): adds the sum of w * max((clip(v) - ret)^2, (v - ret)^2) to
 * *loss, where clip keeps v within value_clip of the old value; g[t] = its derivative by v[t]; counts clipped ones. */
void clime_value_loss(double value_clip, int n, const float *v, const float *old, const float *ret, const float *w,
                      float *g, double *loss, double *clipped);

#endif
