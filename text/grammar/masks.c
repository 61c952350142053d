/* Computes token masks. Called by grammar.c, on the drawing thread; owns the bits and the bases.
 *
 * Invariant: a base applies to a place only if the frames it examined fit max_depth there too (clime_set.reach); deeper
 * places are walked individually.
 */
#include "text/grammar/masks.h"

#include <stdlib.h>
#include <string.h>

#define MAX_EFFORT ((int64_t)1 << 24) /* per mask: some 0.1 s */
#define MAX_BASES_OF_SET 16           /* a set of more places is walked directly */

struct clime_mask_base {
    uint32_t *bits;
    int32_t *leaves; /* [n_leaves] trie nodes where the rule may end */
    int n_leaves;
    int32_t reach;
};

struct walk {
    struct clime_masks *k;
    uint32_t *bits;
    int32_t *leaves;
    int n_leaves, leaves_size;
    int32_t reach;
};

static void add_leaf(struct walk *w, int32_t node) {
    if (w->n_leaves == w->leaves_size) {
        w->leaves_size = w->leaves_size ? w->leaves_size * 2 : 64;
        w->leaves = xrealloc(w->leaves, (size_t)w->leaves_size * sizeof *w->leaves);
    }
    w->leaves[w->n_leaves++] = node;
}

/* Walks nodes [from, to) below depth `above`, where the state is `set`. */
static void walk(struct walk *w, int32_t set, int32_t from, int32_t to, int above) {
    struct clime_masks *k = w->k;
    const struct clime_vocab_trie *v = k->v;
    struct clime_machine *m = k->m;
    k->states[above] = set;
    if (m->sets[set].n == 0) return;
    for (int32_t i = from; i < to && m->effort < k->limit;) {
        int d = v->depth[i];
        int32_t next = clime_machine_step(m, k->states[d - 1], v->byte[i]);
        const struct clime_set *s = &m->sets[next];
        m->effort++;
        if (s->reach > w->reach) w->reach = s->reach;
        if (s->leaves) add_leaf(w, i);
        if (s->n == 0 && !s->ends) {
            i = v->skip[i];
            continue;
        }
        for (int32_t id = v->token[i]; id >= 0; id = v->same[id]) w->bits[id >> 5] |= 1u << (id & 31);
        k->states[d] = next;
        i = s->n > 0 ? i + 1 : v->skip[i];
    }
}

static uint32_t *new_bits(struct clime_masks *k) {
    size_t words = clime_mask_words(k->v->V);
    k->bytes += words * sizeof(uint32_t);
    return xcalloc(words, sizeof(uint32_t));
}

/* The index of a relative set's base (bases may move). */
static int32_t base_of(struct clime_masks *k, int32_t set) {
    if (k->m->sets[set].mask >= 0) return k->m->sets[set].mask;
    struct walk w = {.k = k, .bits = new_bits(k), .reach = k->m->sets[set].reach};
    walk(&w, set, 0, k->v->n_nodes, 0);
    if (k->n_bases == k->bases_size) {
        k->bases_size = k->bases_size ? k->bases_size * 2 : 64;
        k->bases = xrealloc(k->bases, (size_t)k->bases_size * sizeof *k->bases);
    }
    k->bytes += (size_t)w.leaves_size * sizeof *w.leaves + sizeof *k->bases;
    k->bases[k->n_bases] = (struct clime_mask_base){w.bits, w.leaves, w.n_leaves, w.reach};
    k->m->sets[set].mask = k->n_bases++;
    return k->m->sets[set].mask;
}

/* Adds the place's tokens by its base. False: the base does not apply. */
static bool add_place(struct clime_masks *k, struct clime_place at, uint32_t *bits) {
    struct clime_machine *m = k->m;
    int32_t index = base_of(k, clime_machine_relative(m, at, k->v->longest));
    int32_t below = at.stack;
    while (below > CLIME_STACK_UNKNOWN && m->p->ops[m->frames[below].op].kind == CLIME_OP_REPEAT)
        below = m->frames[below].below;
    const struct clime_mask_base *b = &k->bases[index];
    if (m->frames[below].depth + b->reach > m->p->max_depth) return false;
    size_t words = clime_mask_words(k->v->V);
    for (size_t i = 0; i < words; i++) bits[i] |= b->bits[i];
    if (b->n_leaves == 0) return true;
    int32_t behind = clime_machine_behind(m, at);
    struct walk w = {.k = k, .bits = bits};
    for (int i = 0; i < b->n_leaves; i++) {
        int32_t node = b->leaves[i];
        for (int32_t id = k->v->token[node]; id >= 0; id = k->v->same[id]) bits[id >> 5] |= 1u << (id & 31);
        walk(&w, behind, node + 1, k->v->skip[node], k->v->depth[node]);
    }
    return true;
}

const uint32_t *clime_masks_of(struct clime_masks *k, int32_t set) {
    struct clime_machine *m = k->m;
    if (m->sets[set].mask >= 0) return k->bits[m->sets[set].mask];
    k->limit = m->effort + MAX_EFFORT;
    bool whole = m->sets[set].n > MAX_BASES_OF_SET;
    uint32_t *bits = new_bits(k);
    for (int i = 0; i < m->sets[set].n && !whole; i++) whole = !add_place(k, m->places[m->sets[set].at + i], bits);
    if (whole) {
        struct walk w = {.k = k, .bits = bits};
        memset(bits, 0, clime_mask_words(k->v->V) * sizeof *bits);
        walk(&w, set, 0, k->v->n_nodes, 0);
    }
    if (k->n_bits == k->bits_size) {
        k->bits_size = k->bits_size ? k->bits_size * 2 : 64;
        k->bits = xrealloc(k->bits, (size_t)k->bits_size * sizeof(uint32_t *));
    }
    k->bits[k->n_bits] = bits;
    m->sets[set].mask = k->n_bits++;
    return m->effort >= k->limit ? NULL : bits;
}

void clime_masks_init(struct clime_masks *k, const struct clime_vocab_trie *v, struct clime_machine *m) {
    *k = (struct clime_masks){.v = v, .m = m};
    k->states = xmalloc((size_t)(v->longest + 1) * sizeof *k->states);
}

void clime_masks_forget(struct clime_masks *k) {
    for (int i = 0; i < k->n_bits; i++) free(k->bits[i]);
    for (int i = 0; i < k->n_bases; i++) {
        free(k->bases[i].bits);
        free(k->bases[i].leaves);
    }
    k->n_bits = k->n_bases = 0;
    k->bytes = 0;
}

void clime_masks_free(struct clime_masks *k) {
    clime_masks_forget(k);
    free(k->bits);
    free(k->bases);
    free(k->states);
}
