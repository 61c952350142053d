/* Renders conversations. Called on text threads by the server's generation, /apply_template and /tokenize, on the
 * trainer's main thread by the data loaders, and on session threads; owns the compiled templates.
 *
 * The variables are those of transformers' apply_chat_template: messages, tools and documents (null if absent) and
 * add_generation_prompt; chat_template_kwargs come last and override them.
 */
#include "text/chat/chat_template.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/json/lenient.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/log.h"
#include "text/chat/prepare.h"

#define MAX_TEMPLATE ((size_t)1 << 20)

struct clime_chat_told {
    atomic_uint kinds; /* enum clime_chat_lost */
};

enum clime_err clime_chat_template_open(struct clime_chat_template *t, const struct clime_tokenizer *tok,
                                        const char *file, struct clime_error *e) {
    struct clime_buf text;
    enum clime_err err = CLIME_OK;
    *t = (struct clime_chat_template){.tok = tok,
                                      .bos = tok ? clime_tokenizer_special_text(tok, "bos_token") : NULL,
                                      .eos = tok ? clime_tokenizer_special_text(tok, "eos_token") : NULL,
                                      .sorts_tools = tok && clime_tokenizer_sorts_tools(tok),
                                      .told = xcalloc(1, sizeof *t->told)};
    clime_buf_init(&text, MAX_TEMPLATE);
    const char *plain = tok ? clime_tokenizer_chat_template(tok, NULL) : NULL;
    const char *with_tools = tok && !file ? clime_tokenizer_chat_template(tok, "tool_use") : NULL;
    if (file) {
        err = clime_buf_read_file(&text, file, e);
        plain = text.data ? text.data : "";
    }
    if (!err && plain) err = clime_chat_form_open(&t->plain, clime_str_of(plain), e);
    if (!err && with_tools) err = clime_chat_form_open(&t->with_tools, clime_str_of(with_tools), e);
    if (err) {
        clime_chat_template_close(t);
        clime_error_prefix(e, "chat template");
    }
    clime_buf_free(&text);
    return err;
}

void clime_chat_template_close(struct clime_chat_template *t) {
    clime_chat_form_close(&t->plain);
    clime_chat_form_close(&t->with_tools);
    free(t->told);
    t->told = NULL;
}

static bool are_tools(struct clime_str raw) {
    return raw.len > 0 && !clime_lenient_nothing(raw);
}

const struct clime_chat_form *clime_chat_form_for(const struct clime_chat_template *t, struct clime_str tools) {
    return t->with_tools.compiled && are_tools(tools) ? &t->with_tools : &t->plain;
}

const struct clime_output_parser *clime_chat_reasoning(const struct clime_chat_template *t) {
    const struct clime_output_parser *none = &clime_output_parsers[0];
    if (t->plain.compiled && t->plain.reasoning != none) return t->plain.reasoning;
    return t->with_tools.compiled ? t->with_tools.reasoning : none;
}

const struct clime_call_format *clime_chat_calls(const struct clime_chat_template *t) {
    return t->with_tools.compiled ? t->with_tools.calls : t->plain.calls;
}

bool clime_chat_read_thinking(struct clime_json *j, void *object) {
    enum clime_thinking *out = object;
    bool on = false;
    *out = CLIME_THINKING_UNSAID;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    if (!clime_lenient_bool(j, &on)) return false;
    *out = on ? CLIME_THINKING_ON : CLIME_THINKING_OFF;
    return true;
}

static bool is_thought(struct clime_str key) {
    for (const char *const *name = clime_chat_thoughts; *name; name++)
        if (clime_str_is(key, *name)) return true;
    return false;
}

/* A content's texts, joined by newlines. */
static bool text_of(struct clime_json *j, struct clime_arena *a, struct clime_str *out) {
    struct clime_str text;
    struct clime_buf joined;
    if (clime_json_peek(j) == CLIME_JSON_STRING) return clime_json_string(j, out);
    if (clime_json_peek(j) != CLIME_JSON_ARRAY) return clime_json_skip(j, NULL), false;
    clime_buf_init(&joined, CLIME_RENDER_MAX);
    bool first = true;
    for (clime_json_array(j); clime_json_item(j); first = false) {
        text = (struct clime_str){NULL, 0};
        if (clime_json_peek(j) == CLIME_JSON_STRING)
            clime_json_string(j, &text);
        else
            text = clime_json_member_text(j, "text");
        if (!first) clime_buf_addc(&joined, '\n');
        clime_buf_add(&joined, text.ptr, text.len);
    }
    const char *copy = clime_arena_strdup(a, clime_buf_str(&joined));
    *out = (struct clime_str){copy ? copy : "", copy ? joined.len : 0};
    clime_buf_free(&joined);
    return out->len > 0;
}

