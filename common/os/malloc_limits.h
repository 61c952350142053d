/* How much memory glibc's malloc keeps for threads that wait: for programs of hundreds of them. */
#ifndef CLIME_COMMON_OS_MALLOC_LIMITS_H
#define CLIME_COMMON_OS_MALLOC_LIMITS_H

/* First in main, of one thread. What a thread has freed glibc keeps for that thread alone, up to 230 KiB a thread,
 * which a thousand threads take hours to fill; from here on it is 4 KiB. glibc reads this limit when a program starts
 * and never again, so the program is replaced by itself once, the limit in GLIBC_TUNABLES; one that is there already
 * holds. When it cannot be replaced it goes on as it is. */
void clime_malloc_limits(char **argv);

#endif
