/* Folders that requests may name (see roots.h). Called by handlers; owns nothing. */
#include "common/os/roots.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool lies_in(const char *root, const char *real) {
    char *folder = realpath(root, NULL);
    size_t n = folder ? strlen(folder) : 0;
    while (n > 0 && folder[n - 1] == '/') n--; /* "/" becomes empty, which contains every path */
    bool in = folder && strncmp(real, folder, n) == 0 && (real[n] == '/' || !real[n]);
    free(folder);
    return in;
}

enum clime_err clime_roots_check(const char *const *roots, int n, const char *path, struct clime_error *e) {
    if (n == 0) return CLIME_OK;
    char *real = realpath(path, NULL);
    bool in = false;
    for (int i = 0; i < n && real && !in; i++) in = lies_in(roots[i], real);
    free(real);
    /* One message for outside and missing paths, so a client learns nothing of the rest of the disk. */
    return in ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "%.200s is not in a folder of --files-under", path);
}
