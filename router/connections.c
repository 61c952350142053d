/* The pool of idle connections (connections.h). Called by handlers; the prober's thread reaps.
 *
 * One client per connection, not per thread: per thread the router would keep threads times workers connections, 4,096
 * at the defaults with 8 workers, and the idle one would mostly belong to another thread. */
#include "router/connections.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"
#include "router/workers.h"

struct kept {
    struct clime_http_client *client;
    int64_t since_us;
    struct kept *next; /* idle longer */
};

struct clime_connections {
    pthread_mutex_t lock; /* guards the rest */
    struct kept *kept[CLIME_WORKERS_MAX];
    int n_of[CLIME_WORKERS_MAX], n, max;
};

struct clime_connections *clime_connections_new(int max_kept) {
    struct clime_connections *c = xcalloc(1, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    c->max = max_kept;
    return c;
}

static void free_list(struct kept *k) {
    while (k) {
        struct kept *next = k->next;
        clime_http_client_free(k->client);
        free(k);
        k = next;
    }
}

void clime_connections_free(struct clime_connections *c) {
    if (!c) return;
    for (int i = 0; i < CLIME_WORKERS_MAX; i++) free_list(c->kept[i]);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

struct clime_http_client *clime_connections_take(struct clime_connections *c, int slot) {
    pthread_mutex_lock(&c->lock);
    struct kept *k = c->kept[slot];
    if (k) {
        c->kept[slot] = k->next;
        c->n_of[slot]--;
        c->n--;
    }
    pthread_mutex_unlock(&c->lock);
    struct clime_http_client *client = k ? k->client : clime_http_client_new();
    free(k);
    return client;
}

void clime_connections_give(struct clime_connections *c, int slot, struct clime_http_client *client) {
    struct kept *k = xmalloc(sizeof *k);
    *k = (struct kept){.client = client, .since_us = clime_now_us()};
    pthread_mutex_lock(&c->lock);
    bool keep = c->n < c->max && c->n_of[slot] < CLIME_KEPT_A_WORKER;
    if (keep) {
        k->next = c->kept[slot];
        c->kept[slot] = k;
        c->n_of[slot]++;
        c->n++;
    }
    pthread_mutex_unlock(&c->lock);
    if (!keep) free_list(k);
}

void clime_connections_reap(struct clime_connections *c, int64_t idle_us) {
    int64_t until = clime_now_us() - idle_us;
    for (int i = 0; i < CLIME_WORKERS_MAX; i++) {
        pthread_mutex_lock(&c->lock);
        struct kept **at = &c->kept[i]; /* the first that is too old; all after it are too */
        int n_young = 0;
        for (; *at && (*at)->since_us > until; at = &(*at)->next) n_young++;
        struct kept *old = *at;
        *at = NULL;
        c->n -= c->n_of[i] - n_young;
        c->n_of[i] = n_young;
        pthread_mutex_unlock(&c->lock);
        free_list(old);
    }
}
