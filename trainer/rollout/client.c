/* The client's threads: a pipeline from a submitted request to a finished one.
 *
 *   main -> todo -> n generators (HTTP) -> generated -> submitter -> rewarder's workers -> taker -> done -> main
 *
 * with the teacher's threads between generators and `generated` where a request asks for them (teacher.h).
 *
 * A generator owns one HTTP client (a kept-alive connection to the router) and is never held up by a reward. The
 * rewarder wants one thread to submit and one to take; those two do nothing else.
 *
 * Owns the queues of borrowed requests. Invariant: a request that was submitted comes back, whatever the network does:
 * every call has the request's deadline, and every wait inside a try looks at `stop`.
 */
#include "trainer/rollout/client.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/retry.h"
#include "common/log.h"
#include "common/queue.h"
#include "trainer/env/environments.h"
#include "trainer/fleet/fleet.h"
#include "trainer/reward/rewarder.h"
#include "trainer/rollout/gather.h"
#include "trainer/rollout/generate.h"
#include "trainer/rollout/teacher.h"

#define MAX_REPLY ((size_t)256 << 20)
#define MAX_BODY ((size_t)64 << 20)
#define FIRST_PAUSE_US 50000
#define MAX_PAUSE_US 1000000
#define STOP_CHECK_US 200000

struct clime_client {
    struct clime_client_options o;
    struct clime_queue *todo, *generated, *done;
    struct clime_teacher *teacher; /* NULL = none */
    struct clime_rewarder *rewarder;
    pthread_t *generators, submitter, taker;
    int n_generators;
    bool has_submitter, has_taker;
    int64_t n_gatherings; /* of the thread that submits */
    atomic_bool stop;
};

static bool stopping(void *arg) {
    return atomic_load(&((struct clime_client *)arg)->stop);
}

/* ---- generation ---- */

/* One try. Returns true when the request is finished, well or not. */
static bool try_once(struct clime_client *c, struct clime_http_client *http, struct clime_request *r,
                     int64_t *retry_after_us, struct clime_error *e) {
    char url[CLIME_FLEET_URL + 16];
    *retry_after_us = 0;
    if (!clime_fleet_url(c->o.fleet, url, CLIME_FLEET_URL)) {
        clime_fail(e, CLIME_ERR_UNAVAILABLE, "the router is not there");
        return false;
    }
    strncat(url, "/generate", sizeof url - strlen(url) - 1);
    struct clime_buf body;
    clime_buf_init(&body, MAX_BODY);
    r->n_tries++;
    clime_generate_body(r, &body);
    struct clime_http_call call = {.method = "POST",
                                   .url = url,
                                   .body = clime_buf_str(&body),
                                   .timeout_us = r->deadline_us - clime_now_us(),
                                   .max_reply = MAX_REPLY,
                                   .cancel = stopping,
                                   .arg = c};
    struct clime_http_result res = {0};
    bool finished = false;
    if (call.timeout_us <= 0) {
        clime_fail(e, CLIME_ERR_TIMEOUT, "no answer before its deadline");
        finished = true;
    } else if (clime_http_client_call(http, &call, &res, e)) {
        finished = e->code == CLIME_ERR_LIMIT;
    } else if (res.status == 200) {
        enum clime_generate_outcome out = clime_generate_read(r, clime_buf_str(&res.reply), e);
        if (out == CLIME_GENERATE_STALE) r->n_stale++;
        finished = out == CLIME_GENERATE_DONE || out == CLIME_GENERATE_BROKEN;
        if (out == CLIME_GENERATE_BROKEN) clime_sample_fail(r->sample, e);
    } else {
        finished = !clime_http_status_passes(res.status);
        if (res.status == 429) *retry_after_us = res.retry_after_us;
        clime_fail(e, finished ? CLIME_ERR_INPUT : CLIME_ERR_UNAVAILABLE, "/generate answers %d: %.300s", res.status,
                   res.reply.len ? res.reply.data : "");
    }
    if (finished && r->sample->status == CLIME_SAMPLE_PENDING) clime_sample_fail(r->sample, e);
    clime_buf_free(&body);
    clime_buf_free(&res.reply);
    return finished;
}

/* True when the text of the response ends inside a stop string, or inside a character: what comes next may complete it,
 * and the server that continues looks for stop strings in new text only. */
static bool ends_inside_stop(const struct clime_client *c, const struct clime_request *r) {
    const struct clime_sample *s = r->sample;
    const struct clime_opt_list *stop = &r->sampling->stop;
    struct clime_buf text;
    bool inside = false;
    clime_buf_init(&text, CLIME_REWARD_MAX_TEXT);
    clime_tokenizer_decode(c->o.tokenizer, s->ids + s->n_prompt, (size_t)s->n_response,
                           r->sampling->skip_special_tokens, &text);
    inside = text.len >= 3 && !memcmp(text.data + text.len - 3, "\xef\xbf\xbd", 3);
    for (int i = 0; i < stop->n && !inside; i++)
        for (size_t n = strlen(stop->items[i]) - 1; n > 0 && !inside; n--)
            inside = text.len >= n && !memcmp(text.data + text.len - n, stop->items[i], n);
    clime_buf_free(&text);
    return inside;
}

