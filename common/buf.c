/* Growable byte buffer with a cap (see buf.h).
 *
 * Called by every writer of text. One owner, no locking. Invariant: data is NULL with len = size = 0, or size > len
 * and data[len] is NUL. Growth doubles, so n appended bytes cost O(n) copies, but never allocates past cap + 1.
 */
#include "common/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_SIZE 256

void clime_buf_init(struct clime_buf *b, size_t cap) {
    memset(b, 0, sizeof *b);
    b->cap = cap < PTRDIFF_MAX ? cap : PTRDIFF_MAX - 1; /* so that cap + 1 cannot wrap */
}

void clime_buf_free(struct clime_buf *b) {
    free(b->data);
    clime_buf_init(b, b->cap);
}

void clime_buf_clear(struct clime_buf *b) {
    b->len = 0;
    b->full = false;
    if (b->data) b->data[0] = 0;
}

char *clime_buf_reserve(struct clime_buf *b, size_t n) {
    if (b->full || n > b->cap - b->len) {
        b->full = true;
        return NULL;
    }
    size_t need = b->len + n + 1;
    if (need > b->size) {
        size_t size = b->size ? b->size : FIRST_SIZE;
        size = size > b->cap / 2 ? b->cap + 1 : size * 2;
        if (size < need) size = need;
        b->data = xrealloc(b->data, size);
        b->size = size;
    }
    b->data[b->len] = 0;
    return b->data + b->len;
}

void clime_buf_grew(struct clime_buf *b, size_t n) {
    CHECK(n < b->size - b->len);
    b->len += n;
    b->data[b->len] = 0;
}

void clime_buf_add(struct clime_buf *b, const void *data, size_t len) {
    char *at = clime_buf_reserve(b, len);
    if (!at || len == 0) return;
    memcpy(at, data, len);
    clime_buf_grew(b, len);
}

void clime_buf_adds(struct clime_buf *b, const char *z) {
    clime_buf_add(b, z, strlen(z));
}

void clime_buf_addc(struct clime_buf *b, char c) {
    clime_buf_add(b, &c, 1);
}

void clime_buf_printf(struct clime_buf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    char text[256]; /* most lines fit and are formatted once */
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    CHECK(n >= 0);
    if ((size_t)n < sizeof text) {
        clime_buf_add(b, text, (size_t)n);
    } else {
        char *at = clime_buf_reserve(b, (size_t)n);
        if (at) {
            vsnprintf(at, (size_t)n + 1, fmt, again);
            clime_buf_grew(b, (size_t)n);
        }
    }
    va_end(again);
}

char *clime_buf_take(struct clime_buf *b) {
    char *data = b->data ? b->data : xstrdup("");
    b->data = NULL;
    clime_buf_init(b, b->cap);
    return data;
}

enum clime_err clime_buf_read_file(struct clime_buf *b, const char *path, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        rc = errno == ENOENT || errno == ENOTDIR ? CLIME_ERR_NOT_FOUND : CLIME_ERR_IO;
        return clime_fail(e, rc, "cannot open %s: %s", path, strerror(errno));
    }
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        /* A hint: the file may grow meanwhile. The extra byte lets the last read see the end. */
        size_t size = (size_t)st.st_size;
        if (size < b->cap - b->len) clime_buf_reserve(b, size + 1);
    }
    for (;;) {
        size_t room = b->size - b->len;
        if (room < 2) {
            size_t more = b->cap - b->len < 65536 ? b->cap - b->len : 65536;
            room = clime_buf_reserve(b, more) ? b->size - b->len : 0;
        }
        char extra; /* at the cap: distinguishes a full buffer from a longer file */
        ssize_t n = room > 1 ? read(fd, b->data + b->len, room - 1) : read(fd, &extra, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            rc = clime_fail(e, CLIME_ERR_IO, "cannot read %s: %s", path, strerror(errno));
            break;
        }
        if (n == 0) break;
        if (room <= 1) {
            rc = clime_fail(e, CLIME_ERR_LIMIT, "%s is larger than %zu bytes", path, b->cap);
            break;
        }
        clime_buf_grew(b, (size_t)n);
    }
    close(fd);
    return rc;
}
