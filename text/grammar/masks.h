/* Which tokens may come next, for the sets of a machine: bits over the vocabulary, found once for each set and kept.
 *
 * A set's mask would be one walk of the whole trie. Most of it is the same wherever a rule is called from: what a
 * string may go on with depends on its caller only behind its closing quote. So the walk is done for a place on top of
 * an unknown caller (a base: tokens that stay inside the rule, and the trie's nodes where the rule may end), and a
 * set's mask is the bases of its places and, below those nodes, a walk of what follows the rule there.
 *
 * One owner, one thread: that of the machine.
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
    int32_t *states; /* [longest + 1] sets along a path of the trie */
    size_t bytes;    /* of what is kept */
    int64_t limit;   /* the machine's effort at which the mask in work is given up */
};

void clime_masks_init(struct clime_masks *k, const struct clime_vocab_trie *v, struct clime_machine *m);
void clime_masks_forget(struct clime_masks *k); /* with the machine's forget */
void clime_masks_free(struct clime_masks *k);

/* [words of V] the tokens that some text goes on with from the set; valid until forget. NULL: the work for it passed
 * its limit (an extremely ambiguous grammar). */
const uint32_t *clime_masks_of(struct clime_masks *k, int32_t set);

static inline size_t clime_mask_words(int V) {
    return ((size_t)V + 31) / 32;
}

#endif
