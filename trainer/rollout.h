/* One rollout: the groups that make it, generated, scored and stored. Main thread.
 *
 * Groups are taken in dataset order. A group is complete when all its members are finished; a group with a failed
 * member is dropped and counted (failure is a state, never reward 0) and the next prompt of the dataset takes its
 * place. What the ledger holds of the rollout already (after a restart) is kept; the rest is generated.
 */
#ifndef CLIME_TRAINER_ROLLOUT_H
#define CLIME_TRAINER_ROLLOUT_H

#include "trainer/data.h"
#include "trainer/fleet.h"
#include "trainer/ledger/runs.h"
#include "trainer/progress.h"
#include "trainer/rollout_client.h"

struct clime_rollout_context { /* all borrowed */
    const struct clime_rl_options *o;
    const struct clime_run *run;
    struct clime_ledger *ledger;
    struct clime_fleet *fleet;
    struct clime_client *client;
    int n_threads; /* of the client */
    struct clime_dataset *data;
    struct clime_progress *progress;
};

struct clime_rollout {
    int64_t id, version;
    struct clime_sample **samples; /* [n] complete groups in order of (group, member); owned */
    int n;
    int n_dropped;    /* groups, of this rollout in all */
    int n_kept;       /* samples that the ledger held already */
    int64_t n_stale;  /* answers of another version that were refused */
    int64_t n_tries;  /* requests sent */
    int64_t n_tokens; /* generated now */
    int64_t time_us;
};

/* Generates rollout `id` with the weights `version`, which the fleet serves. CLIME_ERR_UNAVAILABLE when more groups
 * failed than the rollout has, with the last reason; errors of fleet and ledger. */
enum clime_err clime_rollout_generate(const struct clime_rollout_context *c, int64_t id, int64_t version,
                                      struct clime_rollout *out, struct clime_error *e);
void clime_rollout_free(struct clime_rollout *r);

#endif
