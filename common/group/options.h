/* Options of a group's rendezvous. */
#ifndef CLIME_COMMON_GROUP_OPTIONS_H
#define CLIME_COMMON_GROUP_OPTIONS_H

#include <stdint.h>

#include "common/group/place.h"

struct clime_group_children; /* start.h */

struct clime_group_options {
    struct clime_place place;
    int listener;                          /* rank 0: a listening socket; -1 = open one at place's address */
    struct clime_group_children *children; /* rank 0: the ranks it started, watched until all have met; or NULL */
    int64_t meet_limit_us;                 /* for the rendezvous */
    int64_t limit_us;                      /* of every other wait for a busy rank */
    const char *limit_option;              /* the option that sets limit_us, for its error; NULL = none */
    uint64_t left_out;                     /* bit mask of this host's devices that get no rank */
    int *lost; /* gets the rank that ended or did not connect, if that is the cause; or NULL */
};

#endif
