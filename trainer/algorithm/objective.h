/* Objective of a run: the options that the algorithm reads, under slime's names. Constant in a run. */
#ifndef CLIME_TRAINER_ALGORITHM_OBJECTIVE_H
#define CLIME_TRAINER_ALGORITHM_OBJECTIVE_H

#include <stdbool.h>
#include <stdint.h>

enum clime_kl_type { CLIME_KL_K1, CLIME_KL_K2, CLIME_KL_K3, CLIME_KL_LOW_VAR }; /* K3 = LOW_VAR without its clamp */
enum clime_is_mode { CLIME_IS_TRUNCATE, CLIME_IS_ICEPOP, CLIME_IS_MASK };
enum clime_is_level { CLIME_IS_TOKEN, CLIME_IS_SEQUENCE, CLIME_IS_GEOMETRIC };

/* Losses of pairs (trainer/algorithm/preference.h). */
enum clime_preference {
    CLIME_PREFERENCE_NONE,
    CLIME_PREFERENCE_SIGMOID,
    CLIME_PREFERENCE_DPO_NORM,
    CLIME_PREFERENCE_IPO,
    CLIME_PREFERENCE_SIMPO
};

struct clime_estimator; /* trainer/algorithm/estimator.h */
struct clime_hook;      /* trainer/plugin/hooks.h */

/* Corrections by rho = exp(old - behave), the trainer's log-probability against the server's
 * (trainer/algorithm/correction.h). */
struct clime_correction_options {
    bool use_tis, metrics; /* metrics: measured, not applied (--get-mismatch-metrics) */
    enum clime_is_mode tis_mode;
    enum clime_is_level tis_level, rs_level;
    double tis_low, tis_high; /* bounds of rho */
    bool tis_batch_normalize;
    bool use_rs; /* rejection: a token or sequence outside the bounds is removed from every term */
    double rs_low, rs_high;
    double veto; /* one token with rho below it rejects its sample; 0 = off */
};

struct clime_objective {
    /* advantages */
    const struct clime_estimator *estimator; /* NULL with sft and pairs */
    double kl_coef, gamma, lambd;            /* KL in the reward; discount; GAE */
    bool use_opd, normalize_advantages;
    double opd_kl_coef; /* coefficient of the teacher's term in the advantage */
    bool disable_rewards_normalization, disable_grpo_std_normalization;
    const struct clime_hook *custom_rewards, *custom_advantages, *custom_loss; /* borrowed; NULL = none */
    /* loss */
    double eps_clip, eps_clip_high, eps_clip_c; /* 0.2, = eps_clip, dual clip's bound (0 = off) */
    bool use_kl_loss, use_unbiased_kl;
    double kl_loss_coef;
    enum clime_kl_type kl_loss_type; /* of both KL terms */
    double entropy_coef;
    bool calculate_per_token_loss; /* token mean instead of member mean */
    int64_t loss_token_divisor;    /* a constant that replaces a member's token count; 0 = off */
    struct clime_correction_options correction;
    bool use_opsm, mask_offpolicy;
    double opsm_delta;
    bool sft;                         /* cross-entropy on the mask instead of the policy loss */
    enum clime_preference preference; /* of pairs, instead of the policy loss */
    double beta, label_smoothing, simpo_gamma;
};

#endif
