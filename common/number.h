/* Floating-point numbers to decimal text and back, without the locale and faster than printf and strtod.
 *
 * Used by the JSON scanner and writer: a reply holds 10^5 log-probabilities. Any thread, no state.
 */
#ifndef CLIME_COMMON_NUMBER_H
#define CLIME_COMMON_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

#define CLIME_NUMBER_TEXT 32  /* bytes of the longest text, NUL included */
#define CLIME_NUMBER_MAX 1024 /* longest text that clime_number_parse accepts */

/* Write a finite value, NUL-terminated, and return its length. The text always has a point or an exponent ("1.0",
 * "-0.25", "1e-07"), so a reader that distinguishes integers from floats gets a float.
 * double: the fewest digits (%.Ne) that read back to the same double.
 * float: the fewest digits, at most 9, that read back to the same float both directly and through a double (as JSON
 * readers do). A decimal half-way between two floats is not used. */
int clime_number_write_double(double v, char out[CLIME_NUMBER_TEXT]);
int clime_number_write_float(float v, char out[CLIME_NUMBER_TEXT]);

/* Parses a number in JSON's grammar, correctly rounded; false when longer than CLIME_NUMBER_MAX, or on overflow. */
bool clime_number_parse(const char *text, size_t len, double *out);

#endif
