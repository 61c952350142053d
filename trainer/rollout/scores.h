/* Mean score of an evaluation's prompts and its confidence interval. Pure.
 *
 * The answers to one prompt are correlated, so prompts are counted (Miller 2024, "Adding error bars to evals",
 * sections 2.1 and 2.2: the central limit theorem over questions, clustered if a question has several answers): a 95 %
 * interval is mean +- 1.96 * sqrt(variance of the prompts' scores / n), with n - 1 in the variance. A failed sample is
 * not a wrong answer: a prompt counts with its rewarded answers. */
#ifndef CLIME_TRAINER_ROLLOUT_SCORES_H
#define CLIME_TRAINER_ROLLOUT_SCORES_H

#include "trainer/sample/sample.h"

struct clime_scores { /* over the prompts with a score */
    double mean, variance;
    int n;
};

/* samples: `tries` consecutive ones per prompt. A prompt's score is its mean reward; */
void clime_scores_of_rewards(struct clime_sample *const *samples, int n, int tries, struct clime_scores *out);
/* or its pass@k, if it has k rewarded answers; correct means a reward of exactly 1, as in slime. */
void clime_scores_of_pass(struct clime_sample *const *samples, int n, int tries, int k, struct clime_scores *out);

double clime_scores_ci95(const struct clime_scores *s); /* half the width; n > 1 */

/* Mean reward of all rewarded answers, equally weighted; there must be one. */
double clime_mean_scored(struct clime_sample *const *samples, int n);

/* Unbiased pass@k of n tries, c of them correct: 1 - C(n - c, k) / C(n, k) (Chen et al., "Evaluating large language
 * models trained on code", 2021, equation 1). 1 <= k <= n. */
double clime_pass_at_k(int n, int c, int k);

#endif
