/* The client's threads: a pipeline from a submitted request to a finished one.
 *
 *   main -> asker (HTTP) -> generated -> submitter -> rewarder's workers -> taker -> done -> main
 *
 * with the teacher's threads between asker and `generated` if a request needs them (teacher.h). With environments a
 * request goes through `todo` to its own thread, which serves its session and uses the asker for each turn.
 *
 * Rewards never block the asker. The rewarder needs one thread to submit and one to take; these two do nothing else.
 *
 * Owns the queues of borrowed requests. Invariant: every submitted request returns, whatever the network does.
 */
#include "trainer/rollout/client.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/os/waits.h"
#include "common/thread/queue.h"
#include "trainer/env/environments.h"
#include "trainer/reward/rewarder.h"
#include "trainer/rollout/asker.h"
#include "trainer/rollout/gather.h"
#include "trainer/rollout/teacher.h"

#define STOP_CHECK_US 200000

/* Samples being graded. The wait is for the next result. */
struct grading {
    pthread_mutex_t lock;
    int n;
    struct clime_wait wait;
};

struct clime_client {
    struct clime_client_options o;
    struct clime_queue *todo, *generated, *done;
    struct clime_asker *asker;
    struct clime_teacher *teacher; /* NULL = none */
    struct grading grading;
    struct clime_rewarder *rewarder;
    pthread_t *sessions, submitter, taker; /* sessions[n_sessions], with environments */
    int n_sessions;
    bool has_submitter, has_taker;
    int64_t n_gatherings; /* submitter's thread */
    int n_most;           /* likewise */
    _Atomic int64_t moved_us;
    atomic_bool stop;
};

