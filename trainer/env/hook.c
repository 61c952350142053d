/* Generate hook: samples made by a library's function (trainer/plugin/plugin.h, `generate`), a session without HTTP.
 *
 * A client thread that offers a task starts a thread here, which calls the function. To the task table it acts as an
 * HTTP worker: it passes turns to the task's owner by lease id and posts the result. Each thread owns one `run`: copies
 * of the library's arguments, the tokens it appended, the newest answer.
 *
 * Invariant: the library's code cannot be stopped, so its thread holds nothing of the task, and every call goes through
 * enter(): once the table closes, a late call touches only the table's lock. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "trainer/env/environments_int.h"
#include "trainer/plugin/hooks.h"

#define REASON_BYTES 400
#define MAX_APPENDED ((size_t)16 << 20) /* tokens */

struct run {
    struct clime_environments *v;
    char id[CLIME_RANDOM_ID + 1]; /* of the lease */
    struct clime_arena arena;
    struct clime_plugin_task task;     /* points into the arena */
    struct clime_ids more;             /* appended after the newest turn */
    struct clime_env_call call;        /* the newest answer */
    struct clime_plugin_turn turn;     /* points into it */
    int n_turns;                       /* of the session */
    struct clime_tok_scratch *scratch; /* NULL until needed */
    struct clime_ids tokens;           /* of the last tokenize */
    struct clime_buf text;             /* of the last detokenize */
    struct clime_env_result result;
    struct clime_error error; /* of the last call that failed */
};

/* ---- the library's calls ---- */

static int outcome_of(const struct clime_error *e) {
    return e->code == CLIME_OK              ? CLIME_PLUGIN_OK
           : e->code == CLIME_ERR_LIMIT     ? CLIME_PLUGIN_LIMIT
           : e->code == CLIME_ERR_INPUT     ? CLIME_PLUGIN_BAD
           : e->code == CLIME_ERR_NOT_FOUND ? CLIME_PLUGIN_OVER
                                            : CLIME_PLUGIN_FAILED;
}

static bool enter(struct run *h) {
    pthread_mutex_lock(&h->v->lock);
    bool open = !h->v->closing;
    h->v->n_inside += open;
    pthread_mutex_unlock(&h->v->lock);
    h->error = (struct clime_error){0};
    if (!open) clime_fail(&h->error, CLIME_ERR_NOT_FOUND, "the run is ending");
    return open;
}

static int leave(struct run *h) {
    pthread_mutex_lock(&h->v->lock);
    h->v->n_inside--;
    pthread_cond_broadcast(&h->v->hook_left);
    pthread_mutex_unlock(&h->v->lock);
    return outcome_of(&h->error);
}

static enum clime_err read_stop(struct run *h, const char *const *stop, int32_t n, struct clime_env_ask *a) {
    if (n < 0 || n > CLIME_ENV_MAX_STOP || (n && !stop))
        return clime_fail(&h->error, CLIME_ERR_INPUT, "stop: 0 to %d strings", CLIME_ENV_MAX_STOP);
    for (int32_t i = 0; i < n; i++) {
        if (!stop[i] || !stop[i][0]) return clime_fail(&h->error, CLIME_ERR_INPUT, "stop: a string is empty");
        a->stop[a->n_stop++] = stop[i];
    }
    return CLIME_OK;
}

static void take_turn(struct run *h, const struct clime_env_ask *a, const struct clime_plugin_turn **out) {
    clime_env_call_free(&h->call);
    h->call.ask = a;
    if (clime_env_call(h->v, clime_str_of(h->id), &h->call, &h->error)) return;
    const struct clime_sample *s = h->call.answer;
    h->more.len = 0;
    h->n_turns = h->call.turn + 1;
    h->turn = (struct clime_plugin_turn){.number = h->call.turn,
                                         .n_context = s->n_prompt,
                                         .n = s->n_response,
                                         .ids = s->ids + s->n_prompt,
                                         .logp = s->logp,
                                         .text = h->call.said.text.len ? h->call.said.text.data : "",
                                         .text_bytes = (int64_t)h->call.said.text.len,
                                         .truncated = s->status == CLIME_SAMPLE_TRUNCATED};
    *out = &h->turn;
}

static int call_generate(void *session, const int32_t *ids, int32_t n_ids, int32_t max_new, const char *const *stop,
                         int32_t n_stop, const struct clime_plugin_turn **out) {
    struct run *h = session;
    struct clime_env_ask a = {.has_ids = ids != NULL,
                              .ids = ids ? ids : h->more.data,
                              .n_ids = ids ? (size_t)(n_ids > 0 ? n_ids : 0) : h->more.len,
                              .max_new = max_new ? max_new : -1};
    *out = NULL;
    if (!enter(h)) return CLIME_PLUGIN_OVER;
    if (max_new < 0 || (ids && n_ids < 0))
        clime_fail(&h->error, CLIME_ERR_INPUT, "a number is negative");
    else if (!read_stop(h, stop, n_stop, &a))
        take_turn(h, &a, out);
    return leave(h);
}

