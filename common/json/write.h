/* Appending JSON writer on a capped buffer. No tree; the writer adds commas.
 *
 *   struct clime_jw w; clime_jw_init(&w, &buf);
 *   clime_jw_object(&w); clime_jw_put_str(&w, "id", s);
 *   clime_jw_key(&w, "numbers"); clime_jw_array(&w); clime_jw_int(&w, 1); clime_jw_close(&w); clime_jw_close(&w);
 *
 * Strings that are not valid UTF-8 are repaired (U+FFFD). Doubles and floats: the fewest digits that read back to the
 * same bits (number.h), so that log-probabilities keep every bit through JSON; always with a point or an exponent
 * ("1.0"), as Python writes floats. NaN and infinities become null.
 */
#ifndef CLIME_COMMON_JSON_WRITE_H
#define CLIME_COMMON_JSON_WRITE_H

#include <stdint.h>

#include "common/buf.h"

#define CLIME_JW_MAX_DEPTH 128 /* a client's document (64) plus what we wrap around it */

struct clime_jw {
    struct clime_buf *out;
    int depth; /* 0 = outside every container */
    bool after_key;
    struct {
        bool is_array, has_item;
    } level[CLIME_JW_MAX_DEPTH + 1]; /* [1..depth] are valid */
};

void clime_jw_init(struct clime_jw *w, struct clime_buf *out);
void clime_jw_object(struct clime_jw *w);
void clime_jw_array(struct clime_jw *w);
void clime_jw_close(struct clime_jw *w); /* the innermost open container */
void clime_jw_key(struct clime_jw *w, const char *key);
void clime_jw_key_str(struct clime_jw *w, struct clime_str key);
void clime_jw_str(struct clime_jw *w, struct clime_str s);
void clime_jw_strz(struct clime_jw *w, const char *z); /* NULL is written as null */
void clime_jw_int(struct clime_jw *w, int64_t v);
void clime_jw_uint(struct clime_jw *w, uint64_t v);
void clime_jw_double(struct clime_jw *w, double v);
void clime_jw_float(struct clime_jw *w, float v);
void clime_jw_bool(struct clime_jw *w, bool v);
void clime_jw_null(struct clime_jw *w);
void clime_jw_raw(struct clime_jw *w, struct clime_str json); /* a complete value; its line breaks become spaces */

/* A member of the open object: its key and its value. */
void clime_jw_put_str(struct clime_jw *w, const char *key, struct clime_str v);
void clime_jw_put_strz(struct clime_jw *w, const char *key, const char *z);
void clime_jw_put_int(struct clime_jw *w, const char *key, int64_t v);
void clime_jw_put_uint(struct clime_jw *w, const char *key, uint64_t v);
void clime_jw_put_double(struct clime_jw *w, const char *key, double v);
void clime_jw_put_float(struct clime_jw *w, const char *key, float v);
void clime_jw_put_bool(struct clime_jw *w, const char *key, bool v);
void clime_jw_put_raw(struct clime_jw *w, const char *key, struct clime_str json);

#endif
