/* The jobs in flight, by request id: refuses duplicates and finds what an abort names. Any thread; one lock. */
#ifndef CLIME_SERVER_JOB_JOB_TABLE_H
#define CLIME_SERVER_JOB_JOB_TABLE_H

#include "server/job/job.h"

struct clime_job_table {
    pthread_mutex_t lock;
    struct clime_job *first;
};

void clime_job_table_init(struct clime_job_table *t);
void clime_job_table_free(struct clime_job_table *t); /* must be empty */

/* CLIME_ERR_INPUT when one of the job's ids is in flight; CLIME_ERR_BUSY when it is so for a client that has left, and
 * may have come again: that job's outputs are unwanted now. The job must be removed before it is freed. */
enum clime_err clime_job_table_add(struct clime_job_table *t, struct clime_job *j, struct clime_error *e);
void clime_job_table_remove(struct clime_job_table *t, struct clime_job *j);

/* Marks the outputs whose id begins with prefix as unwanted (all of them when prefix is NULL); returns how many. */
int clime_job_table_mark(struct clime_job_table *t, const struct clime_str *prefix);

/* The same of one request: those that have its id, or were numbered from it (rid_0, rid_1, ...). */
int clime_job_table_mark_request(struct clime_job_table *t, struct clime_str rid);

#endif
