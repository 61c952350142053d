/* Strict pull scanner for JSON (see scan.h).
 *
 * Called wherever JSON is read, on the thread that owns the scanner; owns nothing (strings with escapes go to the
 * caller's arena). Invariant: `at` <= `end`, and `at` == `end` after a failure, which stops every loop over keys or
 * items. No recursion: worker threads have 100 KiB of stack.
 */
#include "common/json/scan.h"

#include <stdio.h>
#include <string.h>

#include "common/number.h"
#include "common/utf8.h"

static void init(struct clime_json *j, const char *text, size_t len, struct clime_error *e) {
    memset(j, 0, sizeof *j);
    j->start = j->at = text;
    j->end = text + len;
    j->err = e;
}

void clime_json_init(struct clime_json *j, const char *text, size_t len, struct clime_arena *a, struct clime_error *e) {
    init(j, text, len, e);
    j->arena = a;
}

static bool fail(struct clime_json *j, enum clime_err code, const char *what) {
    if (!j->failed) clime_fail(j->err, code, "JSON at byte %zu: %s", (size_t)(j->at - j->start), what);
    j->failed = true;
    j->at = j->end;
    return false;
}

bool clime_json_bad(struct clime_json *j, const char *fmt, ...) {
    char what[sizeof j->err->msg - 64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return fail(j, CLIME_ERR_INPUT, what);
}

static void skip_space(struct clime_json *j) {
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t')) j->at++;
}

static bool at_digit(const struct clime_json *j) {
    return j->at < j->end && *j->at >= '0' && *j->at <= '9';
}

bool clime_json_end(struct clime_json *j) {
    if (j->failed) return false;
    if (j->depth > 0) return fail(j, CLIME_ERR_INTERNAL, "the value was not read to its end");
    skip_space(j);
    return j->at == j->end || fail(j, CLIME_ERR_INPUT, "text after the value");
}

enum clime_json_kind clime_json_peek(struct clime_json *j) {
    if (j->failed) return CLIME_JSON_ERROR;
    skip_space(j);
    if (at_digit(j)) return CLIME_JSON_NUMBER;
    switch (j->at < j->end ? *j->at : 0) {
    case '-':
        return CLIME_JSON_NUMBER;
    case '"':
        return CLIME_JSON_STRING;
    case '[':
        return CLIME_JSON_ARRAY;
    case '{':
        return CLIME_JSON_OBJECT;
    case 't':
    case 'f':
        return CLIME_JSON_BOOL;
    case 'n':
        return CLIME_JSON_NULL;
    }
    fail(j, CLIME_ERR_INPUT, j->at == j->end ? "the text ends where a value should be" : "expected a value");
    return CLIME_JSON_ERROR;
}

/* Checks the next value's kind; `expected` is the error message. */
static bool expect(struct clime_json *j, enum clime_json_kind kind, const char *expected) {
    enum clime_json_kind found = clime_json_peek(j);
    if (found == kind) return true;
    return found == CLIME_JSON_ERROR ? false : fail(j, CLIME_ERR_INPUT, expected);
}

/* Containers */

static bool enter(struct clime_json *j) {
    if (j->depth == CLIME_JSON_MAX_DEPTH) return clime_json_bad(j, "nested deeper than %d", CLIME_JSON_MAX_DEPTH);
    j->first[j->depth++] = 1;
    j->at++;
    return true;
}

bool clime_json_object(struct clime_json *j) {
    return expect(j, CLIME_JSON_OBJECT, "expected an object") && enter(j);
}

bool clime_json_array(struct clime_json *j) {
    return expect(j, CLIME_JSON_ARRAY, "expected an array") && enter(j);
}

/* Moves to the next member: true when one must follow, false after consuming `close` or on an error. */
static bool next_member(struct clime_json *j, char close) {
    if (j->failed) return false;
    CHECK(j->depth > 0);
    uint8_t *first = &j->first[j->depth - 1];
    skip_space(j);
    if (j->at < j->end && *j->at == close) {
        j->at++;
        j->depth--;
        return false;
    }
    if (!*first) {
        if (j->at == j->end || *j->at != ',')
            return fail(j, CLIME_ERR_INPUT, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
        j->at++;
    }
    *first = 0;
    return true;
}

bool clime_json_item(struct clime_json *j) {
    return next_member(j, ']');
}

/* Strings */

/* Consumes four hexadecimal digits into v. */
static bool read_hex4(struct clime_json *j, uint32_t *v) {
    *v = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        int digit = j->at < j->end ? clime_hex_digit(*j->at) : -1;
        if (digit < 0) return fail(j, CLIME_ERR_INPUT, "expected four hexadecimal digits after \\u");
        *v = *v << 4 | (uint32_t)digit;
    }
    return true;
}

/* Decodes the escape after a consumed backslash into out; returns its length in UTF-8, 0 on failure. */
static int read_escape(struct clime_json *j, char out[4]) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->at < j->end ? *j->at : 0;
    const char *hit = c ? strchr(from, c) : NULL;
    if (hit) {
        j->at++;
        out[0] = to[hit - from];
        return 1;
    }
    if (c != 'u') return fail(j, CLIME_ERR_INPUT, "unknown escape");
    j->at++;
    uint32_t cp, low;
    if (!read_hex4(j, &cp)) return 0;
    if (cp >= 0xD800 && cp < 0xDC00) {
        if (j->end - j->at < 2 || j->at[0] != '\\' || j->at[1] != 'u')
            return fail(j, CLIME_ERR_INPUT, "lone surrogate");
        j->at += 2;
        if (!read_hex4(j, &low)) return 0;
        if (low < 0xDC00 || low > 0xDFFF) return fail(j, CLIME_ERR_INPUT, "lone surrogate");
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    } else if (cp >= 0xDC00 && cp <= 0xDFFF) {
        return fail(j, CLIME_ERR_INPUT, "lone surrogate");
    }
    return clime_utf8_encode(cp, out);
}

