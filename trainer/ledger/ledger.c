/* Writer thread of the ledger. Callers on any thread append a job to the list and wait; the writer takes the whole
 * list, runs it as one transaction and wakes them.
 *
 * Owns: the writing connection (writer thread only) and the reading one (main thread only). The list is guarded by
 * `lock`; a job lives on its caller's stack until `done`.
 *
 * The list needs no limit because every caller waits for its job: it is never longer than the number of threads.
 */
#include "trainer/ledger/ledger.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/os/waits.h"

struct job {
    clime_ledger_fn *fn;
    void *arg;
    bool durable, done;
    enum clime_err rc;
    struct clime_error err;
    struct job *next;
};

struct clime_ledger {
    struct clime_db *writer, *reader;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct job *first, **last; /* under lock */
    bool stop;                 /* under lock */
};

static void fail_all(struct job *jobs, const struct clime_error *e) {
    for (struct job *j = jobs; j; j = j->next)
        if (!j->rc) {
            j->rc = e->code;
            j->err = *e;
        }
}

/* Runs the jobs as one transaction and sets each job's rc. */
static void run_batch(struct clime_db *db, struct job *jobs) {
    struct clime_error e = {0};
    bool durable = false;
    for (struct job *j = jobs; j; j = j->next) durable = durable || j->durable;
    if (clime_db_begin(db, durable, &e)) {
        fail_all(jobs, &e);
        return;
    }
    for (struct job *j = jobs; j; j = j->next) {
        if ((j->rc = clime_db_savepoint(db, &j->err))) continue;
        j->rc = j->fn(db, j->arg, &j->err);
        clime_db_savepoint_end(db, j->rc == CLIME_OK);
    }
    if (clime_db_commit(db, &e)) {
        clime_db_rollback(db);
        fail_all(jobs, &e);
    }
}

static void *writer_main(void *arg) {
    struct clime_ledger *l = arg;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->first && !l->stop) pthread_cond_wait(&l->work, &l->lock);
        struct job *jobs = l->first;
        if (!jobs) break;
        l->first = NULL;
        l->last = &l->first;
        pthread_mutex_unlock(&l->lock);
        run_batch(l->writer, jobs);
        pthread_mutex_lock(&l->lock);
        for (struct job *j = jobs, *next; j; j = next) {
            next = j->next; /* the caller may return once done is set and the lock is free */
            j->done = true;
        }
        pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

enum clime_err clime_ledger_open(const char *path, struct clime_ledger **out, struct clime_error *e) {
    struct clime_ledger *l = xcalloc(1, sizeof *l);
    *out = NULL;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    l->last = &l->first;
    enum clime_err rc = clime_db_open(path, CLIME_DB_WRITE, &l->writer, e);
    if (!rc) rc = clime_db_open(path, CLIME_DB_READ, &l->reader, e);
    if (!rc && pthread_create(&l->thread, NULL, writer_main, l))
        rc = clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the ledger's writer thread");
    if (rc) {
        clime_ledger_close(l);
        return rc;
    }
    l->started = true;
    *out = l;
    return CLIME_OK;
}

void clime_ledger_close(struct clime_ledger *l) {
    if (!l) return;
    if (l->started) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_signal(&l->work);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    clime_db_close(l->reader);
    clime_db_close(l->writer);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->done);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

enum clime_err clime_ledger_write(struct clime_ledger *l, clime_ledger_fn *fn, void *arg, bool durable,
                                  struct clime_error *e) {
    struct job j = {.fn = fn, .arg = arg, .durable = durable};
    struct clime_wait wait = {0};
    pthread_mutex_lock(&l->lock);
    CHECK(!l->stop);
    *l->last = &j;
    l->last = &j.next;
    pthread_cond_signal(&l->work);
    clime_wait_begin(&wait, "the ledger to commit", 0, "the disk, or another process that writes to the ledger");
    while (!j.done) pthread_cond_wait(&l->done, &l->lock);
    clime_wait_end(&wait);
    pthread_mutex_unlock(&l->lock);
    if (j.rc && e) *e = j.err;
    return j.rc;
}

struct clime_db *clime_ledger_reader(struct clime_ledger *l) {
    return l->reader;
}
