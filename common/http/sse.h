/* Writes server-sent events (WHATWG HTML, section 9.2). */
#ifndef CLIME_COMMON_HTTP_SSE_H
#define CLIME_COMMON_HTTP_SSE_H

#include "common/buf.h"

#define CLIME_SSE_HEARTBEAT ": heartbeat\n\n" /* a comment, which readers skip */

/* Appends "data: " + data + blank line; data must hold no newline (JSON has none). */
static inline void clime_sse_frame(struct clime_buf *out, struct clime_str data) {
    clime_buf_adds(out, "data: ");
    clime_buf_add(out, data.ptr, data.len);
    clime_buf_adds(out, "\n\n");
}

/* The same with an event's name. */
static inline void clime_sse_frame_named(struct clime_buf *out, const char *event, struct clime_str data) {
    clime_buf_adds(out, "event: ");
    clime_buf_adds(out, event);
    clime_buf_addc(out, '\n');
    clime_sse_frame(out, data);
}

#endif
