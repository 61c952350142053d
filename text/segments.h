/* The text of an output as typed segments: which bytes are content, which are reasoning.
 *
 * A segment is a range of the output's text, so nothing is copied. Only the last one grows. A reader keeps a cursor of
 * its own; several may read the same segments. What a parser leaves out (its markers, the white space around them) is
 * in no segment.
 */
#ifndef CLIME_TEXT_SEGMENTS_H
#define CLIME_TEXT_SEGMENTS_H

#include "common/buf.h"
#include "common/str.h"

enum clime_segment_kind { CLIME_SEGMENT_CONTENT, CLIME_SEGMENT_REASONING };

struct clime_segment {
    enum clime_segment_kind kind;
    size_t begin, end; /* bytes of the text */
};

struct clime_segments { /* zero-initialise */
    struct clime_segment *at;
    int n, size;
};

/* Appends [begin, end); joins the last segment where it goes on from it. Empty ranges add nothing. */
void clime_segments_add(struct clime_segments *s, enum clime_segment_kind kind, size_t begin, size_t end);
void clime_segments_free(struct clime_segments *s);

/* Appends the text of all segments of a kind to out. */
void clime_segments_text(const struct clime_segments *s, struct clime_str text, enum clime_segment_kind kind,
                         struct clime_buf *out);
bool clime_segments_have(const struct clime_segments *s, enum clime_segment_kind kind);

struct clime_segment_cursor { /* zero = the beginning */
    int segment;
    size_t done; /* bytes of it */
};
/* What there is after the cursor: the rest of one segment, in *out. False when there is nothing (yet). */
bool clime_segments_next(const struct clime_segments *s, struct clime_str text, struct clime_segment_cursor *c,
                         enum clime_segment_kind *kind, struct clime_str *out);

#endif
