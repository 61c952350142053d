/* Numbers that tests draw from a generator of the programs. */
#ifndef CLIME_TESTS_UNIT_RANDOM_H
#define CLIME_TESTS_UNIT_RANDOM_H

#include "common/rng.h"

/* In [0, 1), 53 bits. */
static inline double random_double(struct clime_rng *r) {
    return (double)clime_rng_below(r, UINT64_C(1) << 53) * 0x1p-53;
}

#endif
