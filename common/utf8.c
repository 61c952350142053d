/* Strict UTF-8 (see utf8.h). Called by the JSON scanner and writer and by the tokenizer. No state.
 *
 * The second byte of a character has a narrower range after some first bytes (E0, ED, F0, F4); checking it excludes
 * overlong forms, surrogates and values above U+10FFFF, and yields the maximal subpart.
 */
#include "common/utf8.h"

#include "common/err.h"

int clime_utf8_decode(const char *p, size_t n, uint32_t *cp) {
    const unsigned char *s = (const unsigned char *)p;
    unsigned char first = s[0], low = 0x80, high = 0xBF;
    *cp = first;
    if (first < 0x80) return 1;
    *cp = 0xFFFD;
    if (first < 0xC2 || first > 0xF4) return -1;
    int len = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    uint32_t value = first & (0x7Fu >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n || s[i] < low || s[i] > high) return -i;
        value = value << 6 | (s[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *cp = value;
    return len;
}

int clime_utf8_encode(uint32_t cp, char out[4]) {
    CHECK(cp <= 0x10FFFF && (cp < 0xD800 || cp > 0xDFFF));
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3F));
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    out[0] = (char)(lead[len] | cp);
    return len;
}
