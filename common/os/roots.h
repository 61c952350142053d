/* Whether a path that somebody asks for lies in one of the folders that he may name. Any thread. */
#ifndef CLIME_COMMON_OS_ROOTS_H
#define CLIME_COMMON_OS_ROOTS_H

#include "common/err.h"

/* Links on the way and ".." are followed first, so the path must be there. Without any root everything is in. */
enum clime_err clime_roots_check(const char *const *roots, int n, const char *path, struct clime_error *e);

#endif
