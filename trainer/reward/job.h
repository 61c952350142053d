/* Rewarder job: one answer or a group's, with its requests and results. Owned by the thread that holds it; jobs in
 * lists belong to the rewarder, under its lock. */
#ifndef CLIME_TRAINER_REWARD_JOB_H
#define CLIME_TRAINER_REWARD_JOB_H

#include "trainer/reward/request.h"

struct clime_reward_job {
    struct clime_reward_job *next_waiting, *next_out;
    int n, given;                   /* answers; results taken, given < n */
    void **tag;                     /* [n] */
    struct clime_reward_request *q; /* [n] slices of bytes */
    struct clime_reward *reward;    /* [n] */
    char *bytes;                    /* prompts, responses, labels, metadata */
    char type[CLIME_REWARD_NAME];
    bool is_group, done, is_known; /* is_known: the error was submitted */
};

/* A job of n empty answers, with room for `bytes` bytes. */
struct clime_reward_job *clime_reward_job_new(int n, size_t bytes);
/* A job with copies of q[n], of the type in q[0], else of `type`; NULL = no type. */
struct clime_reward_job *clime_reward_job_copy(const struct clime_reward_request *q, void *const *tags, int n,
                                               const char *type);
void clime_reward_job_free(struct clime_reward_job *j); /* frees untaken rewards too */

#endif
