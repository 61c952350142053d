/* Writes answers of /v1/messages, whole and streamed: content blocks from the output's segments, named events. Called
 * by the endpoint's handlers and framers; answers are read only.
 *
 * Stream order: message_start; per block start, deltas, stop; message_delta with the stop reason; message_stop. A void
 * call ends its block, and its text follows as a text block.
 */
#include "text/chat/messages_answer.h"

static const char *stop_reason(const struct clime_answer *a) {
    if (a->end == CLIME_ANSWER_STOP && clime_parse_n_calls(a->parse) > 0) return "tool_use";
    if (a->end == CLIME_ANSWER_STOP && a->matched.len > 0) return "stop_sequence";
    if (a->end == CLIME_ANSWER_LENGTH) return "max_tokens";
    return a->end == CLIME_ANSWER_ABORT ? "abort" : "end_turn";
}

static void write_stop(struct clime_jw *w, const struct clime_answer *a) {
    clime_jw_put_strz(w, "stop_reason", stop_reason(a));
    clime_jw_key(w, "stop_sequence");
    if (a->end == CLIME_ANSWER_STOP && a->matched.len > 0)
        clime_jw_str(w, a->matched);
    else
        clime_jw_null(w);
}

/* input_tokens excludes cached tokens. */
static void write_usage(struct clime_jw *w, const struct clime_answer *a) {
    clime_jw_key(w, "usage");
    clime_jw_object(w);
    clime_jw_put_int(w, "input_tokens", a->n_prompt - a->n_cached);
    clime_jw_put_int(w, "cache_creation_input_tokens", 0);
    clime_jw_put_int(w, "cache_read_input_tokens", a->n_cached);
    clime_jw_put_int(w, "output_tokens", a->n_out);
    clime_jw_close(w);
}

static void open_message(struct clime_jw *w, const struct clime_answer *a) {
    clime_jw_object(w);
    clime_jw_put_str(w, "id", a->id);
    clime_jw_put_strz(w, "type", "message");
    clime_jw_put_strz(w, "role", "assistant");
    clime_jw_put_strz(w, "model", a->model);
    clime_jw_key(w, "content");
    clime_jw_array(w);
}

/* A block with its text, or a call with its arguments; begins: empty, as it starts in a stream. */
static void write_block(struct clime_jw *w, const struct clime_answer *a, enum clime_segment_kind kind,
                        struct clime_str text, int call, bool begins) {
    static const char *const types[] = {
        [CLIME_SEGMENT_CONTENT] = "text", [CLIME_SEGMENT_REASONING] = "thinking", [CLIME_SEGMENT_CALL] = "tool_use"};
    char id[CLIME_ANSWER_ID];
    clime_jw_object(w);
    clime_jw_put_strz(w, "type", types[kind]);
    if (kind == CLIME_SEGMENT_CALL) {
        const struct clime_call *c = &a->parse->calls.at[call];
        clime_answer_call_id(a, call, id);
        clime_jw_put_strz(w, "id", id);
        clime_jw_put_str(w, "name", clime_buf_str(&c->name));
        clime_jw_put_raw(w, "input", begins ? clime_str_of("{}") : clime_buf_str(&c->args));
    } else {
        clime_jw_put_str(w, types[kind], text);
        if (kind == CLIME_SEGMENT_REASONING) {
            clime_jw_key(w, "signature"); /* not checked here */
            clime_jw_strz(w, "");
        }
    }
    clime_jw_close(w);
}

void clime_messages_write(struct clime_jw *w, const struct clime_answer *a) {
    open_message(w, a);
    for (int i = 0; i < a->parse->segments.n; i++) {
        const struct clime_segment *g = &a->parse->segments.at[i];
        if (g->kind == CLIME_SEGMENT_VOID) continue;
        write_block(w, a, g->kind, clime_answer_segment(a, i), g->call, false);
    }
    clime_jw_close(w);
    write_stop(w, a);
    write_usage(w, a);
    clime_answer_close(w, a->weight_version);
}

/* ---- stream ------------------------------------------------------------------------------------------------ */

