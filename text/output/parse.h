/* An output on its way through the parsers: how it is to be read, what was found so far, and how readers get at it.
 * Owner: whoever feeds it (output_parser.h); one thread at a time.
 */
#ifndef CLIME_TEXT_OUTPUT_PARSE_H
#define CLIME_TEXT_OUTPUT_PARSE_H

#include "text/output/call.h"
#include "text/output/segments.h"

struct clime_output_parser;

/* How an output is to be read. Borrowed. */
struct clime_output_format {
    const struct clime_output_parser *reasoning;
    const struct clime_call_format *calls; /* NULL = calls are text */
    const struct clime_tools *tools;       /* of the request; NULL = unknown */
    bool one_call;                         /* the first call ends the reply */
    bool only_known;                       /* what calls none of the tools is text */
    bool either;                           /* the reply is calls from its beginning, or text that quotes none */
};

/* Of one output. Owner: whoever feeds it. */
struct clime_parse {
    struct clime_output_format how;
    struct clime_segments segments;
    struct clime_calls calls;
    size_t at;   /* decided */
    size_t seen; /* looked at; the parser's own, as is state; 0 at the beginning */
    int state;
    bool reply;      /* the reasoning is over */
    size_t reply_at; /* where the reply begins */
    /* of the calls */
    struct clime_call_reader reader;
    size_t section_at; /* behind the section's opening */
    int n_in_section;  /* calls of it so far */
};

/* What stands at `at`: the marker, or what may become it when more comes. */
bool clime_marker_at(struct clime_str text, size_t at, const char *marker);
bool clime_marker_begins(struct clime_str text, size_t at, const char *marker);
bool clime_is_space(char c);
size_t clime_skip_space(struct clime_str text, size_t at);

void clime_parse_free(struct clime_parse *p);

/* Calls that are not void. */
int clime_parse_n_calls(const struct clime_parse *p);

/* What a reader has not seen yet, in order. */
struct clime_piece {
    enum clime_segment_kind kind;
    int segment;           /* a piece of another segment than the last piece's begins something new */
    struct clime_str text; /* CALL: of its arguments */
    int call;              /* CALL: which; */
    bool begins;           /* CALL: its first piece (its name is known, its text may be empty) */
};
struct clime_parse_cursor { /* zero = the beginning */
    int segment;
    size_t done; /* bytes of it */
    bool begun;
};
/* False when there is nothing (yet). A call that has been read in part and turns out void ends without a word; its text
 * follows as content. */
bool clime_parse_next(const struct clime_parse *p, struct clime_str text, struct clime_parse_cursor *c,
                      struct clime_piece *out);

#endif
