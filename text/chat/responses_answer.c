/* Writes the response object of /v1/responses and its items. Called by the endpoint's handlers, and by streams
 * (responses_stream.c); answers are read only.
 */
#include "text/chat/responses_answer.h"

#include "text/template/custom_tools.h"

static const char *status(const struct clime_answer *a) {
    if (a->end == CLIME_ANSWER_OPEN) return "in_progress";
    if (a->end == CLIME_ANSWER_ABORT) return a->status >= 400 ? "failed" : "cancelled";
    return a->end == CLIME_ANSWER_LENGTH ? "incomplete" : "completed";
}

static bool is_call(const struct clime_answer *a, int segment) {
    enum clime_segment_kind kind = a->parse->segments.at[segment].kind;
    return kind == CLIME_SEGMENT_CALL || kind == CLIME_SEGMENT_VOID;
}

bool clime_responses_is_custom(const struct clime_answer *a, int segment) {
    return is_call(a, segment) && clime_answer_is_custom(a, a->parse->segments.at[segment].call);
}

void clime_responses_item_id(const struct clime_answer *a, int segment, char id[CLIME_ANSWER_ID]) {
    static const char *const prefix[] = {[CLIME_SEGMENT_CONTENT] = "msg",
                                         [CLIME_SEGMENT_REASONING] = "rs",
                                         [CLIME_SEGMENT_CALL] = "fc",
                                         [CLIME_SEGMENT_VOID] = "fc"};
    bool custom = clime_responses_is_custom(a, segment);
    clime_answer_item_id(a, segment, custom ? "ctc" : prefix[a->parse->segments.at[segment].kind], id);
}

void clime_responses_write_logprobs(struct clime_jw *w, const struct clime_answer *a, int segment,
                                    struct clime_str text) {
    const struct clime_answer_tokens *t = &a->tokens;
    size_t first = a->parse->segments.at[segment].begin, from = (size_t)(text.ptr - a->text.ptr), to = from + text.len;
    size_t i = 0;
    clime_jw_key(w, "logprobs");
    clime_jw_array(w);
    if (text.len > 0) {
        for (size_t end = t->n; i < end;) { /* binary search: the first that begins there */
            size_t mid = i + (end - i) / 2;
            if (t->begins(t->of, mid) < from)
                i = mid + 1;
            else
                end = mid;
        }
        if (from == first && i > 0 && (i == t->n || t->begins(t->of, i) > from)) i--;
    }
    for (; text.len > 0 && i < t->n && t->begins(t->of, i) < to; i++) {
        clime_jw_object(w);
        t->write(w, t->of, i);
        clime_jw_close(w);
    }
    clime_jw_close(w);
}

void clime_responses_write_part(struct clime_jw *w, const struct clime_answer *a, int segment, bool begins) {
    bool said = a->parse->segments.at[segment].kind == CLIME_SEGMENT_CONTENT;
    struct clime_str text = begins ? (struct clime_str){a->text.ptr, 0} : clime_answer_segment(a, segment);
    clime_jw_object(w);
    clime_jw_put_strz(w, "type", said ? "output_text" : "reasoning_text");
    clime_jw_put_str(w, "text", text);
    if (said) {
        clime_jw_key(w, "annotations");
        clime_jw_array(w);
        clime_jw_close(w);
        clime_responses_write_logprobs(w, a, segment, text);
    }
    clime_jw_close(w);
}

static void write_content(struct clime_jw *w, const struct clime_answer *a, int segment, bool begins) {
    enum clime_segment_kind kind = a->parse->segments.at[segment].kind;
    if (kind == CLIME_SEGMENT_CONTENT) {
        clime_jw_put_strz(w, "role", "assistant");
    } else {
        clime_jw_key(w, "summary");
        clime_jw_array(w);
        clime_jw_close(w);
    }
    clime_jw_key(w, "content");
    clime_jw_array(w);
    if (!begins) clime_responses_write_part(w, a, segment, false);
    clime_jw_close(w);
}

static void write_call(struct clime_jw *w, const struct clime_answer *a, int call, bool custom, bool begins) {
    const struct clime_call *c = &a->parse->calls.at[call];
    char id[CLIME_ANSWER_ID];
    clime_answer_call_id(a, call, id);
    clime_jw_put_strz(w, "call_id", id);
    clime_answer_put_name(w, a, call);
    clime_jw_key(w, custom ? "input" : "arguments");
    if (custom && !begins)
        clime_custom_tool_write_input(w, clime_buf_str(&c->args));
    else
        clime_jw_str(w, begins ? clime_str_of("") : clime_buf_str(&c->args));
}

