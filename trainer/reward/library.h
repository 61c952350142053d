/* Rewards from a user's shared library (--custom-rm-path; trainer/plugin/plugin.h). Any thread, several at a time. */
#ifndef CLIME_TRAINER_REWARD_LIBRARY_H
#define CLIME_TRAINER_REWARD_LIBRARY_H

#include "trainer/reward/request.h"

struct clime_hook;

/* Rewards n answers (deadline_us on the clime_now_us scale); the error is in out[0].error. Any thread. */
enum clime_err clime_library_reward(const struct clime_hook *h, const struct clime_reward_request *q, int n,
                                    int64_t deadline_us, struct clime_reward *out);

#endif
