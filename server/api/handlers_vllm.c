/* Server and tokenizer information under vLLM's names. HTTP workers; nothing here waits for the engine.
 */
#include <stdlib.h>

#include "common/arena.h"
#include "common/json/scan.h"
#include "common/version.h"
#include "server/server.h"

#define MAX_CONFIG ((size_t)64 << 20)

void clime_handle_version(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_str_of("{\"version\":\"" CLIME_VERSION "\"}"));
}

void clime_handle_load(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_buf body;
    clime_buf_init(&body, 256);
    clime_buf_printf(&body, "{\"server_load\":%lld}", (long long)clime_engine_in_flight(s->engine));
    clime_reply_buf(rq, 200, &body);
}

/* "vllm_config" of /server_info: the options that RL clients of vLLM read. Log-probabilities are after the temperature,
 * like vLLM's processed ones, but before truncation. */
void clime_vllm_write_config(struct clime_jw *w, const struct clime_server *s) {
    clime_jw_key(w, "vllm_config");
    clime_jw_object(w);
    clime_jw_key(w, "model_config");
    clime_jw_object(w);
    clime_jw_put_strz(w, "model", s->opts.model_path);
    clime_jw_put_strz(w, "dtype", clime_dev_info(s->model->dev)->dt == CLIME_F32 ? "torch.float32" : "torch.bfloat16");
    clime_jw_put_int(w, "max_model_len", s->max_len);
    clime_jw_put_int(w, "max_logprobs", CLIME_MAX_TOP_LOGPROBS);
    clime_jw_put_strz(w, "logprobs_mode", "processed_logprobs");
    clime_jw_close(w);
    clime_jw_key(w, "parallel_config");
    clime_jw_object(w);
    clime_jw_put_int(w, "tensor_parallel_size", s->opts.tp_size);
    clime_jw_put_int(w, "pipeline_parallel_size", 1);
    clime_jw_put_int(w, "data_parallel_size", 1);
    clime_jw_put_int(w, "world_size", s->opts.tp_size);
    clime_jw_close(w);
    clime_jw_put_strz(w, "lora_config", NULL);
    clime_jw_key(w, "weight_transfer_config");
    clime_jw_object(w);
    clime_jw_put_strz(w, "backend", s->model->ops->comm_backend);
    clime_jw_close(w);
    clime_jw_key(w, "cache_config");
    clime_jw_object(w);
    clime_jw_put_int(w, "block_size", CLIME_PAGE);
    clime_jw_put_bool(w, "enable_prefix_caching", !s->opts.disable_radix_cache);
    clime_jw_close(w);
    clime_jw_close(w);
    clime_jw_key(w, "vllm_env");
    clime_jw_object(w);
    clime_jw_close(w);
    clime_jw_key(w, "system_env");
    clime_jw_object(w);
    clime_jw_close(w);
}

static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token"};

static bool is_name(struct clime_str key) {
    for (size_t i = 0; i < CLIME_COUNT(names); i++)
        if (clime_str_is(key, names[i])) return true;
    return false;
}

/* Copies the file's members except the template, which may be overridden, and named tokens, which many files write as
 * objects while clients expect text. */
static enum clime_err copy_config(const char *dir, struct clime_jw *w, bool *has_class, struct clime_error *e) {
    char *path = xasprintf("%s/tokenizer_config.json", dir);
    struct clime_buf text;
    struct clime_arena a;
    struct clime_json j;
    struct clime_str key, raw;
    clime_buf_init(&text, MAX_CONFIG);
    enum clime_err err = clime_buf_read_file(&text, path, e);
    clime_arena_init(&a, text.len + 4096);
    if (!err) {
        clime_json_init(&j, text.data, text.len, &a, e);
        for (clime_json_object(&j); clime_json_key(&j, &key) && clime_json_skip(&j, &raw);) {
            if (clime_str_is(key, "chat_template") || is_name(key)) continue;
            *has_class |= clime_str_is(key, "tokenizer_class");
            clime_jw_key_str(w, key);
            clime_jw_raw(w, raw);
        }
        if (!clime_json_end(&j)) err = clime_error_prefix(e, "tokenizer_config.json");
    }
    clime_arena_free(&a);
    clime_buf_free(&text);
    free(path);
    return err == CLIME_ERR_NOT_FOUND ? CLIME_OK : err;
}

/* --chat-template's, or the folder's own. */
static void write_template(struct clime_jw *w, const struct clime_server *s) {
    struct clime_buf text;
    clime_buf_init(&text, MAX_CONFIG);
    if (!s->opts.chat_template)
        clime_jw_strz(w, clime_tokenizer_chat_template(s->tokenizer, NULL));
    else if (clime_buf_read_file(&text, s->opts.chat_template, NULL) == CLIME_OK)
        clime_jw_str(w, clime_buf_str(&text));
    else
        clime_jw_null(w); /* the file was deleted since the start */
    clime_buf_free(&text);
}

/* tokenizer_config.json with the current template and the named tokens, including those from other files. */
void clime_handle_tokenizer_info(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    struct clime_buf body;
    struct clime_jw w;
    bool has_class = false;
    clime_buf_init(&body, MAX_CONFIG);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    if (copy_config(s->opts.model_path, &w, &has_class, &e)) {
        clime_http_reply_err(rq, &e);
        clime_buf_free(&body);
        return;
    }
    if (!has_class) clime_jw_put_strz(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    for (size_t i = 0; i < CLIME_COUNT(names); i++)
        clime_jw_put_strz(&w, names[i], clime_tokenizer_special_text(s->tokenizer, names[i]));
    clime_jw_key(&w, "chat_template");
    write_template(&w, s);
    clime_jw_close(&w);
    clime_reply_buf(rq, 200, &body);
}
