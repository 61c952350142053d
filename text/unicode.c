/* Unicode properties, case mappings and the steps of normalisation over utf8proc.
 *
 * Called by text/template/ on text threads and by the tokenizer. Pure functions, no state.
 * Invariant: utf8proc never gets a code point outside 0..0x10FFFF.
 *
 * utf8proc 2.8 knows simple case mappings only. The few full mappings that occur in ordinary text (SpecialCasing.txt:
 * German sharp s, Latin ligatures, dotted capital I) are in a table here; the rest of that file (Greek, Armenian) keeps
 * simple mappings.
 */
#include "text/unicode.h"

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

int clime_unicode_case(int32_t cp, enum clime_unicode_case to, char out[CLIME_UNICODE_CASE_MAX]) {
    if (cp < 0 || cp > 0x10FFFF) return 0;
    for (size_t i = 0; cp >= 0xDF && i < CLIME_COUNT(SPECIAL); i++) {
        const struct special_case *s = &SPECIAL[i];
        if (s->cp != cp) continue;
        const char *z = to == CLIME_UPPER   ? s->upper
                        : to == CLIME_LOWER ? s->lower
                        : to == CLIME_TITLE ? s->title
                                            : s->fold;
        int n = (int)strlen(z);
        memcpy(out, z, (size_t)n);
        return n;
    }
    utf8proc_int32_t mapped[4];
    int boundary = 0, n_bytes = 0;
    utf8proc_ssize_t n = 1;
    switch (to) {
    case CLIME_UPPER:
        mapped[0] = utf8proc_toupper(cp);
        break;
    case CLIME_LOWER:
        mapped[0] = utf8proc_tolower(cp);
        break;
    case CLIME_TITLE:
        mapped[0] = utf8proc_totitle(cp);
        break;
    case CLIME_FOLD:
        n = utf8proc_decompose_char(cp, mapped, 4, UTF8PROC_CASEFOLD, &boundary);
        break;
    }
    for (utf8proc_ssize_t i = 0; i < n && i < 4; i++) n_bytes += clime_unicode_put(mapped[i], out + n_bytes);
    return n_bytes;
}

bool clime_unicode_is_white_space(int32_t cp) {
    if (cp < 0x80) return cp == ' ' || (cp >= 0x09 && cp <= 0x0D);
    return cp == 0x85 || category(cp) == UTF8PROC_CATEGORY_ZS || cp == 0x2028 || cp == 0x2029;
}

bool clime_unicode_is_word(int32_t cp) {
    utf8proc_category_t c = category(cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC || cp == 0x200C ||
           cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

size_t clime_unicode_decompose(int32_t cp, bool compat, int32_t out[CLIME_UNICODE_MAX_DECOMPOSITION]) {
    int boundary = 0;
    utf8proc_option_t options = UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n = cp < 0 || cp > 0x10FFFF
                             ? -1
                             : utf8proc_decompose_char(cp, out, CLIME_UNICODE_MAX_DECOMPOSITION, options, &boundary);
    if (n >= 1 && n <= CLIME_UNICODE_MAX_DECOMPOSITION) return (size_t)n;
    out[0] = cp;
    return 1;
}

int clime_unicode_combining_class(int32_t cp) {
    return cp < 0 || cp > 0x10FFFF ? 0 : utf8proc_get_property(cp)->combining_class;
}

size_t clime_unicode_compose(int32_t *cps, size_t n) {
    utf8proc_ssize_t left = utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    CHECK(left >= 0);
    return (size_t)left;
}
