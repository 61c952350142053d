/* Text endpoints: /tokenize, /detokenize, /apply_template. HTTP workers parse and write; the tokenizer and the template
 * run on a text thread, as one task per request.
 */
#include <stddef.h>
#include <stdlib.h>

#include "server/api/id_list.h"
#include "server/job/fields.h"
#include "server/server.h"
#include "text/chat/chat_template.h"
#include "text/chat/conversation.h"

#define MAX_ITEMS 4096     /* texts or id lists per request */
#define MAX_IDS (1u << 20) /* per text */

struct text_request {
    struct clime_server *server;
    struct clime_arena arena;
    struct clime_chat_prompt chat;
    bool is_chat, is_list;
    bool add_special, skip_special;
    struct clime_str raw; /* prompt or tokens */
    struct clime_str model;
    struct clime_str *texts;
    struct clime_ids *ids; /* [n]; encode fills them (malloc'd), decode reads them (arena) */
    int n, n_done;
    struct clime_buf rendered;
    struct clime_buf *decoded; /* [n] */
    enum clime_err err;
    struct clime_error *error;
};

#define AT(field) offsetof(struct text_request, field)

static bool read_generation_prompt(struct clime_json *j, void *object) {
    struct text_request *t = object;
    bool add = true;
    if (!clime_lenient_bool(j, &add)) return false;
    t->chat.no_generation_prompt = !add;
    return true;
}

static const struct clime_member prompt_rows[] = {{"prompt", CLIME_MEMBER_RAW, AT(raw)}};
static const struct clime_member tokens_rows[] = {{"tokens", CLIME_MEMBER_RAW, AT(raw)},
                                                  {"skip_special_tokens", CLIME_MEMBER_BOOL, AT(skip_special)},
                                                  {"model", CLIME_MEMBER_STRING, AT(model)}};
static const struct clime_member chat_rows[] = {
    {"messages", CLIME_MEMBER_RAW, AT(chat.messages)},
    {"tools", CLIME_MEMBER_RAW, AT(chat.tools)},
    {"chat_template_kwargs", CLIME_MEMBER_RAW, AT(chat.kwargs)},
    {"enable_thinking", CLIME_MEMBER_CALL, AT(chat.thinking), .read = clime_chat_read_thinking},
    {"reasoning_effort", CLIME_MEMBER_RAW, AT(chat.reasoning_effort)},
    {"continue_final_message", CLIME_MEMBER_BOOL, AT(chat.continue_final)},
    {"add_generation_prompt", CLIME_MEMBER_CALL, .read = read_generation_prompt},
    {"add_special_tokens", CLIME_MEMBER_BOOL, AT(add_special)},
    {"model", CLIME_MEMBER_STRING, AT(model)},
};
static const struct clime_members prompt_members = {prompt_rows, CLIME_COUNT(prompt_rows)};
static const struct clime_members tokens_members = {tokens_rows, CLIME_COUNT(tokens_rows)};
static const struct clime_members chat_members = {chat_rows, CLIME_COUNT(chat_rows)};

static const struct clime_fields tokenize_fields = {
    .where = "/tokenize", .rows = {clime_fields_text}, .read = {&prompt_members, &chat_members}};
static const struct clime_fields template_fields = {
    .where = "/apply_template", .rows = {clime_fields_text}, .read = {&chat_members}};
static const struct clime_fields detokenize_fields = {
    .where = "/detokenize", .rows = {clime_fields_text}, .read = {&tokens_members}};

static enum clime_err parse(struct text_request *t, struct clime_http_request *rq, const struct clime_fields *f) {
    struct clime_str key, body = clime_http_body(rq);
    struct clime_json j;
    bool takes_raw = f != &template_fields;
    clime_arena_init(&t->arena, body.len * 8 + ((size_t)1 << 20));
    clime_buf_init(&t->rendered, (size_t)64 << 20);
    t->add_special = t->skip_special = true;
    clime_json_init(&j, body.ptr, body.len, &t->arena, t->error);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        if (!clime_members_read(f->read[0], &j, key, t) && !(f->read[1] && clime_members_read(f->read[1], &j, key, t)))
            clime_fields_other(f, t->server->field_watch, &j, key);
    if (!clime_json_end(&j)) return t->error->code;
    if (t->model.len > 0 && !clime_server_model_name(t->server, t->model))
        return clime_server_no_model(t->server, t->model, t->error);
    t->is_chat = t->chat.messages.len > 0;
    if (!takes_raw && !t->is_chat) return clime_fail(t->error, CLIME_ERR_INPUT, "messages is missing");
    if (f == &detokenize_fields && t->raw.len == 0) return clime_fail(t->error, CLIME_ERR_INPUT, "tokens is missing");
    if (t->is_chat == (t->raw.len > 0)) return clime_fail(t->error, CLIME_ERR_INPUT, "give either prompt or messages");
    return clime_chat_functions(t->chat.tools, &t->arena, &t->chat.tools, t->error);
}

