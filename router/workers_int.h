/* Private to workers.c (the table) and choose.c (who gets a request). */
#ifndef CLIME_ROUTER_WORKERS_INT_H
#define CLIME_ROUTER_WORKERS_INT_H

#include <pthread.h>

#include "router/policy/placements.h"
#include "router/workers.h"

struct worker {
    struct clime_worker_view v;
    int fails_in_row, oks_in_row;      /* of probes and requests */
    int silences_in_row;               /* of probes alone */
    int64_t silent_since_us;           /* see clime_workers_silent_since */
    int64_t pause_us, paused_until_us; /* after trials that failed */
    int64_t trial_us;                  /* when its trial's request began */
};

struct clime_workers {
    pthread_mutex_t lock;
    struct clime_workers_options opts;
    struct worker w[CLIME_WORKERS_MAX];
    struct clime_placements *sessions, *prefixes; /* of slot and id as one number */
    char version[CLIME_LABEL_SIZE];               /* the fleet's; empty = none */
    int64_t next_id;
    uint64_t turn;

    /* of one pick: too large for a stack */
    struct clime_worker_view *ready[CLIME_WORKERS_MAX];
    int16_t at_of_slot[CLIME_WORKERS_MAX]; /* index in ready, -1 = not there */
};

#endif
