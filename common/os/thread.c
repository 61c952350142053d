/* Required threads (see thread.h). Any thread; owns nothing. */
#include "common/os/thread.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void xthread(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    int rc = pthread_create(thread, attr, run, arg);
    if (!rc) return;
    fprintf(stderr, "no thread is to be had: %s (the limit of processes: ulimit -u, or pids of the container)\n",
            strerror(rc));
    _exit(1); /* other threads run already, and wait for this one */
}
