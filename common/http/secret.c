/* Comparing keys (see secret.h). Called for each request by its worker thread; owns nothing.
 *
 * Invariant: what is done next never depends on a byte of either text. `difference` is volatile, so that no compiler
 * ends the loop at the first difference. */
#include "common/http/secret.h"

#include <stddef.h>
#include <string.h>

bool clime_secret_equal(const char *given, const char *key) {
    size_t n = strlen(key), n_given = strlen(given);
    volatile unsigned char difference = n != n_given;
    for (size_t i = 0; i < n_given; i++) difference |= (unsigned char)(given[i] ^ key[n ? i % n : 0]);
    return difference == 0;
}
