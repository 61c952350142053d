/* Device arrays in files. See arrays.h. Invariant: a part is written only at its own offset, so ranks write one file
 * concurrently. */
#include "trainer/learn/arrays.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE ((int64_t)4 << 20) /* elements per transfer */

static enum clime_err cannot(const char *what, const char *path, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

enum clime_err clime_array_create(const struct clime_array *a, const char *path, struct clime_error *e) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    enum clime_err rc = fd < 0 ? cannot("create", path, e) : CLIME_OK;
    if (!rc && ftruncate(fd, (off_t)((size_t)a->n_all * a->size))) rc = cannot("write", path, e);
    if (fd >= 0) close(fd);
    return rc;
}

static bool write_at(int fd, const char *p, size_t n, off_t at) {
    for (ssize_t k; n > 0; p += k, at += k, n -= (size_t)k) {
        k = pwrite(fd, p, n, at);
        if (k < 0 && errno == EINTR) k = 0;
        if (k < 0) return false;
    }
    return true;
}

static bool read_at(int fd, char *p, size_t n, off_t at) {
    for (ssize_t k; n > 0; p += k, at += k, n -= (size_t)k) {
        k = pread(fd, p, n, at);
        if (k < 0 && errno == EINTR)
            k = 0;
        else if (k <= 0)
            return false;
    }
    return true;
}

static enum clime_err write_range(const struct clime_array *a, const struct clime_range *x, int fd, char *piece,
                                  const char *path, struct clime_error *e) {
    for (int64_t k = 0; k < x->hi - x->lo; k += PIECE) {
        size_t bytes = (size_t)(x->hi - x->lo - k < PIECE ? x->hi - x->lo - k : PIECE) * a->size;
        a->ops->copy_out(a->dev, piece, (const char *)a->at + (size_t)(x->at + k) * a->size, bytes);
        if (!write_at(fd, piece, bytes, (off_t)((size_t)(x->lo + k) * a->size))) return cannot("write", path, e);
    }
    return CLIME_OK;
}

enum clime_err clime_array_write(const struct clime_array *a, int rank, const char *path, struct clime_error *e) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    enum clime_err rc = fd < 0 ? cannot("write", path, e) : CLIME_OK;
    char *piece = xmalloc((size_t)PIECE * a->size);
    for (int i = rank ? a->n_everywhere : 0; !rc && i < a->n; i++)
        rc = write_range(a, &a->ranges[i], fd, piece, path, e);
    if (!rc && fsync(fd)) rc = cannot("sync", path, e);
    if (fd >= 0 && close(fd) && !rc) rc = cannot("close", path, e);
    free(piece);
    return rc;
}

static enum clime_err read_range(const struct clime_array *a, const struct clime_range *x, int fd, char *piece,
                                 const char *path, struct clime_error *e) {
    for (int64_t k = 0; k < x->hi - x->lo; k += PIECE) {
        size_t bytes = (size_t)(x->hi - x->lo - k < PIECE ? x->hi - x->lo - k : PIECE) * a->size;
        if (!read_at(fd, piece, bytes, (off_t)((size_t)(x->lo + k) * a->size)))
            return clime_fail(e, CLIME_ERR_INTERNAL, "reading %s breaks off after %lld elements", path,
                              (long long)(x->lo + k));
        a->ops->copy_in(a->dev, (char *)a->at + (size_t)(x->at + k) * a->size, piece, bytes);
    }
    return CLIME_OK;
}

enum clime_err clime_array_read(const struct clime_array *a, const char *path, struct clime_error *e) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum clime_err rc = CLIME_OK;
    char *piece = xmalloc((size_t)PIECE * a->size);
    if (fd < 0) rc = clime_fail(e, CLIME_ERR_INTERNAL, "cannot read %s: %s", path, strerror(errno));
    for (int i = 0; !rc && i < a->n; i++) rc = read_range(a, &a->ranges[i], fd, piece, path, e);
    if (fd >= 0) close(fd);
    free(piece);
    return rc;
}
