/* Streamed answers of the HTTP server (see server.h).
 *
 * begin, wait: the handler's worker thread. write, end: any one thread, usually an emitter that serves many streams. A
 * writer other than the owner never blocks: it sends only when the socket has room, and queues the rest in `backlog`,
 * which the owner, asleep in wait, sends. So a slow reader costs an emitter one poll(2), not a send blocked for 30 s.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/peer.h"
#include "common/http/server_int.h"

#define BEHIND ((size_t)1 << 20)
#define BACKLOG_MOST ((size_t)8 << 20) /* maximum backlog of a writer that does not wait */
#define FRAME_CAP 65536                /* a head, or a small chunk */
#define SMALL_SEND 16384               /* fits when poll reports room: Linux does from a third free */
#define PEER_CHECK_US 2000000          /* interval at which a sleeping owner checks its peer */

static void set_dead(struct clime_http_stream *st) {
    atomic_store(&st->dead, true);
    clime_buf_clear(&st->backlog);
    pthread_cond_signal(&st->changed);
}

struct clime_http_stream *clime_http_stream_begin(struct clime_http_request *rq, int status, const char *content_type,
                                                  const char *extra_headers) {
    CHECK(!rq->answered && !rq->streaming);
    struct clime_http_stream *st = &rq->stream;
    *st =
        (struct clime_http_stream){.rq = rq, .owner = pthread_self(), .chunked = !rq->http10, .discard = rq->head_only};
    st->socket = clime_http_connection_socket(rq->connection);
    pthread_mutex_init(&st->lock, NULL);
    clime_cond_init(&st->changed);
    clime_buf_init(&st->frame, FRAME_CAP);
    clime_buf_init(&st->backlog, BACKLOG_MOST + CLIME_HTTP_MAX_WRITE + 64);
    rq->streaming = true;
    if (rq->http10) rq->keep_alive = false; /* the connection's end marks the body's end */
    clime_http_head(rq, &st->frame, status, content_type, extra_headers, -1, st->chunked);
    clime_buf_adds(&st->frame, "\r\n");
    if (!clime_http_send(rq, st->frame.data, st->frame.len)) set_dead(st);
    return st;
}

/* Sends one chunk; called under the lock. */
static void send_now(struct clime_http_stream *st, const char *head, const char *data, size_t len) {
    const char *tail = st->chunked ? "\r\n" : "";
    bool joined = len <= SMALL_SEND;
    clime_buf_clear(&st->frame);
    clime_buf_adds(&st->frame, head);
    if (joined) {
        clime_buf_add(&st->frame, data, len);
        clime_buf_adds(&st->frame, tail);
    }
    bool ok = clime_http_send(st->rq, st->frame.data, st->frame.len);
    if (!joined) ok = ok && clime_http_send(st->rq, data, len) && clime_http_send(st->rq, tail, strlen(tail));
    if (!ok) set_dead(st);
}

static void queue(struct clime_http_stream *st, const char *head, const char *data, size_t len) {
    if (st->backlog.len > BACKLOG_MOST) {
        set_dead(st);
        return;
    }
    clime_buf_adds(&st->backlog, head);
    clime_buf_add(&st->backlog, data, len);
    if (st->chunked) clime_buf_adds(&st->backlog, "\r\n");
    CHECK(!st->backlog.full);
    pthread_cond_signal(&st->changed);
}

bool clime_http_stream_write(struct clime_http_stream *st, const void *data, size_t len) {
    char head[20] = "";
    CHECK(len <= CLIME_HTTP_MAX_WRITE);
    if (atomic_load(&st->dead)) return false;
    if (len == 0 || st->discard) return true; /* an empty chunk would end the body */
    if (st->chunked) snprintf(head, sizeof head, "%zx\r\n", len);
    pthread_mutex_lock(&st->lock);
    CHECK(!st->ended);
    st->written_us = clime_now_us();
    bool first = !st->draining && st->backlog.len == 0, owner = pthread_equal(pthread_self(), st->owner);
    /* An unknown socket (an unrecorded connection) cannot be polled for room: the owner sends. */
    bool has_room = len <= SMALL_SEND && st->socket >= 0 && clime_peer_writable(st->socket);
    if (first && (owner || has_room))
        send_now(st, head, data, len);
    else if (!atomic_load(&st->dead))
        queue(st, head, data, len);
    pthread_mutex_unlock(&st->lock);
    return !atomic_load(&st->dead);
}

