/* Runs a generating request, from parsed prompts to a closed job. Called by the generating endpoints on HTTP workers;
 * owns the job.
 *
 * Invariant: once submitted, the worker waits here until the job is closed, even if the client leaves, since the engine
 * and the emitter hold pointers into it; a lost client only marks the outputs unwanted. All checks run before a
 * stream's headers are sent, so errors have status codes.
 */
#include "server/api/generation.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/rng.h"
#include "server/api/request_log.h"
#include "server/api/resume.h"
#include "server/job/chat_newest.h"
#include "server/job/logprob_cost.h"
#include "server/job/sampling_prepare.h"
#include "server/server_metrics.h"

#define MAX_RENDERED ((size_t)64 << 20) /* bytes of a prompt as text */
/* OpenAI's wording, from which clients infer that they must shorten the conversation. */
#define TOO_LONG "this model's maximum context length is %d tokens, prompt and reply together: "
#define LEFT_US 5000000 /* wait for a lost client's old request to end */
#define LEFT_LOOK_US 5000
#define POLL_US 500000 /* how often a sleeping worker checks its client's connection */

void clime_generation_begin(struct clime_generation *gen, struct clime_server *s, struct clime_http_request *rq,
                            struct clime_str body) {
    /* ids take at most 2 bytes per character of the body, parameters and strings less */
    size_t cap = body.len * 8 + ((size_t)4 << 20);
    *gen = (struct clime_generation){.server = s,
                                     .rq = rq,
                                     .body = body,
                                     .job = clime_job_new(cap, s->tokenizer),
                                     .model = s->model_names[0],
                                     .rid_prefix = ""};
    if (s->model) gen->job->device = clime_dev_info(s->model->dev)->name;
    gen->job->drafting = s->opts.speculative != 0;
}

enum clime_err clime_server_no_model(const struct clime_server *s, struct clime_str name, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_NOT_FOUND,
                      "the model " CLIME_STR_FMT
                      " does not exist; served is %s%s (a server with --served-model-name '*' "
                      "takes any name)",
                      CLIME_STR_ARG(name), s->model_names[0], s->n_model_names > 1 ? " and other names" : "");
}

enum clime_err clime_generation_model(struct clime_generation *gen, struct clime_str name, struct clime_error *e) {
    const struct clime_server *s = gen->server;
    if (name.len == 0) return CLIME_OK;
    const char *served = clime_server_model_name(s, name);
    if (!served) return clime_server_no_model(s, name, e);
    gen->model = served;
    return CLIME_OK;
}

enum clime_err clime_generation_prompts(struct clime_generation *gen, int n, struct clime_error *e) {
    if (n < 1) return clime_fail(e, CLIME_ERR_INPUT, "the batch is empty");
    if (n > CLIME_MAX_OUTPUTS)
        return clime_fail(e, CLIME_ERR_INPUT, "a batch has at most %d prompts", CLIME_MAX_OUTPUTS);
    gen->prompts = clime_arena_zalloc(&gen->job->arena, (size_t)n * sizeof *gen->prompts);
    if (!gen->prompts) return clime_fail(e, CLIME_ERR_LIMIT, "the request takes too much memory");
    gen->n_prompts = n;
    return CLIME_OK;
}

/* ---- text to ids, and what else wants a text thread --------------------------------------------------------- */

struct encode_task {
    struct clime_generation *gen;
    struct clime_error *error;
    enum clime_err err;
    int n_done;
};

/* A prompt to truncate may be at most this many times too long. */
#define MAX_CUT 16

/* Prompt tokens of a truncated conversation: leaves room for the reply, so that not every later turn truncates
 * again. */
static size_t room_of_newest(const struct clime_server *s, const struct clime_prompt *p) {
    int64_t reply = p->params->max_new_tokens > 0 ? p->params->max_new_tokens : s->max_len / 8;
    if (reply > s->max_len / 2) reply = s->max_len / 2;
    return (size_t)(s->max_len - (reply > 0 ? reply : 1));
}

