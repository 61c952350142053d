/* Limits the freed memory that glibc's malloc keeps, for programs with hundreds of mostly idle threads. */
#ifndef CLIME_COMMON_OS_MALLOC_LIMITS_H
#define CLIME_COMMON_OS_MALLOC_LIMITS_H

#include <stddef.h>

/* Call first in main, before threads start.
 *
 * glibc caches freed blocks per thread, up to 230 KiB a thread, which a thousand threads take hours to fill; this
 * limits the cache to 4 KiB. glibc reads the limit only at program start, so the program re-executes itself once with
 * the limit in GLIBC_TUNABLES; a limit already set there stays. If exec fails the program continues as it is.
 *
 * A block of give_back_bytes or more returns to the system when freed, and so does free memory above 1 MiB at a heap's
 * end. Otherwise glibc raises both limits, to 32 and 64 MiB, at the first such block; heaps keep their peak size. */
void clime_malloc_limits(char **argv, size_t give_back_bytes);

#endif
