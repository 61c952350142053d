/* A thread that does one small thing again and again, with pauses, until it is stopped. */
#ifndef CLIME_COMMON_THREAD_PERIODIC_H
#define CLIME_COMMON_THREAD_PERIODIC_H

#include <stdbool.h>
#include <stdint.h>

struct clime_periodic;

/* fn runs on the thread, the first time at once; it returns how long to pause. NULL: no thread is to be had. */
typedef int64_t clime_periodic_fn(struct clime_periodic *p, void *arg);
struct clime_periodic *clime_periodic_start(clime_periodic_fn *fn, void *arg);

/* Ends the pause, waits until fn has returned and joins. NULL is fine. */
void clime_periodic_stop(struct clime_periodic *p);

/* clime_periodic_stop was called: for waits inside fn. */
bool clime_periodic_stopping(const struct clime_periodic *p);

#endif