static enum clime_err encode_prompt(struct clime_server *s, struct clime_tok_scratch *scratch, struct clime_prompt *p,
                                    size_t *bytes, struct clime_error *e) {
    struct clime_buf rendered;
    if (clime_sampling_unprepared(p->params)) *bytes += CLIME_TEXT_SLICE_BYTES; /* may take as long as that */
    enum clime_err err = clime_sampling_prepare(p->params, s->tokenizer, scratch, e);
    if (err || (!p->is_text && !p->chat)) return err;
    clime_buf_init(&rendered, MAX_RENDERED);
    if (p->chat) err = clime_chat_render(&s->chat, p->chat, &rendered, NULL, e);
    struct clime_str text = p->chat ? clime_buf_str(&rendered) : p->text;
    size_t max = (size_t)s->max_len * (p->truncate ? MAX_CUT : 1);
    *bytes += text.len;
    if (!err)
        err = clime_tokenizer_encode_up_to(s->tokenizer, scratch, text, p->add_special ? CLIME_ENCODE_SPECIAL : 0, max,
                                           &p->ids, e);
    clime_buf_free(&rendered);
    bool too_long = err == CLIME_ERR_LIMIT || (!err && p->ids.len >= (size_t)s->max_len);
    if (too_long && p->chat && p->chat->drop_oldest)
        err = clime_chat_newest(&s->chat, s->tokenizer, scratch, p->chat, p->add_special ? CLIME_ENCODE_SPECIAL : 0,
                                room_of_newest(s, p), (size_t)s->max_len - 1, &p->ids, e);
    if (err != CLIME_ERR_LIMIT) return err;
    struct clime_error why = *e;
    return clime_fail(e, CLIME_ERR_TOO_LONG, TOO_LONG "%s", s->max_len, why.msg);
}

/* Encodes a slice of the prompts. */
static bool encode_prompts(void *arg, struct clime_tok_scratch *scratch) {
    struct encode_task *t = arg;
    struct clime_generation *gen = t->gen;
    for (size_t bytes = 0; t->n_done < gen->n_prompts && !t->err && bytes < CLIME_TEXT_SLICE_BYTES; t->n_done++) {
        t->err = encode_prompt(gen->server, scratch, &gen->prompts[t->n_done], &bytes, t->error);
        if (t->err && gen->n_prompts > 1) clime_error_prefix(t->error, "prompt %d", t->n_done);
    }
    return t->n_done < gen->n_prompts && !t->err;
}

/* Drops the beginning of a prompt that is too long, if requested. */
static void truncate_prompt(const struct clime_server *s, struct clime_prompt *p) {
    int64_t reply = p->params->max_new_tokens > 0 ? p->params->max_new_tokens : 1;
    int64_t fits = reply < s->max_len ? s->max_len - reply : 1, keep = p->truncate < 0 ? fits : p->truncate;
    if (keep == 0 || (int64_t)p->ids.len <= keep) return;
    memmove(p->ids.data, p->ids.data + p->ids.len - keep, (size_t)keep * sizeof *p->ids.data);
    p->ids.len = (size_t)keep;
    p->cut = true;
}

enum clime_err clime_generation_encode(struct clime_generation *gen, struct clime_error *e) {
    struct encode_task t = {.gen = gen, .error = e};
    bool any = false;
    for (int i = 0; i < gen->n_prompts; i++)
        any |= gen->prompts[i].is_text || gen->prompts[i].chat || clime_sampling_unprepared(gen->prompts[i].params);
    enum clime_err err = CLIME_OK;
    if (any) {
        clime_http_waits(gen->rq);
        err = clime_text_pool_run(gen->server->text, encode_prompts, &t, e);
        if (!err) err = t.err;
    }
    for (int i = 0; i < gen->n_prompts && !err; i++) truncate_prompt(gen->server, &gen->prompts[i]);
    return err;
}

void clime_generation_answer_count(struct clime_generation *gen, enum clime_err err, const struct clime_error *e,
                                   void (*write)(const struct clime_generation *gen, struct clime_buf *out)) {
    struct clime_buf body;
    if (err) {
        clime_http_reply_err(gen->rq, e);
    } else {
        clime_buf_init(&body, 4096);
        write(gen, &body);
        clime_reply_buf(gen->rq, 200, &body);
    }
    clime_generation_end(gen);
}

/* ---- checks ------------------------------------------------------------------------------------------------ */