struct waiting { /* between two tries */
    struct clime_client *c;
    const struct clime_request *r;
};

static bool wait_unless_stopped(void *arg, int64_t wait_us) {
    const struct waiting *w = arg;
    int64_t until = clime_now_us() + wait_us;
    for (;;) {
        int64_t left = until - clime_now_us();
        if (stopping(w->c) || clime_request_stopped(w->r)) return true;
        if (left <= 0) return false;
        clime_sleep_us(left < STOP_CHECK_US ? left : STOP_CHECK_US);
    }
}

static void generate(struct clime_client *c, struct clime_http_client *http, struct clime_request *r) {
    struct clime_sample *s = r->sample;
    struct clime_error e = {0};
    struct waiting waiting = {c, r};
    struct clime_retry again = {.what = r->rid,
                                .deadline_us = r->deadline_us,
                                .first_pause_us = FIRST_PAUSE_US,
                                .most_pause_us = MAX_PAUSE_US,
                                .stop = wait_unless_stopped,
                                .arg = &waiting};
    int64_t t0 = clime_now_us(), retry_after_us, room = clime_sampling_room(r->sampling, s->n_prompt);
    s->status = CLIME_SAMPLE_PENDING;
    s->t_submit_us = clime_wall_us();
    if (room == 0) {
        clime_fail(&e, CLIME_ERR_LIMIT, "the prompt of %d tokens fills the context", s->n_prompt);
        clime_sample_fail(s, &e);
    } else if (room == s->n_response) { /* it was aborted at its last token */
        s->status = CLIME_SAMPLE_TRUNCATED;
    }
    while (s->status == CLIME_SAMPLE_PENDING) {
        if (clime_request_stopped(r)) {
            s->status = CLIME_SAMPLE_ABORTED;
        } else if (!try_once(c, http, r, &retry_after_us, &e) &&
                   clime_retry_wait(&again, retry_after_us, &e) != CLIME_RETRY_AGAIN && !clime_request_stopped(r)) {
            clime_sample_fail(s, &e);
        }
    }
    while (s->status == CLIME_SAMPLE_ABORTED && s->n_response > 0 && r->sampling->stop.n > 0 && ends_inside_stop(c, r))
        clime_sample_drop_token(s);
    s->t_done_us = clime_wall_us();
    r->generate_us = clime_now_us() - t0;
}

/* ---- reward ---- */

static void decode(const struct clime_client *c, const struct clime_request *r, struct clime_sample *s) {
    struct clime_buf text;
    clime_buf_init(&text, CLIME_REWARD_MAX_TEXT);
    clime_tokenizer_decode(c->o.tokenizer, s->ids + s->n_prompt, (size_t)s->n_response,
                           r->sampling->skip_special_tokens, &text);
    free(s->response);
    s->response = clime_buf_take(&text);
}

/* Takes over the reward of a part of r's sample: a number, or a member of an object. False: the sample has failed, and
 * then there are no further parts. */
static bool score(const struct clime_request *r, struct clime_sample *s, struct clime_reward *given) {
    struct clime_reward picked = {0};
    struct clime_reward *v = given;
    if (!given->error.code && given->object && r->reward_key && !given->is_sum) {
        clime_reward_from_json(clime_str_of(given->object), r->reward_key, &picked);
        v = &picked;
    }
    clime_reward_check_range(v);
    struct clime_error e = v->error;
    if (!e.code && isnan(v->value))
        clime_fail(&e, CLIME_ERR_INPUT, "it is an object: --reward-key must name its member");
    if (e.code) {
        clime_error_prefix(&e, "reward");
        clime_sample_fail(r->sample, &e);
    } else {
        s->reward = v->value;
        s->has_reward = true;
        free(s->reward_json);
        s->reward_json = given->object ? xstrdup(given->object) : NULL;
    }
    clime_reward_free(&picked);
    return !e.code;
}

/* ---- environments ---- */

struct turn_maker {
    struct clime_client *c;
    struct clime_http_client *http;
};

static void make_turn(void *arg, struct clime_request *turn) {
    const struct turn_maker *m = arg;
    generate(m->c, m->http, turn);
}

static bool maker_stopping(void *arg) {
    return stopping(((const struct turn_maker *)arg)->c);
}

static bool give_reward(void *arg, struct clime_request *r, struct clime_sample *part, struct clime_reward *given) {
    (void)arg;
    return score(r, part, given);
}