static ptrdiff_t walk_failed(struct clime_json *j, const char *what) {
    fail(j, CLIME_ERR_INPUT, what);
    return -1;
}

/* Consumes a string after its opening quote, with the closing one. out (may be NULL) receives the decoded bytes; the
 * raw length is enough room. Returns the decoded length, or -1. */
static ptrdiff_t walk_string(struct clime_json *j, char *out, bool *escaped) {
    ptrdiff_t n = 0;
    for (;;) {
        const char *run = j->at;
        while (j->at < j->end && (unsigned char)*j->at >= 0x20 && (unsigned char)*j->at < 0x80 && *j->at != '"' &&
               *j->at != '\\')
            j->at++;
        if (out) memcpy(out + n, run, (size_t)(j->at - run));
        n += j->at - run;
        if (j->at == j->end) return walk_failed(j, "unterminated string");
        unsigned char c = (unsigned char)*j->at;
        if (c == '"') {
            j->at++;
            return n;
        }
        if (c < 0x20) return walk_failed(j, "control character in a string");
        char piece[4];
        int len;
        if (c == '\\') {
            *escaped = true;
            j->at++;
            len = read_escape(j, piece);
            if (len == 0) return -1;
        } else {
            uint32_t cp;
            len = clime_utf8_decode(j->at, (size_t)(j->end - j->at), &cp);
            if (len < 0) return walk_failed(j, "invalid UTF-8");
            memcpy(piece, j->at, (size_t)len);
            j->at += len;
        }
        if (out) memcpy(out + n, piece, (size_t)len);
        n += len;
    }
}

