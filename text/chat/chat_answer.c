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
