/* How many descriptors this process may open. Soft limits of 1,024 are common and too low for servers and for trainers
 * of many servers; the hard limit is what the machine's owner allows. */
#ifndef CLIME_COMMON_OS_FILES_H
#define CLIME_COMMON_OS_FILES_H

#include <stdint.h>

/* Raises the soft limit to the hard one, and has a file that grows past the limit of sizes (ulimit -f) fail like a full
 * disk (EFBIG) instead of ending the program by SIGXFSZ. First thing in main, before threads start. */
void clime_files_raise(void);

int64_t clime_files_limit(void); /* now */

/* The soft limit that this process was started with: what programs that are not ours are given. */
int64_t clime_files_given(void);

#endif
