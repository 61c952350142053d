/* Scores of an evaluation's prompts: their mean, and how far it may be off. Pure.
 *
 * The answers to one prompt hang together, so the prompt is what is counted (Miller 2024, "Adding error bars to evals",
 * sections 2.1 and 2.2: the central limit theorem over questions, clustered where a question has several answers): a
 * 95 % interval is mean +- 1.96 * sqrt(variance of the prompts' scores / n), with n - 1 in the variance.
 * A failed sample is no wrong answer: a prompt counts with the answers that have a reward. */
#ifndef CLIME_TRAINER_ROLLOUT_SCORES_H
#define CLIME_TRAINER_ROLLOUT_SCORES_H

#include "trainer/sample/sample.h"

struct clime_scores { /* over the prompts that have one */
    double mean, variance;
    int n;
};

/* samples: those of a prompt are `tries` in a row. Each prompt's score: its mean reward; */
void clime_scores_of_rewards(struct clime_sample *const *samples, int n, int tries, struct clime_scores *out);
/* or its pass@k, where it has k answers with a reward; right is a reward of exactly 1, as in slime. */
void clime_scores_of_pass(struct clime_sample *const *samples, int n, int tries, int k, struct clime_scores *out);

double clime_scores_ci95(const struct clime_scores *s); /* half the width; n > 1 */

/* Of all answers that have a reward, each the same; there is one. */
double clime_mean_scored(struct clime_sample *const *samples, int n);

/* Unbiased pass@k of n tries with c right ones: 1 - C(n - c, k) / C(n, k) (Chen et al., "Evaluating large language
 * models trained on code", 2021, equation 1). 1 <= k <= n. */
double clime_pass_at_k(int n, int c, int k);

#endif