void clime_responses_write_item(struct clime_jw *w, const struct clime_answer *a, int segment, bool begins) {
    static const char *const types[] = {[CLIME_SEGMENT_CONTENT] = "message",
                                        [CLIME_SEGMENT_REASONING] = "reasoning",
                                        [CLIME_SEGMENT_CALL] = "function_call",
                                        [CLIME_SEGMENT_VOID] = "function_call"};
    const struct clime_segment *g = &a->parse->segments.at[segment];
    bool last = segment + 1 == a->parse->segments.n, cut = last && a->end == CLIME_ANSWER_LENGTH;
    bool custom = clime_responses_is_custom(a, segment);
    char id[CLIME_ANSWER_ID];
    clime_responses_item_id(a, segment, id);
    clime_jw_object(w);
    clime_jw_put_strz(w, "id", id);
    clime_jw_put_strz(w, "type", custom ? "custom_tool_call" : types[g->kind]);
    clime_jw_put_strz(w, "status",
                      begins                                 ? "in_progress"
                      : cut || g->kind == CLIME_SEGMENT_VOID ? "incomplete"
                                                             : "completed");
    if (is_call(a, segment))
        write_call(w, a, g->call, custom, begins);
    else
        write_content(w, a, segment, begins);
    clime_jw_close(w);
}

static void write_usage(struct clime_jw *w, const struct clime_answer *a) {
    const struct {
        const char *name, *details, *detail;
        int64_t n, n_detail;
    } rows[] = {{"input_tokens", "input_tokens_details", "cached_tokens", a->n_prompt, a->n_cached},
                {"output_tokens", "output_tokens_details", "reasoning_tokens", a->n_out, a->n_reasoning}};
    clime_jw_key(w, "usage");
    clime_jw_object(w);
    for (int i = 0; i < 2; i++) {
        clime_jw_put_int(w, rows[i].name, rows[i].n);
        clime_jw_key(w, rows[i].details);
        clime_jw_object(w);
        clime_jw_put_int(w, rows[i].detail, rows[i].n_detail);
        clime_jw_close(w);
    }
    clime_jw_put_int(w, "total_tokens", a->n_prompt + a->n_out);
    clime_jw_close(w);
}

static void raw_or(struct clime_jw *w, const char *key, struct clime_str raw, const char *otherwise) {
    clime_jw_put_raw(w, key, raw.len > 0 ? raw : clime_str_of(otherwise));
}

/* Writes the request's fields into the response. */
static void write_request(struct clime_jw *w, const struct clime_responses_asked *q) {
    clime_jw_key(w, "instructions");
    if (q->instructions.ptr)
        clime_jw_str(w, q->instructions);
    else
        clime_jw_null(w);
    clime_jw_key(w, "max_output_tokens");
    if (q->max_output_tokens > 0)
        clime_jw_int(w, q->max_output_tokens);
    else
        clime_jw_null(w);
    clime_jw_put_bool(w, "parallel_tool_calls", q->parallel_calls);
    clime_jw_put_double(w, "temperature", q->temperature);
    clime_jw_put_double(w, "top_p", q->top_p);
    raw_or(w, "tools", q->tools, "[]");
    raw_or(w, "tool_choice", q->tool_choice, "\"auto\"");
    raw_or(w, "reasoning", q->reasoning, "{\"effort\":null,\"summary\":null}");
    raw_or(w, "text", q->text, "{\"format\":{\"type\":\"text\"}}");
    clime_jw_put_int(w, "top_logprobs", q->top_logprobs);
    clime_jw_put_strz(w, "truncation", q->drops ? "auto" : "disabled");
    raw_or(w, "previous_response_id", (struct clime_str){NULL, 0}, "null");
    raw_or(w, "store", (struct clime_str){NULL, 0}, "false");
    raw_or(w, "background", (struct clime_str){NULL, 0}, "false");
}

static void write_error(struct clime_jw *w, const struct clime_answer *a, bool done) {
    bool failed = done && a->end == CLIME_ANSWER_ABORT && a->status >= 400;
    clime_jw_key(w, "error");
    if (failed) {
        clime_jw_object(w);
        clime_jw_put_strz(w, "code", "server_error");
        clime_jw_put_strz(w, "message", a->message);
        clime_jw_close(w);
    } else {
        clime_jw_null(w);
    }
    clime_jw_key(w, "incomplete_details");
    if (done && a->end == CLIME_ANSWER_LENGTH)
        clime_jw_raw(w, clime_str_of("{\"reason\":\"max_output_tokens\"}"));
    else
        clime_jw_null(w);
}

void clime_responses_write(struct clime_jw *w, const struct clime_answer *a, const struct clime_responses_asked *q,
                           bool done) {
    clime_jw_object(w);
    clime_jw_put_str(w, "id", a->id);
    clime_jw_put_strz(w, "object", "response");
    clime_jw_put_int(w, "created_at", a->created);
    clime_jw_put_strz(w, "status", done ? status(a) : "in_progress");
    clime_jw_put_strz(w, "model", a->model);
    clime_jw_key(w, "output");
    clime_jw_array(w);
    for (int i = 0; i < a->parse->segments.n && done; i++)
        if (a->parse->segments.at[i].kind != CLIME_SEGMENT_VOID) clime_responses_write_item(w, a, i, false);
    clime_jw_close(w);
    write_error(w, a, done);
    write_request(w, q);
    if (done) {
        write_usage(w, a);
        clime_answer_close(w, a->weight_version);
    } else {
        clime_jw_key(w, "usage");
        clime_jw_null(w);
        clime_jw_close(w);
    }
}

void clime_responses_write_count(struct clime_jw *w, int64_t n) {
    clime_jw_object(w);
    clime_jw_put_strz(w, "object", "response.input_tokens");
    clime_jw_put_int(w, "input_tokens", n);
    clime_jw_close(w);
}
