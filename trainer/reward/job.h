/* Answers on their way through the rewarder: one, or those of a group, with what is known of them and what became of
 * each. Whoever has one in hand owns it; lists of them are the rewarder's, under its lock. */
#ifndef CLIME_TRAINER_REWARD_JOB_H
#define CLIME_TRAINER_REWARD_JOB_H

#include "trainer/reward/request.h"

struct clime_reward_job {
    struct clime_reward_job *next_waiting, *next_out;
    int n, given;                   /* answers; those taken. given < n */
    void **tag;                     /* [n] */
    struct clime_reward_request *q; /* [n] slices of bytes */
    struct clime_reward *reward;    /* [n] */
    char *bytes;                    /* prompts, responses, labels, metadata */
    char type[CLIME_REWARD_NAME];
    bool is_group, done, is_known; /* is_known: has its error from the start */
};

/* Of n answers that nothing is known of, with room for so many bytes. */
struct clime_reward_job *clime_reward_job_new(int n, size_t bytes);
/* Of copies of q[n], which are of the type that q[0] names, else of `type`; NULL = of none. */
struct clime_reward_job *clime_reward_job_copy(const struct clime_reward_request *q, void *const *tags, int n,
                                               const char *type);
void clime_reward_job_free(struct clime_reward_job *j); /* with the rewards that nobody took */

#endif
