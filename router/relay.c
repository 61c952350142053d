/* Relay of one answer (relay.h). Called by the proxy on HTTP threads.
 *
 * While it waits it checks a few times a second whether the client is connected, whether the prober found the worker
 * frozen (a stopped process or dead host keeps its connections) or suspects it, and whether the router is ending. */
#include "router/relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/sse.h"
#include "common/json/write.h"
#include "router/address.h"
#include "router/connections.h"
#include "router/forward.h"

#define LOOK_US 250000
#define SILENT_US ((int64_t)1000000)     /* a stream silent for this long has its worker probed */
#define LARGEST_EVENT ((size_t)16 << 20) /* buffered until complete; a larger one is passed on in parts */
#define PIECE_CAP ((size_t)1 << 20)      /* libcurl passes 16 KiB */

void clime_relay_init(struct clime_relay *y, struct clime_router *r, struct clime_http_request *rq,
                      const char *target) {
    *y = (struct clime_relay){.router = r, .rq = rq, .target = target};
    clime_replay_init(&y->replay, &r->replay_memory);
    clime_buf_init(&y->last_words, LARGEST_EVENT + PIECE_CAP);
    clime_buf_init(&y->again, 0);
    clime_buf_init(&y->body, r->max_reply);
    clime_buf_init(&y->held, LARGEST_EVENT + PIECE_CAP);
    clime_head_init(&y->head);
}

void clime_relay_free(struct clime_relay *y) {
    clime_buf_free(&y->body);
    clime_buf_free(&y->held);
    clime_head_free(&y->head);
    clime_buf_free(&y->last_words);
    clime_buf_free(&y->again);
    clime_replay_free(&y->replay);
}

/* ---- callbacks of the HTTP client, on this thread ---- */

static void hear(struct clime_relay *y) {
    y->heard_us = clime_now_us();
    clime_workers_heard(y->router->workers, y->lease->slot, y->heard_us);
}

static bool is_stream(const struct clime_relay *y) {
    const char *type = y->head.content_type;
    return y->status == 200 && type && !y->coded && !strncasecmp(type, "text/event-stream", 17);
}

static void on_header(void *arg, int status, const char *name, const char *value) {
    struct clime_relay *y = arg;
    y->status = status;
    hear(y);
    clime_head_add(&y->head, y->lease->url, name, value);
    if (!strcasecmp(name, "x-clime-stream")) snprintf(y->kind, sizeof y->kind, "%s", value);
    if (!strcasecmp(name, "content-encoding")) y->coded = strcasecmp(value, "identity") != 0;
}

/* Bytes of `held` up to the end of its last complete event, searched from `from`; 0 = none. */
static size_t whole_events(const struct clime_buf *held, size_t from) {
    for (size_t n = held->len; n >= 2 && n > from; n--) {
        const char *end = held->data + n;
        if (end[-1] == '\n' && (end[-2] == '\n' || (n >= 4 && !memcmp(end - 4, "\r\n\r\n", 4)))) return n;
    }
    return 0;
}

/* The end of the event at `at`, within n bytes of complete events. */
static size_t event_end(const struct clime_buf *held, size_t at, size_t n) {
    for (const char *line; at < n && (line = memchr(held->data + at, '\n', n - at));) {
        at = (size_t)(line - held->data) + 1;
        if (whole_events(&(struct clime_buf){.data = held->data, .len = at}, at - 1)) return at;
    }
    return n;
}

/* Moves the events for the client among the first n held bytes, all complete, to the front; returns their length. */
static size_t sift(struct clime_relay *y, size_t n) {
    char *held = y->held.data;
    size_t kept = 0;
    for (size_t at = 0, end; at < n && !y->last_words.len; at = end) {
        end = event_end(&y->held, at, n);
        struct clime_str event = {held + at, end - at};
        switch (clime_replay_event(&y->replay, event, &y->status)) {
        case CLIME_REPLAY_PASS:
            memmove(held + kept, event.ptr, event.len);
            kept += event.len;
            break;
        case CLIME_REPLAY_ERROR:
            clime_buf_add(&y->last_words, event.ptr, event.len);
            break;
        case CLIME_REPLAY_DROP:
            break;
        }
    }
    return kept;
}

