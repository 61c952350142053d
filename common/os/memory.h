/* Memory of this process. Any thread. */
#ifndef CLIME_COMMON_OS_MEMORY_H
#define CLIME_COMMON_OS_MEMORY_H

#include <stddef.h>

/* Bytes that it has in memory now, mapped files that it has read included; 0 when the kernel does not say. */
size_t clime_resident_bytes(void);

#endif
