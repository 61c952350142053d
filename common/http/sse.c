/* Server-sent events (see sse.h; WHATWG HTML, section 9.2.6).
 *
 * Framing is called by the emitters, parsing by the router and the trainer; a parser belongs to one thread. The buffers
 * keep their memory between events, so that a long stream allocates nothing.
 */
#include "common/http/sse.h"

#include <string.h>

void clime_sse_frame(struct clime_buf *out, struct clime_str data) {
    clime_buf_adds(out, "data: ");
    clime_buf_add(out, data.ptr, data.len);
    clime_buf_adds(out, "\n\n");
}

void clime_sse_parser_init(struct clime_sse_parser *p, size_t max_event, void (*on_event)(void *, struct clime_str),
                           void *arg) {
    *p = (struct clime_sse_parser){.on_event = on_event, .arg = arg};
    clime_buf_init(&p->line, max_event + 16); /* a line holds the field's name besides */
    clime_buf_init(&p->data, max_event);
}

void clime_sse_parser_free(struct clime_sse_parser *p) {
    clime_buf_free(&p->line);
    clime_buf_free(&p->data);
}

/* A whole line. An empty one ends the event; of the fields only data matters here. */
static void take_line(struct clime_sse_parser *p) {
    struct clime_str line = clime_buf_str(&p->line);
    if (line.len == 0) {
        if (p->has_data && !p->data.full) p->on_event(p->arg, clime_buf_str(&p->data));
        clime_buf_clear(&p->data);
        p->has_data = false;
        return;
    }
    struct clime_str value = {"", 0};
    if (clime_str_starts(line, "data:"))
        value = (struct clime_str){line.ptr + 5, line.len - 5};
    else if (!clime_str_is(line, "data"))
        return;
    if (value.len && value.ptr[0] == ' ') value = (struct clime_str){value.ptr + 1, value.len - 1};
    if (p->has_data) clime_buf_addc(&p->data, '\n');
    clime_buf_add(&p->data, value.ptr, value.len);
    p->has_data = true;
}

bool clime_sse_parser_feed(struct clime_sse_parser *p, const char *data, size_t len) {
    const char *at = data, *end = data + len;
    while (at < end && !p->line.full && !p->data.full) {
        if (p->skip_lf && *at == '\n') at++; /* the rest of a CRLF, perhaps cut between two feeds */
        p->skip_lf = false;
        const char *stop = at;
        while (stop < end && *stop != '\n' && *stop != '\r') stop++;
        clime_buf_add(&p->line, at, (size_t)(stop - at));
        if (stop == end) break;
        p->skip_lf = *stop == '\r';
        at = stop + 1;
        if (p->line.full) break;
        take_line(p);
        clime_buf_clear(&p->line);
    }
    return !p->line.full && !p->data.full;
}
