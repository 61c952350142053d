/* Orders from the page to the loop (threads: control.h).
 *
 * Invariant: an order is pending until the loop has seen it; only then does the page report it as taken. */
#include "trainer/watch/page/control.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/secret.h"

#define LOOK_US 200000

struct clime_page_control {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    struct clime_page_orders orders;
    bool waiting;
    char key[CLIME_SECRET_CHARS + 1];
};

static bool read_key(struct clime_page_control *c, const char *path) {
    char text[sizeof c->key + 1] = "";
    FILE *f = fopen(path, "r");
    if (!f) return false;
    bool read = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    text[strcspn(text, "\n")] = 0;
    read = read && strlen(text) == CLIME_SECRET_CHARS && strspn(text, "0123456789abcdef") == CLIME_SECRET_CHARS;
    if (read) memcpy(c->key, text, sizeof c->key);
    return read;
}

enum clime_err clime_page_control_open(const char *key_file, struct clime_page_control **out, struct clime_error *e) {
    struct clime_page_control *c = xcalloc(1, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    clime_cond_init(&c->changed);
    *out = c;
    return read_key(c, key_file) ? CLIME_OK : clime_secret_make(key_file, c->key, e);
}

void clime_page_control_close(struct clime_page_control *c) {
    if (!c) return;
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

const char *clime_page_control_key(const struct clime_page_control *c) {
    return c->key;
}

enum clime_err clime_page_control_order(struct clime_page_control *c, const char *order, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    pthread_mutex_lock(&c->lock);
    if (!strcmp(order, "pause") || !strcmp(order, "resume"))
        c->orders.pause = order[0] == 'p';
    else if (!strcmp(order, "checkpoint"))
        c->orders.checkpoint = true;
    else if (!strcmp(order, "stop"))
        c->orders.stop = true;
    else
        rc = clime_fail(e, CLIME_ERR_INPUT, "order: \"%.40s\" is none of pause, resume, checkpoint, stop", order);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void clime_page_control_write(struct clime_page_control *c, struct clime_jw *w) {
    pthread_mutex_lock(&c->lock);
    const struct clime_page_orders o = c->orders;
    bool waiting = c->waiting;
    pthread_mutex_unlock(&c->lock);
    clime_jw_key(w, "control");
    clime_jw_object(w);
    clime_jw_put_bool(w, "pause", o.pause);
    clime_jw_put_bool(w, "checkpoint", o.checkpoint);
    clime_jw_put_bool(w, "stop", o.stop);
    clime_jw_put_bool(w, "waiting", waiting);
    clime_jw_close(w);
}

struct clime_page_orders clime_page_control_take(struct clime_page_control *c) {
    pthread_mutex_lock(&c->lock);
    const struct clime_page_orders o = c->orders;
    c->orders.checkpoint = false;
    pthread_mutex_unlock(&c->lock);
    return o;
}

void clime_page_control_wait(struct clime_page_control *c, bool (*is_over)(void)) {
    pthread_mutex_lock(&c->lock);
    c->waiting = true;
    while (c->orders.pause && !c->orders.stop && !c->orders.checkpoint && !is_over()) {
        int64_t until_us = clime_now_us() + LOOK_US;
        clime_cond_wait_until(&c->changed, &c->lock, until_us);
    }
    c->waiting = false;
    pthread_mutex_unlock(&c->lock);
}
