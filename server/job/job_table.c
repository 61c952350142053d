/* The jobs in flight. Called by HTTP workers; owns the list's links inside the jobs.
 *
 * Invariant: a job in the list is alive, so marking under the lock is safe.
 * A list, not a hash table: abort matches by prefix, so it walks anyway, and comparing some hundred ids costs far less
 * than one decode step.
 */
#include "server/job/job_table.h"

void clime_job_table_init(struct clime_job_table *t) {
    pthread_mutex_init(&t->lock, NULL);
    t->first = NULL;
}

void clime_job_table_free(struct clime_job_table *t) {
    CHECK(!t->first);
    pthread_mutex_destroy(&t->lock);
}

static bool has_rid(const struct clime_job *j, struct clime_str rid) {
    for (int i = 0; i < j->n_outs; i += j->n_samples) /* samples of a prompt share its id */
        if (clime_str_eq(j->outs[i].rid, rid)) return true;
    return false;
}

enum clime_err clime_job_table_add(struct clime_job_table *t, struct clime_job *j, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    for (int i = 0; i < j->n_outs && !err && j->rids_given; i += j->n_samples)
        for (int k = 0; k < i; k += j->n_samples)
            if (clime_str_eq(j->outs[i].rid, j->outs[k].rid))
                err = clime_fail(e, CLIME_ERR_INPUT, "rid \"" CLIME_STR_FMT "\" is given twice",
                                 CLIME_STR_ARG(j->outs[i].rid));
    if (err) return err;
    pthread_mutex_lock(&t->lock);
    for (struct clime_job *o = t->first; o && !err && j->rids_given; o = o->next_in_table)
        for (int i = 0; i < j->n_outs && !err; i += j->n_samples)
            if (has_rid(o, j->outs[i].rid))
                err = clime_fail(e, CLIME_ERR_INPUT, "rid \"" CLIME_STR_FMT "\" is already in flight",
                                 CLIME_STR_ARG(j->outs[i].rid));
    if (!err) {
        j->prev_in_table = NULL;
        j->next_in_table = t->first;
        if (t->first) t->first->prev_in_table = j;
        t->first = j;
    }
    pthread_mutex_unlock(&t->lock);
    return err;
}

void clime_job_table_remove(struct clime_job_table *t, struct clime_job *j) {
    pthread_mutex_lock(&t->lock);
    if (j->prev_in_table)
        j->prev_in_table->next_in_table = j->next_in_table;
    else
        t->first = j->next_in_table;
    if (j->next_in_table) j->next_in_table->prev_in_table = j->prev_in_table;
    pthread_mutex_unlock(&t->lock);
}

int clime_job_table_mark(struct clime_job_table *t, const struct clime_str *prefix) {
    int n = 0;
    pthread_mutex_lock(&t->lock);
    for (struct clime_job *j = t->first; j; j = j->next_in_table) {
        for (int i = 0; i < j->n_outs; i++) {
            struct clime_str rid = j->outs[i].rid;
            if (prefix && (rid.len < prefix->len || memcmp(rid.ptr, prefix->ptr, prefix->len) != 0)) continue;
            atomic_store(&j->outs[i].unwanted, true);
            n++;
        }
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}
