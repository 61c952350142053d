/* A reward command: a child process that answers one JSON line for each JSON line.
 *
 *   to it    {"id": 7, "prompt": ..., "response": "...", "label": ..., "metadata": {...}}
 *   from it  {"id": 7, "reward": 1.0}  or  {"id": 7, "reward": {"score": 1}}  or  {"id": 7, "error": "why"}
 *
 * The child is started at the first call and again after it died, hung or broke the protocol; it runs in a process
 * group of its own, which is killed as a whole. Its standard error is ours. It should end at the end of its input.
 * A clime_command belongs to one thread.
 */
#ifndef CLIME_TRAINER_REWARD_COMMAND_H
#define CLIME_TRAINER_REWARD_COMMAND_H

#include "trainer/reward/request.h"

struct clime_command;

/* line: run by /bin/sh; must stay valid. stop_fd: the read end of a pipe whose closing ends any wait; -1 = none. */
struct clime_command *clime_command_new(const char *line, int stop_fd);
void clime_command_free(struct clime_command *c); /* closes its input, waits a moment, kills */

/* A group's question: {"id": 7, "group": [{"prompt", "response", "label", "metadata"}, ...]}, and its answer
 * {"id": 7, "rewards": [1.0, ...]}; q and out are of n. */
enum clime_err clime_command_grade_group(struct clime_command *c, const struct clime_reward_request *q, int n,
                                         const char *reward_key, int64_t deadline_us, struct clime_reward *out);

/* Questions that have nothing to do with each other in one line: {"id": 7, "batch": [{"prompt", ...}, ...]}, and its
 * answer {"id": 7, "answers": [{"reward": 1.0}, {"error": "why"}, ...]}: each has its own. When the call itself fails
 * out[0].error says why and the others have no reward. */
enum clime_err clime_command_grade_batch(struct clime_command *c, const struct clime_reward_request *q, int n,
                                         const char *reward_key, int64_t deadline_us, struct clime_reward *out);

/* One question and its answer. deadline_us on clime_now_us's scale. On error the child is gone: TIMEOUT (deadline),
 * UNAVAILABLE (it could not be started or died), INTERNAL (it broke the protocol), ABORTED (stop), INPUT (its own
 * "error", the child lives on). Returns out->error.code. */
enum clime_err clime_command_grade(struct clime_command *c, const struct clime_reward_request *q,
                                   const char *reward_key, int64_t deadline_us, struct clime_reward *out);

#endif
