/* Remote reward: POST {"prompt", "response", "label"} to a URL, which answers a JSON number or object.
 *
 * Like slime's remote_rm: up to 10 tries, min(2^k, 30) + U(0,1) s apart, on any failure (transport, status 400 and up,
 * a body that is not a reward), but within the call's deadline. One client per thread. */
#ifndef CLIME_TRAINER_REWARD_REMOTE_H
#define CLIME_TRAINER_REWARD_REMOTE_H

#include "trainer/reward/request.h"

struct clime_remote;

/* url must stay valid. stop_fd: read end of a pipe whose closing ends any wait; -1 = none. */
struct clime_remote *clime_remote_new(const char *url, int stop_fd);
void clime_remote_free(struct clime_remote *r);

/* Grades a group: POST [{"prompt", "response", "label"}, ...], answered by a JSON array of n rewards; q[n], out[n]. */
enum clime_err clime_remote_grade_group(struct clime_remote *r, const struct clime_reward_request *q, int n,
                                        const char *reward_key, int64_t deadline_us, struct clime_reward *out);

/* TIMEOUT: the deadline passed. UNAVAILABLE: the last try failed. ABORTED: stopped. The message has the last failure.
 * Returns out->error.code. */
enum clime_err clime_remote_grade(struct clime_remote *r, const struct clime_reward_request *q, const char *reward_key,
                                  int64_t deadline_us, struct clime_reward *out);

#endif
