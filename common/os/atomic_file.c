/* Atomic files (see atomic_file.h). Called by exporters, checkpoints and caches, on any thread; owns the descriptor and
 * the temporary file between open and close. Invariant: `path` never holds a partial file. The folder is synced after
 * the rename, as ext4 and xfs otherwise do not make the new name durable.
 */
#include "common/os/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum clime_err clime_atomic_open(struct clime_atomic_file *f, const char *path, struct clime_error *e) {
    f->path = xstrdup(path);
    f->tmp = xasprintf("%s.tmp.%ld", path, (long)getpid());
    f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (f->fd >= 0) return CLIME_OK;
    enum clime_err rc = clime_fail(e, CLIME_ERR_IO, "cannot create %s: %s", f->tmp, strerror(errno));
    free(f->path);
    free(f->tmp);
    return rc;
}

enum clime_err clime_atomic_write(struct clime_atomic_file *f, const void *data, size_t len, struct clime_error *e) {
    const char *at = data;
    while (len > 0) {
        ssize_t n = write(f->fd, at, len < (1 << 30) ? len : (1 << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", f->tmp, strerror(errno));
        at += n;
        len -= (size_t)n;
    }
    return CLIME_OK;
}

static enum clime_err sync_folder(const char *path, struct clime_error *e) {
    const char *slash = strrchr(path, '/');
    char *dir = slash ? xstrndup(path, slash == path ? 1 : (size_t)(slash - path)) : xstrdup(".");
    enum clime_err rc = CLIME_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd)) rc = clime_fail(e, CLIME_ERR_IO, "cannot sync folder %s: %s", dir, strerror(errno));
    if (fd >= 0) close(fd);
    free(dir);
    return rc;
}

enum clime_err clime_atomic_close(struct clime_atomic_file *f, enum clime_err so_far, struct clime_error *e) {
    enum clime_err rc = so_far;
    if (rc == CLIME_OK && fsync(f->fd)) rc = clime_fail(e, CLIME_ERR_IO, "cannot sync %s: %s", f->tmp, strerror(errno));
    if (close(f->fd) && rc == CLIME_OK)
        rc = clime_fail(e, CLIME_ERR_IO, "cannot close %s: %s", f->tmp, strerror(errno));
    if (rc == CLIME_OK && rename(f->tmp, f->path))
        rc = clime_fail(e, CLIME_ERR_IO, "cannot rename %s to %s: %s", f->tmp, f->path, strerror(errno));
    if (rc == CLIME_OK)
        rc = sync_folder(f->path, e);
    else
        unlink(f->tmp);
    free(f->path);
    free(f->tmp);
    f->fd = -1;
    return rc;
}

enum clime_err clime_atomic_save(const char *path, const void *data, size_t len, struct clime_error *e) {
    struct clime_atomic_file f;
    enum clime_err rc = clime_atomic_open(&f, path, e);
    if (rc) return rc;
    return clime_atomic_close(&f, clime_atomic_write(&f, data, len, e), e);
}