static enum clime_err check_ids(struct run *h, const int32_t *ids, int32_t n) {
    int n_vocab = clime_tokenizer_n_vocab(h->v->o.tok);
    if (n < 0 || (n && !ids)) return clime_fail(&h->error, CLIME_ERR_INPUT, "a number is negative");
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return clime_fail(&h->error, CLIME_ERR_INPUT, "%d is not in the vocabulary", ids[i]);
    return CLIME_OK;
}

static enum clime_err encode(struct run *h, const char *text, struct clime_ids *out) {
    if (!h->scratch) h->scratch = clime_tok_scratch_new(h->v->o.tok);
    return clime_tokenizer_encode(h->v->o.tok, h->scratch, clime_str_of(text), 0, CLIME_RENDER_MAX, out, &h->error);
}

static void check_appended(struct run *h) {
    if (h->more.len <= MAX_APPENDED) return;
    h->more.len = 0;
    clime_fail(&h->error, CLIME_ERR_LIMIT, "more than %zu tokens are appended", MAX_APPENDED);
}

static int call_append(void *session, const int32_t *ids, int32_t n) {
    struct run *h = session;
    if (!enter(h)) return CLIME_PLUGIN_OVER;
    if (!check_ids(h, ids, n) && n) clime_ids_append(&h->more, ids, (size_t)n);
    check_appended(h);
    return leave(h);
}

static int call_append_text(void *session, const char *text) {
    struct run *h = session;
    if (!enter(h)) return CLIME_PLUGIN_OVER;
    encode(h, text, &h->more);
    check_appended(h);
    return leave(h);
}

static int call_tokenize(void *session, const char *text, const int32_t **ids, int32_t *n) {
    struct run *h = session;
    if (!enter(h)) return CLIME_PLUGIN_OVER;
    h->tokens.len = 0;
    encode(h, text, &h->tokens);
    *ids = h->tokens.data;
    *n = (int32_t)h->tokens.len;
    return leave(h);
}

static int call_detokenize(void *session, const int32_t *ids, int32_t n, const char **text) {
    struct run *h = session;
    if (!enter(h)) return CLIME_PLUGIN_OVER;
    clime_buf_clear(&h->text);
    if (!check_ids(h, ids, n)) clime_tokenizer_decode(h->v->o.tok, ids, (size_t)n, false, &h->text);
    if (h->text.full) clime_fail(&h->error, CLIME_ERR_LIMIT, "the text is too long");
    *text = h->text.len ? h->text.data : "";
    return leave(h);
}

/* The sample that set_* calls apply to. */
static struct clime_env_part *newest(struct run *h) {
    return h->result.n_parts ? &h->result.parts[h->result.n_parts - 1] : clime_env_result_add(&h->result, -1);
}

static int call_keep(void *session, int32_t turn) {
    struct run *h = session;
    if (!enter(h)) return CLIME_PLUGIN_OVER;
    bool again = false;
    for (int i = 0; i < h->result.n_parts; i++) again = again || h->result.parts[i].turn == turn;
    if (h->result.n_parts && h->result.parts[0].turn < 0)
        clime_fail(&h->error, CLIME_ERR_INPUT, "keep comes before what is set about the sample");
    else if (turn < 0 || turn >= h->n_turns)
        clime_fail(&h->error, CLIME_ERR_INPUT, "the session has no turn %d", turn);
    else if (again)
        clime_fail(&h->error, CLIME_ERR_INPUT, "turn %d is kept already", turn);
    else
        clime_env_result_add(&h->result, turn);
    return leave(h);
}

static int call_set_reward(void *session, double reward) {
    struct run *h = session;
    if (!enter(h)) return CLIME_PLUGIN_OVER;
    struct clime_env_part *part = newest(h);
    if (isfinite(reward)) {
        clime_reward_free(&part->reward);
        part->reward = (struct clime_reward){.value = reward};
        part->has_reward = true;
    } else {
        clime_fail(&h->error, CLIME_ERR_INPUT, "the reward is not finite");
    }
    return leave(h);
}

/* Copies the text, which must be a JSON object; NULL with h->error set. */
static char *object_of(struct run *h, const char *text) {
    if (!clime_json_check(text, strlen(text), &h->error)) return NULL;
    if (text[strspn(text, " \t\r\n")] == '{') return xstrdup(text);
    clime_fail(&h->error, CLIME_ERR_INPUT, "it is no JSON object");
    return NULL;
}

static int call_set_reward_json(void *session, const char *object) {
    struct run *h = session;
    if (!enter(h)) return CLIME_PLUGIN_OVER;
    struct clime_env_part *part = newest(h);
    char *copy = object_of(h, object);
    if (copy) {
        clime_reward_free(&part->reward);
        part->reward = (struct clime_reward){.value = NAN, .object = copy};
        part->has_reward = true;
    }
    return leave(h);
}

