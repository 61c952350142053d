/* Chat history matching: maps messages to turns. Called by the thread that serves a session; pure functions.
 *
 * Invariant: tokens of an extended turn stay as sampled; only what follows is rendered, as the difference of two
 * renderings (like trainer/data/conversation.c for sft). */
#include "trainer/env/history.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "text/chat/prepare.h"

#define MAX_MESSAGES 4096

/* ---- digests ---- */

struct member {
    struct clime_str key, value; /* value: raw JSON */
};

static int compare_keys(const struct member *x, const struct member *y) {
    size_t n = x->key.len < y->key.len ? x->key.len : y->key.len;
    int c = memcmp(x->key.ptr, y->key.ptr, n);
    return c ? c : (x->key.len > y->key.len) - (x->key.len < y->key.len);
}

static int by_key(const void *a, const void *b) { /* duplicates in order of the text, which holds all values */
    const struct member *x = a, *y = b;
    int c = compare_keys(x, y);
    return c ? c : (x->value.ptr > y->value.ptr) - (x->value.ptr < y->value.ptr);
}

/* The members of an object, by name. Of duplicates the last, which a client's JSON library keeps of an object that the
 * policy wrote. The caller frees them. */
static struct member *members_of(struct clime_json *j, size_t *n) {
    struct member *m = NULL;
    struct clime_str key, item;
    size_t size = 0;
    *n = 0;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        clime_json_skip(j, &item);
        if (*n == size) m = xrealloc(m, (size = size ? 2 * size : 8) * sizeof *m);
        m[(*n)++] = (struct member){key, item};
    }
    if (*n < 2) return m;
    qsort(m, *n, sizeof *m, by_key);
    size_t kept = 0;
    for (size_t i = 1; i < *n; i++) {
        if (compare_keys(&m[kept], &m[i])) kept++;
        m[kept] = m[i];
    }
    *n = kept + 1;
    return m;
}

/* "e-5" or "" */
static int64_t read_exponent(struct clime_str s) {
    int64_t power = 0;
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] >= '0' && s.ptr[i] <= '9' && power < INT32_MAX) power = 10 * power + (s.ptr[i] - '0');
    return s.len > 1 && s.ptr[1] == '-' ? -power : power;
}

/* Writes a number's decimal value: digits without leading or trailing zeros, and a power of ten. So 1, 1.0 and 10e-1
 * match, as they do for a client that parses and prints them. */
static void write_number(struct clime_str raw, struct clime_jw *w) {
    struct clime_buf text;
    int64_t power = 0, zeros = 0;
    size_t i = 0, begin;
    bool fraction = false;
    clime_buf_init(&text, raw.len + 32);
    clime_buf_addc(&text, 'n'); /* no other value begins with this */
    if (raw.len && raw.ptr[0] == '-') clime_buf_addc(&text, raw.ptr[i++]);
    for (begin = text.len; i < raw.len && raw.ptr[i] != 'e' && raw.ptr[i] != 'E'; i++) {
        if (raw.ptr[i] == '.') {
            fraction = true;
            continue;
        }
        power -= fraction;
        if (raw.ptr[i] == '0') {
            zeros += text.len > begin;
            continue;
        }
        for (; zeros > 0; zeros--) clime_buf_addc(&text, '0');
        clime_buf_addc(&text, raw.ptr[i]);
    }
    power += zeros + read_exponent((struct clime_str){raw.ptr + i, raw.len - i});
    if (text.len > begin) {
        clime_buf_printf(&text, "e%lld", (long long)power);
    } else { /* of either sign */
        clime_buf_clear(&text);
        clime_buf_adds(&text, "n0");
    }
    clime_jw_raw(w, clime_buf_str(&text));
    clime_buf_free(&text);
}

/* Appends raw (valid JSON, at most CLIME_JSON_MAX_DEPTH deep) canonically: members by name, no space, one escape. */
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
        size_t n;
        struct member *m = members_of(&j, &n);
        clime_jw_object(w);
        for (size_t i = 0; i < n; i++) {
            clime_jw_key_str(w, m[i].key);
            write_canonical(m[i].value, a, w);
        }
        clime_jw_close(w);
        free(m);
        break;
    }
    case CLIME_JSON_NUMBER:
        write_number(raw, w);
        break;
    default:
        clime_jw_raw(w, raw);
    }
}