/* Sends the client its events among the first n held bytes and drops those bytes. */
static bool pass(struct clime_relay *y, size_t n) {
    size_t kept = clime_replay_can_go_on(&y->replay) ? sift(y, n) : n;
    if (kept) {
        y->client_gone = !clime_http_stream_write(y->stream, y->held.data, kept);
        y->inside_event = y->held.data[kept - 1] != '\n';
        y->progressed = true;
    }
    memmove(y->held.data, y->held.data + n, y->held.len - n);
    y->held.len -= n;
    return !y->client_gone && !y->last_words.len;
}

/* Handles the answer's first bytes: false when they do not continue the client's stream. */
static bool begin_stream(struct clime_relay *y) {
    y->foreign = !clime_replay_begin(&y->replay, y->kind) && y->stream;
    if (y->foreign) return false;
    y->streamed = true;
    clime_workers_began(y->router->workers, y->lease);
    if (y->stream) return true;
    const char *cache = clime_head_has(&y->head, "Cache-Control") ? "" : "Cache-Control: no-cache\r\n";
    char *kind = y->replay.kind ? xasprintf("X-Clime-Stream: %s\r\n", y->kind) : xstrdup("");
    char *lines = xasprintf("%s%s%s", clime_head_lines(&y->head), cache, kind);
    y->stream = clime_http_stream_begin(y->rq, 200, y->head.content_type, lines);
    free(lines);
    free(kind);
    return true;
}

static bool on_data(void *arg, const char *data, size_t len) {
    struct clime_relay *y = arg;
    hear(y);
    if (y->head.lines.full) return false;
    if (!is_stream(y)) {
        clime_buf_add(&y->body, data, len);
        return !y->body.full;
    }
    if (!y->streamed && !begin_stream(y)) return false;
    size_t before = y->held.len;
    clime_buf_add(&y->held, data, len);
    CHECK(!y->held.full);
    bool parts = y->held.len > LARGEST_EVENT; /* passed on unparsed */
    if (parts) clime_replay_lose(&y->replay);
    size_t whole = parts ? y->held.len : whole_events(&y->held, before);
    return whole == 0 || pass(y, whole);
}

/* True when leaving a suspected worker loses nothing: it has sent nothing, or all it sent is kept here; and another
 * worker may be tried. */
static bool loses_nothing(const struct clime_relay *y, const struct clime_silence *s) {
    if (y->settled && !y->progressed) return false;
    if (y->stream) return clime_replay_can_go_on(&y->replay) && !y->inside_event;
    return s->heard_us < y->began_us;
}

static bool cancelled(void *arg) {
    struct clime_relay *y = arg;
    int64_t now = clime_now_us();
    clime_http_waits(y->rq); /* first called when the request is sent */
    y->cut = atomic_load(&y->router->phase) == CLIME_ROUTER_CUTTING;
    if (now >= y->look_us) {
        y->look_us = now + LOOK_US;
        struct clime_silence s = clime_workers_silence(y->router->workers, y->lease->slot, y->lease->id);
        /* a worker that still sends is not frozen, whatever its probes find */
        y->worker_frozen = s.frozen_since_us > y->heard_us;
        y->worker_suspected = s.suspected && loses_nothing(y, &s);
        y->client_gone = clime_http_peer_gone(y->rq);
        struct clime_prober *prober = y->router->prober;
        if (prober && y->progressed && now - y->heard_us >= SILENT_US)
            clime_prober_ask(prober, y->lease->slot, y->lease->id, y->heard_us);
    }
    bool said_all = y->replay.done && now - y->heard_us >= SILENT_US;
    return y->cut || y->worker_frozen || y->worker_suspected || y->client_gone || said_all;
}

/* ---- one attempt ---- */

static enum clime_outcome outcome_of_status(int status) {
    if (status < 300) return CLIME_OUTCOME_SERVED;
    if (status == 429 || status == 503) return CLIME_OUTCOME_BUSY;
    if (status == 502 || status == 504) return CLIME_OUTCOME_WORKER;
    return status < 500 || status == 501 ? CLIME_OUTCOME_CLIENT : CLIME_OUTCOME_UNKNOWN;
}

