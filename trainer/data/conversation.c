/* Conversation encoder: samples with exact loss masks. Called while sft loads its data, main thread; owns nothing.
 *
 * Invariant: ids and mask grow together, and a trained token is one that sampling after the tokens before it could have
 * produced. So the pieces of an incrementally rendered conversation are tokenised one by one, at the borders that
 * sampling would have; a conversation with marked spans is tokenised whole, as in transformers. */
#include "trainer/data/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"

struct message {
    bool assistant, trained;
};

/* A sample under construction. */
struct draft {
    struct clime_ids ids;
    struct clime_buf mask; /* [ids.len] 0 or 1 */
};

struct reader {
    const struct clime_chat_template *t;
    struct clime_chat_prompt prompt; /* holds the tools */
    struct clime_tok_scratch *scratch;
    struct clime_buf prepared; /* the messages */
    struct clime_arena arena;
    struct message *messages; /* [n] */
    struct clime_str *raw;    /* [n] their JSON, in prepared */
    int n, n_context;
    struct clime_conversation_samples *out;
};

static enum clime_err read_messages(struct reader *d, struct clime_error *e) {
    struct clime_json j, m;
    struct clime_error je = {0};
    struct clime_str raw, key, role, text;
    int size = 0;
    enum clime_err rc = clime_chat_prepared(d->t, &d->prompt, &d->prepared, e);
    if (rc) return rc;
    text = clime_buf_str(&d->prepared);
    clime_json_init(&j, text.ptr, text.len, &d->arena, &je);
    for (clime_json_array(&j); clime_json_item(&j);) {
        struct message x = {.trained = true};
        int64_t keep = 1, weight = 1;
        clime_json_skip(&j, &raw);
        clime_json_init(&m, raw.ptr, raw.len, &d->arena, &je);
        role = (struct clime_str){0};
        for (clime_json_object(&m); clime_json_key(&m, &key);) {
            if (clime_str_is(key, "role"))
                clime_json_string(&m, &role);
            else if (clime_str_is(key, "step_loss_mask"))
                clime_json_int(&m, 0, 1, &keep);
            else if (clime_str_is(key, "weight"))
                clime_json_int(&m, 0, 1, &weight);
            else
                clime_json_skip(&m, NULL);
        }
        if (!clime_json_end(&m)) return clime_fail(e, CLIME_ERR_INPUT, "messages[%d]: %s", d->n, je.msg);
        x.assistant = clime_str_is(role, "assistant");
        x.trained = x.assistant && keep && weight && d->n >= d->n_context;
        if (d->n == size) {
            size = size ? 2 * size : 16;
            d->messages = xrealloc(d->messages, (size_t)size * sizeof *d->messages);
            d->raw = xrealloc(d->raw, (size_t)size * sizeof *d->raw);
        }
        d->raw[d->n] = raw;
        d->messages[d->n++] = x;
    }
    return clime_json_end(&j) ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "the messages: %s", je.msg);
}

/* Appends the rendering of the first n messages. */
static enum clime_err render(struct reader *d, int n, bool prompt, struct clime_buf *out, struct clime_spans *spans,
                             struct clime_error *e) {
    d->prompt.no_generation_prompt = !prompt;
    return clime_chat_render_list(d->t, &d->prompt, d->raw, n, out, spans, e);
}

/* ---- the draft ---- */

static void draft_clear(struct draft *s) {
    clime_ids_free(&s->ids);
    clime_buf_clear(&s->mask);
}

static void draft_extend_mask(struct draft *s, char value) {
    while (s->mask.len < s->ids.len) clime_buf_addc(&s->mask, value);
}

static enum clime_err draft_add(struct reader *d, struct draft *s, struct clime_str text, char value,
                                struct clime_error *e) {
    enum clime_err rc = clime_tokenizer_encode(d->t->tok, d->scratch, text, 0, CLIME_RENDER_MAX, &s->ids, e);
    draft_extend_mask(s, value);
    return rc;
}

