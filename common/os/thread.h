/* Threads that a program requires. */
#ifndef CLIME_COMMON_OS_THREAD_H
#define CLIME_COMMON_OS_THREAD_H

#include <pthread.h>

/* pthread_create at program start: on failure prints why to stderr and exits with status 1. attr may be NULL. Callers
 * that can do without the thread use pthread_create. */
void xthread(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);

#endif