bool clime_chat_final(struct clime_str messages, struct clime_arena *a, struct clime_str *out, bool *reasoning) {
    struct clime_json j;
    struct clime_error e;
    struct clime_str key, content = {"", 0}, thought = {"", 0};
    bool found = false;
    clime_json_init(&j, messages.ptr, messages.len, a, &e);
    for (clime_json_array(&j); clime_json_item(&j);) {
        content = thought = (struct clime_str){"", 0};
        found = false;
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            if (clime_str_is(key, "content"))
                found |= text_of(&j, a, &content);
            else if (is_thought(key))
                found |= text_of(&j, a, &thought);
            else
                clime_json_skip(&j, NULL);
        }
    }
    *reasoning = content.len == 0 && thought.len > 0;
    *out = *reasoning ? thought : content;
    return found && !j.failed;
}

static struct clime_str trim(struct clime_str s) {
    while (s.len > 0 && strchr(" \t\r\n", s.ptr[0])) s.ptr++, s.len--;
    while (s.len > 0 && strchr(" \t\r\n", s.ptr[s.len - 1])) s.len--;
    return s;
}

/* Cuts the text after the last message's content, as transformers does: templates may trim it, so the trimmed form is
 * searched from the end. */
static enum clime_err cut_after_final(struct clime_buf *text, size_t from, struct clime_str messages,
                                      struct clime_error *e) {
    struct clime_arena a;
    struct clime_str content;
    bool reasoning;
    enum clime_err err = CLIME_OK;
    clime_arena_init(&a, messages.len * 2 + 4096);
    if (!clime_chat_final(messages, &a, &content, &reasoning)) {
        err = clime_fail(e, CLIME_ERR_INPUT, "continue_final_message needs a last message with text");
    } else {
        struct clime_str core = trim(content);
        size_t at = text->len;
        while (at >= from + core.len && memcmp(text->data + at - core.len, core.ptr, core.len) != 0) at--;
        if (at < from + core.len)
            err = clime_fail(e, CLIME_ERR_INPUT, "the chat template does not show the last message as it is");
        else
            text->len = at;
    }
    clime_arena_free(&a);
    return err;
}

/* ---- what it does not show ---- */

static enum clime_err tell(const struct clime_chat_template *t, unsigned lost, struct clime_error *e) {
    static const struct {
        enum clime_chat_lost kind;
        const char *what;
    } rows[] = {
        {CLIME_LOST_SYSTEM, "shows no system message where one stands"},
        {CLIME_LOST_TOOLS, "has no place for tools: the model does not see them"},
        {CLIME_LOST_CALLS, "does not show an assistant's tool_calls"},
        {CLIME_LOST_REASONING, "does not show an assistant's reasoning"},
    };
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        if (!(lost & rows[i].kind)) continue;
        if (t->strict) return clime_fail(e, CLIME_ERR_INPUT, "the chat template %s", rows[i].what);
        if (!t->lost && !(atomic_fetch_or(&t->told->kinds, rows[i].kind) & rows[i].kind))
            LOG_WARN("the chat template %s (said once)", rows[i].what);
    }
    if (t->lost) *t->lost |= lost;
    return CLIME_OK;
}

/* ---- rendering ---- */

/* Tools must be a list of objects: templates would show anything else wrongly. */
static enum clime_err check_tools(struct clime_str raw, struct clime_error *e) {
    struct clime_arena a;
    struct clime_json j;
    struct clime_error je = {0};
    clime_arena_init(&a, raw.len + 4096);
    clime_json_init(&j, raw.ptr, raw.len, &a, &je);
    bool fine = clime_json_peek(&j) == CLIME_JSON_ARRAY;
    for (fine = fine && clime_json_array(&j); fine && clime_json_item(&j);)
        fine = clime_json_peek(&j) == CLIME_JSON_OBJECT && clime_json_skip(&j, NULL);
    clime_arena_free(&a);
    return fine && !j.failed ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "tools must be a list of objects");
}

enum clime_err clime_chat_prepared(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                   struct clime_buf *out, struct clime_error *e) {
    const struct clime_chat_form *f = clime_chat_form_for(t, p->tools);
    const bool tools = are_tools(p->tools);
    size_t from = out->len;
    unsigned lost = 0;
    if (!f->compiled) return clime_fail(e, CLIME_ERR_INPUT, "the model has no chat template");
    if (tools && check_tools(p->tools, e)) return e->code;
    if (p->kwargs.len > 0 && p->kwargs.ptr[0] != '{')
        return clime_fail(e, CLIME_ERR_INPUT, "chat_template_kwargs must be an object");
    if (clime_chat_prepare(f, p->messages, out, &lost, e)) return clime_error_prefix(e, "messages");
    if (out->len == from + 2) return clime_fail(e, CLIME_ERR_INPUT, "messages is empty");
    if (tools && !(f->shows & CLIME_CHAT_TOOLS)) lost |= CLIME_LOST_TOOLS;
    return tell(t, lost, e);
}

static void add_var(struct clime_jw *w, const char *name, struct clime_str json) {
    clime_jw_key(w, name);
    if (json.len > 0)
        clime_jw_raw(w, json);
    else
        clime_jw_null(w);
}

