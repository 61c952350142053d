/* UTF-8 (RFC 3629): one character at a time, strictly. Any thread, no state. */
#ifndef CLIME_COMMON_UTF8_H
#define CLIME_COMMON_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Reads the character at p (n > 0 bytes are there) into cp and returns its length, 1 to 4. When no valid character
 * starts there, returns -k, where k >= 1 bytes are to be replaced by one U+FFFD (the maximal subpart of the Unicode
 * standard, section 3.9); cp is U+FFFD then. Surrogates, overlong forms and values past U+10FFFF are invalid. */
int clime_utf8_decode(const char *p, size_t n, uint32_t *cp);

/* Writes cp (a valid scalar value) to out and returns the length, 1 to 4. */
int clime_utf8_encode(uint32_t cp, char out[4]);

#endif
