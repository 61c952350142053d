/* DNS look-up with a limit (see lookup.h). Called by connections without libcurl. A detached thread runs getaddrinfo;
 * it and the caller share the question, and the last one frees it. */
#include "common/os/lookup.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "common/clock.h"

#define ASK_EVERY_US 100000 /* interval between cancel polls */

struct question {
    char *host, port[16];
    pthread_mutex_t lock;
    pthread_cond_t answered_now;
    bool answered, alone; /* guarded by lock; alone: thread or caller has left */
    int rc;               /* result of getaddrinfo */
    struct addrinfo *found;
};

static void discard(struct question *q) {
    if (q->found) freeaddrinfo(q->found);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->answered_now);
    free(q->host);
    free(q);
}

/* Drops one reference; called with the lock held, releases it. */
static void let_go(struct question *q) {
    bool last = q->alone;
    q->alone = true;
    pthread_mutex_unlock(&q->lock);
    if (last) discard(q);
}

static void *ask(void *arg) {
    struct question *q = arg;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(q->host, q->port, &hints, &found);
    pthread_mutex_lock(&q->lock);
    q->answered = true;
    q->rc = rc;
    q->found = rc ? NULL : found;
    pthread_cond_signal(&q->answered_now);
    let_go(q);
    return NULL;
}

/* NULL: the thread cannot start. */
static struct question *begin(const char *host, int port) {
    struct question *q = xcalloc(1, sizeof *q);
    pthread_attr_t detached;
    pthread_t thread;
    q->host = xstrdup(host);
    snprintf(q->port, sizeof q->port, "%d", port);
    pthread_mutex_init(&q->lock, NULL);
    clime_cond_init(&q->answered_now);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    bool began = pthread_create(&thread, &detached, ask, q) == 0;
    pthread_attr_destroy(&detached);
    if (began) return q;
    discard(q);
    return NULL;
}

/* Parses a numeric address, which needs no resolver; NULL = it is a name. */
static struct addrinfo *literal(const char *host, int port) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found;
    char number[16];
    snprintf(number, sizeof number, "%d", port);
    return getaddrinfo(host, number, &hints, &found) ? NULL : found;
}

enum clime_err clime_lookup(const char *host, int port, int64_t until_us, bool (*cancel)(void *arg), void *arg,
                            struct addrinfo **out, struct clime_error *e) {
    int64_t began = clime_now_us(), now = began;
    enum clime_err err = CLIME_OK;
    if ((*out = literal(host, port))) return CLIME_OK;
    struct question *q = begin(host, port);
    if (!q) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "looking up %s: no thread is to be had", host);
    pthread_mutex_lock(&q->lock);
    for (; !q->answered && !err; now = clime_now_us()) {
        int64_t next = now + ASK_EVERY_US < until_us ? now + ASK_EVERY_US : until_us;
        if (cancel && cancel(arg))
            err = clime_fail(e, CLIME_ERR_ABORTED, "looking up %s: stopped on request", host);
        else if (now >= until_us)
            err = clime_fail(e, CLIME_ERR_TIMEOUT, "looking up %s: no name server answered within %.1f s", host,
                             (double)(now - began) / 1e6);
        else
            clime_cond_wait_until(&q->answered_now, &q->lock, next);
    }
    if (!err && q->rc) err = clime_fail(e, CLIME_ERR_INPUT, "%s is not known: %s", host, gai_strerror(q->rc));
    if (!err) {
        *out = q->found;
        q->found = NULL;
    }
    let_go(q);
    return err;
}
