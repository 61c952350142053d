/* How a group meets: what rank 0 that starts the others fills in, and what all are given. */
#ifndef CLIME_COMMON_GROUP_OPTIONS_H
#define CLIME_COMMON_GROUP_OPTIONS_H

#include <stdint.h>

#include "common/group/place.h"

struct clime_group_children; /* start.h */

struct clime_group_options {
    struct clime_place place;
    int listener;                          /* rank 0: a socket that listens already; -1 = at place's address */
    struct clime_group_children *children; /* rank 0: those that it started, watched until all are here; or NULL */
    int64_t meet_limit_us;                 /* for all to come */
    int64_t limit_us;                      /* of every other wait for a rank that has something to do */
    const char *limit_option;              /* what a user sets it by, for the error at it; NULL = nothing does */
    uint64_t left_out;                     /* devices of this host, a bit each, that no rank is started on */
    int *lost;                             /* gets who has ended or not come, where that is why; or NULL */
};

#endif
