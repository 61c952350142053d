/* Host memory that all ranks of a group map, where they run on one host. The owner's thread. */
#ifndef CLIME_COMMON_GROUP_MEMORY_H
#define CLIME_COMMON_GROUP_MEMORY_H

#include "common/group/group.h"

/* All ranks call it, with the same bytes; zeroed, aligned to a page, unmapped with munmap(*out, bytes). It is gone with
 * the last of them. */
enum clime_err clime_group_memory(struct clime_group *g, size_t bytes, void **out, struct clime_error *e);

#endif
