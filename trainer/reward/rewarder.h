/* Rewards in the background: a few worker threads in front of all reward types, a deadline for each call, results as
 * they are ready, or in the order asked.
 *
 * One thread submits, one thread takes results (it may be the same). Each worker owns its child process and its HTTP
 * client, made when first needed. A call that passes its deadline becomes an error state, whoever serves it: a child is
 * killed, a connection closed, a thread in a library's function left to itself and replaced.
 */
#ifndef CLIME_TRAINER_REWARD_REWARDER_H
#define CLIME_TRAINER_REWARD_REWARDER_H

#include "trainer/reward/request.h"
#include "trainer/reward/rewarder_options.h"

struct clime_rewarder;

/* What clime_rewarder_check says; clime_http_client_global_init has been called. */
enum clime_err clime_rewarder_new(const struct clime_rewarder_options *o, struct clime_rewarder **out,
                                  struct clime_error *e);
/* Stops: calls in flight are aborted, results not taken are dropped, children end. A library whose function does not
 * return within a moment stays loaded (busy). NULL is fine. */
void clime_rewarder_free(struct clime_rewarder *r);

/* Copies q (its type NULL: the rewarder's). tag comes back with the result. CLIME_ERR_BUSY at max_pending. */
enum clime_err clime_rewarder_submit(struct clime_rewarder *r, const struct clime_reward_request *q, void *tag,
                                     struct clime_error *e);
/* One place for a group of n answers to one prompt, graded together where the type is a command, URL or
 * library, else one by one; n results with their tags come one after the other. When the call fails all have its error.
 */
enum clime_err clime_rewarder_submit_group(struct clime_rewarder *r, const struct clime_reward_request *q,
                                           void *const *tags, int n, struct clime_error *e);
/* A result that is an error known already, in its place among the others. */
enum clime_err clime_rewarder_submit_error(struct clime_rewarder *r, const struct clime_error *why, void *tag,
                                           struct clime_error *e);

/* The next result; out belongs to the caller. false when the deadline (clime_now_us's
 * scale; < 0 = none) passes, or nothing is pending and nothing more will come (clime_rewarder_finish). */
bool clime_rewarder_next(struct clime_rewarder *r, int64_t deadline_us, void **tag, struct clime_reward *out);
void clime_rewarder_finish(struct clime_rewarder *r); /* nothing more will be submitted */
bool clime_rewarder_ready(struct clime_rewarder *r);  /* clime_rewarder_next would not wait for a result */
/* Waits until fewer than max_pending are pending. */
void clime_rewarder_wait_room(struct clime_rewarder *r);

#endif