static enum clime_err check_prompt(const struct clime_server *s, const struct clime_prompt *p, struct clime_error *e) {
    int n_vocab = s->model->cfg.V;
    enum clime_err err = clime_sampling_check(p->params, n_vocab, e);
    if (err) return err;
    if (p->ids.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "the prompt is empty");
    if (p->ids.len > (size_t)s->max_len || (p->ids.len == (size_t)s->max_len && p->params->max_new_tokens != 0))
        return clime_fail(e, CLIME_ERR_TOO_LONG,
                          TOO_LONG "the prompt has %zu (the limit is the model's context or the KV memory)", s->max_len,
                          p->ids.len);
    for (size_t i = 0; i < p->ids.len; i++)
        if (p->ids.data[i] < 0 || p->ids.data[i] >= n_vocab)
            return clime_fail(e, CLIME_ERR_INPUT, "input id %d at place %zu is outside the vocabulary of %d",
                              (int)p->ids.data[i], i, n_vocab);
    if (p->logp->wanted && p->logp->start > (int64_t)p->ids.len)
        return clime_fail(e, CLIME_ERR_INPUT, "logprob_start_len %lld is behind the prompt, which has %zu tokens",
                          (long long)p->logp->start, p->ids.len);
    for (int i = 0; i < p->logp->n_ids; i++)
        if (p->logp->ids[i] >= n_vocab)
            return clime_fail(e, CLIME_ERR_INPUT,
                              "token_ids_logprob (or logprob_token_ids) names %d, but the vocabulary has %d",
                              (int)p->logp->ids[i], n_vocab);
    return CLIME_OK;
}

/* Without top_k or top_p every id could be drawn, too many to list. SGLang's rule, which ignores min_p. */
static enum clime_err check_mask(const struct clime_prompt *p, int n_vocab, struct clime_error *e) {
    const struct clime_sampling_params *s = p->params;
    if (!p->logp->mask || clime_sampling_greedy(s)) return CLIME_OK;
    if (!clime_sampling_cuts(s, n_vocab))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "return_sampling_mask requires top_k (1 to %d) or a top_p below 1: any id could be drawn",
                          CLIME_MAX_KEPT);
    if (s->top_k > CLIME_MAX_KEPT && s->top_p >= 1)
        return clime_fail(e, CLIME_ERR_INPUT, "return_sampling_mask lists up to %d ids, but top_k leaves %lld",
                          CLIME_MAX_KEPT, (long long)s->top_k);
    return CLIME_OK;
}

enum clime_err clime_generation_check(const struct clime_generation *gen, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    for (int i = 0; i < gen->n_prompts && !err; i++) {
        err = check_prompt(gen->server, &gen->prompts[i], e);
        if (!err) err = check_mask(&gen->prompts[i], gen->server->model->cfg.V, e);
        if (err && gen->n_prompts > 1) clime_error_prefix(e, "prompt %d", i);
    }
    return err;
}

/* ---- outputs ----------------------------------------------------------------------------------------------- */

struct clime_str clime_generation_make_rid(struct clime_generation *gen) {
    char id[CLIME_RANDOM_ID + 1], z[64];
    clime_random_id(id);
    snprintf(z, sizeof z, "%s%s", gen->rid_prefix, id);
    const char *copy = clime_arena_strdup(&gen->job->arena, clime_str_of(z));
    return clime_str_of(copy ? copy : "");
}

static uint64_t make_seed(struct clime_server *s) {
    uint64_t r = 0;
    if (s->opts.random_seed >= 0) {
        uint64_t words[2] = {(uint64_t)s->opts.random_seed, atomic_fetch_add(&s->n_made_seeds, 1)};
        r = clime_hash64(words, 2);
    } else {
        clime_random_bytes(&r, sizeof r);
    }
    return r & ((1ull << 53) - 1); /* a generated seed fits JSON numbers that are doubles */
}

/* Output i of a request with several outputs and one seed uses hash64(seed, i), and equals a single request with that
 * seed (docs/protocol.md). */
static uint64_t member_seed(uint64_t seed, int i) {
    uint64_t words[2] = {seed, (uint64_t)i};
    return clime_hash64(words, 2);
}

