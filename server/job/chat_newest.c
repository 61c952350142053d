/* Truncates a conversation (see chat_newest.h). Called by server/api/generation.c on text threads; frees what it
 * allocates.
 *
 * A binary search finds the number of rounds to drop, so a long conversation is rendered a few times, not once a round.
 * Invariant: it fits with `hi` rounds dropped, not with `lo`.
 */
#include "server/job/chat_newest.h"

#include <stdlib.h>

#include "common/json/scan.h"

#define MAX_RENDERED ((size_t)64 << 20)

struct cut {
    const struct clime_chat_template *t;
    const struct clime_tokenizer *tok;
    struct clime_tok_scratch *scratch;
    const struct clime_chat_prompt *p;
    unsigned flags;
    size_t most;
    size_t system_end; /* offset in p->messages after the leading system messages, 0 = none */
    size_t *rounds;    /* [n] start of each */
    int n, size;
    int last_user; /* round */
};

static void add_round(struct cut *c, size_t at) {
    if (c->n == c->size) {
        c->size = c->size ? 2 * c->size : 64;
        c->rounds = xrealloc(c->rounds, (size_t)c->size * sizeof *c->rounds);
    }
    c->rounds[c->n++] = at;
}

static enum clime_err read_rounds(struct cut *c, struct clime_arena *a, struct clime_error *e) {
    struct clime_json j;
    clime_json_init(&j, c->p->messages.ptr, c->p->messages.len, a, e);
    for (clime_json_array(&j); clime_json_item(&j);) {
        clime_json_peek(&j); /* skips white space */
        size_t at = (size_t)(j.at - j.start);
        struct clime_str role = clime_json_member_text(&j, "role");
        if (c->n == 0 && (clime_str_is(role, "system") || clime_str_is(role, "developer")))
            c->system_end = (size_t)(j.at - j.start);
        else if (c->n == 0 || !clime_str_is(role, "tool"))
            add_round(c, at);
        if (c->n > 0 && clime_str_is(role, "user")) c->last_user = c->n - 1;
    }
    return clime_json_end(&j) ? CLIME_OK : e->code;
}

/* The prompt without the first `gone` rounds. */
static enum clime_err encode(const struct cut *c, int gone, struct clime_ids *ids, struct clime_error *e) {
    struct clime_chat_prompt newest = *c->p;
    struct clime_buf messages, text;
    enum clime_err err;
    clime_buf_init(&messages, newest.messages.len + 16);
    clime_buf_init(&text, MAX_RENDERED);
    clime_buf_adds(&messages, "[");
    if (c->system_end) {
        struct clime_str system = {newest.messages.ptr + 1, c->system_end - 1}; /* after the bracket */
        clime_buf_add(&messages, system.ptr, system.len);
        clime_buf_adds(&messages, ",");
    }
    clime_buf_add(&messages, newest.messages.ptr + c->rounds[gone], newest.messages.len - c->rounds[gone]);
    newest.messages = clime_buf_str(&messages);
    ids->len = 0;
    err = clime_chat_render(c->t, &newest, &text, NULL, e);
    if (!err) err = clime_tokenizer_encode_up_to(c->tok, c->scratch, clime_buf_str(&text), c->flags, c->most, ids, e);
    clime_buf_free(&text);
    clime_buf_free(&messages);
    return err;
}

enum clime_err clime_chat_newest(const struct clime_chat_template *t, const struct clime_tokenizer *tok,
                                 struct clime_tok_scratch *scratch, const struct clime_chat_prompt *p, unsigned flags,
                                 size_t most, size_t limit, struct clime_ids *ids, struct clime_error *e) {
    struct cut c = {.t = t, .tok = tok, .scratch = scratch, .p = p, .flags = flags, .most = most};
    struct clime_error ignored = {0};
    struct clime_ids tried = {0};
    struct clime_arena a;
    clime_arena_init(&a, p->messages.len * 2 + 65536);
    enum clime_err err = read_rounds(&c, &a, e);
    if (!err && c.n == 0) err = clime_fail(e, CLIME_ERR_LIMIT, "only system messages are left");
    const bool has_rounds = !err;
    int lo = 0, hi = c.n - 1;
    if (has_rounds) err = encode(&c, hi, ids, e);
    if (err == CLIME_ERR_INPUT && c.last_user > 0 && c.last_user < hi) err = encode(&c, hi = c.last_user, ids, e);
    if (has_rounds && err == CLIME_ERR_LIMIT && most < limit) { /* a shorter reply is better than none */
        c.most = limit;
        err = encode(&c, lo = hi, ids, e);
    }
    if (err == CLIME_ERR_INPUT) {
        ignored = *e;
        err = clime_fail(e, CLIME_ERR_LIMIT, "and the chat template takes no shorter one: %s", ignored.msg);
    }
    while (!err && hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (encode(&c, mid, &tried, &ignored)) {
            lo = mid;
            continue;
        }
        struct clime_ids worse = *ids;
        *ids = tried;
        tried = worse;
        hi = mid;
    }
    clime_ids_free(&tried);
    clime_arena_free(&a);
    free(c.rounds);
    return err;
}
