/* The known word that a mistyped one is nearest to, for errors that say "did you mean". Any thread, no state. */
#ifndef CLIME_COMMON_NEAREST_H
#define CLIME_COMMON_NEAREST_H

#include "common/str.h"

struct clime_nearest {
    struct clime_str word; /* longer ones are compared by their beginning */
    const char *best;      /* NULL until one was tried of which half at least is the word */
    int distance;
};

void clime_nearest_try(struct clime_nearest *n, const char *candidate); /* the first of equals stays */

#endif
