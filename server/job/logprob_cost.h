/* What the log-probabilities of a job, sampling masks and routed experts may take of host memory, known before it runs.
 * Any thread. */
#ifndef CLIME_SERVER_JOB_LOGPROB_COST_H
#define CLIME_SERVER_JOB_LOGPROB_COST_H

#include "server/job/job.h"

/* Bytes, held and written into the reply, if every output grows as long as it may. */
int64_t clime_logprob_cost(const struct clime_job *j);

/* Bytes of text that they may be in one piece of the reply: an event of a stream has one output, a reply has all. */
int64_t clime_logprob_text(const struct clime_job *j);

#endif
