/* Grammars that an output must follow, and where in one an output is.
 *
 *   source    what a request asks for (source.h)
 *   grammar   one compiled for a vocabulary; shared by all who ask for the same, counted.
 *   state     one output's place in a grammar: a function of the tokens that it has so far.
 *
 * What a source may say, and what of it is refused, is in docs/protocol.md. A text that a state allows to end is one
 * that the source accepts; every mask has a token unless the vocabulary cannot spell what must follow. Compiling: any
 * thread (it may take a deep stack: a text thread). A grammar's states are used by one thread, the engine's; ref and
 * unref by any.
 */
#ifndef CLIME_TEXT_GRAMMAR_GRAMMAR_H
#define CLIME_TEXT_GRAMMAR_GRAMMAR_H

#include "text/grammar/source.h"
#include "text/grammar/vocab_trie.h"

struct clime_grammar;

/* CLIME_ERR_INPUT names what is wrong or not supported. */
enum clime_err clime_grammar_compile(const struct clime_vocab_trie *v, const struct clime_grammar_source *s,
                                     struct clime_grammar **out, struct clime_error *e);
struct clime_grammar *clime_grammar_ref(struct clime_grammar *g);
void clime_grammar_unref(struct clime_grammar *g); /* NULL is fine */

/* Whether the grammar sees the token as text; it does not see those that end a sequence. Any thread. */
bool clime_grammar_reads(const struct clime_grammar *g, int32_t id);

struct clime_grammar_state;

struct clime_grammar_state *clime_grammar_state_new(struct clime_grammar *g); /* takes a reference of its own */
void clime_grammar_state_free(struct clime_grammar_state *s);

/* The output got a token. One that the grammar does not allow leaves the state stuck. Any thread that owns the state:
 * the grammar is not touched before the next question. */
void clime_grammar_state_add(struct clime_grammar_state *s, int32_t id);

struct clime_grammar_next {
    const uint32_t *allowed; /* tokens that may come next, those that end the output not among them; stands until the
                              * next question to any state of the grammar. NULL: stuck */
    bool may_end;
    bool only_end;     /* nothing but the end may come */
    const char *stuck; /* why there is nothing: static text, for the client */
};
struct clime_grammar_next clime_grammar_state_next(struct clime_grammar_state *s);

/* Bytes that a grammar keeps for its states, for tests and the log. */
size_t clime_grammar_bytes(const struct clime_grammar *g);

#endif
