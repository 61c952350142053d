/* Replies of /v1/messages, whole and streamed: content blocks from the output's segments, events by name. Writers run
 * on the HTTP worker, or on the job's emitter for streams; they read outputs only.
 *
 * A stream's order: message_start; for each block start, deltas, stop; message_delta with the reason; message_stop. A
 * call that turns out to be none ends its block, and its text follows as a block of text.
 */
#include "common/http/sse.h"
#include "server/api/messages.h"

static const char *stop_reason(const struct clime_output *o) {
    if (o->finish.type == CLIME_FINISH_STOP && clime_parse_n_calls(&o->parse) > 0) return "tool_use";
    if (o->finish.type == CLIME_FINISH_STOP && o->finish.matched_str.len > 0) return "stop_sequence";
    if (o->finish.type == CLIME_FINISH_LENGTH) return "max_tokens";
    return o->finish.type == CLIME_FINISH_ABORT ? "abort" : "end_turn";
}

static void write_stop(struct clime_jw *w, const struct clime_output *o) {
    clime_jw_key(w, "stop_reason");
    clime_jw_strz(w, stop_reason(o));
    clime_jw_key(w, "stop_sequence");
    if (o->finish.type == CLIME_FINISH_STOP && o->finish.matched_str.len > 0)
        clime_jw_str(w, o->finish.matched_str);
    else
        clime_jw_null(w);
}

/* What was found in the cache is not part of input_tokens. */
static void write_usage(struct clime_jw *w, const struct clime_output *o) {
    clime_jw_key(w, "usage");
    clime_jw_object(w);
    clime_jw_key(w, "input_tokens");
    clime_jw_int(w, o->n_prompt - o->cached_tokens);
    clime_jw_key(w, "cache_creation_input_tokens");
    clime_jw_int(w, 0);
    clime_jw_key(w, "cache_read_input_tokens");
    clime_jw_int(w, o->cached_tokens);
    clime_jw_key(w, "output_tokens");
    clime_jw_int(w, (int64_t)o->out.len);
    clime_jw_close(w);
}

static void open_message(struct clime_jw *w, const struct clime_output *o) {
    const struct clime_openai_request *r = o->job->endpoint;
    clime_jw_object(w);
    clime_jw_key(w, "id");
    clime_jw_str(w, o->rid);
    clime_jw_key(w, "type");
    clime_jw_strz(w, "message");
    clime_jw_key(w, "role");
    clime_jw_strz(w, "assistant");
    clime_jw_key(w, "model");
    clime_jw_strz(w, r->model_name);
    clime_jw_key(w, "content");
    clime_jw_array(w);
}

/* A block with the text, or a call with its arguments (NULL: as it begins in a stream). */
static void write_block(struct clime_jw *w, const struct clime_output *o, enum clime_segment_kind kind,
                        struct clime_str text, int call, bool begins) {
    static const char *const types[] = {
        [CLIME_SEGMENT_CONTENT] = "text", [CLIME_SEGMENT_REASONING] = "thinking", [CLIME_SEGMENT_CALL] = "tool_use"};
    char id[CLIME_CALL_ID];
    clime_jw_object(w);
    clime_jw_key(w, "type");
    clime_jw_strz(w, types[kind]);
    if (kind == CLIME_SEGMENT_CALL) {
        const struct clime_call *c = &o->parse.calls.at[call];
        clime_openai_call_id(o, call, id);
        clime_jw_key(w, "id");
        clime_jw_strz(w, id);
        clime_jw_key(w, "name");
        clime_jw_str(w, clime_buf_str(&c->name));
        clime_jw_key(w, "input");
        clime_jw_raw(w, begins ? clime_str_of("{}") : clime_buf_str(&c->args));
    } else {
        clime_jw_key(w, types[kind]);
        clime_jw_str(w, text);
        if (kind == CLIME_SEGMENT_REASONING) {
            clime_jw_key(w, "signature"); /* nobody here checks one */
            clime_jw_strz(w, "");
        }
    }
    clime_jw_close(w);
}

void clime_messages_write_reply(struct clime_job *j, struct clime_buf *out) {
    const struct clime_output *o = &j->outs[0];
    struct clime_str text = clime_stop_text_safe(&o->text);
    struct clime_jw w;
    clime_jw_init(&w, out);
    open_message(&w, o);
    for (int i = 0; i < o->parse.segments.n; i++) {
        const struct clime_segment *g = &o->parse.segments.at[i];
        if (g->kind == CLIME_SEGMENT_VOID) continue;
        write_block(&w, o, g->kind, (struct clime_str){text.ptr + g->begin, g->end - g->begin}, g->call, false);
    }
    clime_jw_close(&w);
    write_stop(&w, o);
    write_usage(&w, o);
    clime_openai_close_reply(&w, j);
}

/* ---- stream ------------------------------------------------------------------------------------------------ */