/* Appends the draft to the samples, cut after its last trained token; clears it. */
static void draft_finish(struct reader *d, struct draft *s) {
    size_t first = 0, last = s->mask.len;
    while (last > 0 && !s->mask.data[last - 1]) last--;
    while (first < last && !s->mask.data[first]) first++;
    if (first == 0) first = 1; /* nothing predicts the first token */
    if (first < last) {
        struct clime_conversation_samples *out = d->out;
        struct clime_sample *x = clime_sample_new();
        x->n_prompt = (int32_t)first;
        x->n_response = (int32_t)(last - first);
        x->ids = s->ids.data;
        s->ids = (struct clime_ids){0};
        x->mask = xmalloc(last - first);
        memcpy(x->mask, s->mask.data + first, last - first);
        if (out->n == out->size) {
            out->size = out->size ? 2 * out->size : 256;
            out->data = xrealloc(out->data, (size_t)out->size * sizeof(struct clime_sample *));
        }
        out->data[out->n++] = x;
    }
    draft_clear(s);
}

/* ---- templates with {% generation %} ---- */

static size_t spelt_bytes(const struct clime_tokenizer *tok, const struct clime_ids *ids) {
    size_t n = 0;
    for (size_t i = 0; i < ids->len; i++) n += clime_tokenizer_bytes(tok, ids->data[i]).len;
    return n;
}

/* Maps byte `at` of text to the tokens' spelling, as a normaliser may have changed the text before it. */
static enum clime_err spelt_at(struct reader *d, struct clime_str text, size_t at, size_t *out, struct clime_error *e) {
    struct clime_ids before = {0};
    struct clime_str head = {text.ptr, at};
    enum clime_err rc = clime_tokenizer_encode(d->t->tok, d->scratch, head, 0, CLIME_RENDER_MAX, &before, e);
    *out = spelt_bytes(d->t->tok, &before);
    clime_ids_free(&before);
    return rc;
}

/* Marks the tokens with a byte in the span. */
static enum clime_err mark(struct reader *d, struct clime_str text, struct clime_span span, struct draft *s,
                           struct clime_error *e) {
    size_t begin = span.begin, end = span.end;
    if (begin == end) return CLIME_OK;
    if (spelt_bytes(d->t->tok, &s->ids) != text.len) {
        enum clime_err rc = spelt_at(d, text, span.begin, &begin, e);
        if (!rc) rc = spelt_at(d, text, span.end, &end, e);
        if (rc) return rc;
    }
    for (size_t i = 0, at = 0; i < s->ids.len && at < end; i++) {
        at += clime_tokenizer_bytes(d->t->tok, s->ids.data[i]).len;
        if (at > begin) s->mask.data[i] = 1;
    }
    return CLIME_OK;
}

static enum clime_err read_marked(struct reader *d, struct clime_error *e) {
    struct clime_buf text;
    struct clime_spans spans = {0};
    struct draft s = {0};
    size_t n_assistant = 0;
    bool all = true;
    clime_buf_init(&text, CLIME_RENDER_MAX);
    clime_buf_init(&s.mask, CLIME_RENDER_MAX);
    enum clime_err rc = render(d, d->n, false, &text, &spans, e);
    if (!rc) rc = draft_add(d, &s, clime_buf_str(&text), 0, e);
    if (rc) goto done;
    for (int i = 0; i < d->n; i++) {
        n_assistant += d->messages[i].assistant;
        all = all && d->messages[i].assistant == d->messages[i].trained;
    }
    if (!all && n_assistant != spans.n) {
        rc = clime_fail(e, CLIME_ERR_INPUT,
                        "\"step_loss_mask\": the template marks %zu spans for %zu assistant messages", spans.n,
                        n_assistant);
        goto done;
    }
    for (size_t i = 0, m = 0; i < spans.n && !rc; i++, m++) {
        if (!all) {
            while (!d->messages[m].assistant) m++;
            if (!d->messages[m].trained) continue;
        }
        rc = mark(d, clime_buf_str(&text), spans.data[i], &s, e);
    }
    if (!rc) draft_finish(d, &s);
done:
    draft_clear(&s);
    clime_buf_free(&s.mask);
    clime_spans_free(&spans);
    clime_buf_free(&text);
    return rc;
}

/* ---- templates without {% generation %} ---- */

/* Adds an assistant message's tokens: trained up to the last end-of-turn token, context after it. *open: there was
 * none, so the token that begins the next turn ends this one (GLM-4's <|user|>). */
