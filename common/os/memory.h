/* Memory of this process. Any thread. */
#ifndef CLIME_COMMON_OS_MEMORY_H
#define CLIME_COMMON_OS_MEMORY_H

#include <stddef.h>

/* Resident bytes now, mapped files included; 0 when unknown. */
size_t clime_resident_bytes(void);

#endif
