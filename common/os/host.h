/* Identity of this machine. Any thread. */
#ifndef CLIME_COMMON_OS_HOST_H
#define CLIME_COMMON_OS_HOST_H

#include <stddef.h>

/* The kernel's random boot id, the same in all processes of a host, containers included; "" when unknown. */
void clime_host_id(char *out, size_t size);

#endif