struct cursor {
    struct clime_parse_cursor at;
    bool open;   /* a block is */
    int segment; /* of the open block */
    int index;   /* of the open block, or the next */
};

static void stream_begin(struct clime_job *j, struct clime_buf *sse) {
    const struct clime_output *o = &j->outs[0];
    struct clime_jw w = clime_openai_open_event(j, "message_start");
    clime_jw_key(&w, "message");
    open_message(&w, o);
    clime_jw_close(&w);
    clime_jw_key(&w, "stop_reason");
    clime_jw_null(&w);
    clime_jw_key(&w, "stop_sequence");
    clime_jw_null(&w);
    write_usage(&w, o);
    clime_jw_close(&w);
    clime_openai_send_event(&w, j, "message_start", sse);
}

static void close_block(struct clime_output *o, struct clime_buf *sse) {
    struct cursor *c = o->cursor;
    if (!c->open) return;
    struct clime_jw w = clime_openai_open_event(o->job, "content_block_stop");
    clime_jw_key(&w, "index");
    clime_jw_int(&w, c->index++);
    clime_openai_send_event(&w, o->job, "content_block_stop", sse);
    c->open = false;
}

static void open_block(struct clime_output *o, const struct clime_piece *p, struct clime_buf *sse) {
    struct cursor *c = o->cursor;
    struct clime_jw w = clime_openai_open_event(o->job, "content_block_start");
    clime_jw_key(&w, "index");
    clime_jw_int(&w, c->index);
    clime_jw_key(&w, "content_block");
    write_block(&w, o, p->kind, clime_str_of(""), p->call, true);
    clime_openai_send_event(&w, o->job, "content_block_start", sse);
    c->open = true;
    c->segment = p->segment;
}

static void send_delta(struct clime_output *o, const struct clime_piece *p, struct clime_buf *sse) {
    static const char *const names[][2] = {[CLIME_SEGMENT_CONTENT] = {"text_delta", "text"},
                                           [CLIME_SEGMENT_REASONING] = {"thinking_delta", "thinking"},
                                           [CLIME_SEGMENT_CALL] = {"input_json_delta", "partial_json"}};
    const struct cursor *c = o->cursor;
    struct clime_jw w = clime_openai_open_event(o->job, "content_block_delta");
    clime_jw_key(&w, "index");
    clime_jw_int(&w, c->index);
    clime_jw_key(&w, "delta");
    clime_jw_object(&w);
    clime_jw_key(&w, "type");
    clime_jw_strz(&w, names[p->kind][0]);
    clime_jw_key(&w, names[p->kind][1]);
    clime_jw_str(&w, p->text);
    clime_jw_close(&w);
    clime_openai_send_event(&w, o->job, "content_block_delta", sse);
}

static bool failed(struct clime_job *j, const struct clime_output *o, struct clime_buf *sse) {
    if (o->finish.type != CLIME_FINISH_ABORT || o->finish.status < 500) return false;
    struct clime_jw w = clime_openai_open_event(j, "error");
    clime_jw_key(&w, "error");
    clime_jw_object(&w);
    clime_jw_key(&w, "type");
    clime_jw_strz(&w, "api_error");
    clime_jw_key(&w, "message");
    clime_jw_strz(&w, o->finish.message);
    clime_jw_close(&w);
    clime_openai_send_event(&w, j, "error", sse);
    return true;
}

static void stream_news(struct clime_job *j, struct clime_output *o, struct clime_buf *sse) {
    struct cursor *c = o->cursor;
    struct clime_piece p;
    if (failed(j, o, sse)) return;
    while (clime_parse_next(&o->parse, clime_stop_text_safe(&o->text), &c->at, &p)) {
        if (c->open && p.segment != c->segment) close_block(o, sse);
        if (!c->open) open_block(o, &p, sse);
        if (p.text.len > 0) send_delta(o, &p, sse);
    }
    if (o->finish.type == CLIME_FINISH_NONE) return;
    close_block(o, sse);
    struct clime_jw w = clime_openai_open_event(j, "message_delta");
    clime_jw_key(&w, "delta");
    clime_jw_object(&w);
    write_stop(&w, o);
    clime_jw_close(&w);
    write_usage(&w, o);
    clime_openai_send_event(&w, j, "message_delta", sse);
    w = clime_openai_open_event(j, "message_stop");
    clime_openai_send_event(&w, j, "message_stop", sse);
}

static void stream_end(struct clime_job *j, struct clime_buf *sse) {
    (void)j;
    (void)sse; /* message_stop was the last */
}

const struct clime_framer clime_messages_framer = {.cursor_bytes = sizeof(struct cursor),
                                                   .heartbeat = CLIME_SSE_HEARTBEAT,
                                                   .begin = stream_begin,
                                                   .news = stream_news,
                                                   .end = stream_end};