static uint64_t salt_of(struct clime_str salt) {
    struct clime_sha256 sha;
    uint8_t digest[32];
    uint64_t h = 0;
    if (salt.len == 0) return 0;
    clime_sha256_init(&sha); /* cryptographic: salts isolate clients, so collisions must not be constructible */
    clime_sha256_add(&sha, salt.ptr, salt.len);
    clime_sha256_done(&sha, digest);
    memcpy(&h, digest, sizeof h);
    return h;
}

#define PROMPT_END 16 /* tokens: enough for a marker and the white space after it */

/* The template may open a reasoning block that the output continues, and a continued message may end inside one. */
static void begin_parse(const struct clime_server *s, const struct clime_prompt *p,
                        const struct clime_output_format *format, struct clime_output *o) {
    if (p->chat && p->chat->continue_final) {
        struct clime_arena a;
        struct clime_str said;
        bool reasoning;
        clime_arena_init(&a, p->chat->messages.len * 2 + 4096);
        if (clime_chat_final(p->chat->messages, &a, &said, &reasoning))
            clime_parse_go_on(&o->parse, format, said, reasoning);
        else
            clime_parse_begin(&o->parse, format, (struct clime_str){"", 0});
        clime_arena_free(&a);
        return;
    }
    int n = o->n_prompt < PROMPT_END ? o->n_prompt : PROMPT_END;
    struct clime_buf end;
    clime_buf_init(&end, (size_t)1 << 20);
    clime_tokenizer_decode(s->tokenizer, o->ids + o->n_prompt - n, (size_t)n, false, &end);
    clime_parse_begin(&o->parse, format, clime_buf_str(&end));
    clime_buf_free(&end);
}

/* Whether a grammar starts at once or after reasoning, by the parser of the model's template: the model reasons even if
 * the client does not want it separate. Without a conversation the grammar starts at once, and so it does after
 * reasoning that the prompt closed (enable_thinking false and similar). */
static enum clime_grammar_lead lead_of(const struct clime_server *s, const struct clime_prompt *p,
                                       const struct clime_output *o) {
    struct clime_output seen = {.job = o->job, .ids = o->ids, .n_prompt = o->n_prompt};
    if (!p->chat || p->params->grammar.kind == CLIME_GRAMMAR_NONE || !s->format.reasoning->feed) return CLIME_LEAD_NONE;
    begin_parse(s, p, &s->format, &seen);
    bool said = seen.parse.reply || clime_parse_is_closed(&seen.parse);
    enum clime_grammar_lead lead = said                                    ? CLIME_LEAD_NONE
                                   : clime_parse_is_reasoning(&seen.parse) ? CLIME_LEAD_REASONING
                                                                           : CLIME_LEAD_MAYBE;
    clime_parse_free(&seen.parse);
    return lead;
}

static void make_outputs(struct clime_generation *gen, int n) {
    struct clime_job *j = gen->job;
    const struct clime_server *s = gen->server;
    clime_job_outputs(j, gen->n_prompts, n);
    for (int i = 0; i < j->n_outs; i++) {
        struct clime_output *o = &j->outs[i];
        struct clime_prompt *p = &gen->prompts[o->prompt];
        int room = s->max_len - (int)p->ids.len;
        int64_t max_new = p->params->max_new_tokens;
        if (!p->params->has_seed) {
            p->params->seed = make_seed(gen->server);
            p->params->has_seed = true;
        }
        if (p->rid.len == 0) p->rid = clime_generation_make_rid(gen);
        o->rid = p->rid;
        o->ids = p->ids.data;
        o->n_prompt = (int)p->ids.len;
        o->params = p->params;
        o->logp = p->logp;
        o->max_new = max_new >= 0 && max_new < room ? (int)max_new : room;
        o->salt = salt_of(p->salt);
        int member = gen->shared_params ? i : o->sample, members = gen->shared_params ? j->n_outs : n;
        o->seed = members > 1 ? member_seed(p->params->seed, member) : p->params->seed;
        clime_stop_text_init(&o->text, s->tokenizer, p->params, o->ids, o->n_prompt);
        o->text.detok.kept = j->kept;
        o->text.detok.n_kept = j->n_kept;
        begin_parse(s, p, &j->format, o);
        o->lead = lead_of(s, p, o);
    }
}

/* ---- grammars ---------------------------------------------------------------------------------------------- */

struct grammar_task {
    struct clime_generation *gen;
    struct clime_error *error;
    enum clime_err err;
    int n_done;
};

