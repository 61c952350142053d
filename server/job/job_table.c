/* The jobs in flight. Called by HTTP workers; owns the list's links inside the jobs.
 *
 * Invariant: a job in the list is alive, so marking under the lock is safe.
 * A list, not a hash table: abort matches by prefix and must walk it anyway, and comparing some hundred ids costs far
 * less than one decode step.
 */
#include "server/job/job_table.h"

#include "common/http/server.h"

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

/* Under the lock. o already has the id. */
static enum clime_err refuse(struct clime_job *o, struct clime_str rid, struct clime_error *e) {
    bool left = o->rq && clime_http_peer_gone(o->rq);
    for (int i = 0; i < o->n_outs && left; i++) atomic_store(&o->outs[i].unwanted, true);
    return clime_fail(e, left ? CLIME_ERR_BUSY : CLIME_ERR_INPUT, "rid \"" CLIME_STR_FMT "\" is already in flight%s",
                      CLIME_STR_ARG(rid), left ? ", for a client that has left" : "");
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
            if (has_rid(o, j->outs[i].rid)) err = refuse(o, j->outs[i].rid, e);
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

static bool begins(struct clime_str rid, struct clime_str prefix) {
    return rid.len >= prefix.len && memcmp(rid.ptr, prefix.ptr, prefix.len) == 0;
}

/* rid is `of`, or _ and digits follow. */
static bool is_of_request(struct clime_str rid, struct clime_str of) {
    if (!begins(rid, of)) return false;
    const char *rest = rid.ptr + of.len;
    size_t n = rid.len - of.len;
    if (n == 0) return true;
    if (n == 1 || rest[0] != '_') return false;
    for (size_t i = 1; i < n; i++)
        if (rest[i] < '0' || rest[i] > '9') return false;
    return true;
}

static int mark(struct clime_job_table *t, bool (*meant)(struct clime_str rid, struct clime_str by),
                struct clime_str by) {
    int n = 0;
    pthread_mutex_lock(&t->lock);
    for (struct clime_job *j = t->first; j; j = j->next_in_table) {
        for (int i = 0; i < j->n_outs; i++) {
            if (!meant(j->outs[i].rid, by)) continue;
            atomic_store(&j->outs[i].unwanted, true);
            n++;
        }
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}

int clime_job_table_mark(struct clime_job_table *t, const struct clime_str *prefix) {
    return mark(t, begins, prefix ? *prefix : (struct clime_str){"", 0});
}

int clime_job_table_mark_request(struct clime_job_table *t, struct clime_str rid) {
    return mark(t, is_of_request, rid);
}