/* A value, or a list of values: strings for texts, lists of ids otherwise. */
static enum clime_err read_items(struct text_request *t, bool texts) {
    struct clime_json j, in;
    t->n = 1;
    clime_json_init(&j, t->raw.ptr, t->raw.len, &t->arena, t->error);
    in = j;
    t->is_list = clime_json_peek(&j) == CLIME_JSON_ARRAY && clime_json_array(&in) && clime_json_item(&in) &&
                 clime_json_peek(&in) == (texts ? CLIME_JSON_STRING : CLIME_JSON_ARRAY);
    if (t->is_list)
        for (t->n = 0, in = j, clime_json_array(&in); clime_json_item(&in) && t->n <= MAX_ITEMS; t->n++)
            clime_json_skip(&in, NULL);
    if (t->n > MAX_ITEMS) return clime_fail(t->error, CLIME_ERR_INPUT, "more than %d items", MAX_ITEMS);
    t->texts = clime_arena_zalloc(&t->arena, (size_t)t->n * sizeof *t->texts);
    t->ids = clime_arena_zalloc(&t->arena, (size_t)t->n * sizeof *t->ids);
    t->decoded = clime_arena_zalloc(&t->arena, (size_t)t->n * sizeof *t->decoded);
    if (!t->texts || !t->ids || !t->decoded)
        return clime_fail(t->error, CLIME_ERR_LIMIT, "the request takes too much memory");
    if (t->is_list) clime_json_array(&j);
    for (int i = 0; i < t->n; i++) {
        if (t->is_list && !clime_json_item(&j)) return t->error->code;
        if (!(texts ? clime_json_string(&j, &t->texts[i]) : clime_id_list_read(&j, &t->ids[i])))
            return clime_error_prefix(t->error, "%s", texts ? "prompt" : "tokens");
    }
    if (t->is_list && clime_json_item(&j)) return t->error->code;
    return clime_json_end(&j) ? CLIME_OK : t->error->code;
}

/* ---- on the text thread ------------------------------------------------------------------------------------ */

static bool encode(void *arg, struct clime_tok_scratch *scratch) {
    struct text_request *t = arg;
    struct clime_server *s = t->server;
    if (t->is_chat) {
        t->err = clime_chat_render(&s->chat, &t->chat, &t->rendered, NULL, t->error);
        t->texts[0] = clime_buf_str(&t->rendered);
        t->add_special = false; /* the template adds its own */
    }
    for (size_t bytes = 0; t->n_done < t->n && !t->err && bytes < CLIME_TEXT_SLICE_BYTES; t->n_done++) {
        struct clime_str text = t->texts[t->n_done];
        t->err = clime_tokenizer_encode_up_to(s->tokenizer, scratch, text, t->add_special ? CLIME_ENCODE_SPECIAL : 0,
                                              MAX_IDS, &t->ids[t->n_done], t->error);
        bytes += text.len;
    }
    if (t->err == CLIME_ERR_LIMIT) t->err = t->error->code = CLIME_ERR_INPUT;
    return t->n_done < t->n && !t->err;
}

static enum clime_err check_ids(const struct text_request *t) {
    int n_vocab = t->server->model->cfg.V; /* may exceed the tokenizer's; such ids decode to nothing */
    for (int i = 0; i < t->n; i++)
        for (size_t k = 0; k < t->ids[i].len; k++)
            if (t->ids[i].data[k] < 0 || t->ids[i].data[k] >= n_vocab)
                return clime_fail(t->error, CLIME_ERR_INPUT, "token %d is outside the vocabulary of %d",
                                  (int)t->ids[i].data[k], n_vocab);
    return CLIME_OK;
}

static bool decode(void *arg, struct clime_tok_scratch *scratch) {
    struct text_request *t = arg;
    (void)scratch;
    for (int i = 0; i < t->n; i++)
        clime_tokenizer_decode(t->server->tokenizer, t->ids[i].data, t->ids[i].len, t->skip_special, &t->decoded[i]);
    return false;
}

/* ---- replies ----------------------------------------------------------------------------------------------- */

static void write_ids(struct clime_jw *w, const struct clime_ids *ids) {
    clime_jw_array(w);
    for (size_t i = 0; i < ids->len; i++) clime_jw_int(w, ids->data[i]);
    clime_jw_close(w);
}

