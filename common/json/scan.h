/* Strict pull scanner over a JSON text in memory (RFC 8259): no tree; copies only escaped strings.
 *
 * Why not cJSON: request bodies carry 10^4..10^5 ids and floats; cJSON takes 64 bytes and a malloc per number and loses
 * integers above 2^53 (measured 19 times slower).
 *
 * Use: init, then exactly one value call per value, then end. After the first error every call returns false or
 * CLIME_JSON_ERROR and the error stays set (with the byte offset), so code may test once at the end.
 *
 *   struct clime_json j;
 *   clime_json_init(&j, text, len, &arena, &err);
 *   struct clime_str key;
 *   for (clime_json_object(&j); clime_json_key(&j, &key);) {
 *       if (clime_str_is(key, "n")) clime_json_int(&j, 1, 128, &n);
 *       else clime_json_skip(&j, NULL);
 *   }
 *   if (!clime_json_end(&j)) return err.code;
 *
 * Strict: UTF-8 must be valid, lone surrogate escapes are an error, depth is capped at 64, no NaN or Infinity, only
 * white space may follow. Duplicate keys are all delivered, in order.
 */
#ifndef CLIME_COMMON_JSON_SCAN_H
#define CLIME_COMMON_JSON_SCAN_H

#include <stdint.h>

#include "common/arena.h"
#include "common/err.h"

#define CLIME_JSON_MAX_DEPTH 64

enum clime_json_kind {
    CLIME_JSON_ERROR,
    CLIME_JSON_NULL,
    CLIME_JSON_BOOL,
    CLIME_JSON_NUMBER,
    CLIME_JSON_STRING,
    CLIME_JSON_ARRAY,
    CLIME_JSON_OBJECT,
};

struct clime_json {
    const char *start, *at, *end;
    struct clime_arena *arena; /* for strings with escapes; NULL only inside clime_json_check */
    struct clime_error *err;   /* never NULL */
    bool failed;
    int depth;
    uint8_t first[CLIME_JSON_MAX_DEPTH]; /* 1 = no member read yet at this depth */
};

/* The arena is never NULL: any key or string may hold an escape. */
void clime_json_init(struct clime_json *j, const char *text, size_t len, struct clime_arena *a, struct clime_error *e)
    __attribute__((nonnull(1, 4, 5)));
bool clime_json_end(struct clime_json *j); /* true when nothing failed and nothing follows */

enum clime_json_kind clime_json_peek(struct clime_json *j); /* the kind of the next value; consumes nothing */

bool clime_json_object(struct clime_json *j);                     /* enters; error when it is no object */
bool clime_json_key(struct clime_json *j, struct clime_str *key); /* next key, or false at '}' (consumed) */
bool clime_json_array(struct clime_json *j);                      /* enters; error when it is no array */
bool clime_json_item(struct clime_json *j);                       /* true when another item follows, false at ']' */

bool clime_json_string(struct clime_json *j, struct clime_str *out); /* slice of the text, or of the arena */
/* A NUL-terminated copy in the arena; error when the string contains a NUL, or the arena is full. */
bool clime_json_string_z(struct clime_json *j, const char **out);
bool clime_json_int(struct clime_json *j, int64_t min, int64_t max, int64_t *out); /* exact; 1.0 and 1e3 refused */
bool clime_json_uint(struct clime_json *j, uint64_t *out);                         /* exact 0..2^64-1 */
bool clime_json_double(struct clime_json *j, double *out);                         /* finite */
bool clime_json_bool(struct clime_json *j, bool *out);
bool clime_json_null(struct clime_json *j); /* consumes null; error when it is another value */
bool clime_json_skip(struct clime_json *j,
                     struct clime_str *raw); /* any value, checked; raw (may be NULL) = its text */

/* Consumes an object; returns its last string member `name`; ptr NULL = none. */
struct clime_str clime_json_member_text(struct clime_json *j, const char *name);

/* A number as written ("1", "1.0", "-2e5"), for callers that distinguish int from float. */
bool clime_json_number_text(struct clime_json *j, struct clime_str *out);

/* True when the text is exactly one JSON value; *e has the reason otherwise. Decodes nothing, so needs no arena. */
bool clime_json_check(const char *text, size_t len, struct clime_error *e);

/* Sets the scanner's error, with the byte offset, for a semantically wrong value; returns false. */
bool clime_json_bad(struct clime_json *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
