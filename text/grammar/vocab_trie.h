/* The tokens of a vocabulary as a trie over their bytes: what masks walk. Immutable after it is made; any thread.
 *
 * Nodes stand in the order of a walk from the left, depth first, so a walk is a loop over arrays and leaves out a
 * subtree by jumping behind it. Special tokens stand below the byte 0xFF, which no text has (expr.h); tokens that end a
 * sequence, and those that hold that byte, stand nowhere: a grammar cannot ask for them.
 */
#ifndef CLIME_TEXT_GRAMMAR_VOCAB_TRIE_H
#define CLIME_TEXT_GRAMMAR_VOCAB_TRIE_H

#include "text/tokenizer.h"

#define CLIME_SPECIAL_BYTE 0xFF

struct clime_vocab_trie {
    const struct clime_tokenizer *tokenizer; /* borrowed */
    int V;                                   /* ids of the model: masks have so many bits */
    int n_nodes;
    uint8_t *byte;          /* [n_nodes] */
    uint16_t *depth;        /* [n_nodes] from 1 */
    int32_t *skip;          /* [n_nodes] the node behind the subtree */
    int32_t *token;         /* [n_nodes] an id that is spelt by the bytes down to here, or -1 */
    int32_t *same;          /* [V] another id with the same bytes, or -1 */
    int longest;            /* depth of the deepest node */
    size_t longest_special; /* bytes of the longest special token's spelling */
    struct clime_buf bytes; /* of the tokens in the trie, one after the other */
    uint32_t *at;           /* [V + 1] where those of an id begin; none for one that is not in the trie */
};

/* eos[n_eos]: ids that end a sequence. Takes some 0.1 s for 150,000 tokens. */
struct clime_vocab_trie *clime_vocab_trie_new(const struct clime_tokenizer *t, int V, const int32_t *eos, size_t n_eos);
void clime_vocab_trie_free(struct clime_vocab_trie *v); /* NULL is fine */

/* What the grammar sees of a token; empty: it is not in the trie. */
static inline struct clime_str clime_vocab_trie_bytes(const struct clime_vocab_trie *v, int32_t id) {
    if (id < 0 || id >= v->V) return (struct clime_str){"", 0};
    return (struct clime_str){v->bytes.data + v->at[id], v->at[id + 1] - v->at[id]};
}

#endif
