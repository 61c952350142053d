/* Event loop of the /generate client. Called by trainer/rollout/client.c: any thread asks, one thread works.
 *
 * Owns one `asked` per request in flight or paused between tries, its body and reply, and the HTTP loop. Invariant:
 * every request ends whatever the network does: calls have the request's deadline, and paused requests are polled.
 */
#include "trainer/rollout/asker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/retry.h"
#include "common/os/waits.h"
#include "common/thread/queue.h"
#include "trainer/fleet/fleet.h"
#include "trainer/reward/reward.h"
#include "trainer/rollout/generate.h"

#define MAX_BODY ((size_t)64 << 20)
#define MAX_REFUSAL ((size_t)4096) /* message of an answer that is not a stream */
#define FIRST_PAUSE_US 50000
#define MAX_PAUSE_US 1000000
#define MAX_ENDING_US 1000000 /* from the last event of a stream to its end */
#define STOP_CHECK_US 200000  /* interval to check paused requests for a stop */
#define AT_ONCE 256

struct asked {
    struct clime_asker *a;
    struct clime_request *r;
    clime_asker_done_fn *done;
    void *arg;
    struct clime_retry again;
    int64_t next_us; /* time of the next try; clime_now_us scale */
    struct clime_buf body;
    struct clime_http_result result;
    struct clime_generate_stream *stream; /* of a streamed try; NULL = not streamed */
    int64_t over_us;                      /* when its answer was complete; 0 = not yet */
    int status;                           /* HTTP status */
    struct clime_buf refusal;             /* an answer that is not a stream */
    struct clime_error e;
    char url[CLIME_FLEET_URL + 16];
    struct asked *after; /* next in `pausing` */
    struct clime_wait wait;
};

struct clime_asker {
    struct clime_asker_options o;
    struct clime_queue *inbox; /* of struct asked */
    struct clime_http_loop *http;
    pthread_t thread;
    atomic_int n_most;
    atomic_bool stop, closed;
    /* the thread's own */
    int n_asked;           /* in flight or pausing */
    int n_kept;            /* connections kept by the loop */
    struct asked *pausing; /* unordered */
};

static bool stopping(const struct clime_asker *a) {
    return atomic_load(&a->stop);
}

/* A stream with a complete answer is awaited only to reuse its connection. */
static bool ends_too_late(struct asked *q) {
    if (!q->stream || !clime_generate_stream_over(q->stream)) return false;
    if (!q->over_us) q->over_us = clime_now_us();
    return clime_now_us() - q->over_us >= MAX_ENDING_US;
}

static bool cancelled(void *arg) {
    struct asked *q = arg;
    return stopping(q->a) || clime_request_left(q->r) || ends_too_late(q);
}

/* True if the response ends inside a stop string or a character: new text may complete it, but the next server searches
 * for stop strings only in new text. */
static bool ends_inside_stop(const struct clime_tokenizer *tok, const struct clime_request *r) {
    const struct clime_sample *s = r->sample;
    const struct clime_opt_list *stop = &r->sampling->stop;
    struct clime_buf text;
    bool inside = false;
    clime_buf_init(&text, CLIME_REWARD_MAX_TEXT);
    clime_tokenizer_decode(tok, s->ids + s->n_prompt, (size_t)s->n_response, r->sampling->skip_special_tokens, &text);
    inside = text.len >= 3 && !memcmp(text.data + text.len - 3, "\xef\xbf\xbd", 3);
    for (int i = 0; i < stop->n && !inside; i++)
        for (size_t n = strlen(stop->items[i]); n-- > 1 && !inside;) /* skips an empty one */
            inside = text.len >= n && !memcmp(text.data + text.len - n, stop->items[i], n);
    clime_buf_free(&text);
    return inside;
}

void clime_asker_cut(const struct clime_tokenizer *tok, struct clime_request *r) {
    struct clime_sample *s = r->sample;
    while (s->n_response > 0 && r->sampling->stop.n > 0 && ends_inside_stop(tok, r)) clime_sample_drop_token(s);
}

/* ---- one request ---- */

static void end(struct asked *q) {
    struct clime_request *r = q->r;
    if (r->sample->status == CLIME_SAMPLE_ABORTED) clime_asker_cut(q->a->o.tokenizer, r);
    r->sample->t_done_us = clime_wall_us();
    q->a->n_asked--;
    clime_wait_end(&q->wait);
    q->done(q->arg, r);
    free(q);
}

/* A try failed: retries after a pause, or gives up. */
static void broke(struct asked *q, int64_t retry_after_us) {
    struct clime_asker *a = q->a;
    int64_t pause;
    if (!stopping(a) && !clime_request_stopped(q->r) &&
        clime_retry_plan(&q->again, retry_after_us, &q->e, &pause) == CLIME_RETRY_AGAIN) {
        q->next_us = clime_now_us() + pause;
        q->after = a->pausing;
        a->pausing = q;
        clime_wait_on(&q->wait, "%s, which is tried again: %.120s", q->r->rid, q->e.msg);
        return;
    }
    if (clime_request_stopped(q->r))
        q->r->sample->status = CLIME_SAMPLE_ABORTED;
    else
        clime_sample_fail(q->r->sample, &q->e);
    end(q);
}

