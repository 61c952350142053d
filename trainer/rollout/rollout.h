/* Rollout: generates, scores and stores its groups. Runs on the calling thread: the main thread, or with --async a
 * background thread that then owns client, fleet and dataset.
 *
 * Groups are submitted in dataset order, as many as trainer/sample/chooser.h allows. A group is complete when all its
 * members are finished. A group with a failed member (failure is a state, never reward 0) or rejected by the filter is
 * dropped, counted and replaced. At --rollout-batch-size groups the rollout is full and everything in flight is
 * aborted. After a restart the groups in the ledger are kept; the rest is generated.
 *
 * With --partial-rollout leftover groups stay open, keep their tokens and come first in the next rollout; otherwise
 * they are surplus.
 *
 * clime_rollout_generate makes one rollout. A struct clime_rollouts makes consecutive ones and keeps requests in flight
 * between them (--fully-async).
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
    struct clime_rollout_control *control; /* NULL = no orders */
    struct clime_fleet *fleet;
    struct clime_client *client;
    struct clime_dataset *data;
    struct clime_progress *progress;
    struct clime_alarms *alarms; /* NULL = none */
};

struct clime_rollout {
    int64_t id, version;           /* version: the fleet's, the newest if it changed meanwhile */
    bool paused;                   /* incomplete, without samples */
    struct clime_sample **samples; /* [n] of the accepted groups in order of (rollout, group, member, part); owned */
    int n;
    struct clime_drop_count *drops; /* [n_drops] owned */
    int n_drops;
    int n_left;                     /* groups not needed */
    int64_t n_stale;                /* answers rejected for their version */
    int64_t n_tries;                /* requests sent */
    int64_t n_tokens;               /* generated in this call */
    struct clime_turn_counts turns; /* of the sessions finished in this call */
    int n_ready;                    /* complete rollouts queued when the trainer took this one (--fully-async) */
    int64_t n_reset;                /* samples restarted because their tokens exceeded --max-staleness */
    int64_t n_rewards, reward_us, reward_max_us; /* time from a sample's end to its reward: sum, longest */
    int n_unrewarded, n_ungenerated;             /* samples that failed at the reward, and before it */
    int n_gpus;                                  /* devices of the servers at the end */
    int64_t time_us;
};

/* Generates rollout `id` with the weights `version`, which the fleet serves. CLIME_ERR_UNAVAILABLE with the last reason
 * if more groups failed than the rollout has, or the filter keeps dropping them; errors of fleet and ledger. */
enum clime_err clime_rollout_generate(const struct clime_rollout_context *c, int64_t id, int64_t version,
                                      struct clime_rollout *out, struct clime_error *e);
void clime_rollout_free(struct clime_rollout *r);

/* Consecutive rollouts on one thread. open resumes the ledger's open groups of rollout id and earlier, except
 * held[n_held], which belong to complete rollouts not trained on yet. Close *out after an error too. c is borrowed
 * until close. */
struct clime_rollouts;
enum clime_err clime_rollouts_open(const struct clime_rollout_context *c, int64_t id, int64_t version,
                                   const int64_t *held, int n_held, struct clime_rollouts **out, struct clime_error *e);

/* Works until rollout id (the one opened for, or the next) is full and wanted (control->last >= id). Also submits
 * groups of later wanted rollouts. *paused: not full, because of PAUSE. */
enum clime_err clime_rollouts_fill(struct clime_rollouts *r, int64_t id, bool *paused, struct clime_error *e);

/* Stops everything in flight for good and stores partial results. */
enum clime_err clime_rollouts_stop(struct clime_rollouts *r, struct clime_error *e);

/* Returns the result of the last fill; after a pause only statistics, no samples. */
enum clime_err clime_rollouts_give(struct clime_rollouts *r, struct clime_rollout *out, struct clime_error *e);
void clime_rollouts_close(struct clime_rollouts *r); /* stops the client if requests are in flight */

#endif