/* Compiles an output's grammar, or shares the previous output's if it is the same. */
static bool compile_grammar(void *arg, struct clime_tok_scratch *scratch) {
    struct grammar_task *t = arg;
    const struct clime_server *s = t->gen->server;
    struct clime_job *j = t->gen->job;
    struct clime_output *o = &j->outs[t->n_done], *before = t->n_done > 0 ? o - 1 : NULL;
    struct clime_grammar_source source = o->params->grammar;
    (void)scratch;
    source.lead = o->lead;
    source.reasoning = s->format.reasoning;
    if (before && before->grammar && before->params == o->params && before->lead == o->lead)
        o->grammar = clime_grammar_ref(before->grammar);
    else if (source.kind != CLIME_GRAMMAR_NONE)
        t->err = clime_grammar_cache_get(s->grammars, &source, &o->grammar, t->error);
    return !t->err && ++t->n_done < j->n_outs;
}

static enum clime_err compile_grammars(struct clime_generation *gen, struct clime_error *e) {
    struct grammar_task t = {.gen = gen, .error = e};
    bool any = false;
    for (int i = 0; i < gen->n_prompts; i++) any |= gen->prompts[i].params->grammar.kind != CLIME_GRAMMAR_NONE;
    if (!any) return CLIME_OK;
    enum clime_err err = clime_text_pool_run(gen->server->text, compile_grammar, &t, e);
    return err ? err : t.err;
}

/* ---- waiting ----------------------------------------------------------------------------------------------- */

static void give_up(struct clime_generation *gen) {
    struct clime_job *j = gen->job;
    for (int i = 0; i < j->n_outs; i++) atomic_store(&j->outs[i].unwanted, true);
    clime_engine_sweep(gen->server->engine);
}

/* Polls the client: the emitter sees a dead stream only when it writes, which a queued or paused job never does. */
static void wait_closed(struct clime_generation *gen) {
    struct clime_job *j = gen->job;
    bool given_up = false;
    if (j->stream && !clime_http_stream_wait(j->http)) {
        give_up(gen);
        given_up = true;
        clime_http_stream_wait(j->http);
    }
    while (!clime_job_wait(j, clime_now_us() + POLL_US)) {
        if (given_up || !clime_http_peer_gone(gen->rq)) continue;
        give_up(gen);
        given_up = true;
    }
}

/* Rejects what is too large by counts alone, before tokenising. A request that the queue can never hold is not a 429:
 * retrying is useless. */
static enum clime_err check_size(const struct clime_generation *gen, struct clime_error *e) {
    const struct clime_server_options *o = &gen->server->opts;
    int64_t n = gen->prompts[0].params->n, n_outs = n * gen->n_prompts;
    int64_t room = o->max_queued_requests + o->max_running_requests;
    for (int i = 1; i < gen->n_prompts; i++)
        if (gen->prompts[i].params->n != n)
            return clime_fail(e, CLIME_ERR_INPUT, "prompt %d: all prompts of a batch must have the same n", i);
    if (n_outs > CLIME_MAX_OUTPUTS)
        return clime_fail(e, CLIME_ERR_INPUT, "n times prompts is over %d", CLIME_MAX_OUTPUTS);
    if (o->max_queued_requests >= 0 && n_outs > room)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "the request asks for %lld outputs, but the server runs and queues %lld at most "
                          "(--max-running-requests and --max-queued-requests)",
                          (long long)n_outs, (long long)room);
    return CLIME_OK;
}

static enum clime_err check_cost(const struct clime_generation *gen, struct clime_error *e) {
    int64_t bytes = clime_logprob_cost(gen->job), most = gen->server->opts.max_logprob_bytes;
    int64_t text = clime_logprob_text(gen->job);
    if (bytes > most)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "the log-probabilities, sampling masks or routed experts asked for may take %lld MB, at most %lld MB a "
            "request: ask for fewer "
            "outputs, tokens or alternatives, or a lower top_k (--max-logprob-bytes)",
            (long long)(bytes >> 20), (long long)(most >> 20));
    if (text > (int64_t)CLIME_MAX_REPLY)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "the log-probabilities, sampling masks or routed experts asked for may be %lld MB of text in "
                          "one %s, at most "
                          "%lld MB: ask for "
                          "fewer %stokens or alternatives%s",
                          (long long)(text >> 20), gen->job->stream ? "event of the stream" : "reply",
                          (long long)(CLIME_MAX_REPLY >> 20), gen->job->stream ? "" : "outputs, ",
                          gen->job->stream ? "" : ", or for a stream");
    return CLIME_OK;
}

