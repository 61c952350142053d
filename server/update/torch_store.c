/* TCPStore client. Used by group.c; HTTP workers, under the update lock. Owns one socket.
 *
 * Invariant: the store cannot make us exceed the caller's time limit or buffer: lengths are checked before a byte is
 * read. The socket is non-blocking; waits poll with the limit.
 */
#include "server/update/torch_store.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/os/lookup.h"

enum { QUERY_VALIDATE = 0, QUERY_GET = 3, QUERY_ADD = 4, QUERY_WAIT = 6 };

#define MAGIC 0x3C85F7CEu    /* argument of VALIDATE */
#define ALL_HERE_KEY "init/" /* counts processes; the only key without a leading slash */
#define STOP_WAITING 0
#define TRY_AGAIN_US 100000
#define ASK_EVERY_US 200000 /* how often cancellation is polled */
#define MAX_KEY 1024

struct clime_torch_store {
    int fd;
    char where[300];  /* "host:port", for errors */
    int64_t until_us; /* of the current call; clime_now_us scale */
    const struct clime_comm_wait *wait;
};

/* ---- bytes ------------------------------------------------------------------------------------------------- */

static enum clime_err late(const struct clime_torch_store *s, const char *what, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_TIMEOUT, "the torch store at %s: %s did not end within the time limit", s->where,
                      what);
}

static enum clime_err lost(const struct clime_torch_store *s, const char *what, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the torch store at %s closed the connection (%s)", s->where, what);
}

static bool given_up(const struct clime_torch_store *s) {
    return s->wait->cancelled && s->wait->cancelled(s->wait->arg);
}

static enum clime_err ready(const struct clime_torch_store *s, short events, const char *what, struct clime_error *e) {
    for (;;) {
        int64_t left_us = s->until_us - clime_now_us();
        if (left_us <= 0) return late(s, what, e);
        if (given_up(s))
            return clime_fail(e, CLIME_ERR_ABORTED, "the torch store at %s: %s was given up", s->where, what);
        struct pollfd p = {.fd = s->fd, .events = events};
        int ms = left_us > ASK_EVERY_US ? ASK_EVERY_US / 1000 : (int)(left_us / 1000) + 1;
        if (poll(&p, 1, ms) > 0) return CLIME_OK;
    }
}

static enum clime_err move(struct clime_torch_store *s, void *at, size_t n, bool out, const char *what,
                           struct clime_error *e) {
    char *p = at;
    while (n > 0) {
        ssize_t k = out ? send(s->fd, p, n, MSG_NOSIGNAL) : recv(s->fd, p, n, 0);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
            enum clime_err err = ready(s, out ? POLLOUT : POLLIN, what, e);
            if (err) return err;
        } else {
            return lost(s, what, e);
        }
    }
    return CLIME_OK;
}

static void add_u64(struct clime_buf *b, uint64_t v) {
    clime_buf_add(b, &v, sizeof v);
}

static void add_text(struct clime_buf *b, const char *before, const char *text) {
    add_u64(b, strlen(before) + strlen(text));
    clime_buf_adds(b, before);
    clime_buf_adds(b, text);
}

static enum clime_err say(struct clime_torch_store *s, struct clime_buf *message, const char *what,
                          struct clime_error *e) {
    CHECK(!message->full);
    enum clime_err err = move(s, message->data, message->len, true, what, e);
    clime_buf_free(message);
    return err;
}

/* ---- the connection ---------------------------------------------------------------------------------------- */

static enum clime_err connect_to(struct clime_torch_store *s, const struct addrinfo *a, struct clime_error *e) {
    int on = 1, failed = 0;
    socklen_t len = sizeof failed;
    s->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->fd < 0) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the torch store at %s: %s", s->where, strerror(errno));
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(s->fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS) failed = errno;
    enum clime_err err = failed ? CLIME_OK : ready(s, POLLOUT, "connecting", e);
    if (!err && !failed) getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &failed, &len);
    if (!err && failed)
        err = clime_fail(e, CLIME_ERR_UNAVAILABLE, "the torch store at %s: %s", s->where, strerror(failed));
    if (err) {
        close(s->fd);
        s->fd = -1;
    }
    return err;
}

