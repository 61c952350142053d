/* A thread that calls a function periodically until it is stopped. */
#ifndef CLIME_COMMON_THREAD_PERIODIC_H
#define CLIME_COMMON_THREAD_PERIODIC_H

#include <stdbool.h>
#include <stdint.h>

struct clime_periodic;

/* fn runs on the thread, first at once, and returns the pause in microseconds. NULL: the thread cannot start. */
typedef int64_t clime_periodic_fn(struct clime_periodic *p, void *arg);
struct clime_periodic *clime_periodic_start(clime_periodic_fn *fn, void *arg);

/* Ends the pause, waits for fn to return, and joins. NULL is fine. */
void clime_periodic_stop(struct clime_periodic *p);

/* True after clime_periodic_stop; for waits inside fn. */
bool clime_periodic_stopping(const struct clime_periodic *p);

#endif
