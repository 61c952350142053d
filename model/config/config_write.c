/* Writes struct clime_config as the config.json that transformers loads, and as facts. Called by export and init, and
 * to compare two configurations; the caller's thread; owns nothing. Invariant: clime_config_load reads back what is
 * written unchanged; so two configurations with the same facts compute the same.
 */
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/os/atomic_file.h"
#include "model/config/config_int.h"

static void write_id(struct clime_jw *w, const char *key, int id) {
    clime_jw_key(w, key);
    if (id < 0)
        clime_jw_null(w); /* explicit, because a class default may be outside the vocabulary */
    else
        clime_jw_int(w, id);
}

static void write_config(struct clime_jw *w, const struct clime_config *c, enum clime_dtype dtype) {
    clime_jw_object(w);
    clime_jw_key(w, "architectures");
    clime_jw_array(w);
    clime_jw_strz(w, c->architecture);
    clime_jw_close(w);
    clime_jw_put_strz(w, "model_type", c->model_type);
    clime_write_int(w, "hidden_size", c->D);
    clime_write_int(w, "intermediate_size", c->F);
    clime_write_int(w, "num_hidden_layers", c->L);
    clime_write_int(w, "num_attention_heads", c->H);
    clime_write_int(w, "num_key_value_heads", c->HK);
    if (c->latent.R)
        clime_config_write_latent(w, c);
    else
        clime_write_int(w, "head_dim", c->Dh);
    clime_write_int(w, "vocab_size", c->V);
    clime_write_int(w, "max_position_embeddings", c->max_pos);
    clime_jw_put_float(w, "rms_norm_eps", c->eps);
    clime_config_write_rope(w, c);
    clime_jw_put_strz(w, "hidden_act", "silu");
    clime_write_bool(w, "tie_word_embeddings", c->tied);
    if (c->family != CLIME_QWEN2)
        clime_write_bool(w, c->family == CLIME_QWEN2_MOE ? "qkv_bias" : "attention_bias", c->qkv_bias);
    if (c->router.E) clime_config_write_experts(w, c);
    write_id(w, "bos_token_id", c->bos_id);
    write_id(w, "pad_token_id", c->pad_id);
    if (c->n_eos > 1) {
        clime_jw_key(w, "eos_token_id");
        clime_jw_array(w);
        for (int i = 0; i < c->n_eos; i++) clime_jw_int(w, c->eos_ids[i]);
        clime_jw_close(w);
    } else {
        write_id(w, "eos_token_id", c->n_eos ? c->eos_ids[0] : -1);
    }
    clime_jw_put_strz(w, "torch_dtype", dtype == CLIME_BF16 ? "bfloat16" : "float32");
    clime_jw_close(w);
}

static void write_text(struct clime_buf *text, const struct clime_config *c, enum clime_dtype dtype) {
    struct clime_jw w;
    clime_buf_init(text, 64 << 10);
    clime_jw_init(&w, text);
    write_config(&w, c, dtype);
    clime_buf_addc(text, '\n');
    CHECK(!text->full);
}

/* Keys that do not affect results: how a folder stores the numbers; the longest sequence, which is limited elsewhere;
 * and ids that are the tokenizer's. */
static bool is_computed_with(const char *key) {
    static const char *const not [] = {"max_position_embeddings", "torch_dtype", "bos_token_id", "pad_token_id",
                                       "eos_token_id"};
    for (size_t i = 0; i < CLIME_COUNT(not ); i++)
        if (!strcmp(key, not [i])) return false;
    return true;
}

void clime_config_facts(const struct clime_config *c, struct clime_facts *out) {
    struct clime_buf text;
    struct clime_facts all = {0}, inner = {0};
    struct clime_error e;
    write_text(&text, c, c->dtype);
    CHECK(clime_facts_read(clime_buf_str(&text), &all, &e) == CLIME_OK);
    for (int i = 0; i < all.n; i++) {
        const struct clime_fact *x = &all.items[i];
        if (x->value[0] == '{') { /* rope_scaling */
            char *prefix = xasprintf("%s.", x->key);
            CHECK(clime_facts_read(clime_str_of(x->value), &inner, &e) == CLIME_OK);
            clime_facts_add(out, prefix, &inner);
            clime_facts_free(&inner);
            free(prefix);
        } else if (is_computed_with(x->key)) {
            clime_facts_put(out, x->key, x->value);
        }
    }
    clime_facts_free(&all);
    clime_buf_free(&text);
}

enum clime_err clime_config_compare(const char *a_name, const struct clime_config *a, const char *b_name,
                                    const struct clime_config *b, struct clime_error *e) {
    struct clime_facts x = {0}, y = {0};
    clime_config_facts(a, &x);
    clime_config_facts(b, &y);
    enum clime_err rc = clime_facts_compare(a_name, &x, b_name, &y, NULL, 0, e);
    clime_facts_free(&x);
    clime_facts_free(&y);
    return rc;
}

enum clime_err clime_config_check(const struct clime_config *c, struct clime_error *e) {
    struct clime_buf text;
    struct cJSON *root = NULL;
    struct clime_config again;
    write_text(&text, c, c->dtype);
    enum clime_err rc = clime_tree_parse(text.data, text.len, &root, e);
    if (!rc) rc = clime_config_parse(root, &again, e);
    clime_tree_free(root);
    clime_buf_free(&text);
    return rc;
}

enum clime_err clime_config_save(const char *dir, const struct clime_config *c, enum clime_dtype dtype,
                                 struct clime_error *e) {
    struct clime_buf text;
    write_text(&text, c, dtype);
    char *path = xasprintf("%s/config.json", dir);
    enum clime_err rc = clime_atomic_save(path, text.data, text.len, e);
    free(path);
    clime_buf_free(&text);
    return rc;
}
