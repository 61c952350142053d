/* Ranks that rank 0 starts by itself on its own host: this program again, with the variables of place.h.
 * Rank 0's main thread. */
#ifndef CLIME_COMMON_GROUP_START_H
#define CLIME_COMMON_GROUP_START_H

#include "common/group/options.h"

/* Starts ranks 1..world-1 with argv (argv[0] is this program's file), on devices that o->left_out has not, and fills o
 * with what rank 0 meets them with.
 * log_dir: output goes to rank-N.log there; NULL = where ours goes. They end with us, however we end. */
enum clime_err clime_group_start(int world, const char *const *argv, const char *log_dir, struct clime_group_options *o,
                                 struct clime_error *e);
void clime_group_stop(struct clime_group_children *c); /* kills those that run; NULL is fine */

/* CLIME_ERR_UNAVAILABLE names one that has ended and says how, once; *lost: its rank. */
enum clime_err clime_group_children_check(struct clime_group_children *c, int *lost, struct clime_error *e);

/* For a started rank, at its start: it is killed when rank 0 ends, even where it is stopped or waits for a device. */
enum clime_err clime_group_end_with_parent(struct clime_error *e);

#endif
