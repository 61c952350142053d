/* Custom algorithms: rewards, advantages and the policy term from a user's shared library (trainer/plugin/plugin.h).
 * Main thread. A failing function ends the run with its message: its result would affect the weights. */
#ifndef CLIME_TRAINER_ALGORITHM_CUSTOM_H
#define CLIME_TRAINER_ALGORITHM_CUSTOM_H

#include "common/err.h"
#include "trainer/algorithm/stream.h"
#include "trainer/plugin/hooks.h"

struct clime_custom_rollout { /* input of a rollout's functions beside the stream */
    const double *reward;     /* [n_samples] */
    const float *kl;          /* [n] or NULL */
    double kl_coef, gamma;
};

/* Sets reward[n_samples]; on entry the samples' own. */
enum clime_err clime_custom_rewards(const struct clime_hook *h, const struct clime_stream *s, double *reward,
                                    struct clime_error *e);

/* Sets s->adv; values may be non-finite. */
enum clime_err clime_custom_advantages(const struct clime_hook *h, const struct clime_custom_rollout *r,
                                       struct clime_stream *s, struct clime_error *e);

/* Computes the policy term of sample i of the stream; arrays as in trainer/plugin/plugin.h. */
enum clime_err clime_custom_loss(const struct clime_hook *h, const struct clime_stream *s, int i, bool has_ref,
                                 const struct clime_plugin_loss *t, double *pg, double *g, struct clime_error *e);

#endif
