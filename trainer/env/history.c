/* Messages to turns. Called by the thread that serves a session; pure functions.
 *
 * The invariant: the tokens of a turn that is gone on from stay as they were sampled; only what comes after them is
 * rendered, by taking the difference of two renderings (as trainer/data/conversation.c does for sft). */
#include "trainer/env/history.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "text/template/chat.h"

#define MAX_MESSAGES 4096

/* ---- digests ---- */

struct member {
    struct clime_str key, value; /* value: raw JSON */
};

static int by_key(const void *a, const void *b) {
    const struct member *x = a, *y = b;
    size_t n = x->key.len < y->key.len ? x->key.len : y->key.len;
    int c = memcmp(x->key.ptr, y->key.ptr, n);
    return c ? c : (x->key.len > y->key.len) - (x->key.len < y->key.len);
}

/* Appends raw (valid JSON, at most CLIME_JSON_MAX_DEPTH deep) in one form: members by name, no space, one escape. */
static void write_canonical(struct clime_str raw, struct clime_arena *a, struct clime_jw *w) {
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str s, item;
    clime_json_init(&j, raw.ptr, raw.len, a, &e);
    switch (clime_json_peek(&j)) {
    case CLIME_JSON_STRING:
        clime_json_string(&j, &s);
        clime_jw_str(w, s);
        break;
    case CLIME_JSON_ARRAY:
        clime_jw_array(w);
        for (clime_json_array(&j); clime_json_item(&j);) {
            clime_json_skip(&j, &item);
            write_canonical(item, a, w);
        }
        clime_jw_close(w);
        break;
    case CLIME_JSON_OBJECT: {
        struct member *m = NULL;
        size_t n = 0, size = 0;
        for (clime_json_object(&j); clime_json_key(&j, &s);) {
            clime_json_skip(&j, &item);
            if (n == size) m = xrealloc(m, (size = size ? 2 * size : 8) * sizeof *m);
            m[n++] = (struct member){s, item};
        }
        if (n > 1) qsort(m, n, sizeof *m, by_key);
        clime_jw_object(w);
        for (size_t i = 0; i < n; i++) {
            clime_jw_key_str(w, m[i].key);
            write_canonical(m[i].value, a, w);
        }
        clime_jw_close(w);
        free(m);
        break;
    }
    default:
        clime_jw_raw(w, raw);
    }
}

/* key = SHA-256(key | canonical form of raw). */
static void chain(uint8_t key[CLIME_SESSION_KEY], struct clime_str raw, struct clime_arena *a) {
    struct clime_buf text;
    struct clime_jw w;
    struct clime_sha256 h;
    clime_buf_init(&text, 2 * CLIME_RENDER_MAX);
    clime_jw_init(&w, &text);
    write_canonical(raw, a, &w);
    clime_sha256_init(&h);
    clime_sha256_add(&h, key, CLIME_SESSION_KEY);
    clime_sha256_add(&h, text.data, text.len);
    clime_sha256_done(&h, key);
    clime_buf_free(&text);
}

void clime_history_answer(const uint8_t key[CLIME_SESSION_KEY], struct clime_str content,
                          uint8_t out[CLIME_SESSION_KEY]) {
    struct clime_buf message;
    struct clime_arena a;
    struct clime_jw w;
    clime_buf_init(&message, 2 * CLIME_RENDER_MAX);
    clime_arena_init(&a, CLIME_RENDER_MAX);
    clime_jw_init(&w, &message);
    clime_jw_object(&w);
    clime_jw_key(&w, "content");
    clime_jw_str(&w, content);
    clime_jw_key(&w, "role");
    clime_jw_strz(&w, "assistant");
    clime_jw_close(&w);
    memmove(out, key, CLIME_SESSION_KEY);
    chain(out, clime_buf_str(&message), &a);
    clime_arena_free(&a);
    clime_buf_free(&message);
}

/* ---- reading ---- */

struct reader {
    const struct clime_renderer *r;
    struct clime_tok_scratch *scratch;
    const struct clime_session *s;
    struct clime_str tools;
    struct clime_str *raw;             /* [n] messages */
    uint8_t (*key)[CLIME_SESSION_KEY]; /* [n] of messages 0..i */
    int n;
    struct clime_arena arena;
};

static enum clime_err split(struct reader *d, struct clime_str messages, struct clime_error *e) {
    struct clime_json j;
    uint8_t key[CLIME_SESSION_KEY] = {0};
    d->raw = xcalloc(MAX_MESSAGES, sizeof *d->raw);
    d->key = xcalloc(MAX_MESSAGES, sizeof *d->key);
    if (d->tools.ptr) chain(key, d->tools, &d->arena);
    clime_json_init(&j, messages.ptr, messages.len, &d->arena, e);
    for (clime_json_array(&j); clime_json_item(&j);) {
        if (d->n == MAX_MESSAGES) return clime_fail(e, CLIME_ERR_LIMIT, "messages: more than %d of them", MAX_MESSAGES);
        clime_json_skip(&j, &d->raw[d->n]);
        if (j.failed) break;
        chain(key, d->raw[d->n], &d->arena);
        memcpy(d->key[d->n++], key, CLIME_SESSION_KEY);
    }
    if (!clime_json_end(&j)) return e->code;
    return d->n ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "messages: none");
}