static int call_set_metadata(void *session, const char *object) {
    struct run *h = session;
    if (!enter(h)) return CLIME_PLUGIN_OVER;
    struct clime_env_part *part = newest(h);
    char *copy = object_of(h, object);
    if (copy) {
        free(part->metadata);
        part->metadata = copy;
    }
    return leave(h);
}

static int call_set_truncated(void *session) {
    struct run *h = session;
    if (!enter(h)) return CLIME_PLUGIN_OVER;
    struct clime_env_part *part = newest(h);
    part->truncated = true;
    return leave(h);
}

static const char *call_why(void *session) {
    return ((const struct run *)session)->error.msg;
}

static const struct clime_plugin_calls calls = {.generate = call_generate,
                                                .append = call_append,
                                                .append_text = call_append_text,
                                                .tokenize = call_tokenize,
                                                .detokenize = call_detokenize,
                                                .set_reward = call_set_reward,
                                                .set_reward_json = call_set_reward_json,
                                                .set_metadata = call_set_metadata,
                                                .set_truncated = call_set_truncated,
                                                .why = call_why,
                                                .keep = call_keep};

/* ---- the thread ---- */

static void run_free(struct run *h) {
    clime_env_result_free(&h->result);
    clime_env_call_free(&h->call);
    clime_tok_scratch_free(h->scratch);
    clime_ids_free(&h->more);
    clime_ids_free(&h->tokens);
    clime_buf_free(&h->text);
    clime_arena_free(&h->arena);
    free(h);
}

static void *hook_main(void *arg) {
    struct run *h = arg;
    struct clime_environments *v = h->v;
    struct clime_error e = {0};
    char reason[REASON_BYTES] = "";
    int rc = v->o.hook->plugin.generate(&h->task, reason, sizeof reason - 1);
    pthread_mutex_lock(&v->lock);
    if (v->gone) { /* the tokenizer is gone too: nothing of the trainer's may be used now */
        pthread_mutex_unlock(&v->lock);
        return NULL;
    }
    if (!h->result.n_parts) clime_env_result_add(&h->result, -1);
    if (rc) h->result.error = xstrdup(reason[0] ? reason : "failed without a word");
    if (clime_env_result_locked(v, clime_str_of(h->id), &h->result, &e)) v->n_lost--;
    v->n_inside++; /* the table stays until the run is freed */
    pthread_mutex_unlock(&v->lock);
    run_free(h);
    pthread_mutex_lock(&v->lock);
    v->n_inside--;
    v->n_hooks--;
    pthread_cond_broadcast(&v->hook_left);
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

static const char *copy_text(struct run *h, const char *s) {
    return s ? clime_arena_strdup(&h->arena, clime_str_of(s)) : NULL;
}

static void describe(struct run *h, const struct clime_task *t) {
    const struct clime_request *r = t->r;
    const struct clime_sample *s = r->sample;
    const struct clime_sampling_options *o = r->sampling;
    int32_t *ids = clime_arena_alloc(&h->arena, (size_t)s->n_prompt * sizeof *ids + 1);
    CHECK(ids); /* the arena has no cap */
    memcpy(ids, s->ids, (size_t)s->n_prompt * sizeof *ids);
    h->task = (struct clime_plugin_task){.session = h,
                                         .calls = &calls,
                                         .rollout = s->rollout,
                                         .group = s->group,
                                         .member = s->member,
                                         .evaluation = s->rollout < 0,
                                         .seed = s->seed,
                                         .n_ids = s->n_prompt,
                                         .ids = ids,
                                         .prompt = copy_text(h, r->prompt),
                                         .input = copy_text(h, r->input),
                                         .label = copy_text(h, s->label),
                                         .metadata = copy_text(h, s->metadata),
                                         .temperature = o->temperature,
                                         .top_p = o->top_p,
                                         .top_k = (int32_t)o->top_k,
                                         .max_response_len = (int32_t)o->max_response_len,
                                         .max_context_len = (int32_t)o->max_context_len,
                                         .max_turns = h->v->o.max_turns};
}

bool clime_env_hook_start(struct clime_environments *v, const struct clime_task *t) {
    struct run *h = xcalloc(1, sizeof *h);
    pthread_t thread;
    h->v = v;
    snprintf(h->id, sizeof h->id, "%s", t->id);
    clime_arena_init(&h->arena, SIZE_MAX);
    clime_buf_init(&h->text, CLIME_RENDER_MAX);
    describe(h, t);
    if (pthread_create(&thread, NULL, hook_main, h)) {
        run_free(h);
        return false;
    }
    pthread_detach(thread);
    v->n_hooks++;
    return true;
}
