/* The table of connections (see connections.h). Called on the threads that serve them; the table's own thread ends
 * connections. A mutex guards everything; CivetWeb closes a socket only after clime_http_connection_close, so a socket
 * in the table is open while the lock is held.
 *
 * A connection without a request yet has no socket in the list; it is among the unclaimed accepted ones (accepted.h).
 */
#include "common/http/connections.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/http/accepted.h"
#include "common/http/peer.h"
#include "common/os/thread.h"

#define PRESSED_US 10000     /* interval of checks while threads are short */
#define IDLE_US 500000       /* minimum idle time before ending: the next request may be in flight */
#define FULL_US 20000        /* and when no thread is free: a later connection waits for this one */
#define RECEIVING_US 2000000 /* and for a body without a new byte */
#define WAITED_FOR_US 500000 /* and when others wait for a thread: longer than one lost packet takes */

struct clime_http_connection {
    int socket; /* -1 = unknown */
    enum clime_http_doing doing;
    int64_t since_us;    /* idle: the end of the last request; receiving: the last byte */
    int64_t deadline_us; /* of a read */
    atomic_bool ended;
    struct clime_http_connection *next, *previous;
};

struct clime_http_connections {
    pthread_t thread;
    int64_t period_us;
    int n_threads, n_most, n_fine, port;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t wake;
    bool stop;
    atomic_int n; /* read without the lock */
    struct clime_http_connection *first;
};

/* ---- ending ------------------------------------------------------------------------------------------------ */

static void end_known(struct clime_http_connection *c) {
    atomic_store(&c->ended, true);
    shutdown(c->socket, SHUT_RD);
}

struct candidate {
    int64_t age_us;
    struct clime_http_connection *known; /* NULL: a connection without a request */
    uint64_t accepted;                   /* its id */
};

struct candidates {
    struct clime_http_connections *all;
    struct candidate *items;
    int n, size, n_all; /* all connections, busy ones included */
    int64_t now, patience_us, receiving_us;
};

static void add(struct candidates *cs, struct candidate c) {
    if (cs->n == cs->size) {
        cs->size = cs->size ? cs->size * 2 : 256;
        cs->items = xrealloc(cs->items, (size_t)cs->size * sizeof *cs->items);
    }
    cs->items[cs->n++] = c;
}

static void add_known(struct candidates *cs) {
    for (struct clime_http_connection *c = cs->all->first; c; c = c->next) {
        int64_t age = cs->now - c->since_us;
        cs->n_all += c->socket >= 0;
        if (c->socket < 0 || c->doing == CLIME_HTTP_BUSY || atomic_load(&c->ended)) continue;
        if (age < (c->doing == CLIME_HTTP_IDLE ? cs->patience_us : cs->receiving_us) || clime_peer_unread(c->socket))
            continue;
        add(cs, (struct candidate){age, c, 0});
    }
}

/* Uses the time since accept too: the kernel's idle time does not expose a peer that drips bytes. */
static void add_unknown(void *arg, const struct clime_accepted *a) {
    struct candidates *cs = arg;
    int64_t age = cs->now - a->accepted_us, idle = clime_peer_idle_us(a->fd);
    cs->n_all++;
    if (age < idle) age = idle;
    if (age >= cs->patience_us && !clime_peer_unread(a->fd)) add(cs, (struct candidate){age, NULL, a->id});
}

static int oldest_first(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    return (x->age_us < y->age_us) - (x->age_us > y->age_us);
}

static void count_one(void *arg, const struct clime_accepted *a) {
    (void)a;
    ++*(int *)arg;
}

/* Counts connections with a thread or waiting for one. A TLS handshake holds a thread before its table entry exists. */
static int count_all(const struct clime_http_connections *all) {
    int n = 0;
    clime_accepted_each(all->port, count_one, &n);
    for (const struct clime_http_connection *c = all->first; c; c = c->next) n += c->socket >= 0;
    return n > atomic_load(&all->n) ? n : atomic_load(&all->n);
}

/* Counts accepted connections that wait for a thread too: they are ended where they wait, all at once. */
static void make_room(struct clime_http_connections *all, int n) {
    bool full = n >= all->n_threads;
    struct candidates cs = {.all = all,
                            .now = clime_now_us(),
                            .patience_us = full ? FULL_US : IDLE_US,
                            .receiving_us = n > all->n_threads ? WAITED_FOR_US : RECEIVING_US};
    add_known(&cs);
    clime_accepted_each(all->port, add_unknown, &cs);
    if (cs.n) qsort(cs.items, (size_t)cs.n, sizeof *cs.items, oldest_first);
    int want = cs.n_all - all->n_fine;
    for (int i = 0; i < cs.n && i < want; i++) {
        if (cs.items[i].known)
            end_known(cs.items[i].known);
        else
            clime_accepted_end(cs.items[i].accepted);
    }
    free(cs.items);
}

