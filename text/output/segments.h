/* An output's text as typed segments: content, reasoning, tool calls.
 *
 * A segment is a range of the output's text, so nothing is copied. Only the last one grows. Several readers may read
 * the same segments, each with a cursor (parse.h). Markers and the white space around them are in no segment.
 */
#ifndef CLIME_TEXT_OUTPUT_SEGMENTS_H
#define CLIME_TEXT_OUTPUT_SEGMENTS_H

#include "common/buf.h"
#include "common/str.h"

enum clime_segment_kind {
    CLIME_SEGMENT_CONTENT,
    CLIME_SEGMENT_REASONING,
    CLIME_SEGMENT_CALL, /* its content is in the call (call.h) */
    CLIME_SEGMENT_VOID  /* an invalid call: empty; its text follows as content */
};

struct clime_segment {
    enum clime_segment_kind kind;
    size_t begin, end; /* bytes of the text */
    int call;          /* CALL, VOID: which */
};

struct clime_segments { /* zero-initialise */
    struct clime_segment *at;
    int n, size;
};

/* Appends [begin, end), merging with an adjacent last segment. Empty ranges add nothing. */
void clime_segments_add(struct clime_segments *s, enum clime_segment_kind kind, size_t begin, size_t end);
void clime_segments_free(struct clime_segments *s);

/* Appends the text of all segments of a kind to out. */
void clime_segments_text(const struct clime_segments *s, struct clime_str text, enum clime_segment_kind kind,
                         struct clime_buf *out);
bool clime_segments_have(const struct clime_segments *s, enum clime_segment_kind kind);

/* Adds a call; moves the last call's end; voids the last call. */
void clime_segments_add_call(struct clime_segments *s, size_t begin, size_t end, int call);
void clime_segments_end_last(struct clime_segments *s, size_t end);
void clime_segments_void_last(struct clime_segments *s);

#endif