/* Writes a call's arguments as an object; they may be the text of one. */
static void write_arguments(struct clime_str raw, struct clime_arena *a, struct clime_jw *w) {
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str text;
    clime_json_init(&j, raw.ptr, raw.len, a, &e);
    if (clime_json_peek(&j) == CLIME_JSON_STRING && clime_json_string(&j, &text)) {
        clime_json_init(&j, text.ptr, text.len, a, &e);
        if (clime_json_skip(&j, NULL) && clime_json_end(&j)) raw = text;
    }
    write_canonical(raw, a, w);
}

/* Writes id, name and arguments of each call. */
static void write_calls(struct clime_str raw, struct clime_arena *a, struct clime_jw *w) {
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str key, inner, item;
    clime_jw_array(w);
    clime_json_init(&j, raw.ptr, raw.len, a, &e);
    for (clime_json_array(&j); clime_json_item(&j);) {
        struct clime_str id = {"null", 4}, name = id, arguments = id;
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            if (clime_str_is(key, "function") && clime_json_peek(&j) == CLIME_JSON_OBJECT) {
                for (clime_json_object(&j); clime_json_key(&j, &inner);) {
                    clime_json_skip(&j, &item);
                    if (clime_str_is(inner, "name")) name = item;
                    if (clime_str_is(inner, "arguments")) arguments = item;
                }
            } else {
                clime_json_skip(&j, clime_str_is(key, "id") ? &id : NULL);
            }
        }
        clime_jw_array(w);
        write_canonical(id, a, w);
        write_canonical(name, a, w);
        write_arguments(arguments, a, w);
        clime_jw_close(w);
    }
    clime_jw_close(w);
}

/* True for fields that libraries add to an answer they repeat. */
static bool is_envelope(struct clime_str key) {
    static const char *const names[] = {"refusal", "annotations", "audio", "function_call", "provider_specific_fields"};
    for (size_t i = 0; i < CLIME_COUNT(names); i++)
        if (clime_str_is(key, names[i])) return true;
    return false;
}

/* True when raw JSON is this text. */
static bool is_text(struct clime_str raw, const char *text, struct clime_arena *a) {
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str s;
    clime_json_init(&j, raw.ptr, raw.len, a, &e);
    return clime_json_peek(&j) == CLIME_JSON_STRING && clime_json_string(&j, &s) && clime_str_is(s, text);
}

static bool is_thought(struct clime_str key) {
    for (const char *const *name = clime_chat_thoughts; *name; name++)
        if (clime_str_is(key, *name)) return true;
    return false;
}

/* Writes a prepared message; bare: without an assistant's reasoning, which has one name after preparation. */
static void write_message(struct clime_str raw, bool bare, struct clime_arena *a, struct clime_jw *w) {
    struct clime_json j;
    struct clime_error e = {0};
    size_t n;
    clime_json_init(&j, raw.ptr, raw.len, a, &e);
    struct member *m = members_of(&j, &n);
    bool answer = false;
    for (size_t i = 0; i < n; i++)
        answer = answer || (clime_str_is(m[i].key, "role") && is_text(m[i].value, "assistant", a));
    clime_jw_object(w);
    for (size_t i = 0; i < n; i++) {
        if (answer && ((bare && is_thought(m[i].key)) || is_envelope(m[i].key))) continue;
        clime_jw_key_str(w, m[i].key);
        if (answer && clime_str_is(m[i].key, "tool_calls"))
            write_calls(m[i].value, a, w);
        else
            write_canonical(m[i].value, a, w);
    }
    clime_jw_close(w);
    free(m);
}

enum what { VALUE, MESSAGE, BARE_MESSAGE };

/* out = SHA-256(key | canonical form of raw). */
static void chain(const uint8_t key[CLIME_SESSION_KEY], enum what what, struct clime_str raw, struct clime_arena *a,
                  uint8_t out[CLIME_SESSION_KEY]) {
    struct clime_buf text;
    struct clime_jw w;
    struct clime_sha256 h;
    clime_buf_init(&text, 2 * CLIME_RENDER_MAX);
    clime_jw_init(&w, &text);
    if (what == VALUE)
        write_canonical(raw, a, &w);
    else
        write_message(raw, what == BARE_MESSAGE, a, &w);
    clime_sha256_init(&h);
    clime_sha256_add(&h, key, CLIME_SESSION_KEY);
    clime_sha256_add(&h, text.data, text.len);
    clime_sha256_done(&h, out);
    clime_buf_free(&text);
}