/* Encodes and checks the prompts, and makes the outputs. */
static enum clime_err prepare(struct clime_generation *gen, struct clime_error *e) {
    enum clime_err err = check_size(gen, e);
    if (!err) err = clime_generation_encode(gen, e);
    if (!err) err = clime_generation_check(gen, e);
    if (err) return err;
    make_outputs(gen, (int)gen->prompts[0].params->n);
    if ((err = check_cost(gen, e)) || (err = compile_grammars(gen, e))) return err;
    return gen->resume.len ? clime_resume_read(gen->server, gen->job, gen->resume, e) : CLIME_OK;
}

/* Lets a router know what the events contain, so that it can resume a broken stream elsewhere. */
static const char *stream_head(const struct clime_job *j) {
    if (!j->framer->resumable) return "Cache-Control: no-cache\r\n";
    return j->incremental ? "Cache-Control: no-cache\r\nX-Clime-Stream: incremental\r\n"
                          : "Cache-Control: no-cache\r\nX-Clime-Stream: cumulative\r\n";
}

/* A client that lost its connection retries with the same ids, possibly before its first request has ended: waits for
 * that. */
static enum clime_err add_to_table(struct clime_generation *gen, struct clime_error *e) {
    struct clime_server *s = gen->server;
    int64_t until = clime_now_us() + LEFT_US;
    enum clime_err err;
    gen->job->rq = gen->rq;
    while ((err = clime_job_table_add(&s->jobs, gen->job, e)) == CLIME_ERR_BUSY && clime_now_us() < until &&
           !clime_http_peer_gone(gen->rq)) {
        clime_http_waits(gen->rq);
        clime_engine_sweep(s->engine);
        clime_sleep_us(LEFT_LOOK_US);
    }
    return err;
}

enum clime_err clime_generation_run(struct clime_generation *gen, struct clime_error *e) {
    struct clime_server *s = gen->server;
    struct clime_job *j = gen->job;
    enum clime_err err = prepare(gen, e);
    if (err) return err;
    if ((err = add_to_table(gen, e))) return err;
    gen->registered = true;
    if ((err = clime_engine_reserve(s->engine, j->n_outs, e))) return err;
    gen->n_reserved = j->n_outs;
    if (j->stream) {
        j->http = clime_http_stream_begin(gen->rq, 200, "text/event-stream", stream_head(j));
        if (!j->http) return clime_fail(e, CLIME_ERR_IO, "the client left");
        if (s->opts.stream_heartbeat > 0 && j->framer->heartbeat)
            clime_http_stream_heartbeat(j->http, j->framer->heartbeat, s->opts.stream_heartbeat * 1000000);
    }
    clime_engine_submit(s->engine, j);
    clime_http_waits(gen->rq);
    wait_closed(gen);
    clime_server_metrics_job(s->metrics, j);
    clime_request_log(s, gen->rq, j);
    return CLIME_OK;
}

const struct clime_output *clime_generation_failed(const struct clime_generation *gen) {
    for (int i = 0; i < gen->job->n_outs; i++)
        if (gen->job->outs[i].finish.type == CLIME_FINISH_ABORT && gen->job->outs[i].finish.status >= 400)
            return &gen->job->outs[i];
    return NULL;
}

void clime_generation_end(struct clime_generation *gen) {
    if (gen->registered) clime_job_table_remove(&gen->server->jobs, gen->job);
    if (gen->n_reserved) clime_engine_release(gen->server->engine, gen->n_reserved);
    for (int i = 0; i < gen->n_prompts; i++)
        if (gen->prompts[i].is_text || gen->prompts[i].chat) clime_ids_free(&gen->prompts[i].ids);
    for (int i = 0; i < gen->n_prompts; i++)
        if (gen->prompts[i].params) clime_sampling_release(gen->prompts[i].params);
    clime_job_free(gen->job);
}