bool clime_json_string(struct clime_json *j, struct clime_str *out) {
    if (!expect(j, CLIME_JSON_STRING, "expected a string")) return false;
    const char *quote = j->at++;
    bool escaped = false;
    ptrdiff_t n = walk_string(j, NULL, &escaped);
    if (n < 0) return false;
    *out = (struct clime_str){quote + 1, (size_t)n};
    if (!escaped) return true;
    char *copy = clime_arena_alloc(j->arena, (size_t)n);
    if (!copy) return fail(j, CLIME_ERR_LIMIT, "the strings of this document take too much memory");
    j->at = quote + 1;
    walk_string(j, copy, &escaped);
    out->ptr = copy;
    return true;
}

bool clime_json_string_z(struct clime_json *j, const char **out) {
    struct clime_str s;
    if (!clime_json_string(j, &s)) return false;
    if (s.len && memchr(s.ptr, 0, s.len)) return fail(j, CLIME_ERR_INPUT, "a NUL in this string cannot be honoured");
    *out = clime_arena_strdup(j->arena, s);
    return *out || fail(j, CLIME_ERR_LIMIT, "the strings of this document take too much memory");
}

static bool colon(struct clime_json *j) {
    skip_space(j);
    if (j->at == j->end || *j->at != ':') return fail(j, CLIME_ERR_INPUT, "expected ':'");
    j->at++;
    return true;
}

bool clime_json_key(struct clime_json *j, struct clime_str *key) {
    if (!next_member(j, '}')) return false;
    return expect(j, CLIME_JSON_STRING, "expected a member name") && clime_json_string(j, key) && colon(j);
}

/* Numbers */

bool clime_json_number_text(struct clime_json *j, struct clime_str *out) {
    if (!expect(j, CLIME_JSON_NUMBER, "expected a number")) return false;
    const char *from = j->at;
    bool exponent = false;
    if (*j->at == '-') j->at++;
    if (!at_digit(j)) return fail(j, CLIME_ERR_INPUT, "expected a digit");
    if (*j->at == '0') {
        j->at++;
        if (at_digit(j)) return fail(j, CLIME_ERR_INPUT, "a number may not start with 0");
    }
    while (at_digit(j)) j->at++;
    if (j->at < j->end && *j->at == '.') {
        j->at++;
        if (!at_digit(j)) return fail(j, CLIME_ERR_INPUT, "expected a digit after the point");
        while (at_digit(j)) j->at++;
    }
    if (j->at < j->end && (*j->at == 'e' || *j->at == 'E')) {
        exponent = true;
        j->at++;
        if (j->at < j->end && (*j->at == '+' || *j->at == '-')) j->at++;
        if (!at_digit(j)) return fail(j, CLIME_ERR_INPUT, "expected a digit in the exponent");
        while (at_digit(j)) j->at++;
    }
    *out = (struct clime_str){from, (size_t)(j->at - from)};
    /* Every number, even a skipped one, must be finite as a double; short plain ones need no test. */
    double v;
    if ((exponent || out->len > 300) && !clime_number_parse(out->ptr, out->len, &v))
        return fail(j, CLIME_ERR_INPUT, "number out of range");
    return true;
}

/* Magnitude and sign of an integer literal. */
static bool read_integer(struct clime_json *j, uint64_t *magnitude, bool *negative) {
    struct clime_str text;
    if (!clime_json_number_text(j, &text)) return false;
    *negative = text.ptr[0] == '-';
    *magnitude = 0;
    for (size_t i = *negative; i < text.len; i++) {
        unsigned digit = (unsigned)(text.ptr[i] - '0');
        if (digit > 9) return fail(j, CLIME_ERR_INPUT, "expected an integer");
        if (*magnitude > (UINT64_MAX - digit) / 10) return fail(j, CLIME_ERR_INPUT, "integer out of range");
        *magnitude = *magnitude * 10 + digit;
    }
    return true;
}

bool clime_json_int(struct clime_json *j, int64_t min, int64_t max, int64_t *out) {
    uint64_t m;
    bool negative;
    if (!read_integer(j, &m, &negative)) return false;
    bool fits = m <= (uint64_t)INT64_MAX + negative;
    int64_t v = !fits ? 0 : negative ? (int64_t)(0 - m) : (int64_t)m;
    if (!fits || v < min || v > max)
        return clime_json_bad(j, "expected an integer from %lld to %lld", (long long)min, (long long)max);
    *out = v;
    return true;
}