static void write_tokens(struct clime_jw *w, const struct text_request *t) {
    clime_jw_key(w, "tokens");
    if (t->is_list) clime_jw_array(w);
    for (int i = 0; i < t->n; i++) write_ids(w, &t->ids[i]);
    if (t->is_list) clime_jw_close(w);
    clime_jw_key(w, "count");
    if (t->is_list) clime_jw_array(w);
    for (int i = 0; i < t->n; i++) clime_jw_int(w, (int64_t)t->ids[i].len);
    if (t->is_list) clime_jw_close(w);
    clime_jw_put_int(w, "max_model_len", t->server->max_len);
}

static void write_texts(struct clime_jw *w, const char *key, const struct text_request *t) {
    clime_jw_key(w, key);
    if (t->is_list) clime_jw_array(w);
    for (int i = 0; i < t->n; i++) clime_jw_str(w, clime_buf_str(&t->decoded[i]));
    if (t->is_list) clime_jw_close(w);
}

/* One chat renders to one text. */
static enum clime_err prepare_chat(struct text_request *t) {
    t->n = 1;
    t->texts = clime_arena_zalloc(&t->arena, sizeof *t->texts);
    t->ids = clime_arena_zalloc(&t->arena, sizeof *t->ids);
    return t->texts && t->ids ? CLIME_OK : clime_fail(t->error, CLIME_ERR_LIMIT, "the request takes too much memory");
}

static enum clime_err encode_request(struct text_request *t) {
    enum clime_err err = t->is_chat ? prepare_chat(t) : read_items(t, true);
    if (!err) err = clime_text_pool_run(t->server->text, encode, t, t->error);
    return err ? err : t->err;
}

static void finish(struct text_request *t, struct clime_http_request *rq, enum clime_err err, struct clime_buf *body,
                   bool ids_are_ours) {
    if (err) {
        clime_http_reply_err(rq, t->error);
        clime_buf_free(body);
    } else {
        clime_reply_buf(rq, 200, body);
    }
    for (int i = 0; i < t->n && t->ids && ids_are_ours; i++) clime_ids_free(&t->ids[i]);
    for (int i = 0; i < t->n && t->decoded; i++) clime_buf_free(&t->decoded[i]);
    clime_buf_free(&t->rendered);
    clime_arena_free(&t->arena);
}

void clime_handle_tokenize(struct clime_http_request *rq, void *context) {
    struct clime_error e = {0};
    struct text_request t = {.server = context, .error = &e};
    struct clime_buf body;
    struct clime_jw w;
    clime_buf_init(&body, CLIME_MAX_REPLY);
    enum clime_err err = parse(&t, rq, &tokenize_fields);
    if (!err) err = encode_request(&t);
    if (!err) {
        clime_jw_init(&w, &body);
        clime_jw_object(&w);
        write_tokens(&w, &t);
        clime_jw_close(&w);
    }
    finish(&t, rq, err, &body, true);
}

void clime_handle_apply_template(struct clime_http_request *rq, void *context) {
    struct clime_error e = {0};
    struct text_request t = {.server = context, .error = &e};
    struct clime_buf body;
    struct clime_jw w;
    clime_buf_init(&body, CLIME_MAX_REPLY);
    enum clime_err err = parse(&t, rq, &template_fields);
    if (!err) err = encode_request(&t);
    if (!err) {
        clime_jw_init(&w, &body);
        clime_jw_object(&w);
        clime_jw_put_str(&w, "text", clime_buf_str(&t.rendered));
        write_tokens(&w, &t);
        clime_jw_close(&w);
    }
    finish(&t, rq, err, &body, true);
}

void clime_handle_detokenize(struct clime_http_request *rq, void *context) {
    struct clime_error e = {0};
    struct text_request t = {.server = context, .error = &e};
    struct clime_buf body;
    struct clime_jw w;
    clime_buf_init(&body, CLIME_MAX_REPLY);
    enum clime_err err = parse(&t, rq, &detokenize_fields);
    if (!err) err = read_items(&t, false);
    if (!err) err = check_ids(&t);
    for (int i = 0; i < t.n && t.decoded; i++) clime_buf_init(&t.decoded[i], CLIME_MAX_REPLY);
    if (!err) err = clime_text_pool_run(t.server->text, decode, &t, &e);
    if (!err) {
        clime_jw_init(&w, &body);
        clime_jw_object(&w);
        write_texts(&w, "text", &t);
        write_texts(&w, "prompt", &t); /* vLLM's name */
        clime_jw_close(&w);
    }
    finish(&t, rq, err, &body, false);
}