static void let_environment(struct clime_client *c, struct clime_http_client *http, struct clime_request *r) {
    struct turn_maker maker = {c, http};
    const struct clime_task_owner owner = {make_turn, maker_stopping, give_reward, &maker};
    int64_t t0 = clime_now_us();
    r->sample->status = CLIME_SAMPLE_PENDING;
    r->sample->t_submit_us = clime_wall_us();
    clime_environments_run(c->o.environments, r, &owner);
    for (struct clime_sample *s = r->sample; s; s = s->next) s->t_done_us = clime_wall_us();
    r->generate_us = clime_now_us() - t0;
}

/* ---- threads ---- */

static bool sampled_to_its_end(const struct clime_sample *s) {
    return s->status == CLIME_SAMPLE_COMPLETED || s->status == CLIME_SAMPLE_TRUNCATED;
}

static void *generator_main(void *arg) {
    struct clime_client *c = arg;
    struct clime_http_client *http = clime_http_client_new();
    clime_http_client_bearer(http, c->o.api_key);
    void *item;
    while (clime_queue_pop(c->todo, &item, 1, -1) == 1) {
        struct clime_request *r = item;
        if (stopping(c)) continue;
        if (c->o.environments)
            let_environment(c, http, r);
        else
            generate(c, http, r);
        for (struct clime_sample *s = r->sample; s; s = s->next) {
            if (s->status != CLIME_SAMPLE_FAILED) decode(c, r, s);
            if (!s->device && c->o.device) s->device = xstrdup(c->o.device); /* else the server said it */
        }
        if (r->teach && sampled_to_its_end(r->sample))
            clime_teacher_submit(c->teacher, r);
        else
            CHECK(clime_queue_push(c->generated, r));
    }
    clime_http_client_free(http);
    return NULL;
}

/* The part that is to be rewarded next, one after another; NULL = none. */
static struct clime_sample *unrewarded(const struct clime_request *r) {
    struct clime_sample *s = r->sample;
    if (!sampled_to_its_end(s) || r->scored) return NULL;
    while (s && s->has_reward) s = s->next;
    return s;
}

static struct clime_reward_request question_of(const struct clime_request *r, const struct clime_sample *s) {
    return (struct clime_reward_request){.type = r->rm_type,
                                         .prompt = clime_str_of(r->prompt),
                                         .response = clime_str_of(s->response),
                                         .label = clime_str_of(s->label),
                                         .metadata = clime_str_of(s->own_metadata ? s->own_metadata : s->metadata),
                                         .label_is_json = true,
                                         .seed = s->seed};
}

/* Its first part; reward_us is its beginning until it is done. */
static void begin_reward(struct clime_request *r) {
    if (!r->rewarded) r->reward_us = clime_now_us();
    r->rewarded = true;
}

static void rewarded(struct clime_client *c, struct clime_request *r) {
    r->reward_us = clime_now_us() - r->reward_us;
    CHECK(clime_queue_push(c->done, r));
}

static void submit_one(struct clime_client *c, struct clime_request *r) {
    struct clime_error e = {0};
    const struct clime_sample *s = unrewarded(r);
    if (s) {
        begin_reward(r);
        struct clime_reward_request q = question_of(r, s);
        if (!clime_rewarder_submit(c->rewarder, &q, r, &e)) return;
        clime_error_prefix(&e, "reward");
        clime_sample_fail(r->sample, &e);
    }
    if (r->rewarded)
        rewarded(c, r);
    else
        CHECK(clime_queue_push(c->done, r));
}

static void submit_group(struct clime_client *c, struct clime_request **r, int n) {
    struct clime_error e = {0};
    struct clime_reward_request *q = xcalloc((size_t)n, sizeof *q);
    for (int i = 0; i < n; i++) {
        begin_reward(r[i]);
        q[i] = question_of(r[i], r[i]->sample);
    }
    if (clime_rewarder_submit_group(c->rewarder, q, (void *const *)r, n, &e)) {
        clime_error_prefix(&e, "reward");
        for (int i = 0; i < n; i++) {
            clime_sample_fail(r[i]->sample, &e);
            rewarded(c, r[i]);
        }
    }
    free(q);
}

/* Back to the owner without a reward. A finished answer loses its last token, which is sampled again when it goes on.
 */
static void send_back(struct clime_client *c, struct clime_request **r, int n) {
    for (int i = 0; i < n; i++) {
        struct clime_sample *s = r[i]->sample;
        if (sampled_to_its_end(s)) {
            s->status = CLIME_SAMPLE_ABORTED;
            do clime_sample_drop_token(s);
            while (s->n_response > 0 && r[i]->sampling->stop.n > 0 && ends_inside_stop(c, r[i]));
            decode(c, r[i], s);
        }
        CHECK(clime_queue_push(c->done, r[i]));
    }
}

