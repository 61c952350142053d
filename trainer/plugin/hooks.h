/* Shared libraries of the user (trainer/plugin/plugin.h): loading, checking, and the calls that choose among samples.
 * The only user of dlopen. The other members are called where their work is: trainer/algorithm/custom.h,
 * trainer/reward/library.h, trainer/env/hook.c.
 *
 * Opened by the loop before the learner, closed after it; called by the thread of the rollouts. A failing function ends
 * the run with its words: its result would decide the weights.
 */
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
    struct clime_plugin plugin; /* members that the library does not know are NULL */
    char *path;
    char sha256[65]; /* of the file */
    bool busy;       /* a thread is in its code and will not come back: it stays loaded */
};

/* Loads path, whose member of this kind must be there. CLIME_ERR_INPUT with the reason: no library, another ABI. */
enum clime_err clime_hook_open(const char *path, enum clime_hook_kind kind, struct clime_hook **out,
                               struct clime_error *e);
void clime_hook_close(struct clime_hook *h); /* NULL is fine */

/* What a library sees of s; borrows from it. */
struct clime_plugin_sample clime_hook_view(const struct clime_sample *s);

/* CLIME_ERR_INTERNAL: the function `what` of h failed, with its reason. */
#define CLIME_HOOK_REASON 400 /* bytes of it */
enum clime_err clime_hook_failed(const struct clime_hook *h, const char *what, const char *reason,
                                 struct clime_error *e);

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
