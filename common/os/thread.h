/* Threads that a program cannot be without. */
#ifndef CLIME_COMMON_OS_THREAD_H
#define CLIME_COMMON_OS_THREAD_H

#include <pthread.h>

/* pthread_create for a thread that there is no going on without, at the start of a program: where none is to be had it
 * says why on stderr and ends the program with status 1. attr may be NULL. Who can do the work on his own thread, or
 * refuse it, calls pthread_create. */
void xthread(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);

#endif
