/* Is an expression, read as sympy would read it, equal to zero? */
#ifndef CLIME_GRADE_ALGEBRA_H
#define CLIME_GRADE_ALGEBRA_H

#include "common/str.h"

/* expression: text as answers have after normalisation ("1/2sqrt(3)+x^2"), with ^ or ** for powers and products
 * without a sign. True only when it is shown to be 0; false when it is not, cannot be read, or passes a limit
 * (4,096 bytes, the limits of poly.h). Pure; any thread; bounded time. */
bool clime_algebra_is_zero(struct clime_str expression);

#endif
