/* Shared libraries of the user (trainer/plugin/plugin.h): loading, checking, calling. The only user of dlopen.
 *
 * Opened by the loop before the learner, closed after it; called by the learner on the main thread, `reward` by the
 * rewarder's workers, `generate` by trainer/env/hook.c on threads of its own. A failing function on the main thread
 * ends the run with its words: its result would decide the weights.
 */
#ifndef CLIME_TRAINER_PLUGIN_HOOKS_H
#define CLIME_TRAINER_PLUGIN_HOOKS_H

#include "common/err.h"
#include "trainer/algorithm/stream.h"
#include "trainer/plugin/plugin.h"
#include "trainer/sample/chooser.h"

enum clime_hook_kind {
    CLIME_HOOK_REWARDS,
    CLIME_HOOK_ADVANTAGES,
    CLIME_HOOK_LOSS,
    CLIME_HOOK_FILTER,
    CLIME_HOOK_REWARD,
    CLIME_HOOK_GENERATE,
    CLIME_HOOK_BUFFER,
    CLIME_HOOK_SAMPLE_FILTER,
    CLIME_HOOKS
};

struct clime_hook {
    void *handle;
    struct clime_plugin plugin; /* members that the library does not know are NULL */
    char *path;
    char sha256[65]; /* of the file */
    bool busy;       /* a thread is in its code and will not come back: it stays loaded */
};

/* Loads path, whose member of this kind must be there. CLIME_ERR_INPUT with the reason: no library, another ABI. */
enum clime_err clime_hook_open(const char *path, enum clime_hook_kind kind, struct clime_hook **out,
                               struct clime_error *e);
void clime_hook_close(struct clime_hook *h); /* NULL is fine */

struct clime_hook_rollout { /* what a rollout's functions see beside the stream */
    const double *reward;   /* [n_samples] */
    const float *kl;        /* [n] or NULL */
    double kl_coef, gamma;
};

/* Rewards n answers (deadline_us on clime_now_us's scale): out[0].error says why not. Any thread. */
struct clime_reward_request;
struct clime_reward;
enum clime_err clime_hook_reward(const struct clime_hook *h, const struct clime_reward_request *q, int n,
                                 int64_t deadline_us, struct clime_reward *out);

/* Sets reward[n_samples] (in: the samples' own). */
enum clime_err clime_hook_rewards(const struct clime_hook *h, const struct clime_stream *s, double *reward,
                                  struct clime_error *e);

/* Sets s->adv. CLIME_ERR_INTERNAL when one is not finite. */
enum clime_err clime_hook_advantages(const struct clime_hook *h, const struct clime_hook_rollout *r,
                                     struct clime_stream *s, struct clime_error *e);

/* The policy term of sample i of the stream, arrays as in trainer/plugin/plugin.h. */
enum clime_err clime_hook_loss(const struct clime_hook *h, const struct clime_stream *s, int i, bool has_ref,
                               const struct clime_plugin_loss *t, double *pg, double *g, struct clime_error *e);

/* With which of n groups of `members` members each (samples, group by group) rollout `id` goes on: their numbers from 0
 * in order[*n_order], each at most once. */
enum clime_err clime_hook_buffer(const struct clime_hook *h, int64_t id, int64_t version,
                                 struct clime_sample *const *samples, int n, int members, int32_t *order, int *n_order,
                                 struct clime_error *e);

/* Sets `removed` of the n samples of a rollout; returns how many are through *n_removed. */
enum clime_err clime_hook_sample_filter(const struct clime_hook *h, int64_t rollout,
                                        struct clime_sample *const *samples, int n, int *n_removed,
                                        struct clime_error *e);

/* The verdict over a finished group of n members, each with its parts. */
enum clime_err clime_hook_filter(const struct clime_hook *h, struct clime_sample *const *members, int n,
                                 struct clime_verdict *out, struct clime_error *e);

#endif