bool clime_json_uint(struct clime_json *j, uint64_t *out) {
    uint64_t m;
    bool negative;
    if (!read_integer(j, &m, &negative)) return false;
    if (negative && m) return fail(j, CLIME_ERR_INPUT, "expected an integer of at least 0");
    *out = m;
    return true;
}

bool clime_json_double(struct clime_json *j, double *out) {
    struct clime_str text;
    if (!clime_json_number_text(j, &text)) return false;
    return clime_number_parse(text.ptr, text.len, out) || fail(j, CLIME_ERR_INPUT, "number out of range");
}

/* Literals */

static bool word(struct clime_json *j, const char *w) {
    size_t n = strlen(w);
    if ((size_t)(j->end - j->at) < n || memcmp(j->at, w, n) != 0) return fail(j, CLIME_ERR_INPUT, "expected a value");
    j->at += n;
    return true;
}

bool clime_json_bool(struct clime_json *j, bool *out) {
    if (!expect(j, CLIME_JSON_BOOL, "expected true or false")) return false;
    bool v = *j->at == 't';
    if (!word(j, v ? "true" : "false")) return false;
    *out = v;
    return true;
}

bool clime_json_null(struct clime_json *j) {
    return expect(j, CLIME_JSON_NULL, "expected null") && word(j, "null");
}

/* Any value */

/* Consumes a scalar, or enters a container. */
static void skip_step(struct clime_json *j, uint64_t *is_object) {
    struct clime_str text;
    bool escaped, b;
    switch (clime_json_peek(j)) {
    case CLIME_JSON_ERROR:
        return;
    case CLIME_JSON_NULL:
        clime_json_null(j);
        return;
    case CLIME_JSON_BOOL:
        clime_json_bool(j, &b);
        return;
    case CLIME_JSON_NUMBER:
        clime_json_number_text(j, &text);
        return;
    case CLIME_JSON_STRING:
        j->at++;
        walk_string(j, NULL, &escaped);
        return;
    case CLIME_JSON_ARRAY:
        if (clime_json_array(j)) *is_object &= ~(1ull << (j->depth - 1));
        return;
    case CLIME_JSON_OBJECT:
        if (clime_json_object(j)) *is_object |= 1ull << (j->depth - 1);
        return;
    }
}

bool clime_json_skip(struct clime_json *j, struct clime_str *raw) {
    uint64_t is_object = 0; /* bit d: the container entered at depth d */
    int outside = j->depth;
    skip_space(j);
    const char *from = j->at;
    skip_step(j, &is_object);
    while (!j->failed && j->depth > outside) {
        bool escaped;
        if (is_object >> (j->depth - 1) & 1) {
            if (!next_member(j, '}')) continue;
            if (!expect(j, CLIME_JSON_STRING, "expected a member name")) break;
            j->at++;
            if (walk_string(j, NULL, &escaped) < 0 || !colon(j)) break;
        } else if (!next_member(j, ']')) {
            continue;
        }
        skip_step(j, &is_object);
    }
    if (j->failed) return false;
    if (raw) *raw = (struct clime_str){from, (size_t)(j->at - from)};
    return true;
}

struct clime_str clime_json_member_text(struct clime_json *j, const char *name) {
    struct clime_str key, text = {NULL, 0};
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, name) && clime_json_peek(j) == CLIME_JSON_STRING)
            clime_json_string(j, &text);
        else
            clime_json_skip(j, NULL);
    }
    return text;
}

bool clime_json_check(const char *text, size_t len, struct clime_error *e) {
    struct clime_json j;
    init(&j, text, len, e);
    clime_json_skip(&j, NULL);
    return clime_json_end(&j);
}