static enum clime_err add_answer(struct reader *d, struct draft *s, struct clime_str text, bool trained, bool *open,
                                 struct clime_error *e) {
    size_t from = s->ids.len;
    enum clime_err rc = draft_add(d, s, text, trained, e);
    if (rc) return rc;
    size_t end = s->ids.len;
    while (end > from && !clime_tokenizer_ends_turn(d->t->tok, s->ids.data[end - 1])) end--;
    *open = end == from;
    if (!*open) memset(s->mask.data + end, 0, s->ids.len - end);
    return CLIME_OK;
}

/* Ends an open last turn. */
static void close_turn(struct reader *d, struct draft *s, bool open, bool trained) {
    int32_t end = clime_tokenizer_text_end(d->t->tok);
    if (!open || end < 0 || !s->ids.len) return;
    clime_ids_push(&s->ids, end);
    draft_extend_mask(s, trained);
}

static enum clime_err read_incrementally(struct reader *d, struct clime_error *e) {
    struct clime_buf before, after, seen; /* a turn's prompt; prompt and turn; the draft's text */
    struct draft s = {0};
    bool open = false, trained = false;
    enum clime_err rc = CLIME_OK;
    clime_buf_init(&before, CLIME_RENDER_MAX);
    clime_buf_init(&after, CLIME_RENDER_MAX);
    clime_buf_init(&seen, CLIME_RENDER_MAX);
    clime_buf_init(&s.mask, CLIME_RENDER_MAX);
    for (int i = 0; i < d->n && !rc; i++) {
        if (!d->messages[i].assistant) continue;
        clime_buf_clear(&before);
        clime_buf_clear(&after);
        if ((rc = render(d, i, true, &before, NULL, e)) || (rc = render(d, i + 1, false, &after, NULL, e))) break;
        if (after.len < before.len || (before.len && memcmp(after.data, before.data, before.len))) {
            rc = clime_fail(e, CLIME_ERR_INPUT,
                            "message %d: the chat template renders the prompt otherwise once the answer follows; a "
                            "template with {%% generation %%} can mark it",
                            i);
            break;
        }
        bool goes_on = seen.len > 0 && before.len >= seen.len && !memcmp(before.data, seen.data, seen.len);
        if (!goes_on) {
            close_turn(d, &s, open, trained);
            draft_finish(d, &s);
            clime_buf_clear(&seen);
        }
        size_t from = s.ids.len;
        rc = draft_add(d, &s, (struct clime_str){before.data + seen.len, before.len - seen.len}, 0, e);
        if (rc) break;
        if (goes_on && open && from < s.ids.len && clime_tokenizer_ends_turn(d->t->tok, s.ids.data[from]))
            s.mask.data[from] = trained;
        trained = d->messages[i].trained;
        rc = add_answer(d, &s, (struct clime_str){after.data + before.len, after.len - before.len}, trained, &open, e);
        clime_buf_clear(&seen);
        clime_buf_add(&seen, after.data, after.len);
    }
    if (!rc) {
        close_turn(d, &s, open, trained);
        draft_finish(d, &s);
    }
    draft_clear(&s);
    clime_buf_free(&s.mask);
    clime_buf_free(&seen);
    clime_buf_free(&after);
    clime_buf_free(&before);
    return rc;
}

enum clime_err clime_conversation_read(const struct clime_chat_template *t, struct clime_tok_scratch *scratch,
                                       struct clime_str messages, struct clime_str tools, int n_context,
                                       struct clime_conversation_samples *out, struct clime_error *e) {
    struct reader d = {.t = t,
                       .scratch = scratch,
                       .prompt = {.messages = messages, .tools = tools},
                       .n_context = n_context,
                       .out = out};
    clime_arena_init(&d.arena, CLIME_RENDER_MAX);
    clime_buf_init(&d.prepared, CLIME_RENDER_MAX);
    enum clime_err rc = read_messages(&d, e);
    const bool marked = clime_template_has_generation(clime_chat_form_for(t, tools)->compiled);
    if (!rc) rc = marked ? read_marked(&d, e) : read_incrementally(&d, e);
    clime_buf_free(&d.prepared);
    free(d.messages);
    free(d.raw);
    clime_arena_free(&d.arena);
    return rc;
}
