/* Writes chat completions messages. Called by the server's endpoint and the trainer's sessions. */
#include "text/chat/chat_answer.h"

#include "text/template/custom_tools.h"

static const char *const reasoning_names[] = {"reasoning_content", "reasoning"}; /* SGLang's, and vLLM's */

const char *clime_chat_answer_finish(const struct clime_answer *a) {
    static const char *const names[] = {[CLIME_ANSWER_OPEN] = NULL,
                                        [CLIME_ANSWER_STOP] = "stop",
                                        [CLIME_ANSWER_LENGTH] = "length",
                                        [CLIME_ANSWER_ABORT] = "abort"};
    if (a->end == CLIME_ANSWER_STOP && clime_parse_n_calls(a->parse) > 0) return "tool_calls";
    return names[a->end];
}

/* Writes "id" and "type"; opens the object of the name. */
static void open_call(struct clime_jw *w, const struct clime_answer *a, int call, bool custom) {
    const char *type = custom ? "custom" : "function";
    char id[CLIME_ANSWER_ID];
    clime_answer_call_id(a, call, id);
    clime_jw_put_strz(w, "id", id);
    clime_jw_put_strz(w, "type", type);
    clime_jw_key(w, type);
    clime_jw_object(w);
    clime_jw_put_str(w, "name", clime_buf_str(&a->parse->calls.at[call].name));
}

/* Writes a whole call into the open object. */
static void write_call(struct clime_jw *w, const struct clime_answer *a, int call) {
    struct clime_str args = clime_buf_str(&a->parse->calls.at[call].args);
    bool custom = clime_answer_is_custom(a, call);
    open_call(w, a, call, custom);
    clime_jw_key(w, custom ? "input" : "arguments");
    if (custom)
        clime_custom_tool_write_input(w, args);
    else
        clime_jw_str(w, args);
    clime_jw_close(w);
    clime_jw_close(w);
}

void clime_chat_answer_write(struct clime_jw *w, const struct clime_answer *a) {
    const struct clime_parse *p = a->parse;
    int n_calls = clime_parse_n_calls(p);
    clime_jw_object(w);
    clime_jw_put_strz(w, "role", "assistant");
    clime_jw_key(w, "content");
    if (n_calls > 0 && !clime_segments_have(&p->segments, CLIME_SEGMENT_CONTENT))
        clime_jw_null(w);
    else
        clime_answer_write_kind(w, a, CLIME_SEGMENT_CONTENT);
    for (int k = 0; k < 2 && clime_segments_have(&p->segments, CLIME_SEGMENT_REASONING); k++) {
        clime_jw_key(w, reasoning_names[k]);
        clime_answer_write_kind(w, a, CLIME_SEGMENT_REASONING);
    }
    if (n_calls > 0) {
        clime_jw_key(w, "tool_calls");
        clime_jw_array(w);
        for (int i = 0; i < p->calls.n; i++)
            if (!p->calls.at[i].void_) {
                clime_jw_object(w);
                write_call(w, a, i);
            }
        clime_jw_close(w);
    }
    clime_jw_close(w);
}

/* ---- in deltas ---- */

/* Ends a custom tool's call: complete, or void. */
static bool end_custom(const struct clime_answer *a, struct clime_chat_cursor *c, struct clime_chat_delta *d) {
    const struct clime_segments *s = &a->parse->segments;
    if (c->custom == 0 || (c->custom == s->n && a->end == CLIME_ANSWER_OPEN)) return false;
    int segment = c->custom - 1;
    c->custom = 0;
    if (s->at[segment].kind != CLIME_SEGMENT_CALL) return false;
    d->piece = (struct clime_piece){.kind = CLIME_SEGMENT_CALL, .segment = segment, .call = s->at[segment].call};
    d->index = c->n++;
    return d->custom = true;
}

bool clime_chat_answer_next(const struct clime_answer *a, struct clime_chat_cursor *c, struct clime_chat_delta *d) {
    for (;;) {
        *d = (struct clime_chat_delta){.piece = c->call, .index = c->n - 1};
        if (c->more) return c->more = false, true;
        if (end_custom(a, c, d)) return true;
        if (!clime_parse_next(a->parse, a->text, &c->at, &d->piece)) return false;
        if (d->piece.kind != CLIME_SEGMENT_CALL) return true;
        if (d->piece.begins) c->is_custom = clime_answer_is_custom(a, d->piece.call);
        if (c->is_custom) {
            if (d->piece.begins) c->custom = d->piece.segment + 1;
            continue;
        }
        if (d->piece.begins) d->index = c->n++;
        d->first = d->piece.begins;
        c->more = d->first && d->piece.text.len > 0;
        c->call = d->piece;
        if (d->first || d->piece.text.len > 0) return true;
    }
}

static void write_text(struct clime_jw *w, enum clime_segment_kind kind, struct clime_str text) {
    if (kind == CLIME_SEGMENT_CONTENT) clime_jw_put_str(w, "content", text);
    for (int k = 0; k < 2 && kind == CLIME_SEGMENT_REASONING; k++) clime_jw_put_str(w, reasoning_names[k], text);
}

static void write_piece(struct clime_jw *w, const struct clime_answer *a, const struct clime_chat_delta *d) {
    const struct clime_piece *p = &d->piece;
    clime_jw_key(w, "tool_calls");
    clime_jw_array(w);
    clime_jw_object(w);
    clime_jw_put_int(w, "index", d->index);
    if (d->custom) {
        write_call(w, a, p->call);
        clime_jw_close(w);
        return;
    }
    if (d->first) {
        open_call(w, a, p->call, false);
    } else {
        clime_jw_key(w, "function");
        clime_jw_object(w);
    }
    clime_jw_put_str(w, "arguments", d->first ? clime_str_of("") : p->text);
    clime_jw_close(w);
    clime_jw_close(w);
    clime_jw_close(w);
}

void clime_chat_answer_delta(struct clime_jw *w, const struct clime_answer *a, const struct clime_chat_delta *d) {
    if (d->piece.kind == CLIME_SEGMENT_CALL)
        write_piece(w, a, d);
    else
        write_text(w, d->piece.kind, d->piece.text);
}

void clime_chat_answer_usage(struct clime_jw *w, int64_t prompt, int64_t out, int64_t cached, int64_t reasoning) {
    clime_jw_key(w, "usage");
    clime_jw_object(w);
    clime_jw_put_int(w, "prompt_tokens", prompt);
    clime_jw_put_int(w, "completion_tokens", out);
    clime_jw_put_int(w, "total_tokens", prompt + out);
    clime_jw_key(w, "prompt_tokens_details");
    clime_jw_object(w);
    clime_jw_put_int(w, "cached_tokens", cached);
    clime_jw_close(w);
    clime_jw_key(w, "completion_tokens_details");
    clime_jw_object(w);
    clime_jw_put_int(w, "reasoning_tokens", reasoning);
    clime_jw_close(w);
    clime_jw_close(w);
}

void clime_chat_answer_logprob(struct clime_jw *w, struct clime_str bytes, float logp) {
    clime_jw_key(w, "bytes");
    clime_jw_array(w);
    for (size_t i = 0; i < bytes.len; i++) clime_jw_int(w, (unsigned char)bytes.ptr[i]);
    clime_jw_close(w);
    clime_jw_put_float(w, "logprob", logp);
}
