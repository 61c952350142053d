/* Which machine this is. Any thread. */
#ifndef CLIME_COMMON_OS_HOST_H
#define CLIME_COMMON_OS_HOST_H

#include <stddef.h>

/* The kernel's random id of this boot: the same for all processes of one host, containers included; "" when unknown. */
void clime_host_id(char *out, size_t size);

#endif
