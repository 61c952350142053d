/* Loader of preference pairs. Main thread, before training; the set owns the samples. A pair is used whole or not at
 * all: cutting one answer would change the preference. */
#include "trainer/data/pair_data.h"

#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "common/json/write.h"
#include "trainer/data/conversation.h"
#include "trainer/data/render.h"

#define MAX_TEXT ((size_t)1 << 24)

struct loader {
    const struct clime_pair_data_options *o;
    const struct clime_tokenizer *tok;
    struct clime_tok_scratch *scratch;
    struct clime_chat_template template; /* with --apply-chat-template */
    unsigned lost;                       /* of the current row */
    struct clime_sft_set *set;
    int source, max_len, size;
};

struct row {
    struct clime_str prompt, answer[2], tools; /* raw JSON; ptr NULL = absent */
    struct clime_arena arena;
};

static enum clime_err read_row(const struct loader *l, struct clime_str json, struct row *r, struct clime_error *e) {
    const struct clime_pair_data_options *o = l->o;
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_str key, raw;
    clime_json_init(&j, json.ptr, json.len, &r->arena, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        clime_json_skip(&j, &raw);
        const bool is_null = clime_str_is(raw, "null");
        if (clime_str_is(key, o->data.input_key) && !is_null) clime_row_take(&j, o->data.input_key, raw, &r->prompt);
        if (clime_str_is(key, o->chosen_key)) clime_row_take(&j, o->chosen_key, raw, &r->answer[0]);
        if (clime_str_is(key, o->rejected_key)) clime_row_take(&j, o->rejected_key, raw, &r->answer[1]);
        if (clime_str_is(key, o->data.tool_key) && !is_null) clime_row_take(&j, o->data.tool_key, raw, &r->tools);
    }
    if (!clime_json_end(&j)) return clime_fail(e, CLIME_ERR_INPUT, "%s", je.msg);
    for (int i = 0; i < 2; i++)
        if (!r->answer[i].ptr)
            return clime_row_lacks(json, i ? o->rejected_key : o->chosen_key, i ? "rejected-key" : "chosen-key", e);
    return r->tools.ptr ? clime_row_tools(&r->tools, o->data.tool_key, &r->arena, e) : CLIME_OK;
}

/* ---- texts without a template ---- */

static enum clime_err add_text(const struct loader *l, struct row *r, struct clime_str raw, const char *what, int flags,
                               struct clime_ids *ids, struct clime_error *e) {
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_str text;
    clime_json_init(&j, raw.ptr ? raw.ptr : "null", raw.ptr ? raw.len : 4, &r->arena, &je);
    if (!clime_json_string(&j, &text))
        return clime_fail(e, CLIME_ERR_INPUT, "the %s is no text: messages need --apply-chat-template", what);
    return clime_tokenizer_encode(l->tok, l->scratch, text, flags, MAX_TEXT, ids, e);
}

static enum clime_err read_texts(const struct loader *l, struct row *r, int side, struct clime_sample **out,
                                 struct clime_error *e) {
    struct clime_ids ids = {0};
    size_t n_prompt;
    enum clime_err rc = add_text(l, r, r->prompt, "prompt", 0, &ids, e);
    n_prompt = ids.len;
    if (!rc && !n_prompt) rc = clime_fail(e, CLIME_ERR_INPUT, "the prompt is empty");
    if (!rc) rc = add_text(l, r, r->answer[side], "answer", 0, &ids, e);
    if (!rc && (ids.len == n_prompt || !clime_tokenizer_ends_turn(l->tok, ids.data[ids.len - 1])))
        clime_chat_turn_end(&l->template, l->scratch, &ids);
    if (!rc && ids.len > n_prompt) {
        struct clime_sample *s = *out = clime_sample_new();
        s->n_prompt = (int32_t)n_prompt;
        s->n_response = (int32_t)(ids.len - n_prompt);
        s->ids = ids.data;
        ids = (struct clime_ids){0};
        s->mask = xmalloc((size_t)s->n_response);
        memset(s->mask, 1, (size_t)s->n_response);
    }
    clime_ids_free(&ids);
    return rc;
}

/* ---- messages ---- */

struct messages {
    struct clime_str *raw; /* [n] */
    int n;
};

/* Appends the messages of a JSON array, or a text as one message with the role. */
static enum clime_err add_messages(struct row *r, struct clime_str raw, const char *role, struct messages *out,
                                   struct clime_error *e) {
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_str item;
    if (!raw.ptr) return CLIME_OK;
    clime_json_init(&j, raw.ptr, raw.len, &r->arena, &je);
    if (clime_json_peek(&j) == CLIME_JSON_STRING) {
        char *one = xasprintf("{\"role\":\"%s\",\"content\":%.*s}", role, CLIME_STR_ARG(raw));
        item = clime_str_of(clime_arena_strdup(&r->arena, clime_str_of(one)));
        free(one);
        out->raw = xrealloc(out->raw, (size_t)(out->n + 1) * sizeof *out->raw);
        out->raw[out->n++] = item;
        return item.ptr ? CLIME_OK : clime_fail(e, CLIME_ERR_LIMIT, "the row is too long");
    }
    for (clime_json_array(&j); clime_json_item(&j);) {
        if (!clime_json_skip(&j, &item)) break;
        out->raw = xrealloc(out->raw, (size_t)(out->n + 1) * sizeof *out->raw);
        out->raw[out->n++] = item;
    }
    return clime_json_end(&j) ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "the messages: %s", je.msg);
}

