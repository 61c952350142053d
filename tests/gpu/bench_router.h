/* Experts that are chosen for the benchmarks of tests/gpu: evenly, or with a favourite, since random weights are
 * neither.
 */
#ifndef CLIME_TESTS_GPU_BENCH_ROUTER_H
#define CLIME_TESTS_GPU_BENCH_ROUTER_H

#include "tests/gpu/bench.h"

/* Of each row k distinct experts, ascending; skewed: one has about ten times the mean load. Returns how many are hit;
 * *share: the favourite's load over the mean. */
static int choose_experts(int E, int k, bool skewed, int T, int32_t *ids, double *share) {
    static struct clime_rng rng;
    static bool begun;
    int *load = xcalloc((size_t)E, sizeof *load), hit = 0, most = 0;
    bool *in = xmalloc((size_t)E);
    if (!begun) clime_rng_init(&rng, 1);
    begun = true;
    for (int t = 0; t < T; t++) {
        int n = 0;
        memset(in, 0, (size_t)E);
        if (skewed && (int)clime_rng_below(&rng, (uint64_t)E) < 10 * k) in[E / 3] = true, n = 1;
        while (n < k) {
            uint64_t e = clime_rng_below(&rng, (uint64_t)E);
            if (!in[e]) in[e] = true, n++;
        }
        for (int e = 0, i = 0; e < E; e++)
            if (in[e]) ids[t * k + i++] = e, load[e]++;
    }
    for (int e = 0; e < E; e++) {
        hit += load[e] > 0;
        most = load[e] > most ? load[e] : most;
    }
    *share = (double)most * E / (T * k);
    free(load);
    free(in);
    return hit;
}

#endif
