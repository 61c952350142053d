/* Rewarder: grades in the background with a few worker threads for all reward types, a deadline per call, and results
 * as they complete or in submission order.
 *
 * One thread submits, one thread (maybe the same) takes results. Each worker owns its child process and HTTP client,
 * created on first use. A call past its deadline becomes an error: a child is killed, a connection closed, a thread in
 * a library's function abandoned and replaced. */
#ifndef CLIME_TRAINER_REWARD_REWARDER_H
#define CLIME_TRAINER_REWARD_REWARDER_H

#include "trainer/reward/request.h"
#include "trainer/reward/rewarder_options.h"

struct clime_rewarder;

/* Errors as in clime_rewarder_check. Requires clime_http_client_global_init. */
enum clime_err clime_rewarder_new(const struct clime_rewarder_options *o, struct clime_rewarder **out,
                                  struct clime_error *e);
/* Stops: calls in flight are aborted, results not taken are dropped, children end. A library whose function does not
 * return soon stays loaded (busy). NULL is fine. */
void clime_rewarder_free(struct clime_rewarder *r);

/* Copies q (type NULL: the rewarder's). tag is returned with the result. CLIME_ERR_BUSY at max_pending. */
enum clime_err clime_rewarder_submit(struct clime_rewarder *r, const struct clime_reward_request *q, void *tag,
                                     struct clime_error *e);
/* Submits n answers to one prompt as a group: graded together if the type is a command, URL or library, else one by
 * one. Their n results with tags are returned in sequence. If the call fails all have its error. */
enum clime_err clime_rewarder_submit_group(struct clime_rewarder *r, const struct clime_reward_request *q,
                                           void *const *tags, int n, struct clime_error *e);
/* Submits a known error as a result, in order with the others. */
enum clime_err clime_rewarder_submit_error(struct clime_rewarder *r, const struct clime_error *why, void *tag,
                                           struct clime_error *e);

/* Returns the next result; the caller owns out. False when the deadline (clime_now_us scale; < 0 = none) passes, or
 * nothing is pending after clime_rewarder_finish. */
bool clime_rewarder_next(struct clime_rewarder *r, int64_t deadline_us, void **tag, struct clime_reward *out);
void clime_rewarder_finish(struct clime_rewarder *r); /* no more submissions */
bool clime_rewarder_ready(struct clime_rewarder *r);  /* clime_rewarder_next would not block */
/* Waits until fewer than max_pending are pending. */
void clime_rewarder_wait_room(struct clime_rewarder *r);

#endif
