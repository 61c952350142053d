/* Reward command: a child process that answers each JSON line with one JSON line.
 *
 *   to it    {"id": 7, "prompt": ..., "response": "...", "label": ..., "metadata": {...}}
 *   from it  {"id": 7, "reward": 1.0}  or  {"id": 7, "reward": {"score": 1}}  or  {"id": 7, "error": "why"}
 *
 * The child is started at the first call, and restarted after it died, hung or broke the protocol. It has its own
 * process group, which is killed as a whole, and inherits standard error. It should end at the end of its input. A
 * clime_command belongs to one thread. */
#ifndef CLIME_TRAINER_REWARD_COMMAND_H
#define CLIME_TRAINER_REWARD_COMMAND_H

#include "trainer/reward/request.h"

struct clime_command;

/* line: run by /bin/sh; must stay valid. stop_fd: read end of a pipe whose closing ends any wait; -1 = none. */
struct clime_command *clime_command_new(const char *line, int stop_fd);
void clime_command_free(struct clime_command *c); /* closes its input, waits a moment, kills */

/* Grades a group: {"id": 7, "group": [{"prompt", "response", "label", "metadata"}, ...]}, answered by {"id": 7,
 * "rewards": [1.0, ...]}; q[n], out[n]. */
enum clime_err clime_command_grade_group(struct clime_command *c, const struct clime_reward_request *q, int n,
                                         const char *reward_key, int64_t deadline_us, struct clime_reward *out);

/* Grades unrelated answers in one line: {"id": 7, "batch": [{"prompt", ...}, ...]}, answered by {"id": 7, "answers":
 * [{"reward": 1.0}, {"error": "why"}, ...]}, one for each. If the call itself fails out[0].error has the reason and the
 * others no reward. */
enum clime_err clime_command_grade_batch(struct clime_command *c, const struct clime_reward_request *q, int n,
                                         const char *reward_key, int64_t deadline_us, struct clime_reward *out);

/* Grades one answer. deadline_us on the clime_now_us scale. Errors: TIMEOUT (deadline), UNAVAILABLE (not started, or
 * died), INTERNAL (protocol broken), ABORTED (stop): the child is gone; INPUT (its own "error"): it lives on. Returns
 * out->error.code. */
enum clime_err clime_command_grade(struct clime_command *c, const struct clime_reward_request *q,
                                   const char *reward_key, int64_t deadline_us, struct clime_reward *out);

#endif
