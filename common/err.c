/* Error records, failed checks and aborting allocation (see err.h). Any thread; owns nothing.
 *
 * Small allocations abort when memory is exhausted: with overcommit the kernel kills the process long before malloc
 * fails, so code that recovers is never exercised.
 */
#include "common/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum clime_err clime_fail(struct clime_error *e, enum clime_err code, const char *fmt, ...) {
    CHECK(code != CLIME_OK);
    if (!e) return code;
    /* The arguments may point into e->msg (a wrapped message), so the new one is built in a copy. */
    char msg[sizeof e->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    memcpy(e->msg, msg, sizeof msg);
    e->code = code;
    return code;
}

enum clime_err clime_error_prefix(struct clime_error *e, const char *fmt, ...) {
    char msg[sizeof e->msg];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    CHECK(n >= 0);
    size_t at = (size_t)n < sizeof msg - 3 ? (size_t)n : sizeof msg - 3;
    memcpy(msg + at, ": ", 2);
    at += 2;
    size_t room = sizeof msg - 1 - at, len = strnlen(e->msg, room);
    memcpy(msg + at, e->msg, len);
    msg[at + len] = 0;
    memcpy(e->msg, msg, at + len + 1);
    return e->code;
}

const char *clime_err_name(enum clime_err code) {
    switch (code) {
    case CLIME_OK:
        return "OK";
    case CLIME_ERR_INPUT:
        return "INPUT";
    case CLIME_ERR_TOO_LONG:
        return "TOO_LONG";
    case CLIME_ERR_NOT_FOUND:
        return "NOT_FOUND";
    case CLIME_ERR_LIMIT:
        return "LIMIT";
    case CLIME_ERR_BUSY:
        return "BUSY";
    case CLIME_ERR_UNAVAILABLE:
        return "UNAVAILABLE";
    case CLIME_ERR_TIMEOUT:
        return "TIMEOUT";
    case CLIME_ERR_IO:
        return "IO";
    case CLIME_ERR_DEVICE:
        return "DEVICE";
    case CLIME_ERR_ABORTED:
        return "ABORTED";
    case CLIME_ERR_INTERNAL:
        return "INTERNAL";
    }
    return "UNKNOWN";
}

void clime_check_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, what);
    abort();
}

static void *require(void *p, size_t bytes) {
    if (!p) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        abort();
    }
    return p;
}

void *xmalloc(size_t bytes) {
    return require(malloc(bytes ? bytes : 1), bytes);
}

void *xcalloc(size_t n, size_t bytes) {
    return require(n && bytes ? calloc(n, bytes) : calloc(1, 1), bytes);
}

void *xrealloc(void *p, size_t bytes) {
    return require(realloc(p, bytes ? bytes : 1), bytes);
}

void *xaligned(size_t align, size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, align, bytes ? bytes : 1)) p = NULL;
    return require(p, bytes);
}

char *xstrdup(const char *s) {
    return xstrndup(s, strlen(s));
}

char *xstrndup(const char *s, size_t n) {
    char *copy = xmalloc(n + 1);
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *xasprintf(const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    CHECK(n >= 0);
    char *text = xmalloc((size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}
