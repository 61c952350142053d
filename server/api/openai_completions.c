/* POST /v1/completions. The handler runs on an HTTP worker, the framer on the job's emitter.
 *
 * Choices are prompt-major (i * n + j), which is the order of the job's outputs. With echo the prompt's tokens precede
 * the output in text and log-probabilities. lm-eval scores that way and compares the greedy token's value with the
 * largest of top_logprobs by ==: both must be the same float (they are: docs/numerics.md), a text shared by two tokens
 * must keep the larger value, and a token must have one name in both lists.
 */
#include <stdlib.h>

#include "common/http/sse.h"
#include "common/utf8.h"
#include "server/api/openai.h"

/* A token as a key: its text, or its bytes in OpenAI's form if that is not whole characters, since repaired text would
 * be ambiguous. */
static struct clime_str token_name(const struct clime_output *o, int32_t id, struct clime_buf *scratch) {
    const struct clime_openai_request *r = o->job->endpoint;
    struct clime_str bytes = clime_tokenizer_bytes(o->job->tokenizer, id);
    uint32_t c;
    size_t whole = 0;
    for (int n = 1; whole < bytes.len && n > 0; whole += n > 0 ? (size_t)n : 0)
        n = clime_utf8_decode(bytes.ptr + whole, bytes.len - whole, &c);
    if (whole == bytes.len && !r->ids_as_text) return bytes;
    clime_buf_clear(scratch);
    if (r->ids_as_text)
        clime_buf_printf(scratch, "token_id:%d", (int)id);
    else
        clime_buf_adds(scratch, "bytes:");
    for (size_t i = 0; i < bytes.len && !r->ids_as_text; i++)
        clime_buf_printf(scratch, "\\x%02x", (unsigned char)bytes.ptr[i]);
    return clime_buf_str(scratch);
}

/* {text: logprob}: the largest tokens or the requested ones, and the position's own; only that if none were requested
 * (x is NULL), as in vLLM. */
static void write_top(struct clime_jw *w, const struct clime_output *o, const struct clime_lp_extra *x, bool chosen,
                      int32_t own, float own_logp) {
    const struct clime_openai_request *r = o->job->endpoint;
    int from = x && chosen ? x->n_top : 0;
    int n = !x ? 0 : chosen ? x->n_ids : x->n_top < r->top ? x->n_top : r->top;
    struct clime_buf name;
    clime_buf_init(&name, CLIME_MAX_REPLY);
    clime_jw_object(w);
    for (int k = 0; k <= n; k++) {
        int32_t id = k < n ? x->at[from + k].id : own;
        struct clime_str text = clime_tokenizer_bytes(o->job->tokenizer, id);
        bool seen = false;
        for (int m = 0; m < k && !seen; m++) {
            int32_t other = x->at[from + m].id;
            seen =
                other == id || (!r->ids_as_text && clime_str_eq(clime_tokenizer_bytes(o->job->tokenizer, other), text));
        }
        if (seen) continue;
        clime_jw_key_str(w, token_name(o, id, &name));
        clime_jw_float(w, k < n ? x->at[from + k].logp : own_logp);
    }
    clime_jw_close(w);
    clime_buf_free(&name);
}

/* Iterates the positions in a reply: the prompt's (with_prompt), then the sampled ones from `from` on. */
struct position {
    int32_t id;
    bool has_logp;
    float logp;
    const struct clime_lp_extra *extra;
};

static struct position position_at(const struct clime_output *o, size_t i, bool with_prompt, size_t from) {
    size_t n_prompt = with_prompt ? (size_t)o->n_prompt : 0;
    if (i >= n_prompt) {
        size_t k = i - n_prompt + from;
        return (struct position){o->out.data[k], true, o->out_logp[k], o->extra ? o->extra[k] : NULL};
    }
    size_t k = i - (size_t)o->prompt_first; /* wraps before the first scored position */
    if (k >= (size_t)o->n_prompt_logp) return (struct position){o->ids[i], false, 0, NULL};
    return (struct position){o->ids[i], true, o->prompt_logp[k], o->prompt_extra ? o->prompt_extra[k] : NULL};
}

