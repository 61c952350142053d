/* How much memory glibc's malloc keeps of what was freed: for programs of hundreds of threads that mostly wait. */
#ifndef CLIME_COMMON_OS_MALLOC_LIMITS_H
#define CLIME_COMMON_OS_MALLOC_LIMITS_H

#include <stddef.h>

/* First in main, of one thread.
 *
 * What a thread has freed glibc keeps for that thread alone, up to 230 KiB a thread, which a thousand threads take
 * hours to fill; from here on it is 4 KiB. glibc reads this limit when a program starts and never again, so the program
 * is replaced by itself once, the limit in GLIBC_TUNABLES; one that is there already holds. When it cannot be replaced
 * it goes on as it is.
 *
 * A block of give_back_bytes or more goes back to the system when it is freed, and so does what is free at a heap's end
 * beyond 1 MiB. Else glibc moves both limits up, to 32 and 64 MiB, at the first such block, and each heap keeps the
 * most that it ever held. */
void clime_malloc_limits(char **argv, size_t give_back_bytes);

#endif
