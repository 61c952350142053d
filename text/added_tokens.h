/* Added tokens: strings matched in the text before any other splitting ("<|im_start|>", "<think>").
 *
 * A list of tokens with their rules, and two tries over it: one searches the raw text, one the normalised text. Filled
 * at load by one thread, immutable after.
 */
#ifndef CLIME_TEXT_ADDED_TOKENS_H
#define CLIME_TEXT_ADDED_TOKENS_H

#include <stdint.h>

#include "common/err.h"
#include "common/str.h"

struct clime_added_token {
    char *content;
    size_t len;
    int32_t id;
    bool single_word; /* no match inside a word */
    bool lstrip;      /* also matches white space before it */
    bool rstrip;      /* also matches white space after it */
    bool normalized;  /* matched in the normalised text */
    bool special;     /* control token, skipped by skip_special */
};

struct clime_trie_node {
    int32_t child, sibling; /* -1 = none */
    int32_t token;          /* index into the list, -1 = none ends here */
    uint8_t byte;
};

struct clime_trie {
    struct clime_trie_node *nodes; /* nodes[0] is the root */
    int32_t n_nodes, size;
    bool first[256]; /* first bytes of tokens */
};
void clime_trie_free(struct clime_trie *t);

/* Adds pattern for tokens[token]; the first of equal patterns wins. Ignores empty patterns. */
void clime_trie_add(struct clime_trie *t, struct clime_str pattern, int32_t token);

/* Splits text at its tokens, leftmost-longest, and calls fn in order with an id and no text, or with id -1 and the text
 * between. offset: start of that text. plain: special tokens stay text. Stops at fn's error. */
typedef enum clime_err (*clime_added_fn)(void *arg, int32_t id, struct clime_str text, size_t offset,
                                         struct clime_error *e);
enum clime_err clime_added_split(const struct clime_trie *t, const struct clime_added_token *tokens,
                                 struct clime_str text, bool plain, clime_added_fn fn, void *arg,
                                 struct clime_error *e);

#endif
