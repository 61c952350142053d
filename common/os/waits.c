/* List of current waits (see waits.h). Any thread; owns only the lock, not the waits. */
#include "common/os/waits.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct clime_wait *first, *last; /* oldest first */

static void take_out(struct clime_wait *w) {
    if (!w->name) return;
    *(w->before ? &w->before->after : &first) = w->after;
    *(w->after ? &w->after->before : &last) = w->before;
    w->before = w->after = NULL;
    w->name = NULL;
}

void clime_wait_begin(struct clime_wait *w, const char *name, int64_t limit_us, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&lock);
    take_out(w);
    w->name = name;
    w->since_us = clime_now_us();
    w->limit_us = limit_us;
    vsnprintf(w->on, sizeof w->on, fmt, ap);
    w->before = last;
    *(last ? &last->after : &first) = w;
    last = w;
    pthread_mutex_unlock(&lock);
    va_end(ap);
}

void clime_wait_on(struct clime_wait *w, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&lock);
    vsnprintf(w->on, sizeof w->on, fmt, ap);
    pthread_mutex_unlock(&lock);
    va_end(ap);
}

void clime_wait_end(struct clime_wait *w) {
    pthread_mutex_lock(&lock);
    take_out(w);
    pthread_mutex_unlock(&lock);
}

static int count(const char *name) {
    int n = 0;
    for (const struct clime_wait *w = first; w; w = w->after) n += !strcmp(w->name, name);
    return n;
}

static bool told_before(const struct clime_wait *w) {
    for (const struct clime_wait *v = first; v != w; v = v->after)
        if (!strcmp(v->name, w->name)) return true;
    return false;
}

void clime_waits_write(struct clime_buf *out) {
    pthread_mutex_lock(&lock);
    int64_t now = clime_now_us();
    for (const struct clime_wait *w = first; w; w = w->after) {
        char limit[48] = "no limit of its own";
        if (told_before(w)) continue;
        if (w->limit_us > 0) snprintf(limit, sizeof limit, "at most %.1f s", (double)w->limit_us / 1e6);
        clime_buf_printf(out, "%5d  %-44s %9.1f s, %s: %s\n", count(w->name), w->name,
                         (double)(now - w->since_us) / 1e6, limit, w->on);
    }
    pthread_mutex_unlock(&lock);
}
