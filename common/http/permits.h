/* A semaphore for the CPU work of requests that later wait, first come first served.
 *
 * A thousand simultaneous requests are a thousand threads, each with 0.1 ms of work before it sleeps. On two cores a
 * control call then queues behind all of them, and one through a router did so five times. With permits those threads
 * sleep, and run queues stay short for requests that need no permit. Any thread.
 */
#ifndef CLIME_COMMON_HTTP_PERMITS_H
#define CLIME_COMMON_HTTP_PERMITS_H

struct clime_permits;

struct clime_permits *clime_permits_new(int n);
void clime_permits_free(struct clime_permits *p);
void clime_permits_take(struct clime_permits *p); /* sleeps until a permit is free */
void clime_permits_give(struct clime_permits *p);
int clime_permits_waiting(struct clime_permits *p);

#endif