static void on_header(void *arg, int status, const char *name, const char *value) {
    (void)name;
    (void)value;
    ((struct asked *)arg)->status = status;
}

static bool on_data(void *arg, const char *data, size_t len) {
    struct asked *q = arg;
    if (q->status == 200) return clime_generate_stream_feed(q->stream, data, len);
    clime_buf_add(&q->refusal, data, len);
    return true;
}

/* Finishes the request (true) or schedules a retry. */
static bool finished_by(struct asked *q, enum clime_generate_outcome out) {
    if (out == CLIME_GENERATE_STALE) q->r->n_stale++;
    if (out == CLIME_GENERATE_BROKEN) clime_sample_fail(q->r->sample, &q->e);
    return out == CLIME_GENERATE_DONE || out == CLIME_GENERATE_BROKEN;
}

/* Handles the end of a stream. A connection broken after the complete answer is no error. */
static bool finished_stream(struct asked *q, enum clime_err rc) {
    struct clime_error e = {0};
    enum clime_generate_outcome out = clime_generate_stream_end(q->stream, !rc, &e);
    if (out != CLIME_GENERATE_CUT || !rc) q->e = e;
    return finished_by(q, out);
}

static void answered(void *arg, enum clime_err rc) {
    struct asked *q = arg;
    struct clime_request *r = q->r;
    struct clime_http_result *res = &q->result;
    const struct clime_buf *said = q->stream ? &q->refusal : &res->reply;
    bool finished = false;
    int64_t retry_after_us = 0;
    if (q->stream && q->status == 200) {
        finished = finished_stream(q, rc);
    } else if (rc) {
        finished = rc == CLIME_ERR_LIMIT;
    } else if (res->status == 200) {
        finished = finished_by(q, clime_generate_read(r, clime_buf_str(&res->reply), &q->e));
    } else {
        finished = !clime_http_status_passes(res->status);
        retry_after_us = res->retry_after_us;
        clime_fail(&q->e, finished ? CLIME_ERR_INPUT : CLIME_ERR_UNAVAILABLE, "/generate answers %d: %.*s", res->status,
                   (int)(said->len < 300 ? said->len : 300), said->len ? said->data : "");
    }
    if (q->stream) clime_generate_stream_free(q->stream);
    q->stream = NULL;
    clime_buf_free(&q->refusal);
    clime_buf_free(&q->body);
    clime_buf_free(&res->reply);
    if (finished && r->sample->status == CLIME_SAMPLE_PENDING) clime_sample_fail(r->sample, &q->e);
    if (finished)
        end(q);
    else
        broke(q, retry_after_us);
}

static void try_now(struct asked *q) {
    struct clime_asker *a = q->a;
    struct clime_request *r = q->r;
    struct clime_http_call call = {.method = "POST",
                                   .url = q->url,
                                   .timeout_us = r->deadline_us - clime_now_us(),
                                   .max_reply = CLIME_GENERATE_MAX_REPLY,
                                   .cancel = cancelled,
                                   .arg = q};
    if (clime_request_stopped(r)) {
        r->sample->status = CLIME_SAMPLE_ABORTED;
        end(q);
    } else if (stopping(a)) {
        clime_fail(&q->e, CLIME_ERR_ABORTED, "it was given up");
        broke(q, 0);
    } else if (!clime_fleet_url(a->o.fleet, q->url, CLIME_FLEET_URL)) {
        clime_fail(&q->e, CLIME_ERR_UNAVAILABLE, "the router is not there");
        broke(q, 0);
    } else if (call.timeout_us <= 0) {
        clime_fail(&q->e, CLIME_ERR_TIMEOUT, "no answer before its deadline");
        clime_sample_fail(r->sample, &q->e);
        end(q);
    } else {
        strncat(q->url, "/generate", sizeof q->url - strlen(q->url) - 1);
        r->n_tries++;
        clime_buf_init(&q->body, MAX_BODY);
        clime_generate_body(r, &q->body);
        call.body = clime_buf_str(&q->body);
        q->status = 0;
        q->over_us = 0;
        clime_buf_init(&q->refusal, MAX_REFUSAL);
        if (clime_generate_streams(r)) {
            q->stream = clime_generate_stream_new(r);
            call.on_data = on_data;
            call.on_header = on_header;
        }
        clime_http_loop_start(a->http, &call, &q->result, &q->e, answered, q);
    }
}

