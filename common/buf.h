/* A growable byte buffer with a mandatory cap.
 *
 * Appending past the cap sets `full` and drops the bytes; later appends are dropped too, so a writer may append
 * freely and test `full` once at the end. data is NUL-terminated after every append (the NUL is not in len).
 * One owner; no locking.
 */
#ifndef CLIME_COMMON_BUF_H
#define CLIME_COMMON_BUF_H

#include "common/err.h"
#include "common/str.h"

struct clime_buf {
    char *data;  /* NULL until the first append */
    size_t len;  /* bytes in use */
    size_t size; /* bytes allocated */
    size_t cap;  /* maximum len */
    bool full;   /* bytes were dropped */
};

void clime_buf_init(struct clime_buf *b, size_t cap);
void clime_buf_free(struct clime_buf *b);  /* the buffer is reusable */
void clime_buf_clear(struct clime_buf *b); /* len = 0, full = false, memory kept */

void clime_buf_add(struct clime_buf *b, const void *data, size_t len);
void clime_buf_adds(struct clime_buf *b, const char *z);
void clime_buf_addc(struct clime_buf *b, char c);
void clime_buf_printf(struct clime_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Room for n more bytes, or NULL past the cap. The caller writes there, then passes the length to clime_buf_grew. */
char *clime_buf_reserve(struct clime_buf *b, size_t n);
void clime_buf_grew(struct clime_buf *b, size_t n);

/* Moves the memory to the caller, who frees it ("" when empty, never NULL). Leaves the buffer empty. */
char *clime_buf_take(struct clime_buf *b);

static inline struct clime_str clime_buf_str(const struct clime_buf *b) {
    struct clime_str s = {b->data ? b->data : "", b->len};
    return s;
}

/* Reads a whole file; CLIME_ERR_NOT_FOUND, CLIME_ERR_IO, or CLIME_ERR_LIMIT past the buffer's cap. */
enum clime_err clime_buf_read_file(struct clime_buf *b, const char *path, struct clime_error *e);

#endif