/* The prompt's original text if it was text and not truncated, else decoded. */
static void prompt_text(const struct clime_output *o, struct clime_buf *out) {
    const struct clime_openai_request *r = o->job->endpoint;
    const struct clime_prompt *p = &r->prompts[o->prompt];
    if (p->is_text && !p->cut)
        clime_buf_add(out, p->text.ptr, p->text.len);
    else
        clime_tokenizer_decode(o->job->tokenizer, o->ids, (size_t)o->n_prompt, false, out);
}

static size_t count_chars(struct clime_str s) {
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++) n += ((unsigned char)s.ptr[i] & 0xC0) != 0x80;
    return n;
}

/* Start of each prompt token in the prompt's text. A special token not in the text (a leading <s>) has no width. */
static void write_prompt_offsets(struct clime_jw *w, const struct clime_output *o, struct clime_str prompt) {
    struct clime_detok d;
    struct clime_buf said;
    size_t done = 0, chars = 0;
    clime_buf_init(&said, CLIME_MAX_REPLY);
    clime_detok_init(&d, o->job->tokenizer, false);
    for (int i = 0; i < o->n_prompt; i++) {
        struct clime_str left = {prompt.ptr + done, prompt.len - done}, token;
        clime_jw_int(w, (int64_t)chars);
        token = clime_tokenizer_token(o->job->tokenizer, o->ids[i]);
        if (clime_tokenizer_is_special(o->job->tokenizer, o->ids[i]) &&
            (left.len < token.len || memcmp(left.ptr, token.ptr, token.len) != 0))
            continue;
        clime_detok_feed(&d, o->ids[i], &said);
        size_t end = said.len < prompt.len ? said.len : prompt.len;
        chars += count_chars((struct clime_str){prompt.ptr + done, end - done});
        done = end;
    }
    clime_detok_free(&d);
    clime_buf_free(&said);
}

struct place { /* offset in an output's text */
    size_t bytes, chars;
};

static void write_offsets(struct clime_jw *w, const struct clime_output *o, bool with_prompt, size_t from,
                          struct place *at) {
    struct clime_buf prompt;
    clime_buf_init(&prompt, CLIME_MAX_REPLY);
    if (with_prompt) {
        prompt_text(o, &prompt);
        write_prompt_offsets(w, o, clime_buf_str(&prompt));
        at->chars += count_chars(clime_buf_str(&prompt));
    }
    for (size_t i = from; i < o->out.len; i++) {
        size_t end = o->text_at[i] < o->text.text.len ? o->text_at[i] : o->text.text.len;
        if (end > at->bytes) {
            at->chars += count_chars((struct clime_str){o->text.text.data + at->bytes, end - at->bytes});
            at->bytes = end;
        }
        clime_jw_int(w, (int64_t)at->chars);
    }
    clime_buf_free(&prompt);
}

/* at: start of token `from`; advanced */
static void write_logprobs(struct clime_jw *w, const struct clime_output *o, bool with_prompt, size_t from,
                           struct place *at) {
    const struct clime_openai_request *r = o->job->endpoint;
    size_t n = o->out.len - from + (with_prompt ? (size_t)o->n_prompt : 0);
    struct clime_buf name;
    clime_jw_key(w, "logprobs");
    if (!r->logprobs) {
        clime_jw_null(w);
        return;
    }
    clime_jw_object(w);
    clime_jw_key(w, "tokens");
    clime_jw_array(w);
    clime_buf_init(&name, CLIME_MAX_REPLY);
    for (size_t i = 0; i < n; i++) clime_jw_str(w, token_name(o, position_at(o, i, with_prompt, from).id, &name));
    clime_buf_free(&name);
    clime_jw_close(w);
    clime_jw_key(w, "token_logprobs");
    clime_jw_array(w);
    for (size_t i = 0; i < n; i++) {
        struct position p = position_at(o, i, with_prompt, from);
        if (p.has_logp)
            clime_jw_float(w, p.logp);
        else
            clime_jw_null(w);
    }
    clime_jw_close(w);
    clime_jw_key(w, "top_logprobs");
    clime_jw_array(w);
    for (size_t i = 0; i < n; i++) {
        struct position p = position_at(o, i, with_prompt, from);
        bool sampled = !with_prompt || i >= (size_t)o->n_prompt;
        if (p.has_logp)
            write_top(w, o, p.extra, sampled && r->logp.n_ids > 0, p.id, p.logp);
        else
            clime_jw_null(w);
    }
    clime_jw_close(w);
    clime_jw_key(w, "text_offset"); /* characters of `text` before the token */
    clime_jw_array(w);
    write_offsets(w, o, with_prompt, from, at);
    clime_jw_close(w);
    clime_jw_close(w);
}

