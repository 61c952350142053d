/* One turn of a session: from an environment's body to tokens, to the policy, to the reply.
 *
 * Called by the thread that owns the task, without the table's lock. Two ways in, one tree of turns:
 *   chat       OpenAI's messages; the history decides which turn they go on from (history.h);
 *   generate   SGLang's: "input_ids" (the whole context: they go on from the turn whose path they begin with) or
 *              "text" (what comes after the newest turn).
 * Sampling is the run's, whatever the client asks for: what is trained on is sampled as the run says. A client may
 * lower the number of new tokens and add stop strings. Seeds are hash64(sample's seed, turn), so a session that does
 * the same things gets the same tokens. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/http/sse.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "trainer/env/env_int.h"
#include "trainer/env/history.h"
#include "trainer/generate.h"

#define MAX_STOP 16

/* What a body asks for. */
struct ask {
    struct clime_arena arena;
    struct clime_str messages, tools, text; /* raw JSON, raw JSON, a string; ptr NULL = absent */
    struct clime_ids ids;
    bool has_ids, stream;
    int64_t max_new; /* -1 = the run's limit */
    const char *stop[MAX_STOP];
    int n_stop;
};

static void read_stop(struct ask *a, struct clime_json *j) {
    struct clime_str s;
    bool list = clime_json_peek(j) == CLIME_JSON_ARRAY;
    if (clime_json_peek(j) == CLIME_JSON_NULL) {
        clime_json_null(j);
        return;
    }
    if (list) clime_json_array(j);
    while (!list || clime_json_item(j)) {
        if (!clime_json_string(j, &s)) return;
        if (s.len == 0 || a->n_stop == MAX_STOP) {
            clime_json_bad(j, "stop: at most %d strings that are not empty", MAX_STOP);
            return;
        }
        char *z = clime_arena_alloc(&a->arena, s.len + 1);
        memcpy(z, s.ptr, s.len);
        z[s.len] = 0;
        a->stop[a->n_stop++] = z;
        if (!list) return;
    }
}

static void read_limit(struct ask *a, struct clime_json *j) {
    if (clime_json_peek(j) == CLIME_JSON_NULL)
        clime_json_null(j);
    else
        clime_json_int(j, 1, INT32_MAX, &a->max_new);
}

static void read_sampling(struct ask *a, struct clime_json *j) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "max_new_tokens"))
            read_limit(a, j);
        else if (clime_str_is(key, "stop"))
            read_stop(a, j);
        else
            clime_json_skip(j, NULL);
    }
}

static enum clime_err read_body(struct ask *a, const struct clime_env_call *call, struct clime_error *e) {
    bool chat = call->kind == CLIME_CALL_CHAT;
    struct clime_json j;
    struct clime_str key;
    int64_t v;
    clime_json_init(&j, call->body.ptr, call->body.len, &a->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (chat && clime_str_is(key, "messages")) {
            clime_json_skip(&j, &a->messages);
        } else if (chat && clime_str_is(key, "tools")) {
            clime_json_skip(&j, &a->tools);
            if (clime_str_is(a->tools, "null") || clime_str_is(a->tools, "[]")) a->tools.ptr = NULL;
        } else if (chat && (clime_str_is(key, "max_tokens") || clime_str_is(key, "max_completion_tokens"))) {
            read_limit(a, &j);
        } else if (chat && clime_str_is(key, "stop")) {
            read_stop(a, &j);
        } else if (chat && clime_str_is(key, "n")) {
            if (clime_json_int(&j, 1, 128, &v) && v != 1) clime_json_bad(&j, "n: a session has one answer a turn");
        } else if (clime_str_is(key, "stream")) {
            clime_json_bool(&j, &a->stream);
        } else if (!chat && clime_str_is(key, "text")) {
            clime_json_string(&j, &a->text);
        } else if (!chat && clime_str_is(key, "input_ids")) {
            a->has_ids = true;
            for (clime_json_array(&j); clime_json_item(&j);)
                if (clime_json_int(&j, 0, INT32_MAX, &v)) clime_ids_push(&a->ids, (int32_t)v);
        } else if (!chat && clime_str_is(key, "sampling_params")) {
            read_sampling(a, &j);
        } else {
            clime_json_skip(&j, NULL);
        }
    }
    if (!clime_json_end(&j)) return e->code;
    if (chat && !a->messages.ptr) return clime_fail(e, CLIME_ERR_INPUT, "messages: missing");
    if (!chat && a->stream) return clime_fail(e, CLIME_ERR_INPUT, "stream: a session's /generate answers whole");
    if (!chat && a->has_ids && a->text.ptr)
        return clime_fail(e, CLIME_ERR_INPUT, "give one of input_ids (the whole context) and text (what is new)");
    return CLIME_OK;
}