/* Judges a failed call; e keeps the HTTP client's message. */
static void judge_call(struct clime_relay *y) {
    struct clime_error *e = &y->e;
    y->call_failed = true;
    if (e->code == CLIME_ERR_BUSY) { /* no descriptor left: no worker can be reached */
        y->outcome = CLIME_OUTCOME_BUSY;
        e->code = CLIME_ERR_UNAVAILABLE;
    } else if (e->code == CLIME_ERR_INPUT) {
        y->outcome = CLIME_OUTCOME_CLIENT;
    } else if (e->code == CLIME_ERR_TIMEOUT) { /* --request-timeout passed: slow, or too large a request */
        y->outcome = CLIME_OUTCOME_UNKNOWN;
    } else {
        y->outcome = CLIME_OUTCOME_WORKER;
        e->code = CLIME_ERR_INTERNAL;
    }
}

/* Sets outcome, and e where the reply is not the worker's answer. */
static void judge(struct clime_relay *y) {
    struct clime_error *e = &y->e;
    const char *url = y->lease->url;
    if (y->last_words.len && !y->client_gone) { /* status is from the error event */
        e->code = CLIME_OK;
        y->outcome = outcome_of_status(y->status);
    } else if (y->foreign) { /* it cannot resume; others may */
        e->code = CLIME_OK;
        y->status = 503;
        y->outcome = CLIME_OUTCOME_BUSY;
    } else if (y->head.lines.full) {
        y->outcome = CLIME_OUTCOME_CLIENT;
        clime_fail(e, CLIME_ERR_INTERNAL, "the head of the answer of %s is larger than %zu bytes", url,
                   CLIME_HEAD_MOST);
    } else if (y->replay.done) { /* the end of the connection does not matter then */
        e->code = CLIME_OK;
        y->outcome = CLIME_OUTCOME_SERVED;
    } else if (e->code == CLIME_OK && y->streamed && clime_replay_lacks_end(&y->replay)) {
        y->outcome = CLIME_OUTCOME_WORKER; /* the connection ended, and no length was declared */
        clime_fail(e, CLIME_ERR_INTERNAL, "the stream of %s was broken off", url);
    } else if (e->code == CLIME_OK && y->status == 401 && y->has_own_key) {
        y->refused = true; /* fast failures would make it the least loaded one for ever */
        y->outcome = CLIME_OUTCOME_WORKER;
        clime_fail(e, CLIME_ERR_INTERNAL, "%s does not take the router's key for it (401)", url);
    } else if (e->code == CLIME_OK) {
        y->outcome = outcome_of_status(y->status);
    } else if (y->client_gone) {
        y->outcome = CLIME_OUTCOME_CLIENT;
    } else if (y->cut) {
        y->outcome = CLIME_OUTCOME_UNKNOWN;
        clime_fail(e, CLIME_ERR_UNAVAILABLE, "the router is stopping; ask again");
    } else if (y->worker_frozen) {
        y->outcome = CLIME_OUTCOME_WORKER;
        clime_fail(e, CLIME_ERR_INTERNAL, "%s has stopped answering", url);
    } else if (y->worker_suspected) {
        y->outcome = CLIME_OUTCOME_SILENT;
        clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s has been silent for some seconds", url);
    } else if (y->body.full) {
        y->outcome = CLIME_OUTCOME_CLIENT;
        clime_fail(e, CLIME_ERR_INTERNAL, "the answer of %s is larger than %zu bytes (--max-payload-size)", url,
                   y->router->max_reply);
    } else {
        judge_call(y);
    }
}

