/* Python's string operations on UTF-8 (see text.h). Called by the graders, any thread; no state.
 *
 * Handles ASCII before calling text/unicode.h: answers are short and nearly all ASCII.
 */
#include "grade/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "grade/grade.h"
#include "text/unicode.h"

/* A rewriting grows a text at most fourfold (an ASCII letter to a four-byte mathematical one). */
#define TEXT_CAP (5 * CLIME_REWARD_MAX_TEXT)

void clime_rtext_init(struct clime_buf *t, struct clime_str s) {
    clime_buf_init(t, TEXT_CAP);
    clime_buf_add(t, s.ptr, s.len);
}

void clime_rtext_set(struct clime_buf *t, struct clime_str s) {
    if (t->data && s.ptr >= t->data && s.ptr <= t->data + t->len) {
        memmove(t->data, s.ptr, s.len);
        t->len = s.len;
        t->data[t->len] = 0;
        return;
    }
    clime_buf_clear(t);
    clime_buf_add(t, s.ptr, s.len);
}

void clime_rtext_replace(struct clime_buf *t, const char *from, const char *to) {
    size_t nf = strlen(from), nt = strlen(to);
    struct clime_str s = clime_buf_str(t);
    int64_t at = clime_rtext_find(s, from, 0);
    if (at < 0) return;
    struct clime_buf out;
    clime_buf_init(&out, t->cap);
    size_t done = 0;
    for (; at >= 0; at = clime_rtext_find(s, from, done)) {
        clime_buf_add(&out, s.ptr + done, (size_t)at - done);
        clime_buf_add(&out, to, nt);
        done = (size_t)at + nf;
    }
    clime_buf_add(&out, s.ptr + done, s.len - done);
    out.full = out.full || t->full;
    clime_buf_free(t);
    *t = out;
}

void clime_rtext_replace_all(struct clime_buf *t, const struct clime_replacement *list, size_t n) {
    for (size_t i = 0; i < n; i++) clime_rtext_replace(t, list[i].from, list[i].to);
}

struct clime_str clime_rtext_slice(struct clime_str s, size_t from, size_t to) {
    struct clime_str r = {s.ptr + from, to > from ? to - from : 0};
    return r;
}

struct clime_str clime_rtext_strip(struct clime_str s) {
    size_t n;
    while (s.len && clime_rtext_is_space(clime_rtext_char(s, 0, &n))) s = clime_rtext_slice(s, n, s.len);
    while (s.len) {
        size_t at = s.len - 1;
        while (at > 0 && ((unsigned char)s.ptr[at] & 0xC0) == 0x80 && s.len - at < 4) at--;
        if (!clime_rtext_is_space(clime_rtext_char(s, at, &n)) || at + n != s.len) break;
        s.len = at;
    }
    return s;
}

int64_t clime_rtext_find(struct clime_str s, const char *z, size_t from) {
    if (from > s.len) return -1;
    const char *p = memmem(s.ptr + from, s.len - from, z, strlen(z));
    return p ? p - s.ptr : -1;
}

int64_t clime_rtext_rfind(struct clime_str s, const char *z) {
    size_t n = strlen(z);
    for (const char *end = s.ptr + s.len; s.len >= n && n > 0;) {
        /* search the first byte from the end, then compare the rest */
        size_t span = (size_t)(end - s.ptr);
        const char *p = span ? memrchr(s.ptr, z[0], span) : NULL;
        if (!p) return -1;
        if (s.len - (size_t)(p - s.ptr) >= n && memcmp(p, z, n) == 0) return p - s.ptr;
        end = p;
    }
    return -1;
}

struct clime_str clime_rtext_tail(struct clime_str s, size_t n) {
    size_t at = s.len;
    while (at > 0 && n > 0) {
        do {
            at--;
        } while (at > 0 && ((unsigned char)s.ptr[at] & 0xC0) == 0x80);
        n--;
    }
    return clime_rtext_slice(s, at, s.len);
}

uint32_t clime_rtext_char(struct clime_str s, size_t at, size_t *len) {
    const char *p = s.ptr + at, *next = p;
    int32_t c = clime_unicode_next(&next, s.ptr + s.len);
    *len = (size_t)(next - p);
    return c < 0 ? 0xFFFD : (uint32_t)c;
}

uint32_t clime_rtext_char_before(struct clime_str s, size_t at) {
    size_t from = at - 1, n;
    while (from > 0 && at - from < 4 && ((unsigned char)s.ptr[from] & 0xC0) == 0x80) from--;
    uint32_t c = clime_rtext_char(s, from, &n);
    return from + n == at ? c : 0xFFFD;
}

bool clime_rtext_is_space(uint32_t c) {
    return c < 0x80 ? c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F) : clime_unicode_is_space((int32_t)c);
}

