/* Grammar readers: each builds an expression from one kind of source. An unsupported feature is CLIME_ERR_INPUT, which
 * names it. Called by grammar.c; no state.
 */
#ifndef CLIME_TEXT_GRAMMAR_READERS_H
#define CLIME_TEXT_GRAMMAR_READERS_H

#include "text/grammar/chars.h"
#include "text/grammar/source.h"
#include "text/grammar/vocab_trie.h"

/* regex.c. search: the pattern may match anywhere, as in JSON schemas; else the whole text. */
enum clime_err clime_regex_read(struct clime_exprs *x, struct clime_str pattern, enum clime_spelling how, bool search,
                                int *out, struct clime_error *e);
/* A character class, shared with EBNF: *at is after the opening bracket, on return after the closing one. */
enum clime_err clime_class_read(struct clime_str text, size_t *at, struct clime_chars *out, struct clime_error *e);

/* ebnf.c: GBNF, as llama.cpp and XGrammar write it. The start rule is `root`. */
enum clime_err clime_ebnf_read(struct clime_exprs *x, struct clime_str text, int *out, struct clime_error *e);

/* schema.c. object: the value must be an object. */
enum clime_err clime_schema_read(struct clime_exprs *x, struct clime_str json, bool object, int *out,
                                 struct clime_error *e);

/* tags.c */
enum clime_err clime_choice_read(struct clime_exprs *x, struct clime_str json, int *out, struct clime_error *e);
enum clime_err clime_tags_read(struct clime_exprs *x, const struct clime_vocab_trie *v, struct clime_str json, int *out,
                               struct clime_error *e);

/* calls.c */
enum clime_err clime_calls_read(struct clime_exprs *x, const struct clime_vocab_trie *v,
                                const struct clime_grammar_source *s, int *out, struct clime_error *e);

/* markers.c. A marker is text in which special tokens match as tokens. */
int clime_expr_marker(struct clime_exprs *x, const struct clime_vocab_trie *v, struct clime_str marker);
/* Any text up to and including the first of n markers, spelt as tokens or text, followed by then[i] (NULL: nothing).
 * may_end: or any text without a marker. */
#define CLIME_MAX_MARKERS 64
int clime_expr_text_until(struct clime_exprs *x, const struct clime_vocab_trie *v, const char *const *markers,
                          const int *then, int n, bool may_end);

#endif
