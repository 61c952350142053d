/* What a request asks for: a regex, a JSON schema, any JSON object, EBNF, one of some texts, a structural tag, calls of
 * tools; and how the output begins where the model reasons first. Texts are borrowed.
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
    /* CALLS that need not come; of tools that are not strict the arguments may be any */
    bool in_text;                    /* text before and behind them */
    enum clime_grammar_kind or_kind; /* or, instead of them, what this grammar gives; NONE: they must come */
    struct clime_str or_text;
};

#endif
