/* Errors, checks and allocation that cannot fail.
 *
 * Three classes:
 *   - broken invariants: CHECK() prints and aborts, always compiled in;
 *   - bad input and environment: a function returns enum clime_err and fills a struct clime_error once, where
 *     the problem began; callers may prefix it on the way up and pass it on;
 *   - small allocations: xmalloc and friends abort on exhaustion.
 * Any thread; no global state.
 */
#ifndef CLIME_COMMON_ERR_H
#define CLIME_COMMON_ERR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum clime_err {
    CLIME_OK = 0,
    CLIME_ERR_INPUT,       /* the caller's data is wrong: HTTP 400 */
    CLIME_ERR_TOO_LONG,    /* a prompt is longer than the model's context: 400, as context_length_exceeded */
    CLIME_ERR_NOT_FOUND,   /* a file, model or id does not exist: 404 */
    CLIME_ERR_LIMIT,       /* over a stated limit (size, depth, length): 413 or 400 */
    CLIME_ERR_BUSY,        /* a queue is full, retry later: 429 */
    CLIME_ERR_UNAVAILABLE, /* draining, paused, peer gone: 503 */
    CLIME_ERR_TIMEOUT,     /* a named wait reached its limit: 504 */
    CLIME_ERR_IO,          /* read, write, connect failed */
    CLIME_ERR_DEVICE,      /* the accelerator failed; the engine is dead */
    CLIME_ERR_ABORTED,     /* stopped on request */
    CLIME_ERR_INTERNAL     /* a peer or library broke its contract */
};

struct clime_error {
    enum clime_err code;
    char msg[512]; /* UTF-8, no newline at the end */
};

/* Sets e (may be NULL) and returns code. Never call it with CLIME_OK. */
enum clime_err clime_fail(struct clime_error *e, enum clime_err code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before e's message; returns e->code. */
enum clime_err clime_error_prefix(struct clime_error *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Short upper-case name, "INPUT", "TIMEOUT", ... for logs and the ledger. */
const char *clime_err_name(enum clime_err code);

/* Aborts with file, line and text when cond is false. For bugs, never for bad input. */
#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) clime_check_failed(__FILE__, __LINE__, #cond);                                                    \
    } while (0)
void clime_check_failed(const char *file, int line, const char *what) __attribute__((noreturn));

/* Allocation of small, planned sizes. Aborts with a message when memory is exhausted. */
void *xmalloc(size_t bytes) __attribute__((returns_nonnull, warn_unused_result));
void *xcalloc(size_t n, size_t bytes) __attribute__((returns_nonnull, warn_unused_result));
void *xrealloc(void *p, size_t bytes) __attribute__((returns_nonnull, warn_unused_result));
void *xaligned(size_t align, size_t bytes) __attribute__((returns_nonnull, warn_unused_result)); /* free() frees it */
char *xstrdup(const char *s) __attribute__((returns_nonnull, warn_unused_result));
char *xstrndup(const char *s, size_t n) __attribute__((returns_nonnull, warn_unused_result));
char *xasprintf(const char *fmt, ...) __attribute__((returns_nonnull, warn_unused_result, format(printf, 1, 2)));

#define CLIME_COUNT(a) (sizeof(a) / sizeof((a)[0]))

#endif
