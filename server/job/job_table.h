/* Table of jobs in flight by request id: rejects duplicates, finds the target of an abort. Any thread; one lock. */
#ifndef CLIME_SERVER_JOB_JOB_TABLE_H
#define CLIME_SERVER_JOB_JOB_TABLE_H

#include "server/job/job.h"

struct clime_job_table {
    pthread_mutex_t lock;
    struct clime_job *first;
};

void clime_job_table_init(struct clime_job_table *t);
void clime_job_table_free(struct clime_job_table *t); /* must be empty */

/* CLIME_ERR_INPUT when one of the job's ids is in flight; CLIME_ERR_BUSY when the job in flight belongs to a client
 * that has left (and may be retrying): its outputs are marked unwanted. Remove the job before freeing it. */
enum clime_err clime_job_table_add(struct clime_job_table *t, struct clime_job *j, struct clime_error *e);
void clime_job_table_remove(struct clime_job_table *t, struct clime_job *j);

/* Marks the outputs whose id begins with prefix as unwanted (all of them when prefix is NULL); returns how many. */
int clime_job_table_mark(struct clime_job_table *t, const struct clime_str *prefix);

/* The same for one request: ids equal to rid, or numbered from it (rid_0, rid_1, ...). */
int clime_job_table_mark_request(struct clime_job_table *t, struct clime_str rid);

#endif
