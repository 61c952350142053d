/* Parser state of an output: its format, the results so far, and cursors for readers. Owner: the thread that feeds it
 * (output_parser.h); one at a time.
 */
#ifndef CLIME_TEXT_OUTPUT_PARSE_H
#define CLIME_TEXT_OUTPUT_PARSE_H

#include "text/output/call.h"
#include "text/output/segments.h"

struct clime_output_parser;

/* An output's format. Borrowed. */
struct clime_output_format {
    const struct clime_output_parser *reasoning;
    const struct clime_call_format *calls; /* NULL = calls are text */
    const struct clime_tools *tools;       /* the request's; NULL = unknown */
    bool one_call;                         /* the first call ends the reply */
    bool only_known;                       /* a call of an unknown tool is text */
    bool either;                           /* the reply is either calls from its start, or text without calls */
};

/* One output's parse. */
struct clime_parse {
    struct clime_output_format how;
    struct clime_segments segments;
    struct clime_calls calls;
    size_t at;   /* decided */
    size_t seen; /* examined; private to the parser, like state; 0 at the start */
    int state;
    bool reply;      /* the reasoning has ended */
    size_t reply_at; /* where the reply begins */
    /* for calls */
    struct clime_call_reader reader;
    size_t section_at; /* after the section's opening */
    int n_in_section;  /* its calls so far */
};

/* marker_at: the marker is at `at`; marker_begins: a prefix of it ends the text there. */
bool clime_marker_at(struct clime_str text, size_t at, const char *marker);
bool clime_marker_begins(struct clime_str text, size_t at, const char *marker);
bool clime_is_space(char c);
size_t clime_skip_space(struct clime_str text, size_t at);

void clime_parse_free(struct clime_parse *p);

/* Calls that are not void. */
int clime_parse_n_calls(const struct clime_parse *p);

/* The next unread piece, in order. */
struct clime_piece {
    enum clime_segment_kind kind;
    int segment;           /* a change of segment begins a new item */
    struct clime_str text; /* CALL: arguments */
    int call;              /* CALL: which; */
    bool begins;           /* CALL: its first piece (its name is known, its text may be empty) */
};
struct clime_parse_cursor { /* zero = the beginning */
    int segment;
    size_t done; /* bytes read of it */
    bool begun;
};
/* False when nothing is left for now. A partly read call that becomes void ends silently; its text follows as
 * content. */
bool clime_parse_next(const struct clime_parse *p, struct clime_str text, struct clime_parse_cursor *c,
                      struct clime_piece *out);

#endif
