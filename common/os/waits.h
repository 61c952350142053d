/* What this process waits for, by name: for whoever asks why nothing moves. A wait says what it is for, since when,
 * until when at most, and who or what holds it up.
 *
 *   struct clime_wait w = {0};
 *   clime_wait_begin(&w, "pushes to end", limit_us, "%s", url);
 *   while (!done) { ... clime_wait_on(&w, "%s", next_url); ... }
 *   clime_wait_end(&w);
 *
 * A wait lies where its owner likes; it must not move or go while it is begun. All functions: any thread, but one wait
 * belongs to one thread at a time. They cost a lock and no memory.
 */
#ifndef CLIME_COMMON_OS_WAITS_H
#define CLIME_COMMON_OS_WAITS_H

#include <stdint.h>

#include "common/buf.h"

struct clime_wait { /* zero: not begun */
    const char *name;
    int64_t since_us, limit_us; /* clime_now_us scale; limit 0 = none of its own */
    char on[200];               /* the blocker */
    struct clime_wait *before, *after;
};

/* name lives for ever, and waits of one name are told together. limit_us: how long it may last; 0 = no limit of its
 * own. One that is begun already is begun anew. */
void clime_wait_begin(struct clime_wait *w, const char *name, int64_t limit_us, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void clime_wait_on(struct clime_wait *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void clime_wait_end(struct clime_wait *w); /* not begun is fine */

/* A line for each name, the oldest wait first: how many, and how long, how long at most and on whom the oldest of them
 * waits. */
void clime_waits_write(struct clime_buf *out);

#endif
