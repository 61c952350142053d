/* One turn of a session: from the request to tokens, to the policy, to its answer.
 *
 * Called by the task's owner thread, without the table's lock. Three inputs, one tree of turns:
 *   messages   OpenAI's (HTTP); the history decides which turn they extend (history.h);
 *   ids        the whole context: they extend the turn whose path they begin with;
 *   neither    what follows the newest turn: as text (HTTP) or as tokens (a generate hook).
 * Sampling is the run's, whatever the client requests, as training needs it. A client may lower the number of new
 * tokens and add stop strings. Seeds are hash64(sample's seed, turn): a session with the same requests gets the same
 * tokens. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "text/chat/chat_answer.h"
#include "trainer/env/environments_int.h"
#include "trainer/env/history.h"

/* Limits of a session: far more than one can use, and no more memory than a run can spare per task. */
#define MAX_TURNS 65536
#define MAX_TOKENS (16 << 20)

/* ---- the turn's prompt ---- */

/* Finds the turn it extends, its kind, and the tokens after that turn. */
static enum clime_err place(struct clime_environments *v, struct clime_task *t, const struct clime_env_ask *a,
                            struct clime_history *h, struct clime_error *e) {
    if (a->chat) {
        if (!clime_chat_form_for(&v->template, a->tools)->compiled)
            return clime_fail(e, CLIME_ERR_INPUT, "the policy's tokenizer has no chat template: use /generate");
        return clime_history_read(&v->template, t->scratch, t->session, a->messages, a->tools, h, e);
    }
    int n_vocab = clime_tokenizer_n_vocab(v->o.tok);
    h->parent = a->has_ids ? clime_session_find_ids(t->session, a->ids, (int)a->n_ids) : t->last_turn;
    /* a turn's path needs no check: a policy may sample ids of its vocabulary that the tokenizer lacks */
    for (size_t i = a->has_ids ? (size_t)clime_session_path(t->session, h->parent, NULL) : 0; i < a->n_ids; i++)
        if (a->ids[i] < 0 || a->ids[i] >= n_vocab)
            return clime_fail(e, CLIME_ERR_INPUT, "input_ids: %d is not in the vocabulary", a->ids[i]);
    if (h->parent >= 0)
        h->kind = clime_session_is_leaf(t->session, h->parent) ? CLIME_TURN_EXTENDED : CLIME_TURN_REWOUND;
    else
        h->kind = clime_session_turns(t->session) ? CLIME_TURN_IDS : CLIME_TURN_FIRST;
    if (a->has_ids) {
        int n = clime_session_path(t->session, h->parent, NULL);
        if (a->n_ids > (size_t)n) clime_ids_append(&h->given, a->ids + n, a->n_ids - (size_t)n);
        return CLIME_OK;
    }
    if (h->parent < 0) clime_ids_append(&h->given, t->r->sample->ids, (size_t)t->r->sample->n_prompt);
    if (a->n_ids) clime_ids_append(&h->given, a->ids, a->n_ids);
    if (!a->text.ptr) return CLIME_OK;
    return clime_tokenizer_encode(v->o.tok, t->scratch, a->text, 0, CLIME_RENDER_MAX, &h->given, e);
}

/* Tokens the session may still sample after `used`, of which the first n_prompt are its prompt. */
static int64_t room_after(const struct clime_sampling_options *s, int n_prompt, int used) {
    int64_t whole = clime_sampling_room(s, n_prompt), left = whole - (used - n_prompt);
    return left < 0 ? 0 : left;
}

/* ---- the turn ---- */

static bool client_gone(void *arg) {
    const struct clime_env_call *c = arg;
    return (c->stream && clime_env_stream_dead(c->stream)) || (c->rq && clime_http_peer_gone(c->rq));
}

static bool tell_client(void *arg, const struct clime_partial *so_far) {
    const struct clime_env_call *c = arg;
    return clime_env_stream_tell(c->stream, so_far);
}

/* Sets the call's fields that are known before the first token. */
static void introduce(struct clime_environments *v, struct clime_task *t, const struct clime_request *turn,
                      struct clime_env_call *call) {
    call->tok = v->o.tok;
    call->turn = clime_session_turns(t->session);
    call->created = clime_wall_us() / 1000000;
    call->temperature = turn->sampling->temperature;
    call->top_p = turn->sampling->top_p;
    snprintf(call->rid, sizeof call->rid, "%s", turn->rid);
    if (call->stream)
        clime_env_stream_begin(call->stream, v, turn->sampling->skip_special_tokens, turn->sample->ids,
                               turn->sample->n_prompt);
}

/* Uses OpenAI's wording, which tells clients to shorten the conversation. */
static enum clime_err too_long(const struct clime_sampling_options *s, int n_prompt, int used, struct clime_error *e) {
    int64_t most = n_prompt + s->max_response_len;
    if (s->max_context_len && s->max_context_len < most) most = s->max_context_len;
    return clime_fail(
        e, CLIME_ERR_TOO_LONG,
        "this model's maximum context length is %" PRId64
        " tokens in this session (--rollout-max-context-len, and --rollout-max-response-len behind the first "
        "prompt): the conversation has %d, which leaves none to sample",
        most, used);
}

