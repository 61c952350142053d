/* Writes the stream of /v1/responses. Called by its endpoint's framer.
 *
 * Order: response.created, response.in_progress; per item output_item.added, its part or arguments in deltas, each
 * ended by its done, output_item.done; then response.completed, incomplete or failed. Every event has its name and a
 * sequence number. A void call ends as incomplete, and its text follows as a message. A custom tool's text is inside
 * the model's arguments, so it is sent whole at their end.
 */
#include <stdio.h>

#include "text/chat/responses_answer.h"
#include "text/template/custom_tools.h"

struct writer {
    const struct clime_answer *a;
    const struct clime_responses_asked *q;
    struct clime_responses_stream *stream;
    const struct clime_answer_events *to;
};

/* Opens {"type": NAME, "sequence_number": n, ...; the caller sends it. */
static struct clime_jw open_event(struct writer *o, const char *name) {
    struct clime_responses_stream *c = o->stream;
    struct clime_jw w = clime_answer_open_event(o->to, name);
    clime_jw_put_int(&w, "sequence_number", c->n_events++);
    return w;
}

static void send_response(struct writer *o, const char *name, bool done) {
    struct clime_jw w = open_event(o, name);
    clime_jw_key(&w, "response");
    clime_responses_write(&w, o->a, o->q, done);
    clime_answer_send_event(&w, o->to, name);
}

/* Opens an event of the open item, with its id and index. */
static struct clime_jw open_item_event(struct writer *o, const char *name) {
    const struct clime_responses_stream *c = o->stream;
    struct clime_jw w = open_event(o, name);
    char id[CLIME_ANSWER_ID];
    clime_responses_item_id(o->a, c->segment, id);
    clime_jw_put_strz(&w, "item_id", id);
    clime_jw_put_int(&w, "output_index", c->index);
    if (o->a->parse->segments.at[c->segment].kind <= CLIME_SEGMENT_REASONING) clime_jw_put_int(&w, "content_index", 0);
    return w;
}

static void send_item(struct writer *o, const char *name, bool begins) {
    const struct clime_responses_stream *c = o->stream;
    struct clime_jw w = open_event(o, name);
    clime_jw_put_int(&w, "output_index", c->index);
    clime_jw_key(&w, "item");
    clime_responses_write_item(&w, o->a, c->segment, begins);
    clime_answer_send_event(&w, o->to, name);
}

static void send_part(struct writer *o, const char *name, bool begins) {
    const struct clime_responses_stream *c = o->stream;
    struct clime_jw w = open_item_event(o, name);
    clime_jw_key(&w, "part");
    clime_responses_write_part(&w, o->a, c->segment, begins);
    clime_answer_send_event(&w, o->to, name);
}

/* Sends more of the item's text or arguments (delta), or all of it (done). */
static void send_text(struct writer *o, bool done, struct clime_str text) {
    static const char *const what[] = {[CLIME_SEGMENT_CONTENT] = "output_text",
                                       [CLIME_SEGMENT_REASONING] = "reasoning_text",
                                       [CLIME_SEGMENT_CALL] = "function_call_arguments"};
    const struct clime_responses_stream *c = o->stream;
    const struct clime_segment *g = &o->a->parse->segments.at[c->segment];
    char name[64];
    snprintf(name, sizeof name, "response.%s.%s", what[g->kind], done ? "done" : "delta");
    struct clime_jw w = open_item_event(o, name);
    if (done && g->kind == CLIME_SEGMENT_CALL) clime_answer_put_name(&w, o->a, g->call);
    clime_jw_put_str(&w, !done ? "delta" : g->kind == CLIME_SEGMENT_CALL ? "arguments" : "text", text);
    if (g->kind == CLIME_SEGMENT_CONTENT) clime_responses_write_logprobs(&w, o->a, c->segment, text);
    clime_answer_send_event(&w, o->to, name);
}

static void send_input(struct writer *o) {
    const struct clime_segment *g = &o->a->parse->segments.at[o->stream->segment];
    for (int done = 0; done < 2; done++) {
        const char *name = done ? "response.custom_tool_call_input.done" : "response.custom_tool_call_input.delta";
        struct clime_jw w = open_item_event(o, name);
        clime_jw_key(&w, done ? "input" : "delta");
        clime_custom_tool_write_input(&w, clime_buf_str(&o->a->parse->calls.at[g->call].args));
        clime_answer_send_event(&w, o->to, name);
    }
}

static void open_item(struct writer *o, const struct clime_piece *p) {
    struct clime_responses_stream *c = o->stream;
    c->open = true;
    c->segment = p->segment;
    c->custom = clime_responses_is_custom(o->a, p->segment);
    send_item(o, "response.output_item.added", true);
    if (p->kind != CLIME_SEGMENT_CALL) send_part(o, "response.content_part.added", true);
}

static void close_item(struct writer *o) {
    struct clime_responses_stream *c = o->stream;
    if (!c->open) return;
    const struct clime_segment *g = &o->a->parse->segments.at[c->segment];
    if (g->kind == CLIME_SEGMENT_CALL && c->custom) {
        send_input(o);
    } else if (g->kind == CLIME_SEGMENT_CALL) {
        send_text(o, true, clime_buf_str(&o->a->parse->calls.at[g->call].args));
    } else if (g->kind != CLIME_SEGMENT_VOID) {
        send_text(o, true, clime_answer_segment(o->a, c->segment));
        send_part(o, "response.content_part.done", false);
    }
    send_item(o, "response.output_item.done", false);
    c->open = false;
    c->index++;
}

void clime_responses_begin(struct clime_responses_stream *c, const struct clime_answer *a,
                           const struct clime_responses_asked *q, const struct clime_answer_events *to) {
    struct writer o = {a, q, c, to};
    send_response(&o, "response.created", false);
    send_response(&o, "response.in_progress", false);
}

void clime_responses_news(struct clime_responses_stream *c, const struct clime_answer *a,
                          const struct clime_responses_asked *q, const struct clime_answer_events *to) {
    struct writer o = {a, q, c, to};
    struct clime_piece p;
    while (clime_parse_next(a->parse, a->text, &c->at, &p)) {
        if (c->open && p.segment != c->segment) close_item(&o);
        if (!c->open) open_item(&o, &p);
        if (p.text.len > 0 && !c->custom) send_text(&o, false, p.text);
    }
    if (a->end == CLIME_ANSWER_OPEN) return;
    close_item(&o);
    send_response(&o,
                  a->end == CLIME_ANSWER_ABORT    ? "response.failed"
                  : a->end == CLIME_ANSWER_LENGTH ? "response.incomplete"
                                                  : "response.completed",
                  true);
}
