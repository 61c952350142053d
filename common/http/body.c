/* Request bodies, buffered or streamed (see server.h).
 *
 * Called on the connection's worker thread: by the server before and after the handler, and by handlers that stream.
 * Invariant: the body is read to its end or the connection is closed, so no byte of it is parsed as the next request.
 * CivetWeb limits the wait for each byte, not the total: connections.h stops a slow peer after its grace plus a second
 * per 64 KiB sent.
 */
#include "common/clock.h"
#include "common/http/server_int.h"

#define READ_PIECE 65536
#define FREE_BYTES ((size_t)65536) /* bytes of a body outside the budget: the number of threads bounds these */
#define SLOWEST_BYTES_A_SECOND 65536
#define DISCARD_MOST (16 << 20) /* discards up to this, so that the peer can read the answer before a reset */
#define DISCARD_US 5000000

/* The remaining total time, at most one grace at a time: otherwise a peer that sent much could stop for long. */
static int64_t allowed_wait(const struct clime_http_request *rq) {
    int64_t grace = rq->server->o.body_grace_us;
    int64_t left = grace + (int64_t)(rq->body_read / SLOWEST_BYTES_A_SECOND) * 1000000 - rq->waited_us;
    return left < grace ? left : grace;
}

/* Reads one piece from CivetWeb: > 0 bytes, 0 at the end, -1 when the body is broken. */
static int64_t read_piece(struct clime_http_request *rq, void *out, size_t size) {
    if (rq->body_broken) return -1;
    if (rq->body_length >= 0 && rq->body_read == (uint64_t)rq->body_length) rq->body_ended = true;
    if (rq->body_ended) return 0;
    if (rq->expects_continue) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        rq->expects_continue = false;
        clime_http_send(rq, go_on, sizeof go_on - 1); /* the read reports a lost connection */
    }
    int64_t start = clime_now_us();
    clime_http_connection_does(rq->server->connections, rq->connection, CLIME_HTTP_RECEIVING, start + allowed_wait(rq));
    int n = clime_http_receive(rq, out, size < READ_PIECE ? size : READ_PIECE);
    clime_http_connection_does(rq->server->connections, rq->connection, CLIME_HTTP_BUSY, 0);
    rq->waited_us += clime_now_us() - start;
    if (n > 0) {
        rq->body_read += (uint64_t)n;
        return n;
    }
    rq->body_ended = n == 0 && rq->body_length < 0;
    rq->body_broken = !rq->body_ended;
    if (rq->body_broken) rq->keep_alive = false;
    return rq->body_ended ? 0 : -1;
}

/* Streaming routes limit the size themselves: weights exceed any request. */
static bool over_limit(const struct clime_http_request *rq) {
    return !rq->route->stream_body && rq->body_read > rq->server->o.max_body;
}

int64_t clime_http_body_read(struct clime_http_request *rq, void *out, size_t size) {
    int64_t n = over_limit(rq) ? -1 : read_piece(rq, out, size);
    return over_limit(rq) ? -1 : n;
}

/* Reserves `bytes` of the body budget. Doubles like the buffer, so calls are rare. */
static bool charge(struct clime_http_request *rq, size_t bytes) {
    struct clime_http_server *s = rq->server->main;
    size_t size = rq->charged ? rq->charged : FREE_BYTES;
    if (bytes <= size) return true;
    while (size < bytes) size *= 2;
    if (size > s->o.max_body && bytes <= s->o.max_body) size = s->o.max_body;
    long long more = (long long)(size - rq->charged), most = (long long)s->o.max_body_memory;
    long long coming = most / 4 > (long long)s->o.max_body ? most / 4 : (long long)s->o.max_body;
    rq->charged = size;
    bool fits = atomic_fetch_add(&s->coming_bytes, more) + more <= coming;
    return atomic_fetch_add(&s->body_bytes, more) + more <= most && fits;
}

void clime_http_body_release(struct clime_http_request *rq) {
    atomic_fetch_sub(&rq->server->main->body_bytes, (long long)rq->charged);
    rq->charged = 0;
}

static bool take(struct clime_http_request *rq) {
    for (;;) {
        char extra; /* buffer full: distinguishes the end from a longer body */
        size_t room = rq->server->o.max_body - rq->body.len;
        uint64_t left = rq->body_length < 0 ? room : (uint64_t)rq->body_length - rq->body.len;
        size_t want = left < READ_PIECE ? (size_t)left : READ_PIECE;
        if (!charge(rq, rq->body.len + want)) {
            rq->over_budget = true;
            return false;
        }
        char *at = want ? clime_buf_reserve(&rq->body, want) : &extra;
        int64_t n = clime_http_body_read(rq, at, want ? want : 1);
        if (n <= 0) return n == 0;
        clime_buf_grew(&rq->body, (size_t)n);
    }
}

bool clime_http_body_take(struct clime_http_request *rq) {
    bool whole = take(rq);
    atomic_fetch_sub(&rq->server->main->coming_bytes, (long long)rq->charged);
    if (!whole) {
        clime_http_body_release(rq);
        clime_buf_free(&rq->body);
    }
    return whole;
}

void clime_http_body_discard(struct clime_http_request *rq) {
    char piece[4096];
    int64_t give_up = clime_now_us() + DISCARD_US;
    uint64_t most = rq->body_read + DISCARD_MOST;
    if (rq->expects_continue && rq->body_length != 0) {
        rq->keep_alive = false; /* the body may or may not follow */
        return;
    }
    while (rq->body_read < most && clime_now_us() < give_up)
        if (read_piece(rq, piece, sizeof piece) <= 0) return;
    rq->keep_alive = false;
}