void clime_relay_attempt(struct clime_relay *y, struct clime_lease *lease) {
    struct clime_router *r = y->router;
    struct clime_relay fresh = {.router = r, .rq = y->rq, .target = y->target, .lease = lease};
    fresh.body = y->body;
    fresh.held = y->held;
    fresh.head = y->head;
    fresh.last_words = y->last_words;
    fresh.stream = y->stream;
    fresh.replay = y->replay;
    fresh.again = y->again;
    fresh.settled = y->settled;
    clime_buf_clear(&fresh.body);
    clime_buf_clear(&fresh.held); /* a partial event; the next worker sends it whole */
    clime_buf_clear(&fresh.last_words);
    clime_head_clear(&fresh.head);
    fresh.began_us = fresh.heard_us = clime_now_us();
    fresh.look_us = fresh.began_us + LOOK_US;
    memcpy(fresh.worker, lease->url, sizeof fresh.worker);
    *y = fresh;
    struct clime_headers headers;
    const char *key = clime_forward_key(r, lease->key, lease->named, y->rq);
    y->has_own_key = clime_router_key_for(r, lease->key) != NULL;
    clime_forward_headers(r, key, y->rq, &headers);
    char *url = xasprintf("%s%s", lease->url, y->target);
    char *method = clime_forward_method(y->rq);
    struct clime_http_call call = {
        .method = method,
        .url = url,
        .body = y->again.len ? clime_buf_str(&y->again) : clime_http_body(y->rq),
        .content_type = clime_http_body(y->rq).len ? clime_http_header(y->rq, "Content-Type") : NULL,
        .headers = (const char *const *)headers.lines,
        .bearer = key && key[0] ? key : NULL,
        .timeout_us = r->request_timeout_us,
        .max_reply = r->max_reply,
        .on_data = on_data,
        .on_header = on_header,
        .cancel = cancelled,
        .arg = y,
    };
    struct clime_http_result res = {0};
    struct clime_http_client *client = clime_connections_take(r->connections, lease->slot);
    clime_http_client_call(client, &call, &res, &y->e);
    if (y->e.code)
        clime_http_client_free(client); /* its connection is unusable */
    else
        clime_connections_give(r->connections, lease->slot, client);
    y->connected = res.connected;
    if (!y->e.code) y->status = res.status;
    judge(y);
    clime_buf_free(&res.reply);
    clime_forward_headers_free(&headers);
    free(url);
    free(method);
}

/* ---- the end ---- */

static int status_of(const struct clime_error *e) {
    return e->code == CLIME_ERR_INTERNAL ? 502 : clime_http_status_of(e->code);
}

static char *message_for(const struct clime_relay *y) {
    return clime_address_said(y->rq, y->worker, y->e.msg, y->call_failed);
}

static bool tells_its_host(struct clime_str path) {
    return clime_str_is(path, "/server_info") || clime_str_is(path, "/get_server_info");
}

/* Ends the stream as a server does after a failure. Drops a partial event. */
static void end_stream(struct clime_relay *y) {
    struct clime_buf sse;
    clime_buf_init(&sse, 1 << 17);
    if (y->inside_event) clime_buf_adds(&sse, "\n\n");
    char *said = message_for(y);
    clime_http_error_events(y->rq, status_of(&y->e), said, &sse);
    free(said);
    clime_http_stream_write(y->stream, sse.data, sse.len);
    clime_buf_free(&sse);
}

bool clime_relay_go_on(struct clime_relay *y) {
    clime_buf_free(&y->again);
    return !y->inside_event && clime_replay_request(&y->replay, clime_http_body(y->rq), &y->again);
}

void clime_relay_finish(struct clime_relay *y) {
    if (y->stream) {
        bool told = y->last_words.len > 0;
        if (!y->e.code && y->streamed && !told && y->held.len) pass(y, y->held.len);
        if (!y->e.code && !y->streamed) /* from the last worker that was to resume it */
            clime_fail(&y->e, CLIME_ERR_UNAVAILABLE, "no worker could go on with the stream (the last one answered %d)",
                       y->status);
        if (told && !y->client_gone) {
            clime_sse_frame(&y->last_words, clime_str_of("[DONE]"));
            clime_http_stream_write(y->stream, y->last_words.data, y->last_words.len);
        } else if (y->e.code && !y->client_gone) {
            end_stream(y);
        }
        clime_http_stream_end(y->stream, !y->client_gone);
    } else if (y->e.code) {
        char *said = message_for(y);
        clime_http_reply_error(y->rq, status_of(&y->e), said);
        free(said);
    } else {
        if (tells_its_host(clime_http_path(y->rq))) clime_address_hide(y->rq, &y->body);
        const char *type = y->head.content_type ? y->head.content_type : "application/json";
        clime_http_reply(y->rq, y->status, type, clime_head_lines(&y->head), clime_buf_str(&y->body));
    }
}
