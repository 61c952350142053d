/* Plugin loader: the user's shared libraries (trainer/plugin/plugin.h), their checks, and the calls that select
 * samples. The only user of dlopen. Other members are called from trainer/algorithm/custom.h, trainer/reward/library.h
 * and trainer/env/hook.c.
 *
 * Opened by the loop before the learner, closed after it; called by the rollout thread. A failing function ends the run
 * with its message: its result would affect the weights. */
#ifndef CLIME_TRAINER_PLUGIN_HOOKS_H
#define CLIME_TRAINER_PLUGIN_HOOKS_H

#include "common/err.h"
#include "trainer/plugin/plugin.h"
#include "trainer/sample/chooser.h"
#include "trainer/sample/sample.h"

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
    struct clime_plugin plugin; /* members unknown to the library are NULL */
    char *path;
    char sha256[65]; /* of the file */
    bool busy;       /* a thread is stuck in its code: it stays loaded */
};

/* Loads path, which must have the member of this kind. CLIME_ERR_INPUT with the reason: not a library, another ABI. */
enum clime_err clime_hook_open(const char *path, enum clime_hook_kind kind, struct clime_hook **out,
                               struct clime_error *e);
void clime_hook_close(struct clime_hook *h); /* NULL is fine */

/* The library's view of s; borrows from it. */
struct clime_plugin_sample clime_hook_view(const struct clime_sample *s);

/* Returns CLIME_ERR_INTERNAL: the function `what` of h failed, with its reason. */
#define CLIME_HOOK_REASON 400 /* bytes */
enum clime_err clime_hook_failed(const struct clime_hook *h, const char *what, const char *reason,
                                 struct clime_error *e);

/* Selects which of n groups of `members` members each (samples, by group) rollout `id` resumes: their indices in
 * order[*n_order], each at most once. */
enum clime_err clime_hook_buffer(const struct clime_hook *h, int64_t id, int64_t version,
                                 struct clime_sample *const *samples, int n, int members, int32_t *order, int *n_order,
                                 struct clime_error *e);

/* Sets `removed` of a rollout's n samples; *n_removed: how many. */
enum clime_err clime_hook_sample_filter(const struct clime_hook *h, int64_t rollout,
                                        struct clime_sample *const *samples, int n, int *n_removed,
                                        struct clime_error *e);

/* The verdict on a finished group of n members, each with its parts. */
enum clime_err clime_hook_filter(const struct clime_hook *h, struct clime_sample *const *members, int n,
                                 struct clime_verdict *out, struct clime_error *e);

#endif
