/* A remote reward: POST {"prompt", "response", "label"} to a URL, which answers a JSON number or object.
 *
 * As slime's remote_rm: up to 10 tries, min(2^k, 30) + U(0,1) s between them, on any failure (transport, status 400
 * and up, a body that is no reward); but all of it within the deadline of the call. One client a thread.
 */
#ifndef CLIME_TRAINER_REWARD_REMOTE_H
#define CLIME_TRAINER_REWARD_REMOTE_H

#include "trainer/reward/request.h"

struct clime_remote;

/* url must stay valid. stop_fd: the read end of a pipe whose closing ends any wait; -1 = none. */
struct clime_remote *clime_remote_new(const char *url, int stop_fd);
void clime_remote_free(struct clime_remote *r);

/* A group: POST [{"prompt", "response", "label"}, ...], which answers a JSON array of n rewards; q and out are of n. */
enum clime_err clime_remote_grade_group(struct clime_remote *r, const struct clime_reward_request *q, int n,
                                        const char *reward_key, int64_t deadline_us, struct clime_reward *out);

/* TIMEOUT when the deadline passed, UNAVAILABLE after the last try, ABORTED on stop; the message tells the last
 * failure. Returns out->error.code. */
enum clime_err clime_remote_grade(struct clime_remote *r, const struct clime_reward_request *q, const char *reward_key,
                                  int64_t deadline_us, struct clime_reward *out);

#endif