void clime_http_connections_end_stalled(struct clime_http_connections *all) {
    struct clime_http_connection *oldest = NULL;
    pthread_mutex_lock(&all->lock);
    for (struct clime_http_connection *c = all->first; c; c = c->next)
        if (c->doing == CLIME_HTTP_RECEIVING && c->socket >= 0 && !atomic_load(&c->ended) &&
            (!oldest || c->since_us < oldest->since_us))
            oldest = c;
    if (oldest && clime_now_us() - oldest->since_us > RECEIVING_US) end_known(oldest);
    pthread_mutex_unlock(&all->lock);
}

static void end_late(struct clime_http_connections *all) {
    int64_t now = clime_now_us();
    for (struct clime_http_connection *c = all->first; c; c = c->next)
        if (c->doing == CLIME_HTTP_RECEIVING && c->deadline_us <= now && c->socket >= 0 && !atomic_load(&c->ended))
            end_known(c);
}

static void *run(void *arg) {
    struct clime_http_connections *all = arg;
    pthread_mutex_lock(&all->lock);
    while (!all->stop) {
        int n = count_all(all);
        bool pressed = n > all->n_most;
        if (pressed) make_room(all, n);
        end_late(all);
        int64_t wake = clime_now_us() + (pressed ? PRESSED_US : all->period_us);
        clime_cond_wait_until(&all->wake, &all->lock, wake);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

/* ---- the table --------------------------------------------------------------------------------------------- */

struct clime_http_connections *clime_http_connections_new(int n_threads, int n_most, int n_fine, int64_t period_us) {
    struct clime_http_connections *all = xcalloc(1, sizeof *all);
    all->n_threads = n_threads;
    all->n_most = n_most;
    all->n_fine = n_fine;
    all->period_us = period_us < 20000 ? 20000 : period_us > 1000000 ? 1000000 : period_us;
    pthread_mutex_init(&all->lock, NULL);
    clime_cond_init(&all->wake);
    xthread(&all->thread, NULL, run, all);
    return all;
}

void clime_http_connections_free(struct clime_http_connections *all) {
    pthread_mutex_lock(&all->lock);
    CHECK(!all->first);
    all->stop = true;
    pthread_cond_signal(&all->wake);
    pthread_mutex_unlock(&all->lock);
    pthread_join(all->thread, NULL);
    pthread_cond_destroy(&all->wake);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

void clime_http_connections_port(struct clime_http_connections *all, int port) {
    pthread_mutex_lock(&all->lock);
    all->port = port;
    pthread_mutex_unlock(&all->lock);
}

int clime_http_connections_count(const struct clime_http_connections *all) {
    return atomic_load(&all->n);
}

/* ---- one connection ---------------------------------------------------------------------------------------- */

struct clime_http_connection *clime_http_connection_open(struct clime_http_connections *all) {
    struct clime_http_connection *c = xcalloc(1, sizeof *c);
    c->socket = -1;
    pthread_mutex_lock(&all->lock);
    c->since_us = clime_now_us();
    c->next = all->first;
    if (c->next) c->next->previous = c;
    all->first = c;
    int n = atomic_fetch_add(&all->n, 1) + 1;
    if (n == all->n_most + 1 || n == all->n_threads) pthread_cond_signal(&all->wake);
    pthread_mutex_unlock(&all->lock);
    return c;
}

void clime_http_connection_close(struct clime_http_connections *all, struct clime_http_connection *c) {
    pthread_mutex_lock(&all->lock);
    if (c->next) c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else
        all->first = c->next;
    atomic_fetch_sub(&all->n, 1);
    pthread_mutex_unlock(&all->lock);
    free(c);
}

void clime_http_connection_begin(struct clime_http_connections *all, struct clime_http_connection *c,
                                 const char *remote_addr, int remote_port, int local_port) {
    pthread_mutex_lock(&all->lock);
    c->doing = CLIME_HTTP_BUSY;
    bool ended = false;
    if (c->socket < 0) c->socket = clime_accepted_claim(remote_addr, remote_port, local_port, &ended);
    if (ended) atomic_store(&c->ended, true);
    pthread_mutex_unlock(&all->lock);
}

int clime_http_connection_socket(const struct clime_http_connection *c) {
    return c->socket;
}

void clime_http_connection_does(struct clime_http_connections *all, struct clime_http_connection *c,
                                enum clime_http_doing doing, int64_t deadline_us) {
    pthread_mutex_lock(&all->lock);
    c->doing = doing;
    c->since_us = clime_now_us();
    c->deadline_us = deadline_us;
    pthread_mutex_unlock(&all->lock);
}

bool clime_http_connection_ended(const struct clime_http_connection *c) {
    return atomic_load(&c->ended);
}