static enum clime_err render(struct reader *d, int n, bool prompt, struct clime_buf *out, struct clime_error *e) {
    return clime_renderer_run_list(d->r, d->raw, n, d->tools, prompt, out, NULL, e);
}

static enum clime_err encode(struct reader *d, const struct clime_buf *text, size_t from, struct clime_ids *out,
                             struct clime_error *e) {
    return clime_tokenizer_encode(d->r->tok, d->scratch, (struct clime_str){text->data + from, text->len - from}, 0,
                                  CLIME_RENDER_MAX, out, e);
}

static bool begins(const struct clime_buf *text, const struct clime_buf *head) {
    return !head->len || (text->len >= head->len && !memcmp(text->data, head->data, head->len));
}

/* The tokens that follow turn `parent`, whose history is the first k messages, up to the next answer. *fits is false
 * when the template renders those k messages otherwise now. */
static enum clime_err go_on(struct reader *d, int parent, int k, bool *fits, struct clime_ids *given,
                            struct clime_error *e) {
    struct clime_buf before, after, all; /* the prompt of the answer; with the answer; all messages, to be answered */
    struct clime_ids answer = {0};
    enum clime_err rc;
    clime_buf_init(&before, CLIME_RENDER_MAX);
    clime_buf_init(&after, CLIME_RENDER_MAX);
    clime_buf_init(&all, CLIME_RENDER_MAX);
    if ((rc = render(d, k - 1, true, &before, e)) || (rc = render(d, k, false, &after, e)) ||
        (rc = render(d, d->n, true, &all, e)))
        goto done;
    *fits = begins(&after, &before) && begins(&all, &after);
    if (!*fits || (rc = encode(d, &after, before.len, &answer, e))) goto done;

    int n = clime_session_path(d->s, parent, NULL);
    int32_t *path = xmalloc((size_t)n * sizeof *path + 1);
    clime_session_path(d->s, parent, path);
    bool ended = n > 0 && clime_renderer_ends_turn(d->r, path[n - 1]); /* the policy sampled the end of its turn */
    int32_t last = n > 0 ? path[n - 1] : -1;
    free(path);

    size_t end = answer.len; /* behind the template's own end of the turn; 0 = it has none */
    while (end > 0 && !clime_renderer_ends_turn(d->r, answer.data[end - 1])) end--;
    size_t from = ended || !end ? end : end - 1; /* an answer that was cut short is ended now */
    if (end) clime_ids_append(given, answer.data + from, answer.len - from);
    size_t glue = given->len;
    rc = encode(d, &all, after.len, given, e);
    if (!rc && !end && ended && given->len > glue && given->data[glue] == last) { /* it was the next turn's mark */
        memmove(given->data + glue, given->data + glue + 1, (given->len - glue - 1) * sizeof *given->data);
        given->len--;
    }
done:
    clime_ids_free(&answer);
    clime_buf_free(&all);
    clime_buf_free(&after);
    clime_buf_free(&before);
    return rc;
}

static enum clime_err read_history(struct reader *d, int *parent, struct clime_ids *given, struct clime_error *e) {
    *parent = -1;
    for (int k = d->n - 1; k > 0; k--) {
        int turn = clime_session_find_key(d->s, d->key[k - 1]);
        if (turn < 0) continue;
        bool fits = false;
        enum clime_err rc = go_on(d, turn, k, &fits, given, e);
        if (rc || fits) {
            *parent = turn;
            return rc;
        }
        break;
    }
    struct clime_buf all;
    clime_buf_init(&all, CLIME_RENDER_MAX);
    enum clime_err rc = render(d, d->n, true, &all, e);
    if (!rc) rc = encode(d, &all, 0, given, e);
    clime_buf_free(&all);
    return rc;
}

enum clime_err clime_history_read(const struct clime_renderer *r, struct clime_tok_scratch *scratch,
                                  const struct clime_session *s, struct clime_str messages, struct clime_str tools,
                                  int *parent, struct clime_ids *given, uint8_t key[CLIME_SESSION_KEY],
                                  struct clime_error *e) {
    struct reader d = {.r = r, .scratch = scratch, .s = s, .tools = tools};
    struct clime_buf plain;
    clime_buf_init(&plain, CLIME_RENDER_MAX);
    clime_arena_init(&d.arena, 4 * CLIME_RENDER_MAX);
    enum clime_err rc = clime_chat_messages(messages, clime_chat_takes(r->template), &plain, e);
    if (!rc) rc = split(&d, clime_buf_str(&plain), e);
    if (!rc) rc = read_history(&d, parent, given, e);
    if (!rc) memcpy(key, d.key[d.n - 1], CLIME_SESSION_KEY);
    free(d.raw);
    free(d.key);
    clime_arena_free(&d.arena);
    clime_buf_free(&plain);
    return rc;
}
