/* Starts the other ranks on rank 0's host: this program again, with the variables of place.h. Rank 0's main thread. */
#ifndef CLIME_COMMON_GROUP_START_H
#define CLIME_COMMON_GROUP_START_H

#include "common/group/options.h"

/* Starts ranks 1..world-1 with argv (argv[0] is this program's file) on devices not in o->left_out, and fills o with
 * what rank 0 needs to meet them. log_dir: of rank-N.log, their output; NULL = ours. They end with us in any case. */
enum clime_err clime_group_start(int world, const char *const *argv, const char *log_dir, struct clime_group_options *o,
                                 struct clime_error *e);
void clime_group_stop(struct clime_group_children *c); /* kills running ranks; NULL is fine */

/* CLIME_ERR_UNAVAILABLE names, once, a rank that ended and how; *lost: its rank. */
enum clime_err clime_group_children_check(struct clime_group_children *c, int *lost, struct clime_error *e);

/* Call at the start of a started rank: it is killed when rank 0 ends, even while stopped or waiting for a device. */
enum clime_err clime_group_end_with_parent(struct clime_error *e);

#endif
