/* Parses bodies of /v1/responses. Called by the handler on HTTP workers; strings and raw values borrow from the body or
 * the job's arena.
 */
#include <stddef.h>

#include "server/api/responses.h"
#include "server/job/fields.h"
#include "server/job/grammar_fields.h"
#include "text/chat/conversation.h"
#include "text/template/custom_tools.h"

/* ---- members ----------------------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct clime_responses_request, field)

static bool read_tool_choice(struct clime_json *j, void *object) {
    struct clime_responses_request *q = object;
    const char *from = j->at;
    if (!clime_openai_read_tool_choice(j, &q->r)) return false;
    q->asked.tool_choice = (struct clime_str){from, (size_t)(j->at - from)};
    return true;
}

/* {"format": {"type": "text" | "json_object" | "json_schema", ...}} */
static bool read_text(struct clime_json *j, void *object) {
    struct clime_responses_request *q = object;
    struct clime_str key;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    const char *from = j->at;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "format"))
            clime_grammar_read_format(j, &q->r.params.grammar);
        else
            clime_json_skip(j, NULL);
    }
    q->asked.text = (struct clime_str){from, (size_t)(j->at - from)};
    return !j->failed;
}

/* {"effort": ...} is for the template; the reply repeats the raw value. */
static bool read_reasoning(struct clime_json *j, void *object) {
    struct clime_responses_request *q = object;
    struct clime_str key, raw;
    const char *from = j->at;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (clime_json_skip(j, &raw) && clime_str_is(key, "effort") && !clime_str_is(raw, "null"))
            q->r.prompt.reasoning_effort = raw;
    q->asked.reasoning = (struct clime_str){from, (size_t)(j->at - from)};
    return !j->failed;
}

static bool read_include(struct clime_json *j, void *object) {
    struct clime_responses_request *q = object;
    return clime_responses_read_include(j, &q->r.logprobs);
}

/* Alternatives imply log-probabilities. */
static bool read_top(struct clime_json *j, void *object) {
    struct clime_responses_request *q = object;
    bool read = clime_openai_read_top(j, &q->r);
    q->r.logprobs |= q->r.top > 0;
    return read;
}

static bool read_truncation(struct clime_json *j, void *object) {
    struct clime_responses_request *q = object;
    struct clime_str what = {"disabled", 8};
    if (!clime_lenient_string(j, &what)) return false;
    q->r.prompt.drop_oldest = clime_str_is(what, "auto");
    return q->r.prompt.drop_oldest || clime_str_is(what, "disabled") ||
           clime_json_bad(j, "must be auto or disabled, not \"" CLIME_STR_FMT "\"", CLIME_STR_ARG(what));
}

static const struct clime_member rows[] = {
    {"model", CLIME_MEMBER_STRING, AT(r.model)},
    {"input", CLIME_MEMBER_RAW, AT(input)},
    {"instructions", CLIME_MEMBER_STRING, AT(asked.instructions)},
    {"max_output_tokens", CLIME_MEMBER_INT, AT(r.params.max_new_tokens), .min = 1, .max = INT32_MAX},
    {"stream", CLIME_MEMBER_BOOL, AT(r.stream)},
    {"tools", CLIME_MEMBER_RAW, AT(asked.tools)},
    {"tool_choice", CLIME_MEMBER_CALL, .read = read_tool_choice},
    {"parallel_tool_calls", CLIME_MEMBER_BOOL, AT(r.parallel_calls)},
    {"text", CLIME_MEMBER_CALL, .read = read_text},
    {"reasoning", CLIME_MEMBER_CALL, .read = read_reasoning},
    {"include", CLIME_MEMBER_CALL, .read = read_include},
    {"top_logprobs", CLIME_MEMBER_CALL, .read = read_top},
    {"truncation", CLIME_MEMBER_CALL, .read = read_truncation},
    {"cache_salt", CLIME_MEMBER_STRING, AT(r.salt)},
    {"chat_template_kwargs", CLIME_MEMBER_RAW, AT(r.prompt.kwargs)},
    {"enable_thinking", CLIME_MEMBER_CALL, AT(r.prompt.thinking), .read = clime_chat_read_thinking},
};
static const struct clime_members members = {rows, CLIME_COUNT(rows)};
static const struct clime_fields fields = {.where = "/v1/responses",
                                           .rows = {clime_fields_responses, clime_fields_openai, clime_fields_sampling},
                                           .read = {&members, &clime_sampling_members}};

static void read_body(struct clime_generation *gen, struct clime_responses_request *q, struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    clime_json_init(&j, gen->body.ptr, gen->body.len, &gen->job->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        if (!clime_members_read(&members, &j, key, q) &&
            !clime_members_read(&clime_sampling_members, &j, key, &q->r.params))
            clime_fields_other(&fields, gen->server->field_watch, &j, key);
    clime_json_end(&j);
}

enum clime_err clime_responses_parse(struct clime_generation *gen, struct clime_responses_request *q,
                                     struct clime_error *e) {
    clime_openai_begin(gen, true, "resp_", &q->r);
    e->code = CLIME_OK;
    read_body(gen, q, e);
    if (e->code) return e->code;
    if (q->input.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "input is missing");
    if (q->r.params.n != 1) return clime_fail(e, CLIME_ERR_INPUT, "there is one reply: n must be 1");
    struct clime_arena *a = &gen->job->arena;
    enum clime_err err = clime_responses_conversation(q->input, q->asked.instructions, a, &q->r.prompt.messages, e);
    if (!err) err = clime_responses_functions(q->asked.tools, a, &q->r.prompt.tools, e);
    if (clime_custom_tool_any(q->asked.tools)) q->r.custom_tools = q->asked.tools;
    if (!err) err = clime_openai_settle(gen, &q->r, e);
    if (q->r.stream) gen->job->n_repeats = CLIME_RESPONSES_REPEATS;
    q->asked.top_logprobs = q->r.top;
    q->asked.drops = q->r.prompt.drop_oldest;
    q->asked.max_output_tokens = q->r.params.max_new_tokens;
    q->asked.parallel_calls = q->r.parallel_calls;
    q->asked.temperature = q->r.params.temperature;
    q->asked.top_p = q->r.params.top_p;
    return err;
}
