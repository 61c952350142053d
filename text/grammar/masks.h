/* Token masks for a machine's sets: bits over the vocabulary, computed once per set and cached.
 *
 * A mask could be one walk of the whole trie per set. Most of it does not depend on the caller of a rule: a string's
 * continuation depends on it only after the closing quote. So the walk is done once per place with an unknown caller (a
 * base: tokens that stay inside the rule, and trie nodes where the rule may end). A set's mask combines its places'
 * bases with walks below those nodes of what follows the rule.
 *
 * One owner, one thread: the machine's.
 */
#ifndef CLIME_TEXT_GRAMMAR_MASKS_H
#define CLIME_TEXT_GRAMMAR_MASKS_H

#include "text/grammar/machine.h"
#include "text/grammar/vocab_trie.h"

struct clime_mask_base; /* masks.c */

struct clime_masks {
    const struct clime_vocab_trie *v;
    struct clime_machine *m;
    uint32_t **bits; /* [n_bits] masks; a set's `mask` is its index */
    int n_bits, bits_size;
    struct clime_mask_base *bases; /* [n_bases]; a relative set's `mask` is its index */
    int n_bases, bases_size;
    int32_t *states; /* [longest + 1] sets along a trie path */
    size_t bytes;    /* cached bytes */
    int64_t limit;   /* machine effort at which the current mask is abandoned */
};

void clime_masks_init(struct clime_masks *k, const struct clime_vocab_trie *v, struct clime_machine *m);
void clime_masks_forget(struct clime_masks *k); /* with the machine's forget */
void clime_masks_free(struct clime_masks *k);

/* [words of V] tokens with which some text continues from the set; valid until forget. NULL: the effort limit was
 * exceeded (an extremely ambiguous grammar). */
const uint32_t *clime_masks_of(struct clime_masks *k, int32_t set);

static inline size_t clime_mask_words(int V) {
    return ((size_t)V + 31) / 32;
}

#endif
