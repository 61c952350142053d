/* Upper bound of host memory for a job's log-probabilities, sampling masks and routed experts, before it runs. Any
 * thread. */
#ifndef CLIME_SERVER_JOB_LOGPROB_COST_H
#define CLIME_SERVER_JOB_LOGPROB_COST_H

#include "server/job/job.h"

/* Bytes stored and written into the reply if every output reaches its maximum length. */
int64_t clime_logprob_cost(const struct clime_job *j);

/* Bytes of their text in one piece of the reply: a stream event has one output, a reply has all. */
int64_t clime_logprob_text(const struct clime_job *j);

#endif