static void write_text(struct clime_jw *w, const struct clime_output *o, bool with_prompt, size_t from) {
    struct clime_str safe = clime_stop_text_safe(&o->text), text = {safe.ptr + from, safe.len - from};
    clime_jw_key(w, "text");
    if (!with_prompt) {
        clime_jw_str(w, text);
        return;
    }
    struct clime_buf whole;
    clime_buf_init(&whole, CLIME_MAX_REPLY);
    prompt_text(o, &whole);
    clime_buf_add(&whole, text.ptr, text.len);
    clime_jw_str(w, clime_buf_str(&whole));
    clime_buf_free(&whole);
}

static void write_choice(struct clime_jw *w, const struct clime_output *o) {
    const struct clime_openai_request *r = o->job->endpoint;
    clime_jw_object(w);
    clime_jw_put_int(w, "index", o->index);
    write_text(w, o, r->echo, 0);
    write_logprobs(w, o, r->echo, 0, &(struct place){0, 0});
    clime_openai_write_prompt_logprobs(w, o);
    clime_openai_write_finish(w, o);
    clime_openai_write_extras(w, r, o, 0, o->out.len, true, true);
    clime_jw_close(w);
}

static void write_reply(struct clime_job *j, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_openai_open(&w, j, "text_completion");
    clime_jw_key(&w, "choices");
    clime_jw_array(&w);
    for (int i = 0; i < j->n_outs; i++) write_choice(&w, &j->outs[i]);
    clime_jw_close(&w);
    clime_openai_write_usage(&w, j);
    clime_openai_close_reply(&w, j);
}

struct cursor {
    bool started;
    size_t ids, text;
    struct place at;
};

static void stream_news(struct clime_job *j, struct clime_output *o, struct clime_buf *sse) {
    struct clime_openai_request *r = j->endpoint;
    struct cursor *c = o->cursor;
    struct clime_jw w;
    bool first = !c->started, last = o->finish.type != CLIME_FINISH_NONE;
    if (clime_openai_stream_failed(r, o, sse)) return;
    bool tokens = c->ids < o->out.len && (r->logprobs || r->return_token_ids);
    if (!last && o->text.n_safe == c->text && !tokens) return;
    clime_openai_open_chunk(&w, o, "text_completion");
    write_text(&w, o, r->echo && first, c->text);
    write_logprobs(&w, o, r->echo && first, c->ids, &c->at);
    clime_openai_write_finish(&w, o);
    clime_openai_write_extras(&w, r, o, c->ids, o->out.len, first, last);
    c->started = true;
    c->ids = o->out.len;
    c->text = o->text.n_safe;
    clime_openai_send_chunk(&w, j, sse);
}

static void stream_end(struct clime_job *j, struct clime_buf *sse) {
    clime_openai_stream_end(j, sse, "text_completion");
}

static const struct clime_framer framer = {
    .cursor_bytes = sizeof(struct cursor), .heartbeat = CLIME_SSE_HEARTBEAT, .news = stream_news, .end = stream_end};

void clime_handle_completions(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_openai_request r = {.server = context};
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    gen.job->framer = &framer;
    enum clime_err err = clime_openai_parse(&gen, false, &r, &e);
    r.prompts = gen.prompts;
    if (!err) err = clime_generation_run(&gen, &e);
    clime_openai_finish_call(&gen, err, &e, write_reply);
}
