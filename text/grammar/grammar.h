/* Grammars that constrain an output, and an output's state in one.
 *
 *   source    the request's specification (source.h)
 *   grammar   compiled for a vocabulary; shared by equal requests, reference-counted.
 *   state     one output's position in a grammar: a function of its tokens so far.
 *
 * Supported sources: docs/protocol.md. Where a state may end, the source accepts the text; every mask has a token
 * unless the vocabulary cannot spell the continuation. Compile on a text thread (deep stack). One thread, the engine's,
 * uses a grammar's states; ref and unref: any thread.
 */
#ifndef CLIME_TEXT_GRAMMAR_GRAMMAR_H
#define CLIME_TEXT_GRAMMAR_GRAMMAR_H

#include "text/grammar/source.h"
#include "text/grammar/vocab_trie.h"

struct clime_grammar;

/* CLIME_ERR_INPUT names the error or the unsupported feature. */
enum clime_err clime_grammar_compile(const struct clime_vocab_trie *v, const struct clime_grammar_source *s,
                                     struct clime_grammar **out, struct clime_error *e);
struct clime_grammar *clime_grammar_ref(struct clime_grammar *g);
void clime_grammar_unref(struct clime_grammar *g); /* NULL is fine */

/* True if the token is text to the grammar; ids that end a sequence are not. Any thread. */
bool clime_grammar_reads(const struct clime_grammar *g, int32_t id);

struct clime_grammar_state;

struct clime_grammar_state *clime_grammar_state_new(struct clime_grammar *g); /* takes its own reference */
void clime_grammar_state_free(struct clime_grammar_state *s);

/* Appends a token to the output. A token that the grammar does not allow makes the state stuck. Any thread that owns
 * the state: does not access the grammar. */
void clime_grammar_state_add(struct clime_grammar_state *s, int32_t id);

struct clime_grammar_next {
    const uint32_t *allowed; /* tokens that may follow, without those that end the output; valid until the next query
                              * of any state of the grammar. NULL: stuck */
    bool may_end;
    bool only_end;     /* only the end may follow */
    const char *stuck; /* why allowed is NULL: static text, for the client */
};
struct clime_grammar_next clime_grammar_state_next(struct clime_grammar_state *s);

/* Bytes cached for the grammar's states, for tests and the log. */
size_t clime_grammar_bytes(const struct clime_grammar *g);

#endif
