/* The limit of open descriptors. Soft limits of 1,024 are common and too low for servers, and for trainers with many
 * servers; the machine's owner sets the hard limit. */
#ifndef CLIME_COMMON_OS_FILES_H
#define CLIME_COMMON_OS_FILES_H

#include <stdint.h>

/* Raises the soft limit to the hard one. Also makes a write past the file size limit (ulimit -f) fail with EFBIG, like
 * a full disk, instead of SIGXFSZ ending the program. Call first in main, before threads start. */
void clime_files_raise(void);

int64_t clime_files_limit(void); /* the current soft limit */

/* The soft limit at the start of this process, to restore for programs that are not ours. */
int64_t clime_files_given(void);

#endif
