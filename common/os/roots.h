/* Restricts requested paths to allowed folders. Any thread. */
#ifndef CLIME_COMMON_OS_ROOTS_H
#define CLIME_COMMON_OS_ROOTS_H

#include "common/err.h"

/* Error when path is in none of the roots. Resolves symbolic links and "..", so path must exist. No roots: any path. */
enum clime_err clime_roots_check(const char *const *roots, int n, const char *path, struct clime_error *e);

#endif
