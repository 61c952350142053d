/* Rendering conversations. Called on text threads by server/api/generation.c and the /apply_template and /tokenize
 * handlers; owns the compiled template.
 *
 * The variables are those of transformers' apply_chat_template: messages, tools and documents (null when there are
 * none) and add_generation_prompt; chat_template_kwargs come last, so that a client may override any of them.
 */
#include "server/job/chat_prompt.h"

#include "common/json/lenient.h"
#include "common/json/scan.h"
#include "common/json/write.h"

#define MAX_TEMPLATE ((size_t)1 << 20)
#define MAX_RENDERED ((size_t)64 << 20)

enum clime_err clime_chat_template_open(struct clime_chat_template *t, const struct clime_tokenizer *tok,
                                        const char *file, struct clime_error *e) {
    struct clime_buf text;
    enum clime_err err = CLIME_OK;
    *t = (struct clime_chat_template){.bos = clime_tokenizer_special_text(tok, "bos_token"),
                                      .eos = clime_tokenizer_special_text(tok, "eos_token"),
                                      .sorts_tools = clime_tokenizer_sorts_tools(tok),
                                      .reasoning = &clime_output_parsers[0]};
    clime_buf_init(&text, MAX_TEMPLATE);
    const char *source = clime_tokenizer_chat_template(tok, NULL);
    if (file) {
        err = clime_buf_read_file(&text, file, e);
        source = text.data ? text.data : "";
    }
    if (!err && source) err = clime_template_compile(clime_str_of(source), &t->compiled, e);
    if (err)
        clime_error_prefix(e, "chat template");
    else if (t->compiled)
        t->takes = clime_chat_takes(t->compiled);
    if (t->compiled) {
        t->reasoning = clime_output_parser_of_template(clime_str_of(source));
        t->calls = clime_call_format_of_template(clime_str_of(source));
    }
    clime_buf_free(&text);
    return err;
}

void clime_chat_template_close(struct clime_chat_template *t) {
    clime_template_free(t->compiled);
    t->compiled = NULL;
}

static void add_var(struct clime_jw *w, const char *name, struct clime_str json) {
    clime_jw_key(w, name);
    if (json.len > 0)
        clime_jw_raw(w, json);
    else
        clime_jw_null(w);
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
            bool is_content = clime_str_is(key, "content"), is_text = clime_json_peek(&j) == CLIME_JSON_STRING;
            if (is_text && (is_content || clime_str_is(key, "reasoning_content")))
                found |= clime_json_string(&j, is_content ? &content : &thought);
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

/* Cuts the text behind the last message's content, as transformers does: templates may trim it, so its trimmed form is
 * looked for from the end. */
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

enum clime_err clime_chat_render(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                 struct clime_buf *out, struct clime_error *e) {
    struct clime_buf messages, vars;
    struct clime_jw w;
    size_t from = out->len;
    if (!t->compiled) return clime_fail(e, CLIME_ERR_INPUT, "the model has no chat template");
    clime_buf_init(&messages, MAX_RENDERED);
    clime_buf_init(&vars, MAX_RENDERED);
    enum clime_err err = clime_chat_messages(p->messages, t->takes, &messages, e);
    if (err) clime_error_prefix(e, "messages");
    if (!err && clime_str_is(clime_buf_str(&messages), "[]")) err = clime_fail(e, CLIME_ERR_INPUT, "messages is empty");
    if (!err && p->kwargs.len > 0 && p->kwargs.ptr[0] != '{')
        err = clime_fail(e, CLIME_ERR_INPUT, "chat_template_kwargs must be an object");
    if (err) goto done;
    clime_jw_init(&w, &vars);
    clime_jw_object(&w);
    add_var(&w, "messages", clime_buf_str(&messages));
    add_var(&w, "tools", p->tools);
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
    if (vars.full) {
        err = clime_fail(e, CLIME_ERR_LIMIT, "the conversation is too large");
        goto done;
    }
    struct clime_str objects[2] = {clime_buf_str(&vars), p->kwargs};
    struct clime_template_input in = {.vars = objects,
                                      .n_vars = p->kwargs.len > 0 ? 2 : 1,
                                      .bos_token = t->bos,
                                      .eos_token = t->eos,
                                      .sort_tools = t->sorts_tools};
    err = clime_template_render(t->compiled, &in, out, NULL, e);
    if (!err && p->continue_final) err = cut_after_final(out, from, clime_buf_str(&messages), e);
done:
    clime_buf_free(&messages);
    clime_buf_free(&vars);
    return err;
}
