/* Strict UTF-8 (RFC 3629), one character at a time. Any thread, no state. */
#ifndef CLIME_COMMON_UTF8_H
#define CLIME_COMMON_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes the character at p (n > 0 bytes) into cp and returns its length, 1 to 4. For an invalid character cp is
 * U+FFFD and the result -k: k >= 1 bytes become one U+FFFD (the maximal subpart of the Unicode standard, section 3.9).
 * Surrogates, overlong forms and values above U+10FFFF are invalid. */
int clime_utf8_decode(const char *p, size_t n, uint32_t *cp);

/* Writes cp (a valid scalar value) to out and returns the length, 1 to 4. */
int clime_utf8_encode(uint32_t cp, char out[4]);

#endif
