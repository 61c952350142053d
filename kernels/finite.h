/* Finite check of numbers, in one pass over their bits. For the CPU table and for weights that are read. */
#ifndef CLIME_KERNELS_FINITE_H
#define CLIME_KERNELS_FINITE_H

#include "kernels/kernels.h"

/* Whether all n numbers of type dt at x, aligned, are finite. */
bool clime_all_finite(enum clime_dtype dt, size_t n, const void *x);

#endif
