/* Tests whether an expression, parsed like sympy, equals zero. */
#ifndef CLIME_GRADE_ALGEBRA_H
#define CLIME_GRADE_ALGEBRA_H

#include "common/str.h"

/* expression: a normalised answer ("1/2sqrt(3)+x^2"), with ^ or ** for powers and implicit products. True only when it
 * is proved to be 0; false when it is not, does not parse, or exceeds a limit (4,096 bytes, the limits of poly.h).
 * Pure; any thread; bounded time. */
bool clime_algebra_is_zero(struct clime_str expression);

#endif
