/* Unicode properties, case mappings and NFC over utf8proc.
 *
 * Called by model/template_*.c on text threads and by the tokenizer. Pure functions, no state.
 * Invariant: a code point outside 0..0x10FFFF is never handed to utf8proc.
 *
 * utf8proc 2.8 knows simple case mappings only. The few full mappings that occur in ordinary text (SpecialCasing.txt:
 * German sharp s, Latin ligatures, dotted capital I) are in a table here; the Greek and Armenian rest of that file
 * keeps its simple mapping.
 */
#include "model/unicode.h"

#include <stdlib.h>
#include <utf8proc.h>

int32_t clime_unicode_next(const char **at, const char *end) {
    utf8proc_int32_t cp;
    utf8proc_ssize_t n = utf8proc_iterate((const uint8_t *)*at, end - *at, &cp);
    if (n <= 0) {
        (*at)++;
        return -1;
    }
    *at += n;
    return cp;
}

int clime_unicode_put(int32_t cp, char out[4]) {
    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) return 0;
    return (int)utf8proc_encode_char(cp, (uint8_t *)out);
}

size_t clime_unicode_length(struct clime_str s) {
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++) n += ((uint8_t)s.ptr[i] & 0xC0) != 0x80;
    return n;
}

static utf8proc_category_t category(int32_t cp) {
    return cp < 0 || cp > 0x10FFFF ? UTF8PROC_CATEGORY_CN : utf8proc_category(cp);
}

bool clime_unicode_is_space(int32_t cp) {
    if (cp < 0x80) return cp == ' ' || (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1F);
    return cp == 0x85 || category(cp) == UTF8PROC_CATEGORY_ZS || cp == 0x2028 || cp == 0x2029;
}

bool clime_unicode_is_alpha(int32_t cp) {
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool clime_unicode_is_decimal(int32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

bool clime_unicode_is_numeric(int32_t cp) {
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

bool clime_unicode_is_upper(int32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216F) || (cp >= 0x24B6 && cp <= 0x24CF);
}

bool clime_unicode_is_lower(int32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xAA || cp == 0xBA || (cp >= 0x2170 && cp <= 0x217F) ||
           (cp >= 0x24D0 && cp <= 0x24E9);
}

bool clime_unicode_is_title(int32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_LT;
}

bool clime_unicode_is_printable(int32_t cp) {
    if (cp < 0x80) return cp >= 0x20 && cp < 0x7F;
    utf8proc_category_t c = category(cp);
    return c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS;
}

struct special_case {
    int32_t cp;
    const char *upper, *lower, *title, *fold;
};

static const struct special_case SPECIAL[] = {
    {0xDF, "SS", "\xC3\x9F", "Ss", "ss"},
    {0x130, "\xC4\xB0", "i\xCC\x87", "\xC4\xB0", "i\xCC\x87"},
    {0x149, "\xCA\xBCN", "\xC5\x89", "\xCA\xBCN", "\xCA\xBCn"},
    {0xFB00, "FF", "\xEF\xAC\x80", "Ff", "ff"},
    {0xFB01, "FI", "\xEF\xAC\x81", "Fi", "fi"},
    {0xFB02, "FL", "\xEF\xAC\x82", "Fl", "fl"},
    {0xFB03, "FFI", "\xEF\xAC\x83", "Ffi", "ffi"},
    {0xFB04, "FFL", "\xEF\xAC\x84", "Ffl", "ffl"},
    {0xFB05, "ST", "\xEF\xAC\x85", "St", "st"},
    {0xFB06, "ST", "\xEF\xAC\x86", "St", "st"},
};

void clime_unicode_case(int32_t cp, enum clime_unicode_case to, struct clime_buf *out) {
    if (cp < 0 || cp > 0x10FFFF) return;
    for (size_t i = 0; cp >= 0xDF && i < CLIME_COUNT(SPECIAL); i++) {
        const struct special_case *s = &SPECIAL[i];
        if (s->cp != cp) continue;
        clime_buf_adds(out, to == CLIME_UPPER   ? s->upper
                            : to == CLIME_LOWER ? s->lower
                            : to == CLIME_TITLE ? s->title
                                                : s->fold);
        return;
    }
    utf8proc_int32_t folded[8];
    int boundary = 0;
    utf8proc_ssize_t n = 1;
    switch (to) {
    case CLIME_UPPER:
        folded[0] = utf8proc_toupper(cp);
        break;
    case CLIME_LOWER:
        folded[0] = utf8proc_tolower(cp);
        break;
    case CLIME_TITLE:
        folded[0] = utf8proc_totitle(cp);
        break;
    case CLIME_FOLD:
        n = utf8proc_decompose_char(cp, folded, 8, UTF8PROC_CASEFOLD, &boundary);
        break;
    }
    for (utf8proc_ssize_t i = 0; i < n && i < 8; i++) {
        char bytes[4];
        clime_buf_add(out, bytes, (size_t)clime_unicode_put(folded[i], bytes));
    }
}

enum clime_err clime_unicode_nfc(struct clime_str s, struct clime_buf *out, struct clime_error *e) {
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t n =
        utf8proc_map((const uint8_t *)s.ptr, (utf8proc_ssize_t)s.len, &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0) return clime_fail(e, CLIME_ERR_INPUT, "NFC: %s", utf8proc_errmsg(n));
    clime_buf_add(out, composed, (size_t)n);
    free(composed);
    if (out->full) return clime_fail(e, CLIME_ERR_LIMIT, "NFC text is longer than %zu bytes", out->cap);
    return CLIME_OK;
}
