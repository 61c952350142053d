/* Time. Durations and deadlines use the monotonic clock in microseconds; wall time is for records only. */
#ifndef CLIME_COMMON_CLOCK_H
#define CLIME_COMMON_CLOCK_H

#include <pthread.h>
#include <stdint.h>

int64_t clime_now_us(void);      /* CLOCK_MONOTONIC */
int64_t clime_wall_us(void);     /* microseconds since 1970-01-01 UTC */
void clime_sleep_us(int64_t us); /* restarts after signals */

/* A condition variable on the clime_now_us() clock. wait_until returns 0, or ETIMEDOUT at until_us. */
void clime_cond_init(pthread_cond_t *cond);
int clime_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_us);

/* "2026-01-31T12:00:00.123Z" into out[32]. */
void clime_wall_format(int64_t wall_us, char out[32]);

#endif
