/* Judge: grades answers of all reward types on one thread, with its own command and HTTP client, created on first use.
 * Internal to rewarder.c. */
#ifndef CLIME_TRAINER_REWARD_JUDGE_H
#define CLIME_TRAINER_REWARD_JUDGE_H

#include "trainer/reward/command.h"
#include "trainer/reward/remote.h"
#include "trainer/reward/rewarder_options.h"

struct clime_judge {
    const struct clime_rewarder_options *o; /* valid until the judge is lost */
    int stop_fd;                            /* ends waits inside a call */
    /* Called around each library call, which cannot be stopped. leave: false if the thread was abandoned meanwhile. */
    void (*enter)(void *arg, int64_t deadline_us);
    bool (*leave)(void *arg);
    void *arg;
    struct clime_command *command; /* NULL until needed; freed by clime_judge_close */
    struct clime_remote *remote;
    bool lost; /* out: the thread was abandoned, so its job must be freed */
};

/* Grades n answers to one prompt, together if is_group and the type supports it. q holds the type's name meanwhile. */
void clime_judge_grade(struct clime_judge *o, struct clime_reward_request *q, int n, bool is_group,
                       struct clime_reward *out);
/* Grades n answers in one call of the command; all are of its type (clime_judge_is_command). */
void clime_judge_grade_batch(struct clime_judge *o, struct clime_reward_request *q, int n, struct clime_reward *out);
/* True when the command grades the answer directly: no weighted sum, no boxed_, no library for all types. */
bool clime_judge_is_command(const struct clime_judge *o, const struct clime_reward_request *q);
void clime_judge_close(struct clime_judge *o);

#endif
