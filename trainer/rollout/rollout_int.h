/* What rollout.c (groups, and which make a rollout) and flight.c (their samples under way) share. Internal to
 * the two. One thread. */
#ifndef CLIME_TRAINER_ROLLOUT_ROLLOUT_INT_H
#define CLIME_TRAINER_ROLLOUT_ROLLOUT_INT_H

#include "trainer/ledger/samples.h"
#include "trainer/rollout/leftovers.h"
#include "trainer/rollout/rollout.h"
#include "trainer/sample/chooser.h"
#include "trainer/sample/filter.h"

#define CLIME_ROLLOUT_TICK_US 100000 /* how often the fleet and the leases are looked after */

struct clime_slot {
    struct clime_sample *sample; /* while it is in flight only the worker may look inside */
    int64_t gathering;           /* --group-rm: of the members that are rewarded together; 0 = none yet */
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
    bool abandoned;           /* no slot waits for it any more; it frees its own sample */
    bool back;
};

struct clime_rollouts {
    const struct clime_rollout_context *c;
    struct clime_rollout now;     /* the one that is made; no samples yet */
    struct clime_chooser chooser; /* group g has the slots from g * members on */
    clime_filter_fn *filter;      /* NULL = none */
    struct clime_leftovers leftovers;
    struct clime_slot *slots; /* [n_slots] group by group, dropped ones too; owned with their samples */
    int n_slots, members;
    int next;                     /* no slot before it is to be submitted */
    struct clime_leased **leased; /* [n_leased], owned */
    int n_leased, n_flight, window;
    int64_t first_group; /* that the rollout opened; -1 = none yet */
    int n_counted;       /* in groups that are not dropped */
    double reward_sum;
    int n_failed, n_filtered; /* groups dropped */
    int64_t back_us;          /* when a request last came back, or the first one was sent */
    atomic_bool stop;         /* nothing more is wanted: what is in flight comes back as it is */
    struct clime_metric *in_flight;
    int64_t t0, idle_us; /* idle: it was full, nothing was in flight, and the next one was not wanted yet */
};

static inline bool clime_rollouts_dropped(const struct clime_rollouts *r, int g) {
    return r->chooser.groups[g].decision == CLIME_DROPPED;
}

/* rollout.c: a sample came back, with an answer or FAILED. Decides nothing. */
enum clime_err clime_rollouts_finished(struct clime_rollouts *r, int slot, struct clime_error *e);
void clime_rollouts_failed(struct clime_rollouts *r, int slot);

/* flight.c */
/* How long the tokens of a leased sample may take; and, once they may not take longer, how long the client may be
 * without any step of any sample (a reward, a teacher's answer) before the lease is over. */
void clime_lease_times(const struct clime_rl_options *o, int64_t *made_us, int64_t *graded_us);
enum clime_err clime_flight_submit(struct clime_rollouts *r, struct clime_error *e); /* keeps the window full */
/* Waits until something is back or until_us, stores it and counts it. */
enum clime_err clime_flight_collect(struct clime_rollouts *r, int64_t until_us, struct clime_error *e);
enum clime_err clime_flight_renew_expired(struct clime_rollouts *r, struct clime_error *e);
/* Groups have new places (-1 = gone, with their samples but those in flight): what is in flight follows. */
void clime_flight_move(struct clime_rollouts *r, const int *place);
void clime_flight_free(struct clime_rollouts *r); /* nothing is in flight any more */

#endif