/* Prepares one side's messages for the chat template, in the row's arena. */
static enum clime_err prepare(const struct loader *l, struct row *r, struct messages *m, struct clime_error *e) {
    struct clime_buf list, prepared;
    struct messages made = {NULL, 0};
    clime_buf_init(&list, CLIME_RENDER_MAX);
    clime_buf_init(&prepared, CLIME_RENDER_MAX);
    clime_buf_addc(&list, '[');
    for (int i = 0; i < m->n; i++) {
        if (i) clime_buf_addc(&list, ',');
        clime_buf_add(&list, m->raw[i].ptr, m->raw[i].len);
    }
    clime_buf_addc(&list, ']');
    struct clime_chat_prompt p = {.messages = clime_buf_str(&list), .tools = r->tools};
    enum clime_err rc = clime_chat_prepared(&l->template, &p, &prepared, e);
    const char *copy = rc ? NULL : clime_arena_strdup(&r->arena, clime_buf_str(&prepared));
    if (!rc && !copy) rc = clime_fail(e, CLIME_ERR_LIMIT, "the row is too long");
    if (!rc) rc = add_messages(r, (struct clime_str){copy, prepared.len}, "", &made, e);
    clime_buf_free(&prepared);
    clime_buf_free(&list);
    free(m->raw);
    *m = made;
    return rc;
}

/* Texts of role and content; calls as raw JSON. */
struct said {
    struct clime_str role, content, calls;
};

static struct said said(struct clime_str message, struct clime_arena *a) {
    struct said s = {{NULL, 0}};
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_str key;
    clime_json_init(&j, message.ptr, message.len, a, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        const bool is_text = clime_json_peek(&j) == CLIME_JSON_STRING;
        if (clime_str_is(key, "role") && is_text)
            clime_json_string(&j, &s.role);
        else if (clime_str_is(key, "content") && is_text)
            clime_json_string(&j, &s.content);
        else
            clime_json_skip(&j, clime_str_is(key, "tool_calls") ? &s.calls : NULL);
    }
    return s;
}

static bool is_same(struct row *r, struct clime_str x, struct clime_str y) {
    if (clime_str_eq(x, y)) return true;
    struct said a = said(x, &r->arena), b = said(y, &r->arena);
    return a.content.ptr && b.content.ptr && clime_str_eq(a.role, b.role) && clime_str_eq(a.content, b.content) &&
           clime_str_eq(a.calls, b.calls);
}

/* True when the answers' common beginning contains the prompt's messages: then the answers are whole conversations, as
 * in UltraFeedback's rows. */
static bool holds_prompt(struct row *r, const struct messages *prompt, const struct messages *answer, int shared) {
    for (int from = 0; prompt->n && from + prompt->n <= shared; from++) {
        int n = 0;
        while (n < prompt->n && is_same(r, prompt->raw[n], answer->raw[from + n])) n++;
        if (n == prompt->n) return true;
    }
    return false;
}

static int count_shared(struct row *r, const struct messages m[2]) {
    int n = 0;
    while (n < m[0].n && n < m[1].n && is_same(r, m[0].raw[n], m[1].raw[n])) n++;
    return n;
}

/* Prepends the prompt to the answer. Refuses an answer that begins a new conversation after a prompt that expects a
 * reply. */
static enum clime_err join(struct row *r, const struct messages *prompt, struct messages *answer, const char *key,
                           struct clime_error *e) {
    if (!prompt->n) return CLIME_OK;
    const struct said last = said(prompt->raw[prompt->n - 1], &r->arena);
    const struct said first = answer->n ? said(answer->raw[0], &r->arena) : (struct said){{NULL, 0}};
    const bool asks = clime_str_is(first.role, "user") && !clime_str_is(last.role, "assistant");
    if (asks || clime_str_is(first.role, "system"))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "\"%s\" is a conversation of its own, without the prompt in what it shares with the other",
                          key);
    answer->raw = xrealloc(answer->raw, (size_t)(prompt->n + answer->n) * sizeof *answer->raw);
    memmove(answer->raw + prompt->n, answer->raw, (size_t)answer->n * sizeof *answer->raw);
    memcpy(answer->raw, prompt->raw, (size_t)prompt->n * sizeof *answer->raw);
    answer->n += prompt->n;
    return CLIME_OK;
}

