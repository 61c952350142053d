/* Parsers of output: from the text that a model wrote to typed segments (text/output/segments.h): first its reasoning,
 * by a row of the table here, then text and tool calls, by a row of call_formats.h.
 *
 * A parser sees the text grow and says how far it has decided. Its result must not depend on how the text was cut: what
 * could still become a marker stays undecided until more comes, or until nothing more can. It works on bytes that are
 * final (behind the search for stop strings), keeps its state in a few integers, and looks at each byte a bounded
 * number of times.
 */
#ifndef CLIME_TEXT_OUTPUT_OUTPUT_PARSER_H
#define CLIME_TEXT_OUTPUT_OUTPUT_PARSER_H

#include "text/output/call_formats.h"
#include "text/output/parse.h"

struct clime_output_parser {
    const char *name, *aliases; /* "a|b" */
    /* prompt_end: the last characters of the prompt, which may have opened what the output goes on with; NULL = the
     * parser does not care */
    void (*begin)(struct clime_parse *p, struct clime_str prompt_end);
    /* text: all of it; text[p->at ..) is undecided. Adds segments and moves p->at. last: nothing follows. True when the
     * reasoning is over, and the reply begins at p->at. */
    bool (*feed)(struct clime_parse *p, struct clime_str text, bool last);
    const char *open, *close; /* its markers */
    bool opened;              /* the output begins inside, the opening marker may be missing */
    const char *ended_by;     /* a marker of the reply that closes the reasoning too; NULL = none */
};

/* The row with the name, or NULL. Names of all, "a|b|c", for messages and help. */
const struct clime_output_parser *clime_output_parser_find(const char *name);
void clime_output_parser_names(struct clime_buf *out);
/* The row for models with this chat template; the first where it shows no reasoning. */
const struct clime_output_parser *clime_output_parser_of_template(struct clime_str source);

/* The table; ends with name == NULL. The first row is the parser without markers: nothing is reasoning. */
extern const struct clime_output_parser clime_output_parsers[];

void clime_parse_begin(struct clime_parse *p, const struct clime_output_format *how, struct clime_str prompt_end);
/* Of an output that goes on with a reply of which `said` is there already: its text, or only reasoning. */
void clime_parse_go_on(struct clime_parse *p, const struct clime_output_format *how, struct clime_str said,
                       bool reasoning);
void clime_parse_feed(struct clime_parse *p, struct clime_str text, bool last);
/* Of one that has begun and was fed nothing: the output begins inside reasoning, or is taken to without a marker. */
bool clime_parse_is_reasoning(const struct clime_parse *p);
/* Likewise: the prompt ends behind a block of reasoning, so what follows is the reply. */
bool clime_parse_is_closed(const struct clime_parse *p);
/* A parser's own functions, for the table. */
void clime_parse_think_begin(struct clime_parse *p, struct clime_str prompt_end);
bool clime_parse_think_feed(struct clime_parse *p, struct clime_str text, bool last);

#endif