/* ---- the turn's prompt ---- */

/* parent and the tokens given after it. */
static enum clime_err place(struct clime_environments *v, struct clime_task *t, struct ask *a, bool chat, int *parent,
                            struct clime_ids *given, uint8_t key[CLIME_SESSION_KEY], struct clime_error *e) {
    if (chat) {
        if (!v->has_template)
            return clime_fail(e, CLIME_ERR_INPUT, "the policy's tokenizer has no chat template: use /generate");
        return clime_history_read(&v->renderer, t->scratch, t->session, a->messages, a->tools, parent, given, key, e);
    }
    if (a->has_ids) {
        int n_vocab = clime_tokenizer_n_vocab(v->o.tok);
        for (size_t i = 0; i < a->ids.len; i++)
            if (a->ids.data[i] >= n_vocab)
                return clime_fail(e, CLIME_ERR_INPUT, "input_ids: %d is not in the vocabulary", a->ids.data[i]);
        *parent = clime_session_find_ids(t->session, a->ids.data, (int)a->ids.len);
        int n = clime_session_path(t->session, *parent, NULL);
        if (a->ids.len > (size_t)n) clime_ids_append(given, a->ids.data + n, a->ids.len - (size_t)n);
        return CLIME_OK;
    }
    *parent = t->last_turn;
    if (*parent < 0) clime_ids_append(given, t->r->sample->ids, (size_t)t->r->sample->n_prompt);
    if (!a->text.ptr) return CLIME_OK;
    return clime_tokenizer_encode(v->o.tok, t->scratch, a->text, 0, CLIME_RENDER_MAX, given, e);
}

/* Tokens that the session may still sample after `used`, of which the first n_prompt are its prompt. */
static int64_t room_after(const struct clime_sampling_options *s, int n_prompt, int used) {
    int64_t whole = clime_generate_room(s, n_prompt), left = whole - (used - n_prompt);
    return left < 0 ? 0 : left;
}

/* ---- the reply ---- */

static void write_text(struct clime_environments *v, const struct clime_request *turn, struct clime_buf *out) {
    const struct clime_sample *s = turn->sample;
    int n = s->n_response;
    if (n > 0 && clime_renderer_ends_turn(&v->renderer, s->ids[s->n_prompt + n - 1])) n--; /* the turn's end */
    clime_tokenizer_decode(v->o.tok, s->ids + s->n_prompt, (size_t)n, turn->sampling->skip_special_tokens, out);
}

static const char *finish_of(const struct clime_sample *s) {
    return s->status == CLIME_SAMPLE_COMPLETED ? "stop" : "length";
}

static void chat_begin(struct clime_jw *w, const struct clime_request *turn, const char *object) {
    clime_jw_object(w);
    clime_jw_key(w, "id");
    clime_jw_strz(w, turn->rid);
    clime_jw_key(w, "object");
    clime_jw_strz(w, object);
    clime_jw_key(w, "created");
    clime_jw_int(w, clime_wall_us() / 1000000);
    clime_jw_key(w, "model");
    clime_jw_strz(w, "policy");
    clime_jw_key(w, "choices");
    clime_jw_array(w);
    clime_jw_object(w);
    clime_jw_key(w, "index");
    clime_jw_int(w, 0);
}

