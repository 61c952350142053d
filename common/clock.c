/* Clocks (see clock.h). Any thread, no state. */
#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

static int64_t read_clock(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clime_now_us(void) {
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clime_wall_us(void) {
    return read_clock(CLOCK_REALTIME);
}

void clime_sleep_us(int64_t us) {
    if (us <= 0) return;
    /* An absolute deadline: signals do not lengthen the sleep. */
    int64_t end = clime_now_us() + us;
    struct timespec t = {end / 1000000, end % 1000000 * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

void clime_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

int clime_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_us) {
    struct timespec t = {until_us / 1000000, until_us % 1000000 * 1000};
    return pthread_cond_timedwait(cond, lock, &t);
}

void clime_wall_format(int64_t wall_us, char out[32]) {
    time_t s = wall_us / 1000000;
    int ms = (int)(wall_us % 1000000 / 1000);
    struct tm t;
    gmtime_r(&s, &t);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(out + n, 32 - n, ".%03dZ", ms);
}
