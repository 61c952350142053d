/* Samples of a group that wait for each other before they are rewarded (--group-rm).
 *
 * One thread owns it: the client's submitter. A member comes in when it is generated; the last one brings all of them
 * out. When a member comes without an answer (failed, aborted) or the rollout is stopped, those that wait come out
 * without a reward: nothing stays inside for ever.
 */
#ifndef CLIME_TRAINER_ROLLOUT_GATHER_H
#define CLIME_TRAINER_ROLLOUT_GATHER_H

#include "trainer/sample/request.h"

#define CLIME_GATHER_MOST 4096 /* members of a group */

struct clime_gather;

struct clime_gather *clime_gather_new(void);
void clime_gather_free(struct clime_gather *g); /* requests inside are forgotten; NULL is fine */

/* Takes r, of a group of r->group_size, in. Returns how many come out, r perhaps among them: into out, which has room
 * for CLIME_GATHER_MOST; *complete: they are the whole group in order of member, to be rewarded. */
int clime_gather_add(struct clime_gather *g, struct clime_request *r, struct clime_request **out, bool *complete);

/* Those that wait although their rollout is stopped come out, one group a call; 0 when there are none. */
int clime_gather_stopped(struct clime_gather *g, struct clime_request **out);

#endif