static void write_message(struct clime_jw *w, const char *key, const char *role, const struct clime_buf *text) {
    clime_jw_key(w, key);
    clime_jw_object(w);
    if (role) {
        clime_jw_key(w, "role");
        clime_jw_strz(w, role);
    }
    if (text) {
        clime_jw_key(w, "content");
        clime_jw_str(w, clime_buf_str(text));
    }
    clime_jw_close(w);
}

static void chat_end(struct clime_jw *w, const struct clime_request *turn, const char *finish) {
    const struct clime_sample *s = turn->sample;
    clime_jw_key(w, "logprobs");
    clime_jw_null(w);
    clime_jw_key(w, "finish_reason");
    clime_jw_strz(w, finish);
    clime_jw_close(w);
    clime_jw_close(w);
    if (finish) {
        clime_jw_key(w, "usage");
        clime_jw_object(w);
        clime_jw_key(w, "prompt_tokens");
        clime_jw_int(w, s->n_prompt);
        clime_jw_key(w, "completion_tokens");
        clime_jw_int(w, s->n_response);
        clime_jw_key(w, "total_tokens");
        clime_jw_int(w, s->n_prompt + s->n_response);
        clime_jw_close(w);
    }
    clime_jw_close(w);
}

/* A whole answer, or its two chunks as events. */
static void reply_chat(const struct clime_request *turn, const struct clime_buf *text, bool stream,
                       struct clime_buf *out) {
    struct clime_jw w;
    if (!stream) {
        clime_jw_init(&w, out);
        chat_begin(&w, turn, "chat.completion");
        write_message(&w, "message", "assistant", text);
        chat_end(&w, turn, finish_of(turn->sample));
        return;
    }
    struct clime_buf event;
    clime_buf_init(&event, CLIME_RENDER_MAX);
    for (int last = 0; last < 2; last++) {
        clime_buf_clear(&event);
        clime_jw_init(&w, &event);
        chat_begin(&w, turn, "chat.completion.chunk");
        write_message(&w, "delta", last ? NULL : "assistant", last ? NULL : text);
        chat_end(&w, turn, last ? finish_of(turn->sample) : NULL);
        clime_sse_frame(out, clime_buf_str(&event));
    }
    clime_sse_frame(out, clime_str_of("[DONE]"));
    clime_buf_free(&event);
}

