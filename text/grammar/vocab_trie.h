/* The vocabulary as a trie over token bytes, walked to compute masks. Immutable once built; any thread.
 *
 * Nodes are in depth-first order: a walk is a loop over arrays that skips a subtree by jumping past it. Special tokens
 * are below byte 0xFF, which no text contains (expr.h). Tokens that end a sequence or contain that byte are absent: a
 * grammar cannot require them.
 */
#ifndef CLIME_TEXT_GRAMMAR_VOCAB_TRIE_H
#define CLIME_TEXT_GRAMMAR_VOCAB_TRIE_H

#include "text/tokenizer.h"

#define CLIME_SPECIAL_BYTE 0xFF

struct clime_vocab_trie {
    const struct clime_tokenizer *tokenizer; /* borrowed */
    int V;                                   /* the model's vocabulary size: bits of a mask */
    int n_nodes;
    uint8_t *byte;          /* [n_nodes] */
    uint16_t *depth;        /* [n_nodes] from 1 */
    int32_t *skip;          /* [n_nodes] first node after the subtree */
    int32_t *token;         /* [n_nodes] an id with exactly these bytes, or -1 */
    int32_t *same;          /* [V] another id with the same bytes, or -1 */
    int longest;            /* depth of the deepest node */
    size_t longest_special; /* bytes of the longest special token's spelling */
    struct clime_buf bytes; /* of the tokens in the trie, concatenated */
    uint32_t *at;           /* [V + 1] start of an id's bytes; empty if not in the trie */
};

/* eos[n_eos]: ids that end a sequence. Takes some 0.1 s for 150,000 tokens. */
struct clime_vocab_trie *clime_vocab_trie_new(const struct clime_tokenizer *t, int V, const int32_t *eos, size_t n_eos);
void clime_vocab_trie_free(struct clime_vocab_trie *v); /* NULL is fine */

/* A token's bytes for the grammar; empty: not in the trie. */
static inline struct clime_str clime_vocab_trie_bytes(const struct clime_vocab_trie *v, int32_t id) {
    if (id < 0 || id >= v->V) return (struct clime_str){"", 0};
    return (struct clime_str){v->bytes.data + v->at[id], v->at[id + 1] - v->at[id]};
}

#endif
