/* Segments of an output. Called by parsers (adding) and framers (reading); one thread at a time. */
#include "text/segments.h"

#include <stdlib.h>

void clime_segments_add(struct clime_segments *s, enum clime_segment_kind kind, size_t begin, size_t end) {
    struct clime_segment *last = s->n > 0 ? &s->at[s->n - 1] : NULL;
    if (begin == end) return;
    CHECK(begin < end && (!last || last->end <= begin));
    if (last && last->kind == kind && last->end == begin) {
        last->end = end;
        return;
    }
    if (s->n == s->size) {
        s->size = s->size ? 2 * s->size : 4;
        s->at = xrealloc(s->at, (size_t)s->size * sizeof *s->at);
    }
    s->at[s->n++] = (struct clime_segment){kind, begin, end};
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

bool clime_segments_next(const struct clime_segments *s, struct clime_str text, struct clime_segment_cursor *c,
                         enum clime_segment_kind *kind, struct clime_str *out) {
    for (; c->segment < s->n; c->segment++, c->done = 0) {
        const struct clime_segment *g = &s->at[c->segment];
        size_t n = g->end - g->begin - c->done;
        if (n == 0 && c->segment + 1 == s->n) return false; /* it may grow */
        if (n == 0) continue;
        *kind = g->kind;
        *out = (struct clime_str){text.ptr + g->begin + c->done, n};
        c->done += n;
        return true;
    }
    return false;
}
