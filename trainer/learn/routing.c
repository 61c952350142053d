/* Finds the layer of a routing mismatch (see routing.h). Called by step.c on a mismatch; owns nothing.
 *
 * With k of E experts chosen in n layers, n k (E - k) choices are tried against 32 bits: some 46,000 for
 * Qwen3-30B-A3B's shape, so one hash in 90,000 matches another layer by chance.
 */
#include "trainer/learn/routing.h"

#include <stdlib.h>

#include "kernels/checksum.h"

#define FACTOR 0xc2b2ae35u /* of clime_choice_fold */

/* Inverts the fold: returns before, rotated by 7, ^ terms. */
static uint32_t unfold(uint32_t x) {
    uint32_t inverse = FACTOR; /* correct in 3 bits; each iteration doubles them */
    for (int i = 0; i < 4; i++) inverse *= 2 - FACTOR * inverse;
    return (x ^ x >> 16) * inverse;
}

static uint32_t turn(uint32_t x, int by) {
    return x << by | x >> (32 - by);
}

static uint32_t terms_of(const int32_t *chosen, int k) {
    uint32_t sum = 0;
    for (int i = 0; i < k; i++) sum += clime_choice_term((uint32_t)chosen[i]);
    return sum;
}

/* Whether terms are those of chosen with a single expert replaced. */
static bool one_other(const struct clime_router *r, const int32_t *chosen, uint32_t terms) {
    uint32_t more = terms - terms_of(chosen, r->k);
    for (int i = 0; i < r->k; i++) {
        uint32_t without = more + clime_choice_term((uint32_t)chosen[i]);
        for (int e = 0; e < r->E; e++) {
            bool is_chosen = false;
            if (clime_choice_term((uint32_t)e) != without) continue;
            for (int j = 0; j < r->k; j++) is_chosen |= chosen[j] == e;
            if (!is_chosen) return true;
        }
    }
    return false;
}

int clime_routing_layer(const struct clime_router *r, int n, const int32_t *chosen, uint32_t said) {
    uint32_t *before = xmalloc(((size_t)n + 1) * sizeof *before); /* hash before each layer, here */
    int found = -1, n_found = 0;
    before[0] = 0;
    for (int l = 0; l < n; l++) before[l + 1] = clime_choice_fold(before[l], terms_of(chosen + l * r->k, r->k));
    for (int l = n - 1; l >= 0; l--) { /* said: hash after layer l if all later layers match */
        const int32_t *own = chosen + l * r->k;
        uint32_t folded = unfold(said);
        if (one_other(r, own, folded ^ turn(before[l], 7))) {
            found = l;
            n_found++;
        }
        said = turn(folded ^ terms_of(own, r->k), 25);
    }
    free(before);
    return n_found == 1 ? found : -1;
}
