/* One rollout: the groups that make it, generated, scored and stored. On the thread that asks for it: the main thread,
 * or with --async one beside it, which then has client, fleet and dataset to itself.
 *
 * Groups are submitted in dataset order, as many as trainer/sample/chooser.h says. A group is complete when all its
 * members are finished. A group with a failed member is dropped and counted (failure is a state, never reward 0), and
 * so is one that the filter does not want; others take their place. The rollout is full with --rollout-batch-size
 * groups: then what is in flight is aborted. What the ledger holds of the rollout already (after a restart) is kept;
 * the rest is generated.
 *
 * With --partial-rollout the groups that are left over stay open, with the tokens they have, and come first in the next
 * rollout; without it they are surplus.
 *
 * clime_rollout_generate makes one, from the ledger to its end. A struct clime_rollouts makes one after another without
 * stopping what is in flight between them (--fully-async).
 */
#ifndef CLIME_TRAINER_ROLLOUT_ROLLOUT_H
#define CLIME_TRAINER_ROLLOUT_ROLLOUT_H

#include "trainer/data/data.h"
#include "trainer/fleet/fleet.h"
#include "trainer/ledger/groups.h"
#include "trainer/ledger/runs.h"
#include "trainer/options/rl_options.h"
#include "trainer/rollout/client.h"
#include "trainer/rollout/control.h"
#include "trainer/watch/alarms.h"
#include "trainer/watch/progress.h"

struct clime_rollout_context { /* all borrowed */
    const struct clime_rl_options *o;
    const struct clime_run *run;
    struct clime_ledger *ledger;
    struct clime_db *db;                   /* the calling thread's reading connection */
    struct clime_rollout_control *control; /* NULL = no orders come */
    struct clime_fleet *fleet;
    struct clime_client *client;
    struct clime_dataset *data;
    struct clime_progress *progress;
    struct clime_alarms *alarms; /* NULL = none */
};

struct clime_rollout {
    int64_t id, version;           /* version: the fleet's; the newest where it got others meanwhile */
    bool paused;                   /* it is not complete; there are no samples */
    struct clime_sample **samples; /* [n] of the accepted groups in order of (rollout, group, member, part); owned */
    int n;
    struct clime_drop_count *drops; /* [n_drops] owned */
    int n_drops;
    int n_left;                     /* groups that were not needed */
    int64_t n_stale;                /* answers of another version that were refused */
    int64_t n_tries;                /* requests sent */
    int64_t n_tokens;               /* generated now */
    struct clime_turn_counts turns; /* of the sessions that came back now */
    int n_ready;                    /* rollouts that were complete when the trainer came for this one (--fully-async) */
    int64_t n_reset;                /* samples begun anew because their tokens were over --max-staleness */
    int64_t n_rewards, reward_us, reward_max_us; /* from the end of a sample to its reward: sum, longest */
    int n_unrewarded, n_ungenerated;             /* samples that failed: at their reward, before */
    int n_gpus;                                  /* of the servers, at its end */
    int64_t time_us;
};

/* Generates rollout `id` with the weights `version`, which the fleet serves. CLIME_ERR_UNAVAILABLE when more groups
 * failed than the rollout has, with the last reason, or its filter goes on dropping them; errors of fleet and ledger.
 */
enum clime_err clime_rollout_generate(const struct clime_rollout_context *c, int64_t id, int64_t version,
                                      struct clime_rollout *out, struct clime_error *e);
void clime_rollout_free(struct clime_rollout *r);

/* Several in a row, on one thread. open: takes over what the ledger holds of rollout id and of those before it, but for
 * the groups held[n_held], which are in rollouts that are complete and not trained on yet. *out is there to be closed
 * after an error too. c is borrowed until close. */
struct clime_rollouts;
enum clime_err clime_rollouts_open(const struct clime_rollout_context *c, int64_t id, int64_t version,
                                   const int64_t *held, int n_held, struct clime_rollouts **out, struct clime_error *e);

/* Works until rollout id (the one it was opened for, or the next after the last) is full, and wanted: control->last is
 * not below it. Groups of wanted rollouts that follow are submitted too. *paused: it is not full, by order of PAUSE. */
enum clime_err clime_rollouts_fill(struct clime_rollouts *r, int64_t id, bool *paused, struct clime_error *e);

/* Stops what is in flight, for good, and stores how far it came. */
enum clime_err clime_rollouts_stop(struct clime_rollouts *r, struct clime_error *e);

/* What the fill before it has made; after a paused one no samples, only what was done so far. */
enum clime_err clime_rollouts_give(struct clime_rollouts *r, struct clime_rollout *out, struct clime_error *e);
void clime_rollouts_close(struct clime_rollouts *r); /* a client with requests in flight is stopped for it */

#endif