static void reply_generate(const struct clime_request *turn, const struct clime_buf *text, struct clime_buf *out) {
    const struct clime_sample *s = turn->sample;
    struct clime_jw w;
    char version[24];
    snprintf(version, sizeof version, "%" PRId64, turn->version);
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_key(&w, "text");
    clime_jw_str(&w, clime_buf_str(text));
    clime_jw_key(&w, "output_ids");
    clime_jw_array(&w);
    for (int i = 0; i < s->n_response; i++) clime_jw_int(&w, s->ids[s->n_prompt + i]);
    clime_jw_close(&w);
    clime_jw_key(&w, "meta_info");
    clime_jw_object(&w);
    clime_jw_key(&w, "id");
    clime_jw_strz(&w, turn->rid);
    clime_jw_key(&w, "finish_reason");
    clime_jw_raw(&w, clime_str_of(s->finish ? s->finish : "null"));
    clime_jw_key(&w, "prompt_tokens");
    clime_jw_int(&w, s->n_prompt);
    clime_jw_key(&w, "completion_tokens");
    clime_jw_int(&w, s->n_response);
    clime_jw_key(&w, "weight_version");
    clime_jw_strz(&w, version);
    clime_jw_key(&w, "output_token_logprobs");
    clime_jw_array(&w);
    for (int i = 0; i < s->n_response; i++) {
        clime_jw_array(&w);
        clime_jw_float(&w, s->logp[i]);
        clime_jw_int(&w, s->ids[s->n_prompt + i]);
        clime_jw_null(&w);
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_jw_close(&w);
}

/* ---- the turn ---- */

/* Generates after path | given; the tree gets the turn. */
static enum clime_err generate(struct clime_task *t, const struct ask *a, int parent, const struct clime_ids *given,
                               struct clime_request *turn, clime_turn_fn *fn, void *arg, struct clime_error *e) {
    int begin = clime_session_path(t->session, parent, NULL), n = begin + (int)given->len;
    int n_prompt = parent < 0 ? n : clime_session_prompt(t->session, parent);
    struct clime_sampling_options sampling = *t->r->sampling;
    const char *stop[2 * MAX_STOP];
    int64_t room = room_after(&sampling, n_prompt, n);
    if (n == 0) return clime_fail(e, CLIME_ERR_INPUT, "the context is empty");
    if (room == 0)
        return clime_fail(e, CLIME_ERR_LIMIT, "the session holds %d tokens: its limit leaves none to sample", n);
    if (sampling.stop.n + a->n_stop > (int)CLIME_COUNT(stop))
        return clime_fail(e, CLIME_ERR_LIMIT, "stop: more than %d strings", (int)CLIME_COUNT(stop));
    if (sampling.stop.n) memcpy(stop, sampling.stop.items, (size_t)sampling.stop.n * sizeof *stop);
    memcpy(stop + sampling.stop.n, a->stop, (size_t)a->n_stop * sizeof *stop);
    sampling.stop = (struct clime_opt_list){.items = stop, .n = sampling.stop.n + a->n_stop};
    sampling.max_response_len = a->max_new > 0 && a->max_new < room ? a->max_new : room;

    const uint64_t seed[2] = {t->r->sample->seed, (uint64_t)clime_session_turns(t->session)};
    struct clime_sample *s = turn->sample;
    s->ids = xmalloc((size_t)n * sizeof *s->ids);
    clime_session_path(t->session, parent, s->ids);
    if (given->len) memcpy(s->ids + begin, given->data, given->len * sizeof *s->ids);
    s->n_prompt = n;
    s->seed = clime_hash64(seed, 2);
    turn->sampling = &sampling;
    snprintf(turn->rid, sizeof turn->rid, "%.90s/turn%d", t->r->rid, clime_session_turns(t->session));
    fn(arg, turn);
    turn->sampling = t->r->sampling;
    t->r->n_tries += turn->n_tries;
    t->r->n_stale += turn->n_stale;
    if (s->status == CLIME_SAMPLE_ABORTED) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the task was stopped");
    if (s->status == CLIME_SAMPLE_FAILED)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%.400s", s->error ? s->error : "generation failed");
    t->last_turn = clime_session_add(t->session, parent, s);
    return CLIME_OK;
}

void clime_env_turn(struct clime_environments *v, struct clime_task *t, struct clime_env_call *call, clime_turn_fn *fn,
                    void *arg) {
    bool chat = call->kind == CLIME_CALL_CHAT;
    struct ask a = {.max_new = -1};
    struct clime_request turn = *t->r;
    struct clime_ids given = {0};
    struct clime_buf text;
    uint8_t key[CLIME_SESSION_KEY];
    int parent = -1;
    struct clime_error *e = &call->error;
    turn.n_tries = turn.n_stale = 0;
    turn.sample = clime_sample_new();
    clime_arena_init(&a.arena, CLIME_RENDER_MAX);
    clime_buf_init(&text, CLIME_RENDER_MAX);
    if (v->o.max_turns && clime_session_turns(t->session) >= v->o.max_turns) {
        clime_fail(e, CLIME_ERR_LIMIT, "the session has had its %d turns", v->o.max_turns);
        goto done;
    }
    if (read_body(&a, call, e) || place(v, t, &a, chat, &parent, &given, key, e) ||
        generate(t, &a, parent, &given, &turn, fn, arg, e))
        goto done;
    write_text(v, &turn, &text);
    if (chat) {
        clime_history_answer(key, clime_buf_str(&text), key);
        clime_session_set_key(t->session, t->last_turn, key);
        reply_chat(&turn, &text, a.stream, &call->reply);
        call->stream = a.stream;
    } else {
        reply_generate(&turn, &text, &call->reply);
    }
    if (call->reply.full) clime_fail(e, CLIME_ERR_LIMIT, "the reply is too long");
done:
    clime_buf_free(&text);
    clime_ids_free(&given);
    clime_ids_free(&a.ids);
    clime_arena_free(&a.arena);
    clime_sample_free(turn.sample);
}