static void begin(struct asked *q) {
    struct clime_request *r = q->r;
    struct clime_sample *s = r->sample;
    int64_t room = clime_sampling_room(r->sampling, s->n_prompt);
    q->again = (struct clime_retry){
        .what = r->rid, .deadline_us = r->deadline_us, .first_pause_us = FIRST_PAUSE_US, .most_pause_us = MAX_PAUSE_US};
    q->a->n_asked++;
    clime_wait_begin(&q->wait, "an answer of /generate", r->deadline_us - clime_now_us(), "%s", r->rid);
    s->status = CLIME_SAMPLE_PENDING;
    s->t_submit_us = clime_wall_us();
    if (room == 0) {
        clime_fail(&q->e, CLIME_ERR_LIMIT, "the prompt of %d tokens fills the context", s->n_prompt);
        clime_sample_fail(s, &q->e);
    } else if (room == s->n_response) { /* aborted at its last token */
        s->status = CLIME_SAMPLE_TRUNCATED;
    }
    if (s->status == CLIME_SAMPLE_PENDING)
        try_now(q);
    else
        end(q);
}

/* ---- the thread ---- */

/* Starts queued requests while there is room. */
static void take_in(struct clime_asker *a) {
    void *items[AT_ONCE];
    int room, n_most = atomic_load(&a->n_most);
    size_t n;
    if (n_most > a->n_kept) clime_http_loop_keep(a->http, a->n_kept = n_most);
    do {
        room = atomic_load(&a->n_most) - a->n_asked;
        n = room > 0 ? clime_queue_pop(a->inbox, items, room < AT_ONCE ? (size_t)room : AT_ONCE, 0) : 0;
        for (size_t i = 0; i < n; i++) begin(items[i]);
    } while (n > 0);
}

/* Resumes requests whose pause is over or that were stopped; returns the time of the next check. */
static int64_t look_at_pausing(struct clime_asker *a) {
    int64_t now = clime_now_us(), next = INT64_MAX;
    struct asked *all = a->pausing, *q;
    a->pausing = NULL; /* requests that pause again are re-added */
    while ((q = all)) {
        all = q->after;
        if (now >= q->next_us || clime_request_stopped(q->r) || stopping(a)) {
            try_now(q);
        } else {
            q->after = a->pausing;
            a->pausing = q;
        }
    }
    for (q = a->pausing; q; q = q->after)
        if (q->next_us < next) next = q->next_us;
    return a->pausing && now + STOP_CHECK_US < next ? now + STOP_CHECK_US : next;
}

static void *asker_main(void *arg) {
    struct clime_asker *a = arg;
    pthread_setname_np(pthread_self(), "asker");
    while (!atomic_load(&a->closed) || a->n_asked > 0) {
        take_in(a);
        int n = a->n_asked;
        int64_t next = look_at_pausing(a);
        clime_http_loop_turn(a->http, a->n_asked < n ? 0 : next); /* a finished request makes room for a queued one */
    }
    return NULL;
}

enum clime_err clime_asker_open(const struct clime_asker_options *o, struct clime_asker **out, struct clime_error *e) {
    struct clime_asker *a = *out = xcalloc(1, sizeof *a);
    a->o = *o;
    atomic_init(&a->stop, false);
    atomic_init(&a->closed, false);
    atomic_init(&a->n_most, o->n_most);
    a->inbox = clime_queue_new(CLIME_REQUESTS_MAX);
    a->http = clime_http_loop_new(a->n_kept = o->n_most, e);
    if (a->http) clime_http_loop_bearer(a->http, o->api_key);
    if (a->http && !pthread_create(&a->thread, NULL, asker_main, a)) return CLIME_OK;
    if (a->http) clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the thread that asks for answers");
    clime_http_loop_free(a->http);
    clime_queue_free(a->inbox);
    free(a);
    *out = NULL;
    return e->code;
}

void clime_asker_ask(struct clime_asker *a, struct clime_request *r, clime_asker_done_fn *done, void *arg) {
    struct asked *q = xcalloc(1, sizeof *q);
    *q = (struct asked){.a = a, .r = r, .done = done, .arg = arg};
    CHECK(clime_queue_push(a->inbox, q));
    clime_http_loop_wake(a->http);
}

void clime_asker_limit(struct clime_asker *a, int n_most) {
    if (atomic_exchange(&a->n_most, n_most) < n_most) clime_http_loop_wake(a->http);
}

void clime_asker_stop(struct clime_asker *a) {
    atomic_store(&a->stop, true);
    clime_http_loop_wake(a->http);
}

void clime_asker_close(struct clime_asker *a) {
    void *item;
    if (!a) return;
    atomic_store(&a->closed, true);
    clime_asker_stop(a);
    pthread_join(a->thread, NULL);
    while (clime_queue_pop(a->inbox, &item, 1, 0) == 1) free(item); /* never started */
    clime_http_loop_free(a->http);
    clime_queue_free(a->inbox);
    free(a);
}
