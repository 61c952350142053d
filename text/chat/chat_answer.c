/* The message of chat completions. Called by the server's endpoint and by the trainer's sessions. */
#include "text/chat/chat_answer.h"

static const char *const reasoning_names[] = {"reasoning_content", "reasoning"}; /* SGLang's, and vLLM's */

const char *clime_chat_answer_finish(const struct clime_answer *a) {
    static const char *const names[] = {[CLIME_ANSWER_OPEN] = NULL,
                                        [CLIME_ANSWER_STOP] = "stop",
                                        [CLIME_ANSWER_LENGTH] = "length",
                                        [CLIME_ANSWER_ABORT] = "abort"};
    if (a->end == CLIME_ANSWER_STOP && clime_parse_n_calls(a->parse) > 0) return "tool_calls";
    return names[a->end];
}

static void write_call(struct clime_jw *w, const struct clime_answer *a, int call) {
    const struct clime_call *c = &a->parse->calls.at[call];
    char id[CLIME_ANSWER_ID];
    clime_answer_call_id(a, call, id);
    clime_jw_object(w);
    clime_jw_key(w, "id");
    clime_jw_strz(w, id);
    clime_jw_key(w, "type");
    clime_jw_strz(w, "function");
    clime_jw_key(w, "function");
    clime_jw_object(w);
    clime_jw_key(w, "name");
    clime_jw_str(w, clime_buf_str(&c->name));
    clime_jw_key(w, "arguments");
    clime_jw_str(w, clime_buf_str(&c->args));
    clime_jw_close(w);
    clime_jw_close(w);
}

void clime_chat_answer_write(struct clime_jw *w, const struct clime_answer *a) {
    const struct clime_parse *p = a->parse;
    int n_calls = clime_parse_n_calls(p);
    clime_jw_object(w);
    clime_jw_key(w, "role");
    clime_jw_strz(w, "assistant");
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
            if (!p->calls.at[i].void_) write_call(w, a, i);
        clime_jw_close(w);
    }
    clime_jw_close(w);
}

void clime_chat_answer_text(struct clime_jw *w, enum clime_segment_kind kind, struct clime_str text) {
    if (kind == CLIME_SEGMENT_CONTENT) {
        clime_jw_key(w, "content");
        clime_jw_str(w, text);
    }
    for (int k = 0; k < 2 && kind == CLIME_SEGMENT_REASONING; k++) {
        clime_jw_key(w, reasoning_names[k]);
        clime_jw_str(w, text);
    }
}

void clime_chat_answer_call(struct clime_jw *w, const struct clime_answer *a, const struct clime_piece *p, bool first) {
    char id[CLIME_ANSWER_ID];
    clime_jw_key(w, "tool_calls");
    clime_jw_array(w);
    clime_jw_object(w);
    clime_jw_key(w, "index");
    clime_jw_int(w, p->call);
    if (first) {
        clime_answer_call_id(a, p->call, id);
        clime_jw_key(w, "id");
        clime_jw_strz(w, id);
        clime_jw_key(w, "type");
        clime_jw_strz(w, "function");
    }
    clime_jw_key(w, "function");
    clime_jw_object(w);
    if (first) {
        clime_jw_key(w, "name");
        clime_jw_str(w, clime_buf_str(&a->parse->calls.at[p->call].name));
    }
    clime_jw_key(w, "arguments");
    clime_jw_str(w, first ? clime_str_of("") : p->text);
    clime_jw_close(w);
    clime_jw_close(w);
    clime_jw_close(w);
}

static void put_int(struct clime_jw *w, const char *key, int64_t v) {
    clime_jw_key(w, key);
    clime_jw_int(w, v);
}

void clime_chat_answer_usage(struct clime_jw *w, int64_t prompt, int64_t out, int64_t cached, int64_t reasoning) {
    clime_jw_key(w, "usage");
    clime_jw_object(w);
    put_int(w, "prompt_tokens", prompt);
    put_int(w, "completion_tokens", out);
    put_int(w, "total_tokens", prompt + out);
    clime_jw_key(w, "prompt_tokens_details");
    clime_jw_object(w);
    put_int(w, "cached_tokens", cached);
    clime_jw_close(w);
    clime_jw_key(w, "completion_tokens_details");
    clime_jw_object(w);
    put_int(w, "reasoning_tokens", reasoning);
    clime_jw_close(w);
    clime_jw_close(w);
}

void clime_chat_answer_logprob(struct clime_jw *w, struct clime_str bytes, float logp) {
    clime_jw_key(w, "bytes");
    clime_jw_array(w);
    for (size_t i = 0; i < bytes.len; i++) clime_jw_int(w, (unsigned char)bytes.ptr[i]);
    clime_jw_close(w);
    clime_jw_key(w, "logprob");
    clime_jw_float(w, logp);
}