/* messages: prepared */
static enum clime_err render(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                             struct clime_str messages, struct clime_buf *out, struct clime_spans *spans,
                             struct clime_error *e) {
    const struct clime_chat_form *f = clime_chat_form_for(t, p->tools);
    struct clime_buf vars;
    struct clime_jw w;
    clime_buf_init(&vars, 2 * CLIME_RENDER_MAX);
    clime_jw_init(&w, &vars);
    clime_jw_object(&w);
    add_var(&w, "messages", messages);
    add_var(&w, "tools", are_tools(p->tools) ? p->tools : (struct clime_str){NULL, 0});
    add_var(&w, "documents", (struct clime_str){NULL, 0});
    if (p->reasoning_effort.len > 0) add_var(&w, "reasoning_effort", p->reasoning_effort);
    bool off = p->thinking == CLIME_THINKING_OFF;
    if (p->thinking == CLIME_THINKING_UNSAID) off = clime_str_is(p->reasoning_effort, "\"none\"");
    if (off || p->thinking == CLIME_THINKING_ON) {
        clime_jw_put_bool(&w, "enable_thinking", !off); /* Qwen3, GLM */
        clime_jw_put_bool(&w, "thinking", !off);        /* DeepSeek, Kimi K2 */
    }
    clime_jw_put_bool(&w, "add_generation_prompt", !p->no_generation_prompt && !p->continue_final);
    clime_jw_close(&w);
    struct clime_str objects[3] = {clime_buf_str(&vars)};
    size_t n = 1;
    if (t->kwargs.len > 0) objects[n++] = t->kwargs;
    if (p->kwargs.len > 0) objects[n++] = p->kwargs;
    struct clime_template_input in = {
        .vars = objects, .n_vars = n, .bos_token = t->bos, .eos_token = t->eos, .sort_tools = t->sorts_tools};
    enum clime_err err = vars.full ? clime_fail(e, CLIME_ERR_LIMIT, "the conversation is too large")
                                   : clime_template_render(f->compiled, &in, out, spans, e);
    clime_buf_free(&vars);
    return err;
}

enum clime_err clime_chat_render(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                 struct clime_buf *out, struct clime_spans *spans, struct clime_error *e) {
    struct clime_buf messages;
    size_t from = out->len;
    clime_buf_init(&messages, CLIME_RENDER_MAX);
    enum clime_err err = clime_chat_prepared(t, p, &messages, e);
    if (!err) err = render(t, p, clime_buf_str(&messages), out, spans, e);
    if (!err && p->continue_final) err = cut_after_final(out, from, clime_buf_str(&messages), e);
    clime_buf_free(&messages);
    return err;
}

enum clime_err clime_chat_render_list(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                      const struct clime_str *prepared, int n, struct clime_buf *out,
                                      struct clime_spans *spans, struct clime_error *e) {
    struct clime_buf list;
    clime_buf_init(&list, CLIME_RENDER_MAX);
    clime_buf_addc(&list, '[');
    for (int i = 0; i < n; i++) {
        if (i) clime_buf_addc(&list, ',');
        clime_buf_add(&list, prepared[i].ptr, prepared[i].len);
    }
    clime_buf_addc(&list, ']');
    enum clime_err err = list.full ? clime_fail(e, CLIME_ERR_LIMIT, "the conversation is too large")
                                   : render(t, p, clime_buf_str(&list), out, spans, e);
    clime_buf_free(&list);
    return err;
}

/* ---- the end of a turn ---- */

/* Appends what the template writes after an answer. */
static void behind_answer(const struct clime_chat_template *t, struct clime_buf *out) {
    static const char answer[] = "clime-answer";
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"x\"},"
                                   "{\"role\":\"assistant\",\"content\":\"clime-answer\"}]";
    struct clime_chat_prompt p = {.no_generation_prompt = true};
    struct clime_buf text;
    const char *last = NULL;
    if (!t->plain.compiled) return;
    clime_buf_init(&text, CLIME_RENDER_MAX);
    if (!render(t, &p, clime_str_of(messages), &text, NULL, NULL) && text.data)
        for (const char *at = text.data; (at = strstr(at, answer)); at++) last = at + strlen(answer);
    if (last) clime_buf_adds(out, last);
    clime_buf_free(&text);
}

void clime_chat_turn_end(const struct clime_chat_template *t, struct clime_tok_scratch *scratch,
                         struct clime_ids *out) {
    struct clime_buf behind;
    size_t from = out->len;
    clime_buf_init(&behind, CLIME_RENDER_MAX);
    behind_answer(t, &behind);
    clime_tokenizer_encode(t->tok, scratch, clime_buf_str(&behind), 0, CLIME_RENDER_MAX, out, NULL);
    clime_buf_free(&behind);
    size_t end = out->len;
    while (end > from && !clime_tokenizer_ends_turn(t->tok, out->data[end - 1])) end--;
    int32_t text_end = clime_tokenizer_text_end(t->tok);
    if (end > from)
        out->len = end;
    else if (text_end >= 0)
        clime_ids_push(out, text_end);
}