/* Builds the sample of m's messages, the first n_context untrained. *out stays NULL when no token is trained. */
static enum clime_err read_conversation(const struct loader *l, struct row *r, const struct messages *m, int n_context,
                                        struct clime_sample **out, struct clime_error *e) {
    struct clime_conversation_samples made = {0};
    struct clime_buf list;
    struct clime_jw w;
    clime_buf_init(&list, CLIME_RENDER_MAX);
    clime_jw_init(&w, &list);
    clime_jw_array(&w);
    for (int i = 0; i < m->n; i++) clime_jw_raw(&w, m->raw[i]);
    clime_jw_close(&w);
    enum clime_err rc =
        clime_conversation_read(&l->template, l->scratch, clime_buf_str(&list), r->tools, n_context, &made, e);
    if (!rc && made.n > 1)
        rc = clime_fail(e, CLIME_ERR_INPUT,
                        "the chat template rewrites earlier turns of the answer: it is no single text");
    if (!rc && made.n) *out = made.data[0];
    for (int i = 0; i < made.n && rc; i++) clime_sample_free(made.data[i]);
    free(made.data);
    clime_buf_free(&list);
    return rc;
}

static enum clime_err read_both(const struct loader *l, struct row *r, struct clime_sample *out[2],
                                struct clime_error *e) {
    struct messages m[2] = {{0}}, prompt = {0};
    enum clime_err rc = add_messages(r, r->prompt, "user", &prompt, e);
    if (!rc && prompt.n) rc = prepare(l, r, &prompt, e);
    for (int i = 0; i < 2 && !rc; i++) {
        rc = add_messages(r, r->answer[i], "assistant", &m[i], e);
        if (!rc) rc = prepare(l, r, &m[i], e);
    }
    const bool whole = !rc && holds_prompt(r, &prompt, &m[0], count_shared(r, m));
    for (int i = 0; i < 2 && !rc && !whole; i++)
        rc = join(r, &prompt, &m[i], i ? l->o->rejected_key : l->o->chosen_key, e);
    int same = rc ? 0 : count_shared(r, m);
    for (int i = 0; i < 2 && !rc; i++) rc = read_conversation(l, r, &m[i], same, &out[i], e);
    free(prompt.raw);
    free(m[0].raw);
    free(m[1].raw);
    return rc;
}

/* ---- the set ---- */

/* Adds a pair; takes ownership of the two samples. */
static void add_pair(struct loader *l, struct clime_sample *pair[2]) {
    struct clime_sft_set *set = l->set;
    int len = 0;
    bool too_long = false, untrained = !pair[0] || !pair[1];
    for (int i = 0; i < 2 && !untrained; i++) {
        len += pair[i]->n_prompt + pair[i]->n_response;
        too_long |= pair[i]->n_prompt + pair[i]->n_response > l->max_len;
    }
    if (untrained || too_long) {
        set->n_untrained += untrained;
        set->n_too_long += too_long;
        clime_sample_free(pair[0]);
        clime_sample_free(pair[1]);
        return;
    }
    if (set->n + 2 > l->size) {
        l->size = l->size ? 2 * l->size : 512;
        set->samples = xrealloc(set->samples, (size_t)l->size * sizeof(struct clime_sample *));
    }
    if (len > set->longest) set->longest = len;
    for (int i = 0; i < 2; i++) {
        pair[i]->group = set->n / 2;
        pair[i]->member = i;
    }
    set->samples[set->n++] = pair[0];
    set->samples[set->n++] = pair[1];
    set->parts[l->source].n++;
}

static enum clime_err read_pair(void *arg, int64_t number, struct clime_str json, struct clime_error *e) {
    struct loader *l = arg;
    struct row r = {0};
    struct clime_sample *pair[2] = {NULL, NULL};
    clime_arena_init(&r.arena, 64 * json.len + 65536);
    enum clime_err rc = read_row(l, json, &r, e);
    if (!rc && l->template.plain.compiled)
        rc = read_both(l, &r, pair, e);
    else
        for (int i = 0; i < 2 && !rc; i++) rc = read_texts(l, &r, i, &pair[i], e);
    if (rc) {
        clime_error_prefix(e, "%s, line %lld", l->o->data.sources[l->source], (long long)number);
        clime_sample_free(pair[0]);
        clime_sample_free(pair[1]);
    } else {
        add_pair(l, pair);
    }
    clime_lost_rows_count(&l->set->lost, &l->lost);
    clime_arena_free(&r.arena);
    return rc;
}

enum clime_err clime_pair_set_load(const struct clime_pair_data_options *o, const char *dir, int max_len,
                                   struct clime_sft_set *set, struct clime_error *e) {
    struct clime_tokenizer *tok = NULL;
    struct loader l = {.o = o, .set = set, .max_len = max_len};
    enum clime_err rc = clime_sft_set_open(set, &o->data, e);
    if (!rc) rc = clime_data_tokenizer(dir, &tok, e);
    if (rc) return rc;
    l.tok = l.template.tok = tok;
    l.scratch = clime_tok_scratch_new(tok);
    if (o->data.apply_chat_template) rc = clime_data_template(tok, o->data.apply_chat_template_kwargs, &l.template, e);
    l.template.lost = &l.lost;
    for (; l.source < o->data.n_sources && !rc; l.source++)
        rc = clime_source_rows(o->data.sources[l.source], read_pair, &l, e);
    if (!rc) rc = clime_sft_set_check(set, &o->data, e);
    clime_chat_template_close(&l.template);
    clime_tok_scratch_free(l.scratch);
    clime_tokenizer_free(tok);
    return rc;
}