void clime_http_stream_heartbeat(struct clime_http_stream *st, const char *text, int64_t every_us) {
    pthread_mutex_lock(&st->lock);
    st->heartbeat = text;
    st->heartbeat_us = every_us;
    st->written_us = clime_now_us();
    pthread_mutex_unlock(&st->lock);
}

/* Called by the owner under the lock; it sends next. */
static void queue_heartbeat(struct clime_http_stream *st) {
    char head[20] = "";
    if (st->chunked) snprintf(head, sizeof head, "%zx\r\n", strlen(st->heartbeat));
    queue(st, head, st->heartbeat, strlen(st->heartbeat));
    st->written_us = clime_now_us();
}

bool clime_http_stream_behind(struct clime_http_stream *st) {
    pthread_mutex_lock(&st->lock);
    bool behind = st->draining + st->backlog.len > BEHIND;
    pthread_mutex_unlock(&st->lock);
    return behind;
}

bool clime_http_stream_alive(const struct clime_http_stream *st) {
    return !atomic_load(&st->dead);
}

void clime_http_stream_end(struct clime_http_stream *st, bool complete) {
    pthread_mutex_lock(&st->lock);
    st->ended = true;
    st->complete = complete;
    pthread_cond_signal(&st->changed);
    pthread_mutex_unlock(&st->lock); /* the owner may free the stream from here on */
}

/* Sends the backlog, without the lock; the writer may append meanwhile. */
static void drain(struct clime_http_stream *st) {
    size_t len = st->backlog.len;
    char *data = clime_buf_take(&st->backlog);
    st->draining = len;
    pthread_mutex_unlock(&st->lock);
    bool ok = clime_http_send(st->rq, data, len);
    free(data);
    pthread_mutex_lock(&st->lock);
    st->draining = 0;
    if (!ok) set_dead(st);
}

static void sleep_until_changed(struct clime_http_stream *st) {
    int64_t wake = clime_now_us() + PEER_CHECK_US, beat = st->written_us + st->heartbeat_us;
    if (st->heartbeat && beat < wake) wake = beat;
    if (clime_cond_wait_until(&st->changed, &st->lock, wake) != ETIMEDOUT) return;
    if (clime_http_stopping(st->rq) || (st->socket >= 0 && clime_peer_closed(st->socket))) set_dead(st);
    bool silent = st->heartbeat && clime_now_us() - st->written_us >= st->heartbeat_us;
    if (silent && !st->ended && !st->discard && !atomic_load(&st->dead)) queue_heartbeat(st);
}

bool clime_http_stream_wait(struct clime_http_stream *st) {
    pthread_mutex_lock(&st->lock);
    while (!st->ended || st->backlog.len > 0) {
        if (atomic_load(&st->dead) && !st->told) break;
        if (st->backlog.len > 0)
            drain(st);
        else
            sleep_until_changed(st);
    }
    bool ended = st->ended;
    st->told = true;
    pthread_mutex_unlock(&st->lock);
    return ended;
}

/* Called by the server after the handler: waits for the stream's end and frees it. */
void clime_http_stream_finish(struct clime_http_stream *st) {
    while (!clime_http_stream_wait(st)) continue;
    bool whole = st->complete && !atomic_load(&st->dead);
    if (whole && st->chunked && !st->discard) whole = clime_http_send(st->rq, "0\r\n\r\n", 5);
    if (!whole) st->rq->keep_alive = false; /* closing without the last chunk marks the stream as cut */
    clime_buf_free(&st->frame);
    clime_buf_free(&st->backlog);
    pthread_cond_destroy(&st->changed);
    pthread_mutex_destroy(&st->lock);
}
