/* Server-sent events (WHATWG HTML, section 9.2), both ways. */
#ifndef CLIME_COMMON_HTTP_SSE_H
#define CLIME_COMMON_HTTP_SSE_H

#include "common/buf.h"

/* Appends "data: " + data + blank line; data must hold no newline (JSON has none). */
void clime_sse_frame(struct clime_buf *out, struct clime_str data);

/* Incremental parser for a client: feed bytes cut anywhere; on_event is called with each event's data (lines joined
 * by \n; comments and other fields dropped; CR, LF and CRLF all end a line). */
struct clime_sse_parser {
    struct clime_buf line, data;
    bool skip_lf, has_data;
    void (*on_event)(void *arg, struct clime_str data);
    void *arg;
};
void clime_sse_parser_init(struct clime_sse_parser *p, size_t max_event, void (*on_event)(void *, struct clime_str),
                           void *arg);
bool clime_sse_parser_feed(struct clime_sse_parser *p, const char *data, size_t len); /* false: an event over max */
void clime_sse_parser_free(struct clime_sse_parser *p);

#endif
