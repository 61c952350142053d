/* Output parsers: from a model's text to typed segments (text/output/segments.h): first reasoning, by a row of the
 * table here, then text and tool calls, by a row of call_formats.h.
 *
 * A parser sees the text grow and reports how much it has decided. The result must not depend on chunk boundaries: a
 * possible marker stays undecided until more text arrives or the text ends. It works on final bytes (after the stop
 * string search), keeps its state in a few integers, and reads each byte a bounded number of times.
 */
#ifndef CLIME_TEXT_OUTPUT_OUTPUT_PARSER_H
#define CLIME_TEXT_OUTPUT_OUTPUT_PARSER_H

#include "text/output/call_formats.h"
#include "text/output/parse.h"

struct clime_output_parser {
    const char *name, *aliases; /* "a|b" */
    /* prompt_end: end of the prompt, which may have opened a block that the output continues; NULL = not needed */
    void (*begin)(struct clime_parse *p, struct clime_str prompt_end);
    /* text: all of it; text[p->at ..) is undecided. Adds segments and moves p->at. last: the text is complete. True
     * when the reasoning has ended and the reply begins at p->at. */
    bool (*feed)(struct clime_parse *p, struct clime_str text, bool last);
    const char *open, *close; /* its markers */
    bool opened;              /* the output begins inside; the opening marker may be missing */
    const char *ended_by;     /* a reply marker that also ends the reasoning; NULL = none */
};

/* The row by name, or NULL; all names, "a|b|c", for messages and help. */
const struct clime_output_parser *clime_output_parser_find(const char *name);
void clime_output_parser_names(struct clime_buf *out);
/* The row for this chat template; the first if it shows no reasoning. */
const struct clime_output_parser *clime_output_parser_of_template(struct clime_str source);

/* The table; ends with name == NULL. The first row has no markers: nothing is reasoning. */
extern const struct clime_output_parser clime_output_parsers[];

void clime_parse_begin(struct clime_parse *p, const struct clime_output_format *how, struct clime_str prompt_end);
/* Begins an output that continues a reply; said: its text so far, or only its reasoning. */
void clime_parse_go_on(struct clime_parse *p, const struct clime_output_format *how, struct clime_str said,
                       bool reasoning);
void clime_parse_feed(struct clime_parse *p, struct clime_str text, bool last);
/* After begin, before feed: the output begins inside reasoning, by marker or by default. */
bool clime_parse_is_reasoning(const struct clime_parse *p);
/* Likewise: the prompt ends after a reasoning block, so the reply follows. */
bool clime_parse_is_closed(const struct clime_parse *p);
/* A parser's own functions, for the table. */
void clime_parse_think_begin(struct clime_parse *p, struct clime_str prompt_end);
bool clime_parse_think_feed(struct clime_parse *p, struct clime_str text, bool last);

#endif
