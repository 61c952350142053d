/* A slice of bytes, borrowed from the owner of ptr; not NUL-terminated. */
#ifndef CLIME_COMMON_STR_H
#define CLIME_COMMON_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct clime_str {
    const char *ptr;
    size_t len;
};

#define CLIME_STR_FMT "%.*s" /* use with CLIME_STR_ARG */
#define CLIME_STR_ARG(s) (int)(s).len, (s).ptr

static inline struct clime_str clime_str_of(const char *z) {
    struct clime_str s = {z, z ? strlen(z) : 0};
    return s;
}

static inline bool clime_str_is(struct clime_str s, const char *z) {
    size_t n = strlen(z);
    return s.len == n && (n == 0 || memcmp(s.ptr, z, n) == 0);
}

static inline bool clime_str_eq(struct clime_str a, struct clime_str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static inline bool clime_str_starts(struct clime_str s, const char *z) {
    size_t n = strlen(z);
    return s.len >= n && (n == 0 || memcmp(s.ptr, z, n) == 0);
}

static inline bool clime_str_ends(struct clime_str s, const char *z) {
    size_t n = strlen(z);
    return s.len >= n && (n == 0 || memcmp(s.ptr + s.len - n, z, n) == 0);
}

/* Removes the next line from rest, without its "\n" or "\r\n"; the last line needs none. False when rest is empty. */
static inline bool clime_str_line(struct clime_str *rest, struct clime_str *line) {
    const char *end = rest->len ? (const char *)memchr(rest->ptr, '\n', rest->len) : NULL;
    if (!rest->len) return false;
    *line = (struct clime_str){rest->ptr, end ? (size_t)(end - rest->ptr) : rest->len};
    rest->ptr += line->len + (end != NULL);
    rest->len -= line->len + (end != NULL);
    if (line->len && line->ptr[line->len - 1] == '\r') line->len--;
    return true;
}

/* The value of a hexadecimal digit of either case, or -1. */
static inline int clime_hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

#endif