void clime_history_answered(const struct clime_history *h, const struct clime_chat_template *t,
                            struct clime_str message, struct clime_session *s, int turn) {
    struct clime_buf list, plain;
    struct clime_arena a;
    struct clime_error e = {0};
    clime_buf_init(&list, 2 * CLIME_RENDER_MAX);
    clime_buf_init(&plain, 2 * CLIME_RENDER_MAX);
    clime_arena_init(&a, 2 * CLIME_RENDER_MAX);
    clime_buf_addc(&list, '[');
    clime_buf_add(&list, message.ptr, message.len);
    clime_buf_addc(&list, ']');
    /* An answer that cannot be parsed back cannot be repeated: no turn will extend this one. */
    if (!clime_chat_prepare(clime_chat_form_for(t, h->tools), clime_buf_str(&list), &plain, NULL, &e)) {
        struct clime_str one = {plain.data + 1, plain.len - 2};
        uint8_t(*keys)[CLIME_SESSION_KEY] = xmalloc((size_t)(h->n_keys + 1) * sizeof *keys), bare[CLIME_SESSION_KEY];
        memcpy(keys, h->keys, (size_t)h->n_keys * sizeof *keys);
        chain(keys[h->n_keys - 1], MESSAGE, one, &a, keys[h->n_keys]);
        chain(keys[h->n_keys - 1], BARE_MESSAGE, one, &a, bare);
        clime_session_set_history(s, turn, (const uint8_t(*)[CLIME_SESSION_KEY])keys, h->n_keys + 1, bare);
        free(keys);
    }
    clime_arena_free(&a);
    clime_buf_free(&plain);
    clime_buf_free(&list);
}

/* ---- reading ---- */

struct reader {
    const struct clime_chat_template *t;
    struct clime_chat_prompt prompt; /* messages and tools */
    struct clime_tok_scratch *scratch;
    const struct clime_session *s;
    struct clime_str *raw;              /* [n] messages */
    uint8_t (*keys)[CLIME_SESSION_KEY]; /* [n + 1] digests: tools, then up to each message */
    int n;
    struct clime_arena arena;
};

static enum clime_err split(struct reader *d, struct clime_str messages, struct clime_error *e) {
    struct clime_json j;
    d->raw = xcalloc(MAX_MESSAGES, sizeof *d->raw);
    d->keys = xcalloc(MAX_MESSAGES + 1, sizeof *d->keys);
    if (d->prompt.tools.ptr) chain(d->keys[0], VALUE, d->prompt.tools, &d->arena, d->keys[0]);
    clime_json_init(&j, messages.ptr, messages.len, &d->arena, e);
    for (clime_json_array(&j); clime_json_item(&j);) {
        if (d->n == MAX_MESSAGES) return clime_fail(e, CLIME_ERR_LIMIT, "messages: more than %d of them", MAX_MESSAGES);
        clime_json_skip(&j, &d->raw[d->n]);
        if (j.failed) break;
        chain(d->keys[d->n], MESSAGE, d->raw[d->n], &d->arena, d->keys[d->n + 1]);
        d->n++;
    }
    if (!clime_json_end(&j)) return e->code;
    return d->n ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "messages: none");
}

static enum clime_err render(struct reader *d, int n, bool prompt, struct clime_buf *out, struct clime_error *e) {
    d->prompt.no_generation_prompt = !prompt;
    return clime_chat_render_list(d->t, &d->prompt, d->raw, n, out, NULL, e);
}

static enum clime_err encode(struct reader *d, const struct clime_buf *text, size_t from, struct clime_ids *out,
                             struct clime_error *e) {
    return clime_tokenizer_encode(d->t->tok, d->scratch, (struct clime_str){text->data + from, text->len - from}, 0,
                                  CLIME_RENDER_MAX, out, e);
}

static bool begins(const struct clime_buf *text, const struct clime_buf *head) {
    return !head->len || (text->len >= head->len && !memcmp(text->data, head->data, head->len));
}

/* Finds the tokens from turn `parent`, whose history is the first k messages, to the next answer. *fits is false when
 * the template now renders those k messages differently, or rejects them alone: some raise an exception when the last
 * message is not a user's. */
