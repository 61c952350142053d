/* Collects the samples of a group that are rewarded together (--group-rm).
 *
 * Owned by one thread, the client's submitter. A member is added once generated; the last one releases the group. If a
 * member failed or was aborted, or the rollout is stopped, the waiting members are released without a reward: none
 * waits forever.
 */
#ifndef CLIME_TRAINER_ROLLOUT_GATHER_H
#define CLIME_TRAINER_ROLLOUT_GATHER_H

#include "trainer/sample/request.h"

#define CLIME_GATHER_MOST 4096 /* maximum members of a group */

struct clime_gather;

struct clime_gather *clime_gather_new(void);
void clime_gather_free(struct clime_gather *g); /* drops its requests without freeing them; NULL is fine */

/* Adds r, of a group of r->group_size. Returns the number of requests released into out (room for CLIME_GATHER_MOST),
 * which may include r. *complete: they are the whole group in member order, to be rewarded. */
int clime_gather_add(struct clime_gather *g, struct clime_request *r, struct clime_request **out, bool *complete);

/* Releases the waiting members of a stopped rollout, one group per call; 0 if none. */
int clime_gather_stopped(struct clime_gather *g, struct clime_request **out);

#endif
