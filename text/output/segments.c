/* Segments of an output. Called by parsers (add) and framers (read); one thread at a time. */
#include "text/output/segments.h"

#include <stdlib.h>

static struct clime_segment *push(struct clime_segments *s, enum clime_segment_kind kind, size_t begin, size_t end) {
    if (s->n == s->size) {
        s->size = s->size ? 2 * s->size : 4;
        s->at = xrealloc(s->at, (size_t)s->size * sizeof *s->at);
    }
    CHECK(begin < end && (s->n == 0 || s->at[s->n - 1].end <= begin));
    s->at[s->n] = (struct clime_segment){.kind = kind, .begin = begin, .end = end};
    return &s->at[s->n++];
}

void clime_segments_add(struct clime_segments *s, enum clime_segment_kind kind, size_t begin, size_t end) {
    struct clime_segment *last = s->n > 0 ? &s->at[s->n - 1] : NULL;
    if (begin == end) return;
    if (last && last->kind == kind && last->end == begin) {
        CHECK(begin < end);
        last->end = end;
        return;
    }
    push(s, kind, begin, end);
}

void clime_segments_add_call(struct clime_segments *s, size_t begin, size_t end, int call) {
    push(s, CLIME_SEGMENT_CALL, begin, end)->call = call;
}

void clime_segments_end_last(struct clime_segments *s, size_t end) {
    CHECK(s->n > 0 && s->at[s->n - 1].begin < end);
    s->at[s->n - 1].end = end;
}

void clime_segments_void_last(struct clime_segments *s) {
    struct clime_segment *last = &s->at[s->n - 1];
    CHECK(s->n > 0 && last->kind == CLIME_SEGMENT_CALL);
    last->kind = CLIME_SEGMENT_VOID;
    last->end = last->begin;
}

void clime_segments_free(struct clime_segments *s) {
    free(s->at);
    *s = (struct clime_segments){0};
}

void clime_segments_text(const struct clime_segments *s, struct clime_str text, enum clime_segment_kind kind,
                         struct clime_buf *out) {
    for (int i = 0; i < s->n; i++)
        if (s->at[i].kind == kind) clime_buf_add(out, text.ptr + s->at[i].begin, s->at[i].end - s->at[i].begin);
}

bool clime_segments_have(const struct clime_segments *s, enum clime_segment_kind kind) {
    for (int i = 0; i < s->n; i++)
        if (s->at[i].kind == kind) return true;
    return false;
}