/* Retries: the trainer may start to listen only after its request. */
static enum clime_err connect_until(struct clime_torch_store *s, const char *host, int port, struct clime_error *e) {
    struct addrinfo *all = NULL;
    enum clime_err err = clime_lookup(host, port, s->until_us, s->wait->cancelled, s->wait->arg, &all, e);
    if (err) return clime_error_prefix(e, "master_address");
    err = CLIME_ERR_UNAVAILABLE;
    while (err == CLIME_ERR_UNAVAILABLE) {
        for (const struct addrinfo *a = all; a && err == CLIME_ERR_UNAVAILABLE; a = a->ai_next)
            err = connect_to(s, a, e);
        if (err != CLIME_ERR_UNAVAILABLE || clime_now_us() + TRY_AGAIN_US >= s->until_us || given_up(s)) break;
        clime_sleep_us(TRY_AGAIN_US);
    }
    freeaddrinfo(all);
    return err;
}

static enum clime_err count_in(struct clime_torch_store *s, struct clime_error *e) {
    static const char what[] = "counting this process in";
    struct clime_buf m;
    uint32_t magic = MAGIC;
    int64_t one = 1, n = 0;
    clime_buf_init(&m, MAX_KEY);
    clime_buf_addc(&m, QUERY_VALIDATE);
    clime_buf_add(&m, &magic, sizeof magic);
    clime_buf_addc(&m, QUERY_ADD);
    add_text(&m, "", ALL_HERE_KEY);
    clime_buf_add(&m, &one, sizeof one);
    enum clime_err err = say(s, &m, what, e);
    if (!err) err = move(s, &n, sizeof n, false, what, e);
    if (!err && (n < 1 || n > INT32_MAX))
        err = clime_fail(e, CLIME_ERR_UNAVAILABLE,
                         "what answers at %s is no torch store: it counts %" PRId64 " processes", s->where, n);
    return err;
}

static void begin(struct clime_torch_store *s, const struct clime_comm_wait *wait) {
    s->wait = wait;
    s->until_us = clime_now_us() + wait->limit_us;
}

enum clime_err clime_torch_store_open(const char *host, int port, const struct clime_comm_wait *wait,
                                      struct clime_torch_store **out, struct clime_error *e) {
    struct clime_torch_store *s = xcalloc(1, sizeof *s);
    *out = NULL;
    s->fd = -1;
    begin(s, wait);
    snprintf(s->where, sizeof s->where, "%.255s:%d", host, port);
    enum clime_err err = connect_until(s, host, port, e);
    if (!err) err = count_in(s, e);
    if (err)
        clime_torch_store_close(s);
    else
        *out = s;
    return err;
}

void clime_torch_store_close(struct clime_torch_store *s) {
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    free(s);
}

/* ---- keys -------------------------------------------------------------------------------------------------- */

enum clime_err clime_torch_store_get(struct clime_torch_store *s, const char *key, const struct clime_comm_wait *wait,
                                     struct clime_buf *out, struct clime_error *e) {
    char what[MAX_KEY];
    struct clime_buf m;
    uint64_t n = 0;
    uint8_t word = STOP_WAITING;
    begin(s, wait);
    snprintf(what, sizeof what, "waiting for key /%.300s", key);
    clime_buf_init(&m, MAX_KEY);
    clime_buf_addc(&m, QUERY_WAIT);
    add_u64(&m, 1);
    add_text(&m, "/", key);
    enum clime_err err = say(s, &m, what, e);
    if (!err) err = move(s, &word, sizeof word, false, what, e);
    if (err) return err;
    if (word != STOP_WAITING)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "what answers at %s is no torch store: %s is answered %d", s->where,
                          what, word);
    clime_buf_init(&m, MAX_KEY);
    clime_buf_addc(&m, QUERY_GET);
    add_text(&m, "/", key);
    err = say(s, &m, what, e);
    if (!err) err = move(s, &n, sizeof n, false, what, e);
    if (err) return err;
    char *to = n > out->cap ? NULL : clime_buf_reserve(out, (size_t)n);
    if (!to)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                          "the torch store at %s: key /%.300s has %" PRIu64 " bytes, at most "
                          "%zu are read",
                          s->where, key, n, out->cap);
    if ((err = move(s, to, (size_t)n, false, what, e))) return err;
    clime_buf_grew(out, (size_t)n);
    return CLIME_OK;
}
