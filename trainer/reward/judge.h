/* What grades on one thread: all types, those outside this process with a client of their own, made when first needed.
 * Internal to rewarder.c.
 */
#ifndef CLIME_TRAINER_REWARD_JUDGE_H
#define CLIME_TRAINER_REWARD_JUDGE_H

#include "trainer/reward/command.h"
#include "trainer/reward/remote.h"
#include "trainer/reward/rewarder_options.h"

struct clime_judge {
    const struct clime_rewarder_options *o; /* valid until the judge is lost */
    int stop_fd;                            /* ends waits inside a call */
    /* Around each call of a library, which cannot be stopped. leave: false when the thread was given up meanwhile. */
    void (*enter)(void *arg, int64_t deadline_us);
    bool (*leave)(void *arg);
    void *arg;
    struct clime_command *command; /* NULL until needed; closed by clime_judge_close */
    struct clime_remote *remote;
    bool lost; /* out: nobody waits for what is being graded, which is to be freed */
};

/* Grades n answers to one prompt, together where is_group and the type can. q gets the type's name while it runs. */
void clime_judge_grade(struct clime_judge *o, struct clime_reward_request *q, int n, bool is_group,
                       struct clime_reward *out);
/* Grades n answers in one call of the command; all are of its type (clime_judge_is_command). */
void clime_judge_grade_batch(struct clime_judge *o, struct clime_reward_request *q, int n, struct clime_reward *out);
/* Whether the answer goes to the command as it is: no sum, no box, and no library that rewards all. */
bool clime_judge_is_command(const struct clime_judge *o, const struct clime_reward_request *q);
void clime_judge_close(struct clime_judge *o);

#endif
