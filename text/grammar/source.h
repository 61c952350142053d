/* A request's grammar: regex, JSON schema, any JSON object, EBNF, choice of texts, structural tag, tool calls; and the
 * start state if the model reasons first. Texts are borrowed.
 */
#ifndef CLIME_TEXT_GRAMMAR_SOURCE_H
#define CLIME_TEXT_GRAMMAR_SOURCE_H

#include <stdbool.h>

#include "common/str.h"

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

/* State at the start of the output. */
enum clime_grammar_lead {
    CLIME_LEAD_NONE,     /* the grammar starts at once */
    CLIME_LEAD_MAYBE,    /* a reasoning block may come first */
    CLIME_LEAD_REASONING /* inside a reasoning block */
};

struct clime_call_format;
struct clime_output_parser;

struct clime_grammar_source {
    enum clime_grammar_kind kind;
    struct clime_str text;
    enum clime_grammar_lead lead;
    const struct clime_output_parser *reasoning; /* markers for the lead */
    const struct clime_call_format *calls;       /* CALLS */
    struct clime_str tool;                       /* CALLS: only this one; empty = any */
    bool one_call;                               /* CALLS */
    /* optional CALLS; arguments of non-strict tools are unconstrained */
    bool in_text;                    /* text before and after them */
    enum clime_grammar_kind or_kind; /* alternative to calls; NONE: calls are required */
    struct clime_str or_text;
};

#endif