static void *submitter_main(void *arg) {
    struct clime_client *c = arg;
    struct clime_gather *gather = clime_gather_new();
    struct clime_request **out = xcalloc(CLIME_GATHER_MOST, sizeof *out);
    int n;
    while (!stopping(c)) {
        void *item;
        bool complete;
        if (clime_queue_pop(c->generated, &item, 1, clime_now_us() + STOP_CHECK_US) == 1) {
            struct clime_request *r = item;
            if (r->group_size == 0) {
                submit_one(c, r);
                continue;
            }
            n = clime_gather_add(gather, r, out, &complete);
            if (complete)
                submit_group(c, out, n);
            else
                send_back(c, out, n);
        }
        while ((n = clime_gather_stopped(gather, out)) > 0) send_back(c, out, n);
    }
    clime_gather_free(gather);
    free(out);
    return NULL;
}

static void *taker_main(void *arg) {
    struct clime_client *c = arg;
    while (!stopping(c)) {
        void *tag;
        struct clime_reward reward = {0};
        if (!clime_rewarder_next(c->rewarder, clime_now_us() + STOP_CHECK_US, &tag, &reward)) continue;
        struct clime_request *r = tag;
        score(r, unrewarded(r), &reward);
        clime_reward_free(&reward);
        if (!unrewarded(r) || !clime_queue_push(c->generated, r)) rewarded(c, r);
    }
    return NULL;
}

enum clime_err clime_client_open(const struct clime_client_options *o, struct clime_client **out,
                                 struct clime_error *e) {
    struct clime_client *c = xcalloc(1, sizeof *c);
    struct clime_rewarder_options ro = {.type = o->rm_type,
                                        .command = o->rm_command,
                                        .url = o->rm_url,
                                        .n_workers = o->rm_workers,
                                        .batch = o->rm_batch_size,
                                        .library = o->library,
                                        .timeout_us = o->reward_timeout_us,
                                        .max_pending = CLIME_REQUESTS_MAX};
    *out = NULL;
    c->o = *o;
    atomic_init(&c->stop, false);
    c->todo = clime_queue_new(CLIME_REQUESTS_MAX);
    c->generated = clime_queue_new(CLIME_REQUESTS_MAX);
    c->done = clime_queue_new(CLIME_REQUESTS_MAX);
    c->generators = xcalloc((size_t)o->n_threads, sizeof *c->generators);
    struct clime_teacher_options to = {.url = o->teacher_url,
                                       .n_threads = o->teacher_threads,
                                       .timeout_us = o->teacher_timeout_us,
                                       .out = c->generated};
    enum clime_err rc = clime_rewarder_new(&ro, &c->rewarder, e);
    if (!rc && o->teacher_url) rc = clime_teacher_open(&to, &c->teacher, e);
    if (!rc) {
        c->has_submitter = !pthread_create(&c->submitter, NULL, submitter_main, c);
        c->has_taker = !pthread_create(&c->taker, NULL, taker_main, c);
        while (c->n_generators < o->n_threads &&
               !pthread_create(&c->generators[c->n_generators], NULL, generator_main, c))
            c->n_generators++;
        if (!c->has_submitter || !c->has_taker || c->n_generators == 0)
            rc = clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the client's threads");
    }
    if (rc)
        clime_client_close(c);
    else
        *out = c;
    return rc;
}

void clime_client_stop(struct clime_client *c) {
    atomic_store(&c->stop, true);
    clime_queue_close(c->todo);
    for (int i = 0; i < c->n_generators; i++) pthread_join(c->generators[i], NULL);
    clime_teacher_close(c->teacher);
    c->teacher = NULL;
    clime_queue_close(c->generated);
    if (c->has_submitter) pthread_join(c->submitter, NULL);
    if (c->has_taker) pthread_join(c->taker, NULL);
    clime_queue_close(c->done);
    c->n_generators = 0;
    c->has_submitter = c->has_taker = false;
}

void clime_client_close(struct clime_client *c) {
    if (!c) return;
    clime_client_stop(c);
    clime_rewarder_free(c->rewarder);
    clime_queue_free(c->todo);
    clime_queue_free(c->generated);
    clime_queue_free(c->done);
    free(c->generators);
    free(c);
}

int64_t clime_client_gathering(struct clime_client *c) {
    return ++c->n_gatherings;
}

void clime_client_submit(struct clime_client *c, struct clime_request *r) {
    CHECK(clime_queue_push(c->todo, r));
}

int clime_client_next(struct clime_client *c, struct clime_request **out, int max, int64_t deadline_us) {
    return (int)clime_queue_pop(c->done, (void **)out, (size_t)max, deadline_us);
}
