/* Orders of epochs. Called at the start of an epoch by rl's prompts and the loop of sft; owns nothing. Invariant:
 * without weights the order equals that of a single source with all items. */
#include "trainer/data/mix.h"

#include <math.h>
#include <stdlib.h>

#include "common/rng.h"

/* Fisher-Yates; the generator is keyed by the words. */
static void shuffle_items(int32_t *items, int n, const uint64_t *words, int n_words) {
    struct clime_rng rng;
    clime_rng_init(&rng, clime_hash64(words, n_words));
    for (int i = n - 1; i > 0; i--) {
        int k = (int)clime_rng_below(&rng, (uint64_t)i + 1);
        int32_t swap = items[i];
        items[i] = items[k];
        items[k] = swap;
    }
}

enum clime_err clime_mix_check(const struct clime_mix_part *parts, int n_parts, struct clime_error *e) {
    int weighted = 0;
    for (int i = 0; i < n_parts; i++) weighted += parts[i].weight > 0;
    if (weighted && weighted < n_parts)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "%d of %d sources have a weight (path@0.3): give all of them one, or none", weighted,
                          n_parts);
    return CLIME_OK;
}

/* Computes each source's places in an epoch of n: the share rounded down, at least 1; the rest goes to the largest
 * remainders, the first among equals. */
static void share_places(const struct clime_mix_part *parts, int n_parts, int n, int *places) {
    double sum = 0;
    int left = n;
    for (int i = 0; i < n_parts; i++) sum += parts[i].weight;
    for (int i = 0; i < n_parts; i++) {
        places[i] = (int)floor(parts[i].weight / sum * n);
        if (!places[i]) places[i] = 1;
        left -= places[i];
    }
    while (left) { /* below 0 if many sources have tiny weights: the largest give */
        int best = 0;
        for (int i = 1; i < n_parts; i++) {
            double a = parts[i].weight / sum * n - places[i], b = parts[best].weight / sum * n - places[best];
            if (left > 0 ? a > b : places[i] > places[best]) best = i;
        }
        places[best] += left > 0 ? 1 : -1;
        left += left > 0 ? -1 : 1;
    }
}

/* Writes source i's items for this epoch to out[places]. */
static void draw(const struct clime_mix_part *p, int i, int places, uint64_t seed, int64_t epoch, bool shuffle,
                 int32_t *out) {
    int32_t *own = xcalloc((size_t)p->n, sizeof *own);
    int64_t round = -1;
    for (int k = 0; k < places; k++) {
        int64_t at = epoch * places + k;
        if (at / p->n != round) {
            round = at / p->n;
            const uint64_t words[] = {seed, (uint64_t)i + 1, (uint64_t)round};
            for (int j = 0; j < p->n; j++) own[j] = p->first + j;
            if (shuffle) shuffle_items(own, p->n, words, 3);
        }
        out[k] = own[at % p->n];
    }
    free(own);
}

/* Gives each place to the source that is furthest behind its share. */
static void interleave(const int *places, int n_parts, int n, int32_t *const *draws, int32_t *order) {
    int *taken = xcalloc((size_t)n_parts, sizeof *taken);
    for (int at = 0; at < n; at++) {
        int best = -1;
        double most = 0;
        for (int i = 0; i < n_parts; i++) {
            double behind = (double)places[i] * (at + 1) / n - taken[i];
            if (taken[i] < places[i] && (best < 0 || behind > most)) best = i, most = behind;
        }
        order[at] = draws[best][taken[best]++];
    }
    free(taken);
}

void clime_mix_order(const struct clime_mix_part *parts, int n_parts, uint64_t seed, int64_t epoch, bool shuffle,
                     int32_t *order) {
    const uint64_t words[] = {seed, (uint64_t)epoch};
    int n = 0;
    for (int i = 0; i < n_parts; i++) n += parts[i].n;
    if (n_parts < 2 || !(parts[0].weight > 0)) {
        for (int i = 0; i < n; i++) order[i] = i;
    } else {
        int *places = xcalloc((size_t)n_parts, sizeof *places);
        int32_t **draws = xcalloc((size_t)n_parts, sizeof *draws);
        share_places(parts, n_parts, n, places);
        for (int i = 0; i < n_parts; i++) {
            draws[i] = xcalloc((size_t)places[i], sizeof **draws);
            draw(&parts[i], i, places[i], seed, epoch, shuffle, draws[i]);
        }
        interleave(places, n_parts, n, draws, order);
        for (int i = 0; i < n_parts; i++) free(draws[i]);
        free(draws);
        free(places);
    }
    if (shuffle) shuffle_items(order, n, words, 2);
}

void clime_mix_checksum(const struct clime_mix_part *parts, int n_parts, struct clime_checksum *c) {
    for (int i = 0; i < n_parts && n_parts > 1 && parts[0].weight > 0; i++) {
        clime_checksum_add(c, &parts[i].n, sizeof parts[i].n);
        clime_checksum_add(c, &parts[i].weight, sizeof parts[i].weight);
    }
}
