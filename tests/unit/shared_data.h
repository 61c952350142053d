/* Paths in the folder of shared test data ($CLIME_DATA, default ../shared/data). Test code only. */
#ifndef CLIME_TESTS_UNIT_SHARED_DATA_H
#define CLIME_TESTS_UNIT_SHARED_DATA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"

/* The path of a file or folder of the shared data; the caller frees it. Where it is absent the test is skipped, with
 * CLIME_REQUIRE_DATA=1 it fails. */
static inline char *shared_data(const char *name) {
    const char *data = getenv("CLIME_DATA"), *required = getenv("CLIME_REQUIRE_DATA");
    char *path = xasprintf("%s/%s", data ? data : "../shared/data", name);
    if (access(path, R_OK) == 0) return path;
    if (required && strcmp(required, "1") == 0) fail_msg("CLIME_REQUIRE_DATA=1, and shared data is absent: %s", path);
    free(path);
    skip();
    return NULL;
}

#endif
