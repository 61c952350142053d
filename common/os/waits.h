/* Registry of this process's current waits, by name, to diagnose a stall. A wait has a name, start, limit and blocker.
 *
 *   struct clime_wait w = {0};
 *   clime_wait_begin(&w, "pushes to end", limit_us, "%s", url);
 *   while (!done) { ... clime_wait_on(&w, "%s", next_url); ... }
 *   clime_wait_end(&w);
 *
 * The owner allocates the wait, and must not move or free it before clime_wait_end. Any thread, but a wait belongs to
 * one thread at a time. Costs a lock and no memory.
 */
#ifndef CLIME_COMMON_OS_WAITS_H
#define CLIME_COMMON_OS_WAITS_H

#include <stdint.h>

#include "common/buf.h"

struct clime_wait { /* zero: not begun */
    const char *name;
    int64_t since_us, limit_us; /* clime_now_us scale; limit 0 = none */
    char on[200];               /* the blocker */
    struct clime_wait *before, *after;
};

/* name must be static; waits of one name are reported together. limit_us: 0 = no limit. Begun again, it restarts. */
void clime_wait_begin(struct clime_wait *w, const char *name, int64_t limit_us, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void clime_wait_on(struct clime_wait *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void clime_wait_end(struct clime_wait *w); /* not begun is fine */

/* Appends a line per name, the oldest wait first: their number, and the oldest one's duration, limit and blocker. */
void clime_waits_write(struct clime_buf *out);

#endif
