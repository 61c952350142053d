/* Structures shared by rollout.c (groups and their selection) and flight.c (samples in flight). Internal to these two.
 * One thread. */
#ifndef CLIME_TRAINER_ROLLOUT_ROLLOUT_INT_H
#define CLIME_TRAINER_ROLLOUT_ROLLOUT_INT_H

#include "trainer/ledger/samples.h"
#include "trainer/rollout/leftovers.h"
#include "trainer/rollout/rollout.h"
#include "trainer/sample/chooser.h"
#include "trainer/sample/filter.h"

#define CLIME_ROLLOUT_TICK_US 100000 /* polling interval of the fleet and the leases */

struct clime_slot {
    struct clime_sample *sample; /* only the client may access it while in flight */
    int64_t gathering;           /* --group-rm: number of the members rewarded together; 0 = none yet */
    bool submitted;
    bool counted; /* finished and stored */
    bool failed;
};

struct clime_leased { /* a sample under a lease */
    struct clime_request request;
    struct clime_lease lease; /* lease.sample is the sample */
    int slot;                 /* -1 = its group is gone */
    int32_t n_had;            /* response tokens before the request */
    int64_t until_us;         /* clime_now_us scale */
    bool abandoned;           /* no slot waits for it; it owns its sample */
    bool back;
};

struct clime_rollouts {
    const struct clime_rollout_context *c;
    struct clime_rollout now;     /* the rollout in progress; no samples yet */
    struct clime_chooser chooser; /* group g starts at slot g * members */
    clime_filter_fn *filter;      /* NULL = none */
    struct clime_leftovers leftovers;
    struct clime_slot *slots; /* [n_slots] group by group, including dropped ones; owned with their samples */
    int n_slots, members;
    int next;                     /* first slot that may still be submitted */
    struct clime_leased **leased; /* [n_leased], owned */
    int n_leased, n_flight, window;
    int64_t first_group; /* first group that the rollout opened; -1 = none yet */
    int n_counted;       /* in groups not dropped */
    double reward_sum;
    int n_failed, n_filtered; /* groups dropped */
    int64_t back_us;          /* last return of a request, or the first submit */
    atomic_bool stop;         /* everything in flight returns as it is */
    struct clime_metric *in_flight;
    int64_t t0, idle_us; /* idle: full, nothing in flight, and the next rollout not wanted yet */
};

static inline bool clime_rollouts_dropped(const struct clime_rollouts *r, int g) {
    return r->chooser.groups[g].decision == CLIME_DROPPED;
}

/* rollout.c: records a returned sample, answered or FAILED. Makes no selection. */
enum clime_err clime_rollouts_finished(struct clime_rollouts *r, int slot, struct clime_error *e);
void clime_rollouts_failed(struct clime_rollouts *r, int slot);

/* flight.c */
/* made_us: limit for the tokens of a leased sample. After it the lease expires once the client made no progress on any
 * sample (a reward, a teacher's answer) for graded_us. */
void clime_lease_times(const struct clime_rl_options *o, int64_t *made_us, int64_t *graded_us);
enum clime_err clime_flight_submit(struct clime_rollouts *r, struct clime_error *e); /* keeps the window full */
/* Waits for a returned sample or until_us; stores and counts it. */
enum clime_err clime_flight_collect(struct clime_rollouts *r, int64_t until_us, struct clime_error *e);
enum clime_err clime_flight_renew_expired(struct clime_rollouts *r, struct clime_error *e);
/* Updates requests in flight after groups moved (place -1 = group removed, with its samples except those in flight). */
void clime_flight_move(struct clime_rollouts *r, const int *place);
void clime_flight_free(struct clime_rollouts *r); /* requires nothing in flight */

#endif
