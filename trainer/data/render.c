/* Rendering of data rows: tokenizer and chat template (render.h). Called while data is loaded, on the main thread. */
#include "trainer/data/render.h"

#include <stdlib.h>

#include "common/log.h"
#include "model/config/config.h"

void clime_lost_rows_count(struct clime_lost_rows *l, unsigned *lost) {
    for (int i = 0; i < CLIME_CHAT_LOSSES; i++) l->n[i] += *lost >> i & 1;
    *lost = 0;
}

char *clime_lost_rows_text(const struct clime_lost_rows *l) {
    static const char *const names[CLIME_CHAT_LOSSES] = {"a system message", "tools", "an assistant's tool_calls",
                                                         "an assistant's reasoning"};
    struct clime_buf text;
    clime_buf_init(&text, 512);
    for (int i = 0; i < CLIME_CHAT_LOSSES; i++)
        if (l->n[i]) clime_buf_printf(&text, "%s%s: %d", text.len ? ", " : "", names[i], l->n[i]);
    return text.len ? clime_buf_take(&text) : NULL;
}

void clime_lost_rows_warn(const struct clime_lost_rows *l, const char *of) {
    char *text = clime_lost_rows_text(l);
    if (text) LOG_WARN("rows%s with something that the chat template does not show: %s", of, text);
    free(text);
}

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

enum clime_err clime_data_template(const struct clime_tokenizer *tok, const char *kwargs, struct clime_chat_template *t,
                                   struct clime_error *e) {
    enum clime_err rc = clime_chat_template_open(t, tok, NULL, e);
    if (rc) return rc;
    t->kwargs = clime_str_of(kwargs);
    if (t->plain.compiled) return CLIME_OK;
    clime_chat_template_close(t);
    return clime_fail(e, CLIME_ERR_INPUT, "--apply-chat-template: the checkpoint's tokenizer has no chat template");
}
