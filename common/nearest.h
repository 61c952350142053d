/* The known word nearest to a mistyped one, for "did you mean" errors. Any thread, no state. */
#ifndef CLIME_COMMON_NEAREST_H
#define CLIME_COMMON_NEAREST_H

#include "common/str.h"

struct clime_nearest {
    struct clime_str word; /* longer ones are compared by their beginning */
    const char *best;      /* NULL until a candidate matches at least half of the word */
    int distance;
};

void clime_nearest_try(struct clime_nearest *n, const char *candidate); /* the first wins a tie */

#endif
