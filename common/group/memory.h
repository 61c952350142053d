/* Shared host memory of the ranks of a group on one host. The owner's thread. */
#ifndef CLIME_COMMON_GROUP_MEMORY_H
#define CLIME_COMMON_GROUP_MEMORY_H

#include "common/group/group.h"

/* All ranks call it with the same bytes. Zeroed, page-aligned; munmap(*out, bytes) unmaps. Freed with its last
 * mapping. */
enum clime_err clime_group_memory(struct clime_group *g, size_t bytes, void **out, struct clime_error *e);

#endif