static enum clime_err go_on(struct reader *d, int parent, int k, bool *fits, struct clime_ids *given,
                            struct clime_error *e) {
    struct clime_buf before, after, all; /* answer's prompt; prompt and answer; all messages and generation prompt */
    struct clime_ids answer = {0};
    struct clime_error alone = {0};
    enum clime_err rc;
    clime_buf_init(&before, CLIME_RENDER_MAX);
    clime_buf_init(&after, CLIME_RENDER_MAX);
    clime_buf_init(&all, CLIME_RENDER_MAX);
    if ((rc = render(d, d->n, true, &all, e))) goto done;
    *fits = !render(d, k - 1, true, &before, &alone) && !render(d, k, false, &after, &alone) &&
            begins(&after, &before) && begins(&all, &after);
    if (!*fits || (rc = encode(d, &after, before.len, &answer, e))) goto done;

    int n = clime_session_path(d->s, parent, NULL);
    int32_t *path = xmalloc((size_t)n * sizeof *path + 1);
    clime_session_path(d->s, parent, path);
    bool ended =
        n > 0 && clime_tokenizer_ends_turn(d->t->tok, path[n - 1]); /* the policy sampled the end-of-turn token */
    int32_t last = n > 0 ? path[n - 1] : -1;
    free(path);

    size_t end = answer.len; /* after the template's end-of-turn token; 0 = none */
    while (end > 0 && !clime_tokenizer_ends_turn(d->t->tok, answer.data[end - 1])) end--;
    size_t from = ended || !end ? end : end - 1; /* a truncated answer is ended now */
    if (end) clime_ids_append(given, answer.data + from, answer.len - from);
    size_t glue = given->len;
    rc = encode(d, &all, after.len, given, e);
    if (!rc && !end && ended && given->len > glue && given->data[glue] == last) { /* the next turn's first token */
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

static bool is_answer(struct reader *d, int message) {
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str key, raw;
    bool answer = false;
    clime_json_init(&j, d->raw[message].ptr, d->raw[message].len, &d->arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        clime_json_skip(&j, &raw);
        if (clime_str_is(key, "role")) answer = is_text(raw, "assistant", &d->arena);
    }
    return answer;
}

/* True when an answer follows message k: it was changed, or it would have been found. */
static bool has_answer(struct reader *d, int k) {
    while (k < d->n && !is_answer(d, k)) k++;
    return k < d->n;
}

/* The kind of branch: how the messages differ from every turn. */
static enum clime_turn_kind why(struct reader *d) {
    bool bare;
    int n = clime_session_common(d->s, (const uint8_t(*)[CLIME_SESSION_KEY])d->keys, d->n + 1, &bare);
    if (clime_session_turns(d->s) == 0) return CLIME_TURN_FIRST;
    if (bare) return CLIME_TURN_REASONING;
    if (n < 0 || n == 1) return CLIME_TURN_OTHER;
    if (n == 0) return CLIME_TURN_TOOLS;
    if (n == d->n + 1) return CLIME_TURN_REWOUND;
    return is_answer(d, n - 1) ? CLIME_TURN_ANSWER : CLIME_TURN_MESSAGE;
}

static enum clime_err read_history(struct reader *d, struct clime_history *h, struct clime_error *e) {
    h->parent = -1;
    h->kind = why(d);
    for (int k = d->n - 1; k > 0; k--) {
        int turn = clime_session_find_key(d->s, d->keys[k]);
        if (turn < 0) continue;
        bool fits = false;
        enum clime_err rc = go_on(d, turn, k, &fits, &h->given, e);
        if (rc || fits) {
            h->parent = turn;
            h->kind = has_answer(d, k)                    ? why(d)
                      : clime_session_is_leaf(d->s, turn) ? CLIME_TURN_EXTENDED
                                                          : CLIME_TURN_REWOUND;
            return rc;
        }
        h->kind = CLIME_TURN_TEMPLATE;
        break;
    }
    struct clime_buf all;
    clime_buf_init(&all, CLIME_RENDER_MAX);
    enum clime_err rc = render(d, d->n, true, &all, e);
    if (!rc) rc = encode(d, &all, 0, &h->given, e);
    clime_buf_free(&all);
    return rc;
}

enum clime_err clime_history_read(const struct clime_chat_template *t, struct clime_tok_scratch *scratch,
                                  const struct clime_session *s, struct clime_str messages, struct clime_str tools,
                                  struct clime_history *h, struct clime_error *e) {
    struct reader d = {.t = t, .scratch = scratch, .s = s, .prompt = {.messages = messages, .tools = tools}};
    struct clime_buf plain;
    clime_buf_init(&plain, CLIME_RENDER_MAX);
    clime_arena_init(&d.arena, 4 * CLIME_RENDER_MAX);
    h->tools = tools;
    enum clime_err rc = clime_chat_prepared(t, &d.prompt, &plain, e);
    if (!rc) rc = split(&d, clime_buf_str(&plain), e);
    if (!rc) rc = read_history(&d, h, e);
    free(d.raw);
    h->keys = d.keys;
    h->n_keys = d.n + 1;
    clime_arena_free(&d.arena);
    clime_buf_free(&plain);
    return rc;
}

void clime_history_free(struct clime_history *h) {
    clime_ids_free(&h->given);
    free(h->keys);
    *h = (struct clime_history){0};
}
