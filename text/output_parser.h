/* Parsers of output: from the text that a model wrote to typed segments (text/segments.h). One row of a table for each
 * format, chosen by name at start; one parse for each output.
 *
 * A parser sees the text grow and says how far it has decided. Its result must not depend on how the text was cut: what
 * could still become a marker stays undecided until more comes, or until nothing more can. It works on bytes that are
 * final (behind the search for stop strings), keeps its state in a few integers, and looks at each byte a bounded
 * number of times.
 */
#ifndef CLIME_TEXT_OUTPUT_PARSER_H
#define CLIME_TEXT_OUTPUT_PARSER_H

#include "text/segments.h"

struct clime_parse;

struct clime_output_parser {
    const char *name;
    /* prompt_end: the last characters of the prompt, which may have opened what the output goes on with; NULL = the
     * parser does not care */
    void (*begin)(struct clime_parse *p, struct clime_str prompt_end);
    /* text: all of it; text[p->at ..) is undecided. Adds segments and moves p->at. last: nothing follows, so everything
     * must be decided. */
    void (*feed)(struct clime_parse *p, struct clime_str text, bool last);
    const char *open, *close; /* its markers */
    bool opened;              /* the output begins inside, the opening marker may be missing */
};

/* Of one output. Owner: whoever feeds it. */
struct clime_parse {
    const struct clime_output_parser *parser;
    struct clime_segments segments;
    size_t at;   /* decided */
    size_t seen; /* looked at; the parser's own, as is state; 0 at the beginning */
    int state;
};

/* The row with the name, or NULL. Names of all, "a, b, c", for messages and help. */
const struct clime_output_parser *clime_output_parser_find(const char *name);
void clime_output_parser_names(struct clime_buf *out);

/* The table; ends with name == NULL. The first row is the parser without markers: all is content. */
extern const struct clime_output_parser clime_output_parsers[];

void clime_parse_begin(struct clime_parse *p, const struct clime_output_parser *parser, struct clime_str prompt_end);
void clime_parse_feed(struct clime_parse *p, struct clime_str text, bool last);
void clime_parse_free(struct clime_parse *p);

/* A parser's own functions, for the table. */
void clime_parse_think_begin(struct clime_parse *p, struct clime_str prompt_end);
void clime_parse_think_feed(struct clime_parse *p, struct clime_str text, bool last);

#endif
