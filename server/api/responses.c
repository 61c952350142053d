/* POST /v1/responses: the handler, on an HTTP worker, and the stream's framer, on the job's emitter.
 *
 * A stream's order: response.created, response.in_progress; for each item output_item.added, its part or arguments in
 * deltas, each ended by its done, output_item.done; then response.completed, incomplete or failed. Every event has its
 * name and a sequence number. A call that turns out to be none ends as incomplete, and its text follows as a message.
 */
#include "server/api/responses.h"

#include <stdio.h>

#include "common/http/sse.h"

struct cursor {
    struct clime_parse_cursor at;
    int64_t n_events;
    bool open;   /* an item is */
    int segment; /* of the open item */
    int index;   /* of the open item, or the next */
};

/* {"type": NAME, "sequence_number": n, ...: opened; the caller sends it. */
static struct clime_jw open_event(struct clime_output *o, const char *name) {
    struct cursor *c = o->cursor;
    struct clime_jw w = clime_openai_open_event(o->job, name);
    clime_jw_key(&w, "sequence_number");
    clime_jw_int(&w, c->n_events++);
    return w;
}

static void send_response(struct clime_output *o, const char *name, bool done, struct clime_buf *sse) {
    struct clime_jw w = open_event(o, name);
    clime_jw_key(&w, "response");
    clime_responses_write(&w, o, done);
    clime_openai_send_event(&w, o->job, name, sse);
}

/* An event of the open item, opened: its id and place. */
static struct clime_jw open_item_event(struct clime_output *o, const char *name) {
    const struct cursor *c = o->cursor;
    struct clime_jw w = open_event(o, name);
    char id[CLIME_CALL_ID];
    clime_responses_item_id(o, c->segment, id);
    clime_jw_key(&w, "item_id");
    clime_jw_strz(&w, id);
    clime_jw_key(&w, "output_index");
    clime_jw_int(&w, c->index);
    if (o->parse.segments.at[c->segment].kind <= CLIME_SEGMENT_REASONING) {
        clime_jw_key(&w, "content_index");
        clime_jw_int(&w, 0);
    }
    return w;
}

static void send_item(struct clime_output *o, const char *name, bool begins, struct clime_buf *sse) {
    const struct cursor *c = o->cursor;
    struct clime_jw w = open_event(o, name);
    clime_jw_key(&w, "output_index");
    clime_jw_int(&w, c->index);
    clime_jw_key(&w, "item");
    clime_responses_write_item(&w, o, c->segment, begins);
    clime_openai_send_event(&w, o->job, name, sse);
}

static void send_part(struct clime_output *o, const char *name, struct clime_str text, struct clime_buf *sse) {
    const struct cursor *c = o->cursor;
    struct clime_jw w = open_item_event(o, name);
    clime_jw_key(&w, "part");
    clime_responses_write_part(&w, o->parse.segments.at[c->segment].kind, text);
    clime_openai_send_event(&w, o->job, name, sse);
}

/* More of the item's text or arguments (delta), or all of it (done). */
static void send_text(struct clime_output *o, bool done, struct clime_str text, struct clime_buf *sse) {
    static const char *const what[] = {[CLIME_SEGMENT_CONTENT] = "output_text",
                                       [CLIME_SEGMENT_REASONING] = "reasoning_text",
                                       [CLIME_SEGMENT_CALL] = "function_call_arguments"};
    const struct cursor *c = o->cursor;
    const struct clime_segment *g = &o->parse.segments.at[c->segment];
    char name[64];
    snprintf(name, sizeof name, "response.%s.%s", what[g->kind], done ? "done" : "delta");
    struct clime_jw w = open_item_event(o, name);
    if (done && g->kind == CLIME_SEGMENT_CALL) {
        clime_jw_key(&w, "name");
        clime_jw_str(&w, clime_buf_str(&o->parse.calls.at[g->call].name));
    }
    clime_jw_key(&w, !done ? "delta" : g->kind == CLIME_SEGMENT_CALL ? "arguments" : "text");
    clime_jw_str(&w, text);
    if (g->kind == CLIME_SEGMENT_CONTENT) {
        clime_jw_key(&w, "logprobs");
        clime_jw_array(&w);
        clime_jw_close(&w);
    }
    clime_openai_send_event(&w, o->job, name, sse);
}

static void open_item(struct clime_output *o, const struct clime_piece *p, struct clime_buf *sse) {
    struct cursor *c = o->cursor;
    c->open = true;
    c->segment = p->segment;
    send_item(o, "response.output_item.added", true, sse);
    if (p->kind != CLIME_SEGMENT_CALL) send_part(o, "response.content_part.added", clime_str_of(""), sse);
}

static void close_item(struct clime_output *o, struct clime_buf *sse) {
    struct cursor *c = o->cursor;
    if (!c->open) return;
    const struct clime_segment *g = &o->parse.segments.at[c->segment];
    if (g->kind == CLIME_SEGMENT_CALL) {
        send_text(o, true, clime_buf_str(&o->parse.calls.at[g->call].args), sse);
    } else if (g->kind != CLIME_SEGMENT_VOID) {
        struct clime_str text = clime_responses_text(o, c->segment);
        send_text(o, true, text, sse);
        send_part(o, "response.content_part.done", text, sse);
    }
    send_item(o, "response.output_item.done", false, sse);
    c->open = false;
    c->index++;
}

static void stream_begin(struct clime_job *j, struct clime_buf *sse) {
    send_response(&j->outs[0], "response.created", false, sse);
    send_response(&j->outs[0], "response.in_progress", false, sse);
}

static void stream_news(struct clime_job *j, struct clime_output *o, struct clime_buf *sse) {
    struct cursor *c = o->cursor;
    struct clime_piece p;
    (void)j;
    while (clime_parse_next(&o->parse, clime_stop_text_safe(&o->text), &c->at, &p)) {
        if (c->open && p.segment != c->segment) close_item(o, sse);
        if (!c->open) open_item(o, &p, sse);
        if (p.text.len > 0) send_text(o, false, p.text, sse);
    }
    if (o->finish.type == CLIME_FINISH_NONE) return;
    close_item(o, sse);
    bool failed = o->finish.type == CLIME_FINISH_ABORT;
    send_response(o,
                  failed                                  ? "response.failed"
                  : o->finish.type == CLIME_FINISH_LENGTH ? "response.incomplete"
                                                          : "response.completed",
                  true, sse);
}

static void stream_end(struct clime_job *j, struct clime_buf *sse) {
    (void)j;
    (void)sse; /* the response was the last */
}

const struct clime_framer clime_responses_framer = {.cursor_bytes = sizeof(struct cursor),
                                                    .heartbeat = CLIME_SSE_HEARTBEAT,
                                                    .begin = stream_begin,
                                                    .news = stream_news,
                                                    .end = stream_end};

static void write_reply(struct clime_job *j, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_responses_write(&w, &j->outs[0], true);
}

void clime_handle_responses(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_responses_request q = {.r = {.server = context}};
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    gen.job->framer = &clime_responses_framer;
    enum clime_err err = clime_responses_parse(&gen, &q, &e);
    if (!err) err = clime_generation_run(&gen, &e);
    clime_openai_finish_call(&gen, err, &e, write_reply);
}
