/* Whether numbers are numbers: one pass over them, by their bits. For the CPU table and for weights that are read. */
#ifndef CLIME_KERNELS_FINITE_H
#define CLIME_KERNELS_FINITE_H

#include "kernels/kernels.h"

/* Neither NaN nor infinite, all n of them; x of the type, aligned. */
bool clime_all_finite(enum clime_dtype dt, size_t n, const void *x);

#endif
