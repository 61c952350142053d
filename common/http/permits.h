/* How many requests may be at work at a time, of those that come to wait for something later.
 *
 * A thousand requests that come together are a thousand threads, each with a tenth of a millisecond of work before it
 * sleeps, and on two cores whoever came last, or has to be woken on the way, stands behind all of them: a control call
 * that goes through a router did so five times. With permits the others sleep, first come first served, and the
 * processors' queues stay short for those who need none. Any thread.
 */
#ifndef CLIME_COMMON_HTTP_PERMITS_H
#define CLIME_COMMON_HTTP_PERMITS_H

struct clime_permits;

struct clime_permits *clime_permits_new(int n);
void clime_permits_free(struct clime_permits *p);
void clime_permits_take(struct clime_permits *p); /* sleeps until one is there for the caller */
void clime_permits_give(struct clime_permits *p); /* back */
int clime_permits_waiting(struct clime_permits *p);

#endif
