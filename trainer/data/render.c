/* Rendering of messages by the checkpoint's chat template. Called while data is loaded, on the main thread; owns the
 * compiled template. See render.h. */
#include "trainer/data/render.h"

#include "common/json/write.h"
#include "model/config/config.h"

enum clime_err clime_data_tokenizer(const char *dir, struct clime_tokenizer **out, struct clime_error *e) {
    struct clime_config model;
    size_t n_eos;
    enum clime_err rc = clime_config_load(dir, &model, e);
    if (!rc) rc = clime_tokenizer_load(dir, out, e);
    if (rc) return rc;
    clime_tokenizer_set_rows(*out, model.V);
    const int32_t *eos = clime_tokenizer_eos(*out, &n_eos);
    for (size_t i = 0; i < n_eos && !rc; i++)
        if (eos[i] >= model.V)
            rc = clime_fail(e, CLIME_ERR_INPUT,
                            "%s: the token \"" CLIME_STR_FMT
                            "\", which ends a turn, has id %d, and the model has %d rows "
                            "of embedding",
                            dir, CLIME_STR_ARG(clime_tokenizer_token(*out, eos[i])), eos[i], model.V);
    if (rc) {
        clime_tokenizer_free(*out);
        *out = NULL;
    }
    return rc;
}

enum clime_err clime_renderer_open(const struct clime_tokenizer *tok, const char *kwargs, struct clime_renderer *r,
                                   struct clime_error *e) {
    const char *source = clime_tokenizer_chat_template(tok, NULL);
    *r = (struct clime_renderer){.tok = tok, .kwargs = clime_str_of(kwargs)};
    if (!source)
        return clime_fail(e, CLIME_ERR_INPUT, "--apply-chat-template: the checkpoint's tokenizer has no chat template");
    enum clime_err rc = clime_template_compile(clime_str_of(source), &r->template, e);
    if (rc) clime_error_prefix(e, "chat template");
    return rc;
}

void clime_renderer_close(struct clime_renderer *r) {
    clime_template_free(r->template);
    r->template = NULL;
}

enum clime_err clime_renderer_run(const struct clime_renderer *r, struct clime_str messages, struct clime_str tools,
                                  bool add_generation_prompt, struct clime_buf *out, struct clime_spans *spans,
                                  struct clime_error *e) {
    struct clime_buf vars;
    struct clime_jw w;
    clime_buf_init(&vars, 2 * CLIME_RENDER_MAX);
    clime_jw_init(&w, &vars);
    clime_jw_object(&w);
    clime_jw_put_raw(&w, "messages", messages);
    clime_jw_key(&w, "tools");
    if (tools.ptr)
        clime_jw_raw(&w, tools);
    else
        clime_jw_null(&w);
    clime_jw_key(&w, "documents");
    clime_jw_null(&w);
    clime_jw_put_bool(&w, "add_generation_prompt", add_generation_prompt);
    clime_jw_close(&w);
    struct clime_str inputs[2] = {clime_buf_str(&vars), r->kwargs};
    struct clime_template_input in = {.vars = inputs,
                                      .n_vars = r->kwargs.ptr ? 2 : 1,
                                      .bos_token = clime_tokenizer_special_text(r->tok, "bos_token"),
                                      .eos_token = clime_tokenizer_special_text(r->tok, "eos_token"),
                                      .sort_tools = clime_tokenizer_sorts_tools(r->tok)};
    enum clime_err rc = clime_template_render(r->template, &in, out, spans, e);
    clime_buf_free(&vars);
    return rc;
}

enum clime_err clime_renderer_run_list(const struct clime_renderer *r, const struct clime_str *messages, int n,
                                       struct clime_str tools, bool add_generation_prompt, struct clime_buf *out,
                                       struct clime_spans *spans, struct clime_error *e) {
    struct clime_buf list;
    clime_buf_init(&list, CLIME_RENDER_MAX);
    clime_buf_addc(&list, '[');
    for (int i = 0; i < n; i++) {
        if (i) clime_buf_addc(&list, ',');
        clime_buf_add(&list, messages[i].ptr, messages[i].len);
    }
    clime_buf_addc(&list, ']');
    enum clime_err rc = clime_renderer_run(r, clime_buf_str(&list), tools, add_generation_prompt, out, spans, e);
    clime_buf_free(&list);
    return rc;
}

bool clime_renderer_ends_turn(const struct clime_renderer *r, int32_t id) {
    size_t n;
    const int32_t *eos = clime_tokenizer_eos(r->tok, &n);
    for (size_t i = 0; i < n; i++)
        if (eos[i] == id) return true;
    return false;
}
