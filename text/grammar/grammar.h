/* Grammars that an output must follow, and where in one an output is.
 *
 *   source    what a request asks for: a regex, a JSON schema, any JSON object, EBNF, one of some texts, a structural
 *             tag, calls of tools; and how the output begins where the model reasons first.
 *   grammar   a source compiled for a vocabulary; shared by all who ask for the same, counted.
 *   state     one output's place in a grammar: a function of the tokens that it has so far.
 *
 * What a source may say, and what of it is refused, is in docs/protocol.md. A text that a state allows to end is one
 * that the source accepts; every mask has a token unless the vocabulary cannot spell what must follow. Compiling: any
 * thread (it may take a deep stack: a text thread). A grammar's states are used by one thread, the engine's; ref and
 * unref by any.
 */
#ifndef CLIME_TEXT_GRAMMAR_GRAMMAR_H
#define CLIME_TEXT_GRAMMAR_GRAMMAR_H

#include "text/grammar/vocab_trie.h"

#define CLIME_GRAMMAR_MAX_SOURCE ((size_t)1 << 20) /* bytes of a source */

enum clime_grammar_kind {
    CLIME_GRAMMAR_NONE,
    CLIME_GRAMMAR_REGEX,       /* the whole output matches */
    CLIME_GRAMMAR_SCHEMA,      /* text: the schema as JSON */
    CLIME_GRAMMAR_JSON_OBJECT, /* any; no text */
    CLIME_GRAMMAR_EBNF,
    CLIME_GRAMMAR_CHOICE, /* text: a JSON list of strings */
    CLIME_GRAMMAR_TAGS,   /* text: a structural tag as JSON */
    CLIME_GRAMMAR_CALLS   /* text: a list of tools as JSON */
};

/* Where the output stands when it begins. */
enum clime_grammar_lead {
    CLIME_LEAD_NONE,     /* the grammar begins at once */
    CLIME_LEAD_MAYBE,    /* it may open a block of reasoning first */
    CLIME_LEAD_REASONING /* it is inside one */
};

struct clime_call_format;
struct clime_output_parser;

struct clime_grammar_source {
    enum clime_grammar_kind kind;
    struct clime_str text;
    enum clime_grammar_lead lead;
    const struct clime_output_parser *reasoning; /* of a lead: its markers */
    const struct clime_call_format *calls;       /* CALLS */
    struct clime_str tool;                       /* CALLS: only this one; empty = any */
    bool one_call;                               /* CALLS */
};

struct clime_grammar;

/* CLIME_ERR_INPUT names what is wrong or not supported. */
enum clime_err clime_grammar_compile(const struct clime_vocab_trie *v, const struct clime_grammar_source *s,
                                     struct clime_grammar **out, struct clime_error *e);
struct clime_grammar *clime_grammar_ref(struct clime_grammar *g);
void clime_grammar_unref(struct clime_grammar *g); /* NULL is fine */

struct clime_grammar_state;

struct clime_grammar_state *clime_grammar_state_new(struct clime_grammar *g); /* takes a reference of its own */
void clime_grammar_state_free(struct clime_grammar_state *s);

/* The output got a token. One that the grammar does not allow leaves the state stuck. */
void clime_grammar_state_add(struct clime_grammar_state *s, int32_t id);

struct clime_grammar_next {
    const uint32_t *allowed; /* tokens that may come next, those that end the output not among them; stands until the
                              * next add to a state of the grammar. NULL: stuck */
    bool may_end;
    bool only_end;     /* nothing but the end may come */
    const char *stuck; /* why there is nothing: static text, for the client */
};
struct clime_grammar_next clime_grammar_state_next(struct clime_grammar_state *s);

/* Bytes that a grammar keeps for its states, for tests and the log. */
size_t clime_grammar_bytes(const struct clime_grammar *g);

#endif