static bool stopping(void *arg) {
    return atomic_load(&((struct clime_client *)arg)->stop);
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

/* Sets the reward of a part of r's sample: a number, or a member of an object. False: the sample failed and loses its
 * further parts. */
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

struct turn { /* a turn awaited by a session's thread */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
};

static void end_turn(void *arg, struct clime_request *r) {
    struct turn *t = arg;
    (void)r;
    pthread_mutex_lock(&t->lock);
    t->done = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static void make_turn(void *arg, struct clime_request *turn) {
    struct clime_client *c = arg;
    struct turn t = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    clime_asker_ask(c->asker, turn, end_turn, &t);
    pthread_mutex_lock(&t.lock);
    while (!t.done) pthread_cond_wait(&t.changed, &t.lock);
    pthread_mutex_unlock(&t.lock);
    pthread_cond_destroy(&t.changed);
    pthread_mutex_destroy(&t.lock);
}

static bool give_reward(void *arg, struct clime_request *r, struct clime_sample *part, struct clime_reward *given) {
    (void)arg;
    return score(r, part, given);
}

static void let_environment(struct clime_client *c, struct clime_request *r) {
    const struct clime_task_owner owner = {make_turn, stopping, give_reward, c};
    r->sample->status = CLIME_SAMPLE_PENDING;
    r->sample->t_submit_us = clime_wall_us();
    struct clime_wait wait = {0};
    clime_wait_begin(&wait, "an environment's session to end", r->deadline_us - clime_now_us(), "%s", r->rid);
    clime_environments_run(c->o.environments, r, &owner);
    clime_wait_end(&wait);
    for (struct clime_sample *s = r->sample; s; s = s->next) s->t_done_us = clime_wall_us();
}

/* ---- threads ---- */

static bool sampled_to_its_end(const struct clime_sample *s) {
    return s->status == CLIME_SAMPLE_COMPLETED || s->status == CLIME_SAMPLE_TRUNCATED;
}

/* Its tokens are complete: passes it to the teacher or the reward. */
static void generated(void *arg, struct clime_request *r) {
    struct clime_client *c = arg;
    for (struct clime_sample *s = r->sample; s; s = s->next) {
        if (s->status != CLIME_SAMPLE_FAILED) decode(c, r, s);
        if (!s->device && c->o.device) s->device = xstrdup(c->o.device); /* else reported by the server */
    }
    if (r->teach && sampled_to_its_end(r->sample))
        clime_teacher_submit(c->teacher, r);
    else
        CHECK(clime_queue_push(c->generated, r));
}

static void *session_main(void *arg) {
    struct clime_client *c = arg;
    void *item;
    while (clime_queue_pop(c->todo, &item, 1, -1) == 1) {
        if (stopping(c)) continue;
        let_environment(c, item);
        generated(c, item);
    }
    return NULL;
}

/* The next part to be rewarded; NULL = none. */
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

static void count_grading(struct clime_client *c, int more) {
    struct grading *g = &c->grading;
    pthread_mutex_lock(&g->lock);
    g->n += more;
    if (g->n == 0)
        clime_wait_end(&g->wait);
    else if (more < 0 || g->n == more)
        clime_wait_begin(&g->wait, "the next reward", c->o.reward_timeout_us, "%d samples are graded", g->n);
    else
        clime_wait_on(&g->wait, "%d samples are graded", g->n);
    pthread_mutex_unlock(&g->lock);
}

/* Submits its first part; until it is done reward_us is the start time. */
static void begin_reward(struct clime_client *c, struct clime_request *r) {
    if (r->rewarded) return;
    r->reward_us = clime_now_us();
    r->rewarded = true;
    count_grading(c, 1);
}

static void rewarded(struct clime_client *c, struct clime_request *r) {
    count_grading(c, -1);
    r->reward_us = clime_now_us() - r->reward_us;
    CHECK(clime_queue_push(c->done, r));
}

static void submit_one(struct clime_client *c, struct clime_request *r) {
    struct clime_error e = {0};
    const struct clime_sample *s = unrewarded(r);
    if (s) {
        begin_reward(c, r);
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
        begin_reward(c, r[i]);
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

/* Returns requests to the owner without a reward. A finished answer loses its last token, which is sampled again on
 * continuing. */
static void send_back(struct clime_client *c, struct clime_request **r, int n) {
    for (int i = 0; i < n; i++) {
        struct clime_sample *s = r[i]->sample;
        if (sampled_to_its_end(s)) {
            s->status = CLIME_SAMPLE_ABORTED;
            clime_sample_drop_token(s);
            clime_asker_cut(c->o.tokenizer, r[i]);
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
            atomic_store(&c->moved_us, clime_now_us());
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
        atomic_store(&c->moved_us, clime_now_us());
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
    c->n_most = o->n_most;
    atomic_init(&c->stop, false);
    atomic_init(&c->moved_us, clime_now_us());
    pthread_mutex_init(&c->grading.lock, NULL);
    c->todo = clime_queue_new(CLIME_REQUESTS_MAX);
    c->generated = clime_queue_new(CLIME_REQUESTS_MAX);
    c->done = clime_queue_new(CLIME_REQUESTS_MAX);
    c->sessions = xcalloc((size_t)o->n_most, sizeof *c->sessions);
    const struct clime_asker_options ao = {
        .fleet = o->fleet, .api_key = o->api_key, .tokenizer = o->tokenizer, .n_most = o->n_most};
    struct clime_teacher_options to = {.url = o->teacher_url,
                                       .n_threads = o->teacher_threads,
                                       .timeout_us = o->teacher_timeout_us,
                                       .vocabulary = o->vocabulary,
                                       .allowed = o->allowed,
                                       .out = c->generated};
    enum clime_err rc = clime_rewarder_new(&ro, &c->rewarder, e);
    if (!rc && o->teacher_url) rc = clime_teacher_open(&to, &c->teacher, e);
    if (!rc) rc = clime_asker_open(&ao, &c->asker, e);
    if (!rc) {
        c->has_submitter = !pthread_create(&c->submitter, NULL, submitter_main, c);
        c->has_taker = !pthread_create(&c->taker, NULL, taker_main, c);
        while (o->environments && c->n_sessions < o->n_most &&
               !pthread_create(&c->sessions[c->n_sessions], NULL, session_main, c))
            c->n_sessions++;
        if (!c->has_submitter || !c->has_taker || (o->environments && c->n_sessions == 0))
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
    if (c->asker) clime_asker_stop(c->asker);
    for (int i = 0; i < c->n_sessions; i++) pthread_join(c->sessions[i], NULL);
    clime_asker_close(c->asker);
    c->asker = NULL;
    clime_teacher_close(c->teacher);
    c->teacher = NULL;
    clime_queue_close(c->generated);
    if (c->has_submitter) pthread_join(c->submitter, NULL);
    if (c->has_taker) pthread_join(c->taker, NULL);
    clime_queue_close(c->done);
    c->n_sessions = 0;
    c->has_submitter = c->has_taker = false;
}

void clime_client_close(struct clime_client *c) {
    if (!c) return;
    clime_client_stop(c);
    clime_wait_end(&c->grading.wait);
    pthread_mutex_destroy(&c->grading.lock);
    clime_rewarder_free(c->rewarder);
    clime_queue_free(c->todo);
    clime_queue_free(c->generated);
    clime_queue_free(c->done);
    free(c->sessions);
    free(c);
}

int64_t clime_client_gathering(struct clime_client *c) {
    return ++c->n_gatherings;
}

void clime_client_submit(struct clime_client *c, struct clime_request *r) {
    if (c->o.environments)
        CHECK(clime_queue_push(c->todo, r));
    else
        clime_asker_ask(c->asker, r, generated, c);
}

void clime_client_limit(struct clime_client *c, int n_most) {
    c->n_most = c->o.environments && n_most > c->o.n_most ? c->o.n_most : n_most;
    if (c->asker) clime_asker_limit(c->asker, c->n_most);
}

int64_t clime_client_moved_us(const struct clime_client *c) {
    return atomic_load(&c->moved_us);
}

int clime_client_most(const struct clime_client *c) {
    return c->n_most;
}

int clime_client_next(struct clime_client *c, struct clime_request **out, int max, int64_t deadline_us) {
    return (int)clime_queue_pop(c->done, (void **)out, (size_t)max, deadline_us);
}
