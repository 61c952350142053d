/* One turn of a session: from what is asked for to tokens, to the policy, to its answer.
 *
 * Called by the thread that owns the task, without the table's lock. Three ways in, one tree of turns:
 *   messages   OpenAI's (HTTP); the history decides which turn they go on from (history.h);
 *   ids        the whole context: they go on from the turn whose path they begin with;
 *   neither    what comes after the newest turn: as text (HTTP) or as tokens (a generate hook).
 * Sampling is the run's, whatever the client asks for: what is trained on is sampled as the run says. A client may
 * lower the number of new tokens and add stop strings. Seeds are hash64(sample's seed, turn), so a session that does
 * the same things gets the same tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "trainer/env/environments_int.h"
#include "trainer/env/history.h"

/* ---- the turn's prompt ---- */

/* parent and the tokens given after it. */
static enum clime_err place(struct clime_environments *v, struct clime_task *t, const struct clime_env_ask *a,
                            int *parent, struct clime_ids *given, uint8_t key[CLIME_SESSION_KEY],
                            struct clime_error *e) {
    if (a->chat) {
        if (!v->has_template)
            return clime_fail(e, CLIME_ERR_INPUT, "the policy's tokenizer has no chat template: use /generate");
        return clime_history_read(&v->renderer, t->scratch, t->session, a->messages, a->tools, parent, given, key, e);
    }
    int n_vocab = clime_tokenizer_n_vocab(v->o.tok);
    for (size_t i = 0; i < a->n_ids; i++)
        if (a->ids[i] < 0 || a->ids[i] >= n_vocab)
            return clime_fail(e, CLIME_ERR_INPUT, "input_ids: %d is not in the vocabulary", a->ids[i]);
    if (a->has_ids) {
        *parent = clime_session_find_ids(t->session, a->ids, (int)a->n_ids);
        int n = clime_session_path(t->session, *parent, NULL);
        if (a->n_ids > (size_t)n) clime_ids_append(given, a->ids + n, a->n_ids - (size_t)n);
        return CLIME_OK;
    }
    *parent = t->last_turn;
    if (*parent < 0) clime_ids_append(given, t->r->sample->ids, (size_t)t->r->sample->n_prompt);
    if (a->n_ids) clime_ids_append(given, a->ids, a->n_ids);
    if (!a->text.ptr) return CLIME_OK;
    return clime_tokenizer_encode(v->o.tok, t->scratch, a->text, 0, CLIME_RENDER_MAX, given, e);
}

/* Tokens that the session may still sample after `used`, of which the first n_prompt are its prompt. */
static int64_t room_after(const struct clime_sampling_options *s, int n_prompt, int used) {
    int64_t whole = clime_sampling_room(s, n_prompt), left = whole - (used - n_prompt);
    return left < 0 ? 0 : left;
}

/* ---- the answer's text ---- */

static void write_text(struct clime_environments *v, const struct clime_request *turn, struct clime_buf *out) {
    const struct clime_sample *s = turn->sample;
    int n = s->n_response;
    if (n > 0 && clime_renderer_ends_turn(&v->renderer, s->ids[s->n_prompt + n - 1])) n--; /* the turn's end */
    clime_tokenizer_decode(v->o.tok, s->ids + s->n_prompt, (size_t)n, turn->sampling->skip_special_tokens, out);
}

/* ---- the turn ---- */

/* Generates after path | given; the tree gets the turn. */
static enum clime_err generate(struct clime_task *t, const struct clime_env_ask *a, int parent,
                               const struct clime_ids *given, struct clime_request *turn, clime_turn_fn *fn, void *arg,
                               struct clime_error *e) {
    int begin = clime_session_path(t->session, parent, NULL), n = begin + (int)given->len;
    int n_prompt = parent < 0 ? n : clime_session_prompt(t->session, parent);
    struct clime_sampling_options sampling = *t->r->sampling;
    const char *stop[2 * CLIME_ENV_MAX_STOP];
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
    /* --fully-async: the weights may have changed since the last turn, but a session's versions do not go back */
    if (parent >= 0) turn->version = clime_session_version(t->session, parent);
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
    struct clime_request turn = *t->r;
    struct clime_ids given = {0};
    uint8_t key[CLIME_SESSION_KEY];
    int parent = -1;
    struct clime_error *e = &call->error;
    turn.n_tries = turn.n_stale = 0;
    turn.sample = clime_sample_new();
    clime_buf_init(&call->text, CLIME_RENDER_MAX);
    if (v->o.max_turns && clime_session_turns(t->session) >= v->o.max_turns) {
        clime_fail(e, CLIME_ERR_LIMIT, "the session has had its %d turns", v->o.max_turns);
        goto done;
    }
    if (place(v, t, call->ask, &parent, &given, key, e) || generate(t, call->ask, parent, &given, &turn, fn, arg, e))
        goto done;
    write_text(v, &turn, &call->text);
    if (call->ask->chat) {
        clime_history_answer(key, clime_buf_str(&call->text), key);
        clime_session_set_key(t->session, t->last_turn, key);
    }
    call->answer = turn.sample;
    call->turn = t->last_turn;
    call->version = clime_session_version(t->session, t->last_turn);
    snprintf(call->rid, sizeof call->rid, "%s", turn.rid);
    turn.sample = NULL;
    if (call->text.full) clime_fail(e, CLIME_ERR_LIMIT, "the answer's text is too long");
done:
    clime_ids_free(&given);
    clime_sample_free(turn.sample);
}