/* Generates after path | given and adds the turn to the tree. */
static enum clime_err generate(struct clime_environments *v, struct clime_task *t, struct clime_env_call *call,
                               const struct clime_history *h, struct clime_request *turn, clime_turn_fn *fn, void *arg,
                               struct clime_error *e) {
    const struct clime_env_ask *a = call->ask;
    const struct clime_ids *given = &h->given;
    const struct clime_listener listener = {
        .gone = client_gone, .news = call->stream ? tell_client : NULL, .arg = call};
    int parent = h->parent;
    int begin = clime_session_path(t->session, parent, NULL), n = begin + (int)given->len;
    int n_prompt = parent < 0 ? n : clime_session_prompt(t->session, parent);
    struct clime_sampling_options sampling = *t->r->sampling;
    const char *stop[2 * CLIME_ENV_MAX_STOP];
    int64_t room = room_after(&sampling, n_prompt, n);
    if (n == 0) return clime_fail(e, CLIME_ERR_INPUT, "the context is empty");
    if (room == 0) return too_long(&sampling, n_prompt, n, e);
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
    turn->experts_from = clime_session_experts_from(t->session, parent);
    turn->listener = call->rq || call->stream ? &listener : NULL;
    /* --fully-async: the weights may have changed since the last turn, but a session's versions never decrease */
    if (parent >= 0) turn->version = clime_session_version(t->session, parent);
    snprintf(turn->rid, sizeof turn->rid, "%.90s/turn%d", t->r->rid, clime_session_turns(t->session));
    introduce(v, t, turn, call);
    fn(arg, turn);
    bool left = clime_request_left(turn);
    turn->sampling = t->r->sampling;
    turn->listener = NULL;
    t->r->n_tries += turn->n_tries;
    t->r->n_stale += turn->n_stale;
    if (left) { /* the client left: the session is unchanged, and a retry of the turn has the same seed */
        clime_session_abandon(t->session);
        return clime_fail(e, CLIME_ERR_ABORTED, "the client has left");
    }
    if (s->status == CLIME_SAMPLE_ABORTED) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the task was stopped");
    if (s->status == CLIME_SAMPLE_FAILED)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%.400s", s->error ? s->error : "generation failed");
    if (call->stream && !clime_env_stream_agrees(call->stream, s))
        return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                          "a server was lost while it answered, and the weights that answer now say something else");
    t->last_turn = clime_session_add(t->session, parent, h->kind, s);
    return CLIME_OK;
}

/* Parses the answer, and records the history under which a client may extend it. */
static void finish(struct clime_environments *v, struct clime_task *t, const struct clime_history *h,
                   const struct clime_request *turn, struct clime_env_call *call) {
    const struct clime_sample *s = call->answer = turn->sample;
    snprintf(call->version_name, sizeof call->version_name, "%" PRId64,
             clime_session_version(t->session, t->last_turn));
    clime_env_reading_begin(&call->said, v, call->ask, turn->sampling->skip_special_tokens, s->ids, s->n_prompt);
    clime_env_reading_feed(&call->said, s->ids + s->n_prompt, s->n_response, true, s->status == CLIME_SAMPLE_COMPLETED);
    if (!call->ask->chat) return;
    struct clime_answer answer = clime_env_answer(call, &call->said, s);
    struct clime_buf message;
    struct clime_jw w;
    clime_buf_init(&message, 2 * CLIME_RENDER_MAX);
    clime_jw_init(&w, &message);
    clime_chat_answer_write(&w, &answer);
    clime_history_answered(h, &v->template, clime_buf_str(&message), t->session, t->last_turn);
    clime_buf_free(&message);
}

static enum clime_err check_size(const struct clime_environments *v, const struct clime_session *s,
                                 struct clime_error *e) {
    int most = v->o.max_turns ? v->o.max_turns : MAX_TURNS;
    if (clime_session_turns(s) >= most) return clime_fail(e, CLIME_ERR_LIMIT, "the session has had its %d turns", most);
    if (clime_session_tokens(s) >= MAX_TOKENS)
        return clime_fail(e, CLIME_ERR_LIMIT, "the session's branches hold %d million tokens: end the task",
                          MAX_TOKENS >> 20);
    return CLIME_OK;
}

static void keep_context(const struct clime_session *s, const struct clime_history *h, struct clime_env_call *call) {
    int n = clime_session_path(s, h->parent, NULL);
    int32_t *path = xmalloc((size_t)n * sizeof *path + 1);
    clime_session_path(s, h->parent, path);
    clime_ids_append(&call->context, path, (size_t)n);
    clime_ids_append(&call->context, h->given.data, h->given.len);
    free(path);
}

void clime_env_turn(struct clime_environments *v, struct clime_task *t, struct clime_env_call *call, clime_turn_fn *fn,
                    void *arg) {
    struct clime_request turn = *t->r;
    struct clime_history h = {0};
    struct clime_error *e = &call->error;
    turn.n_tries = turn.n_stale = 0;
    turn.sample = clime_sample_new();
    if (!call->ask->count && check_size(v, t->session, e)) goto done;
    if (place(v, t, call->ask, &h, e)) goto done;
    call->n_prompt = clime_session_path(t->session, h.parent, NULL) + (int64_t)h.given.len;
    if (call->ask->count) keep_context(t->session, &h, call);
    if (call->ask->count || generate(v, t, call, &h, &turn, fn, arg, e)) goto done;
    finish(v, t, &h, &turn, call);
    turn.sample = NULL;
    if (call->said.text.full) clime_fail(e, CLIME_ERR_LIMIT, "the answer's text is too long");
done:
    clime_history_free(&h);
    clime_sample_free(turn.sample);
}
