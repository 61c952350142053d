/* Decimal text of floating-point numbers, both ways, without the locale and faster than printf and strtod.
 *
 * Used by the JSON scanner and writer, where a reply carries 10^5 log-probabilities. Any thread, no state.
 */
#ifndef CLIME_COMMON_NUMBER_H
#define CLIME_COMMON_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

#define CLIME_NUMBER_TEXT 32  /* bytes that the longest text needs, NUL included */
#define CLIME_NUMBER_MAX 1024 /* longest text that clime_number_parse takes */

/* Write a finite value and return the length; out is NUL-terminated. Always with a point or an exponent ("1.0",
 * "-0.25", "1e-07"), so that a reader that keeps integers and floats apart gets a float.
 * double: the fewest digits (%.Ne) that read back to the same double.
 * float: the fewest digits that read back to the same float, both by rounding the decimal to a float at once and by
 * rounding it to a double first and then to a float (a JSON reader's way); a decimal half-way between two floats is
 * not used. At most 9. */
int clime_number_write_double(double v, char out[CLIME_NUMBER_TEXT]);
int clime_number_write_float(float v, char out[CLIME_NUMBER_TEXT]);

/* Parses a number already known to follow JSON's grammar, correctly rounded; false when it is longer than
 * CLIME_NUMBER_MAX or overflows. */
bool clime_number_parse(const char *text, size_t len, double *out);

#endif
