/* Parse a given reply: /parse_function_call and /separate_reasoning (SGLang's). HTTP workers; uses the stream parsers
 * (text/output/) on the whole text.
 */
#include <stddef.h>

#include "server/job/fields.h"
#include "server/server.h"
#include "text/chat/conversation.h"

struct parse_request {
    struct clime_arena arena;
    struct clime_str text, tools, calls_name, reasoning_name;
    struct clime_tools read_tools;
    struct clime_output_format how;
};

#define AT(field) offsetof(struct parse_request, field)

static const struct clime_member call_rows[] = {{"text", CLIME_MEMBER_STRING, AT(text)},
                                                {"tools", CLIME_MEMBER_RAW, AT(tools)},
                                                {"tool_call_parser", CLIME_MEMBER_STRING, AT(calls_name)}};
static const struct clime_member reasoning_rows[] = {{"text", CLIME_MEMBER_STRING, AT(text)},
                                                     {"reasoning_parser", CLIME_MEMBER_STRING, AT(reasoning_name)}};
static const struct clime_members call_members = {call_rows, CLIME_COUNT(call_rows)};
static const struct clime_members reasoning_members = {reasoning_rows, CLIME_COUNT(reasoning_rows)};
static const struct clime_field no_fields[] = {{NULL, NULL}};
static const struct clime_fields call_fields = {
    .where = "/parse_function_call", .rows = {no_fields}, .read = {&call_members}};
static const struct clime_fields reasoning_fields = {
    .where = "/separate_reasoning", .rows = {no_fields}, .read = {&reasoning_members}};

static enum clime_err read_request(struct clime_server *s, struct clime_http_request *rq, const struct clime_fields *f,
                                   struct parse_request *r, struct clime_error *e) {
    struct clime_str key, body = clime_http_body(rq);
    struct clime_json j;
    clime_arena_init(&r->arena, body.len * 8 + ((size_t)1 << 20));
    clime_json_init(&j, body.ptr, body.len, &r->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        if (!clime_members_read(f->read[0], &j, key, r)) clime_fields_other(f, s->field_watch, &j, key);
    if (!clime_json_end(&j)) return e->code;
    if (!r->text.ptr) return clime_fail(e, CLIME_ERR_INPUT, "text is missing");
    return CLIME_OK;
}

/* A NUL-terminated copy of a name, or NULL if empty. */
static const char *given(struct parse_request *r, struct clime_str name) {
    return name.len > 0 ? clime_arena_strdup(&r->arena, name) : NULL;
}

static void write_kind(struct clime_jw *w, const char *key, const struct clime_parse *p, struct clime_str text,
                       enum clime_segment_kind kind) {
    struct clime_buf out;
    clime_buf_init(&out, CLIME_MAX_REPLY);
    clime_segments_text(&p->segments, text, kind, &out);
    clime_jw_put_str(w, key, clime_buf_str(&out));
    clime_buf_free(&out);
}

static void write_calls(struct clime_jw *w, const struct clime_parse *p) {
    const struct clime_tools *tools = p->how.tools;
    clime_jw_key(w, "calls");
    clime_jw_array(w);
    for (int i = 0; i < p->calls.n; i++) {
        const struct clime_call *c = &p->calls.at[i];
        if (c->void_) continue;
        const struct clime_tool *tool = clime_tools_find(tools, clime_buf_str(&c->name));
        clime_jw_object(w);
        clime_jw_key(w, "tool_index"); /* index in tools; -1 = none */
        clime_jw_int(w, tool ? tool - tools->at : -1);
        clime_jw_put_str(w, "name", clime_buf_str(&c->name));
        clime_jw_put_str(w, "parameters", clime_buf_str(&c->args));
        clime_jw_close(w);
    }
    clime_jw_close(w);
}

static void reply(struct clime_http_request *rq, struct parse_request *r, enum clime_err err,
                  const struct clime_error *e, bool calls) {
    struct clime_buf body;
    struct clime_parse p;
    struct clime_jw w;
    clime_buf_init(&body, CLIME_MAX_REPLY);
    if (err) {
        clime_http_reply_err(rq, e);
    } else {
        clime_parse_begin(&p, &r->how, clime_str_of(""));
        clime_parse_feed(&p, r->text, true);
        clime_jw_init(&w, &body);
        clime_jw_object(&w);
        if (!calls) write_kind(&w, "reasoning_text", &p, r->text, CLIME_SEGMENT_REASONING);
        write_kind(&w, calls ? "normal_text" : "text", &p, r->text, CLIME_SEGMENT_CONTENT);
        if (calls) write_calls(&w, &p);
        clime_jw_close(&w);
        clime_parse_free(&p);
        clime_reply_buf(rq, 200, &body);
    }
    clime_arena_free(&r->arena);
}

void clime_handle_parse_function_call(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    struct parse_request r = {.how = {.reasoning = &clime_output_parsers[0], .calls = s->format.calls}};
    enum clime_err err = read_request(s, rq, &call_fields, &r, &e);
    const char *name = err ? NULL : given(&r, r.calls_name);
    if (name && !(r.how.calls = clime_call_format_find(name)))
        err = clime_fail(&e, CLIME_ERR_INPUT, "there is no tool_call_parser %s", name);
    else if (!err && !r.how.calls)
        err = clime_fail(&e, CLIME_ERR_INPUT, "tool_call_parser is missing, and the chat template shows none");
    if (!err) err = clime_chat_functions(r.tools, &r.arena, &r.tools, &e);
    if (!err && r.tools.len > 0 && !clime_lenient_nothing(r.tools))
        err = clime_tools_read(r.tools, &r.arena, &r.read_tools, &e);
    r.how.tools = &r.read_tools;
    reply(rq, &r, err, &e, true);
}

void clime_handle_separate_reasoning(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    struct parse_request r = {.how = {.reasoning = s->format.reasoning}};
    enum clime_err err = read_request(s, rq, &reasoning_fields, &r, &e);
    const char *name = err ? NULL : given(&r, r.reasoning_name);
    if (name && !(r.how.reasoning = clime_output_parser_find(name)))
        err = clime_fail(&e, CLIME_ERR_INPUT, "there is no reasoning_parser %s", name);
    reply(rq, &r, err, &e, false);
}