bool clime_rtext_is_alpha(uint32_t c) {
    return c < 0x80 ? (c | 32) >= 'a' && (c | 32) <= 'z' : clime_unicode_is_alpha((int32_t)c);
}

bool clime_rtext_is_word(uint32_t c) {
    if (c < 0x80) return clime_rtext_is_alpha(c) || (c >= '0' && c <= '9') || c == '_';
    return clime_unicode_is_alpha((int32_t)c) || clime_unicode_is_numeric((int32_t)c);
}

void clime_rtext_lower(struct clime_buf *t) {
    struct clime_str s = clime_buf_str(t);
    bool ascii = true;
    for (size_t i = 0; i < s.len; i++) {
        if ((unsigned char)t->data[i] >= 0x80)
            ascii = false;
        else if (t->data[i] >= 'A' && t->data[i] <= 'Z')
            t->data[i] += 'a' - 'A';
    }
    if (ascii) return;
    struct clime_buf out;
    clime_buf_init(&out, t->cap);
    for (size_t i = 0, n; i < s.len; i += n) {
        const char *p = s.ptr + i, *next = p;
        char lower[CLIME_UNICODE_CASE_MAX];
        int32_t c = clime_unicode_next(&next, s.ptr + s.len);
        n = (size_t)(next - p);
        size_t next_n;
        bool after = c == 0x3A3 && i > 0 && clime_rtext_is_alpha(clime_rtext_char_before(s, i));
        bool before = c == 0x3A3 && i + n < s.len && clime_rtext_is_alpha(clime_rtext_char(s, i + n, &next_n));
        if (after && !before)
            clime_buf_adds(&out, "ς"); /* the word-final sigma */
        else if (c < 0x80)
            clime_buf_add(&out, p, n);
        else
            clime_buf_add(&out, lower, (size_t)clime_unicode_case(c, CLIME_LOWER, lower));
    }
    clime_buf_free(t);
    *t = out;
}

bool clime_rtext_float(struct clime_str s, double *out) {
    s = clime_rtext_strip(s);
    char small[64], *digits = s.len < sizeof small ? small : xmalloc(s.len + 1);
    size_t n = 0, i = 0;
    bool ok = false, any = false;
    if (i < s.len && (s.ptr[i] == '+' || s.ptr[i] == '-')) digits[n++] = s.ptr[i++];
    struct clime_str rest = clime_rtext_slice(s, i, s.len);
    static const char *const words[] = {"inf", "infinity", "nan"};
    for (size_t w = 0; w < CLIME_COUNT(words); w++)
        if (rest.len == strlen(words[w]) && strncasecmp(rest.ptr, words[w], rest.len) == 0) {
            *out = w == 2 ? NAN : digits[0] == '-' && n ? -INFINITY : INFINITY;
            ok = true;
            goto done;
        }
    /* digits [. digits] [e [sign] digits], an underscore only between two digits */
    for (int part = 0; part < 3; part++) {
        if (part == 1) {
            if (i >= s.len || s.ptr[i] != '.') continue;
            digits[n++] = s.ptr[i++];
        } else if (part == 2) {
            if (!any) goto done;
            if (i >= s.len || (s.ptr[i] != 'e' && s.ptr[i] != 'E')) break;
            digits[n++] = s.ptr[i++];
            if (i < s.len && (s.ptr[i] == '+' || s.ptr[i] == '-')) digits[n++] = s.ptr[i++];
            any = false;
        }
        for (; i < s.len; i++) {
            if (clime_rtext_is_digit(s.ptr[i]))
                digits[n++] = s.ptr[i], any = true;
            else if (s.ptr[i] != '_' || i == 0 || !clime_rtext_is_digit(s.ptr[i - 1]) || i + 1 >= s.len ||
                     !clime_rtext_is_digit(s.ptr[i + 1]))
                break;
        }
    }
    if (!any || i != s.len) goto done;
    digits[n] = 0;
    *out = strtod(digits, NULL);
    ok = true;
done:
    if (digits != small) free(digits);
    return ok;
}

void clime_rtext_print_float(struct clime_buf *out, double x) {
    char e[40];
    int digits = 1;
    do snprintf(e, sizeof e, "%.*e", digits - 1, x);
    while (strtod(e, NULL) != x && digits++ < 17);
    long exponent = strtol(strchr(e, 'e') + 1, NULL, 10);
    if (x != 0 && (exponent < -4 || exponent >= 16)) {
        clime_buf_printf(out, "%.*se%c%02ld", (int)(strchr(e, 'e') - e), e, exponent < 0 ? '-' : '+', labs(exponent));
    } else {
        int decimals = digits - 1 - (int)exponent;
        clime_buf_printf(out, "%.*f", decimals > 1 ? decimals : 1, x);
    }
}

void clime_rtext_print_whole(struct clime_buf *out, double x) {
    double whole = trunc(x);
    clime_buf_printf(out, "%.0f", whole == 0 ? 0.0 : whole);
}
