/* API keys (see secret.h). Compared on each request's worker thread, made at a program's start; owns nothing.
 *
 * Invariant of comparing: control flow never depends on a byte of either text. `difference` is volatile, so the
 * compiler cannot end the loop at the first difference. */
#include "common/http/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool clime_secret_equal(const char *given, const char *key) {
    size_t n = strlen(key), n_given = strlen(given);
    volatile unsigned char difference = n != n_given;
    for (size_t i = 0; i < n_given; i++) difference |= (unsigned char)(given[i] ^ key[n ? i % n : 0]);
    return difference == 0;
}

enum clime_err clime_secret_make(const char *path, char key[CLIME_SECRET_CHARS + 1], struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    clime_random_id(key);
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || dprintf(fd, "%s\n", key) < 0)
        rc = clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return rc;
}