void clime_messages_begin(const struct clime_answer *a, const struct clime_answer_events *to) {
    struct clime_jw w = clime_answer_open_event(to, "message_start");
    clime_jw_key(&w, "message");
    open_message(&w, a);
    clime_jw_close(&w);
    clime_jw_key(&w, "stop_reason");
    clime_jw_null(&w);
    clime_jw_key(&w, "stop_sequence");
    clime_jw_null(&w);
    write_usage(&w, a);
    clime_jw_close(&w);
    clime_answer_send_event(&w, to, "message_start");
}

static void close_block(struct clime_messages_stream *c, const struct clime_answer_events *to) {
    if (!c->open) return;
    struct clime_jw w = clime_answer_open_event(to, "content_block_stop");
    clime_jw_put_int(&w, "index", c->index++);
    clime_answer_send_event(&w, to, "content_block_stop");
    c->open = false;
}

static void open_block(struct clime_messages_stream *c, const struct clime_answer *a, const struct clime_piece *p,
                       const struct clime_answer_events *to) {
    struct clime_jw w = clime_answer_open_event(to, "content_block_start");
    clime_jw_put_int(&w, "index", c->index);
    clime_jw_key(&w, "content_block");
    write_block(&w, a, p->kind, clime_str_of(""), p->call, true);
    clime_answer_send_event(&w, to, "content_block_start");
    c->open = true;
    c->segment = p->segment;
}

static void send_delta(const struct clime_messages_stream *c, const struct clime_piece *p,
                       const struct clime_answer_events *to) {
    static const char *const names[][2] = {[CLIME_SEGMENT_CONTENT] = {"text_delta", "text"},
                                           [CLIME_SEGMENT_REASONING] = {"thinking_delta", "thinking"},
                                           [CLIME_SEGMENT_CALL] = {"input_json_delta", "partial_json"}};
    struct clime_jw w = clime_answer_open_event(to, "content_block_delta");
    clime_jw_put_int(&w, "index", c->index);
    clime_jw_key(&w, "delta");
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "type", names[p->kind][0]);
    clime_jw_put_str(&w, names[p->kind][1], p->text);
    clime_jw_close(&w);
    clime_answer_send_event(&w, to, "content_block_delta");
}

static bool failed(const struct clime_answer *a, const struct clime_answer_events *to) {
    if (a->end != CLIME_ANSWER_ABORT || a->status < 500) return false;
    struct clime_jw w = clime_answer_open_event(to, "error");
    clime_jw_key(&w, "error");
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "type", "api_error");
    clime_jw_put_strz(&w, "message", a->message);
    clime_jw_close(&w);
    clime_answer_send_event(&w, to, "error");
    return true;
}

void clime_messages_news(struct clime_messages_stream *c, const struct clime_answer *a,
                         const struct clime_answer_events *to) {
    struct clime_piece p;
    if (failed(a, to)) return;
    while (clime_parse_next(a->parse, a->text, &c->at, &p)) {
        if (c->open && p.segment != c->segment) close_block(c, to);
        if (!c->open) open_block(c, a, &p, to);
        if (p.text.len > 0) send_delta(c, &p, to);
    }
    if (a->end == CLIME_ANSWER_OPEN) return;
    close_block(c, to);
    struct clime_jw w = clime_answer_open_event(to, "message_delta");
    clime_jw_key(&w, "delta");
    clime_jw_object(&w);
    write_stop(&w, a);
    clime_jw_close(&w);
    write_usage(&w, a);
    clime_answer_send_event(&w, to, "message_delta");
    w = clime_answer_open_event(to, "message_stop");
    clime_answer_send_event(&w, to, "message_stop");
}

void clime_messages_refuse_thread(struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    for (int inside = 0; inside < 2; inside++) {
        clime_jw_put_strz(&w, "object", "error");
        clime_jw_put_strz(&w, "type", inside ? "invalid_request_error" : "error");
        clime_jw_put_strz(&w, "message", "no thread is kept here: send the whole conversation, without thread");
        clime_jw_put_int(&w, "code", 400);
        clime_jw_key(&w, inside ? "details" : "error");
        clime_jw_object(&w);
    }
    clime_jw_put_strz(&w, "error_code", "thread_unsupported_request");
    for (int i = 0; i < 3; i++) clime_jw_close(&w);
}
