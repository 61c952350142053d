/* Appending JSON writer (see write.h).
 *
 * Called wherever JSON is written, on the thread that owns the buffer. CHECKs the order of calls: a key before each
 * member's value, nothing left open.
 */
#include "common/json/write.h"

#include <math.h>
#include <stdio.h>

#include "common/number.h"
#include "common/utf8.h"

void clime_jw_init(struct clime_jw *w, struct clime_buf *out) {
    w->out = out;
    w->depth = 0;
    w->after_key = false;
}

/* Writes the comma between items; inside an object the key has written it. */
static void before_value(struct clime_jw *w) {
    if (w->depth == 0) return;
    if (!w->level[w->depth].is_array) {
        CHECK(w->after_key);
        w->after_key = false;
        return;
    }
    if (w->level[w->depth].has_item) clime_buf_addc(w->out, ',');
    w->level[w->depth].has_item = true;
}

static void open_container(struct clime_jw *w, bool array) {
    before_value(w);
    CHECK(w->depth < CLIME_JW_MAX_DEPTH);
    w->depth++;
    w->level[w->depth].is_array = array;
    w->level[w->depth].has_item = false;
    clime_buf_addc(w->out, array ? '[' : '{');
}

void clime_jw_object(struct clime_jw *w) {
    open_container(w, false);
}

void clime_jw_array(struct clime_jw *w) {
    open_container(w, true);
}

void clime_jw_close(struct clime_jw *w) {
    CHECK(w->depth > 0 && !w->after_key);
    clime_buf_addc(w->out, w->level[w->depth].is_array ? ']' : '}');
    w->depth--;
}

/* Line ends of Python's splitlines, which many readers of event streams and JSON lines use. */
static bool ends_line(uint32_t cp) {
    return cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

/* Escapes what JSON requires and what some readers treat as a line end, repairs UTF-8, copies the rest in runs. */
static void put_string(struct clime_buf *out, struct clime_str s) {
    clime_buf_addc(out, '"');
    size_t from = 0, at = 0;
    while (at < s.len) {
        unsigned char c = (unsigned char)s.ptr[at];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            at++;
            continue;
        }
        uint32_t cp;
        int len = clime_utf8_decode(s.ptr + at, s.len - at, &cp);
        if (len > 1 && !ends_line(cp)) {
            at += (size_t)len;
            continue;
        }
        clime_buf_add(out, s.ptr + from, at - from);
        static const char short_names[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs: character, letter of its escape */
        char letter = 0;
        for (int i = 0; i < 14; i += 2)
            if (short_names[i] == (char)c) letter = short_names[i + 1];
        if (len < 0)
            clime_buf_adds(out, "\xEF\xBF\xBD"); /* U+FFFD */
        else if (letter)
            clime_buf_add(out, (char[]){'\\', letter}, 2);
        else
            clime_buf_printf(out, "\\u%04x", (unsigned)cp);
        at += (size_t)(len < 0 ? -len : len);
        from = at;
    }
    clime_buf_add(out, s.ptr + from, s.len - from);
    clime_buf_addc(out, '"');
}

void clime_jw_key_str(struct clime_jw *w, struct clime_str key) {
    CHECK(w->depth > 0 && !w->level[w->depth].is_array && !w->after_key);
    if (w->level[w->depth].has_item) clime_buf_addc(w->out, ',');
    w->level[w->depth].has_item = true;
    put_string(w->out, key);
    clime_buf_addc(w->out, ':');
    w->after_key = true;
}

void clime_jw_key(struct clime_jw *w, const char *key) {
    clime_jw_key_str(w, clime_str_of(key));
}

void clime_jw_str(struct clime_jw *w, struct clime_str s) {
    before_value(w);
    put_string(w->out, s);
}

void clime_jw_strz(struct clime_jw *w, const char *z) {
    if (z)
        clime_jw_str(w, clime_str_of(z));
    else
        clime_jw_null(w);
}

static void put_integer(struct clime_jw *w, uint64_t magnitude, bool negative) {
    char text[24];
    size_t at = sizeof text;
    do text[--at] = (char)('0' + magnitude % 10);
    while (magnitude /= 10);
    if (negative) text[--at] = '-';
    before_value(w);
    clime_buf_add(w->out, text + at, sizeof text - at);
}

void clime_jw_int(struct clime_jw *w, int64_t v) {
    put_integer(w, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, v < 0);
}

void clime_jw_uint(struct clime_jw *w, uint64_t v) {
    put_integer(w, v, false);
}

void clime_jw_double(struct clime_jw *w, double v) {
    if (!isfinite(v)) {
        clime_jw_null(w);
        return;
    }
    char text[CLIME_NUMBER_TEXT];
    before_value(w);
    clime_buf_add(w->out, text, (size_t)clime_number_write_double(v, text));
}

void clime_jw_float(struct clime_jw *w, float v) {
    if (!isfinite(v)) {
        clime_jw_null(w);
        return;
    }
    char text[CLIME_NUMBER_TEXT];
    before_value(w);
    clime_buf_add(w->out, text, (size_t)clime_number_write_float(v, text));
}

void clime_jw_bool(struct clime_jw *w, bool v) {
    clime_jw_raw(w, clime_str_of(v ? "true" : "false"));
}

void clime_jw_null(struct clime_jw *w) {
    clime_jw_raw(w, clime_str_of("null"));
}

/* Replaces line breaks, which can occur only between tokens, by spaces: a raw one would end an event of a stream, or a
 * line of a line-based reader. */
void clime_jw_raw(struct clime_jw *w, struct clime_str json) {
    before_value(w);
    size_t from = w->out->len;
    clime_buf_add(w->out, json.ptr, json.len);
    for (size_t i = from; i < w->out->len; i++)
        if (w->out->data[i] == '\n' || w->out->data[i] == '\r') w->out->data[i] = ' ';
}

/* ---- members of an object ---- */

void clime_jw_put_str(struct clime_jw *w, const char *key, struct clime_str v) {
    clime_jw_key(w, key);
    clime_jw_str(w, v);
}

void clime_jw_put_strz(struct clime_jw *w, const char *key, const char *z) {
    clime_jw_key(w, key);
    clime_jw_strz(w, z);
}

void clime_jw_put_int(struct clime_jw *w, const char *key, int64_t v) {
    clime_jw_key(w, key);
    clime_jw_int(w, v);
}

void clime_jw_put_uint(struct clime_jw *w, const char *key, uint64_t v) {
    clime_jw_key(w, key);
    clime_jw_uint(w, v);
}

void clime_jw_put_double(struct clime_jw *w, const char *key, double v) {
    clime_jw_key(w, key);
    clime_jw_double(w, v);
}

void clime_jw_put_float(struct clime_jw *w, const char *key, float v) {
    clime_jw_key(w, key);
    clime_jw_float(w, v);
}

void clime_jw_put_bool(struct clime_jw *w, const char *key, bool v) {
    clime_jw_key(w, key);
    clime_jw_bool(w, v);
}

void clime_jw_put_raw(struct clime_jw *w, const char *key, struct clime_str json) {
    clime_jw_key(w, key);
    clime_jw_raw(w, json);
}
