/* The index of contexts. Called by server/schedule/drafting.c, engine thread; owns its table.
 *
 * Invariant: a slot is self-contained: it refers to no text, so nothing needs eviction or goes stale; the next guess is
 * looked up with the last one in its context. Contexts that collide in a slot are told apart by a 32-bit check, and a
 * wrong guess costs only a row. A wrong answer halves the slot's count and replaces the token only at 0, so that one
 * stray sample does not erase what all others agree on.
 */
#include "server/schedule/draft_index.h"

#include <stdlib.h>

#include "common/err.h"

enum { LENGTHS = 3, MOST_SEEN = 15 };
static const int LENGTH[LENGTHS] = {2, 4, 8};

#define LEAST_CHANCE 0.05f /* drop guesses below it */
#define MEMORY 64          /* a chance averages about this many answers */

struct slot {
    uint32_t check;
    int32_t next;  /* the token that followed */
    uint32_t seen; /* times in a row, at most MOST_SEEN; 0 = the slot is empty */
};

struct clime_draft_index {
    struct slot *slots;
    int shift; /* a key's upper bits are the slot number */
    struct chance {
        float is;
        int n; /* answers so far, at most MEMORY */
    } chance[LENGTHS][MOST_SEEN + 1];
};

struct clime_draft_index *clime_draft_index_open(int n_slots) {
    CHECK(n_slots > 1 && (n_slots & (n_slots - 1)) == 0);
    struct clime_draft_index *x = xcalloc(1, sizeof *x);
    x->slots = xcalloc((size_t)n_slots, sizeof *x->slots);
    x->shift = 64;
    for (int n = n_slots; n > 1; n /= 2) x->shift--;
    for (int l = 0; l < LENGTHS; l++)
        for (int s = 0; s <= MOST_SEEN; s++) x->chance[l][s] = (struct chance){0.5f, 1};
    return x;
}

void clime_draft_index_close(struct clime_draft_index *x) {
    if (!x) return;
    free(x->slots);
    free(x);
}

static uint64_t mix(uint64_t h) {
    h *= UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 29;
}

/* Keys of the contexts that end before ids[n]; returns how many. */
static int keys_of(uint64_t family, const int32_t *ids, int n, uint64_t *keys) {
    uint64_t h = mix(family);
    int l = 0;
    for (int i = 1; l < LENGTHS && i <= n; i++) {
        h = mix(h ^ (uint32_t)ids[n - i]);
        if (i == LENGTH[l]) keys[l++] = h;
    }
    return l;
}

static struct slot *slot_of(const struct clime_draft_index *x, uint64_t key) {
    return &x->slots[key >> x->shift];
}

static void learn_one(struct slot *s, uint32_t check, int32_t id) {
    if (s->seen == 0 || s->check != check) {
        *s = (struct slot){.check = check, .next = id, .seen = 1};
    } else if (s->next == id) {
        if (s->seen < MOST_SEEN) s->seen++;
    } else if ((s->seen /= 2) == 0) {
        s->next = id;
        s->seen = 1;
    }
}

/* The likeliest answer for the keys, or NULL; sets its chance. */
static const struct slot *best_of(const struct clime_draft_index *x, const uint64_t *keys, int n, float *chance) {
    const struct slot *best = NULL;
    *chance = 0;
    for (int l = 0; l < n; l++) {
        const struct slot *s = slot_of(x, keys[l]);
        if (s->seen == 0 || s->check != (uint32_t)keys[l] || x->chance[l][s->seen].is < *chance) continue;
        *chance = x->chance[l][s->seen].is;
        best = s;
    }
    return best;
}

static void rate(struct clime_draft_index *x, const uint64_t *keys, int n, int32_t id,
                 struct clime_draft_trust *trust) {
    float chance;
    const struct slot *best = best_of(x, keys, n, &chance);
    if (best) {
        trust->promised += chance - trust->promised / MEMORY;
        trust->kept += (float)(best->next == id) - trust->kept / MEMORY;
    }
    for (int l = 0; l < n; l++) {
        const struct slot *s = slot_of(x, keys[l]);
        struct chance *c = &x->chance[l][s->seen];
        if (s->seen == 0 || s->check != (uint32_t)keys[l]) continue;
        if (c->n < MEMORY) c->n++;
        c->is += ((float)(s->next == id) - c->is) / (float)c->n;
    }
}

void clime_draft_index_learn(struct clime_draft_index *x, uint64_t family, const int32_t *ids, int at,
                             struct clime_draft_trust *trust) {
    uint64_t keys[LENGTHS];
    int n = keys_of(family, ids, at, keys);
    for (int l = 0; l < n; l++) __builtin_prefetch(slot_of(x, keys[l]), 1);
    if (trust) rate(x, keys, n, ids[at], trust);
    for (int l = 0; l < n; l++) learn_one(slot_of(x, keys[l]), (uint32_t)keys[l], ids[at]);
}

int clime_draft_index_guess(const struct clime_draft_index *x, uint64_t family, int32_t *ids, int n, int most,
                            const struct clime_draft_trust *trust, float *chance) {
    float all = 1, of_it = (trust->kept + 1) / (trust->promised + 1);
    if (of_it > 1) of_it = 1;
    for (int i = 0; i < most; i++) {
        uint64_t keys[LENGTHS];
        float one;
        const struct slot *s = best_of(x, keys, keys_of(family, ids, n + i, keys), &one);
        all *= one * of_it;
        if (all < LEAST_CHANCE) return i;
        ids[n + i] = s->next;
        chance[i] = all;
    }
    return most;
}
