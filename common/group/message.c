/* Messages and failure detection of a group (see group.h). The owner's thread.
 *
 * Rank 0 has a socket to each other rank, and each has one to rank 0; a closed socket means a rank that has ended.
 * Ranks of one host also watch each other's processes, since followers have no sockets to each other.
 *
 * A frame is a length and a kind: a message, or the failure report ("last words") of a rank that cannot continue.
 * Reports are peeked for ahead of unread data, so a rank that waits for another message finds them.
 *
 * At a time limit, the late rank may itself be waiting for a frozen one. So rank 0 queries all ranks, and the silent
 * one is late; every rank that waits or transfers bytes checks its group and answers. Earlier unread messages are no
 * answer and are discarded: the group is lost, and no rank will receive them.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/group/group_int.h"

#define LOOK_MS 50            /* interval at which a wait checks the other ranks */
#define LAST_WORDS_US 2000000 /* for data already in flight */
#define ANSWER_US 2000000     /* for a waiting rank to answer; it checks at least every LOOK_MS */

enum frame_kind {
    FRAME_MESSAGE = 0x6d657373,
    FRAME_FAILED = 0x6661696c,
    FRAME_ASK = 0x61736b3f,
    FRAME_HERE = 0x68657265
};

struct frame {
    uint32_t kind, pad;
    uint64_t n;
};

struct last_words {
    int64_t lost; /* its own rank, or the lost rank it found */
    struct clime_error why;
};

const char *clime_group_name(const struct clime_group *g, int rank) {
    static _Thread_local char text[4][160];
    static _Thread_local int next;
    char *out = text[next++ % 4];
    const struct clime_group_card *c = &g->card[rank];
    snprintf(out, sizeof text[0], "rank %d of %d (pid %lld%s%s)", rank, g->world, (long long)c->pid,
             g->one_host ? "" : " on ", g->one_host ? "" : c->where);
    return out;
}

/* Marks the group lost by `rank`, unless it already is, with e's text. Returns its code. */
__attribute__((format(printf, 4, 5))) static enum clime_err lose(struct clime_group *g, int rank, struct clime_error *e,
                                                                 const char *fmt, ...) {
    if (!g->is_lost) {
        va_list args;
        g->is_lost = true;
        g->lost_rank = rank;
        g->lost.code = CLIME_ERR_UNAVAILABLE;
        va_start(args, fmt);
        vsnprintf(g->lost.msg, sizeof g->lost.msg, fmt, args);
        va_end(args);
    }
    if (e) *e = g->lost;
    return g->lost.code;
}

static enum clime_err look(struct clime_group *g, int rank, bool ended, struct clime_error *e);

enum clime_err clime_group_move(struct clime_group *g, int rank, int fd, void *at, size_t n, bool out, const char *what,
                                int64_t until_us, struct clime_error *e) {
    char *p = at;
    while (n > 0) {
        ssize_t k = out ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
            struct pollfd w = {.fd = fd, .events = out ? POLLOUT : POLLIN};
            if (clime_now_us() >= until_us) return clime_group_late(g, rank, what, e);
            poll(&w, 1, LOOK_MS);
        } else if (out && g->sock[rank] == fd) {
            return look(g, rank, true, e); /* it may have reported the reason before it ended */
        } else {
            return lose(g, rank, e, "%s: %s is gone: its connection has ended", what, clime_group_name(g, rank));
        }
    }
    return CLIME_OK;
}

/* ---- the late rank ---- */

struct ear {  /* state of a queried rank */
    int fd;   /* -1 = it has answered */
    size_t n; /* last bytes received, which may begin a frame */
    char end[sizeof(struct frame)];
};

/* Reads one piece of pending data; a steady sender cannot hold the caller, which has a deadline. True: it contains the
 * answer, a failure report, or the end of the connection, which is no silence either. The query's number distinguishes
 * an answer from message bytes. */
static bool has_answered(struct ear *a, uint64_t number) {
    const struct frame here = {.kind = FRAME_HERE, .n = number},
                       failed = {.kind = FRAME_FAILED, .n = sizeof(struct last_words)};
    char heard[sizeof a->end + 16384];
    memcpy(heard, a->end, a->n);
    ssize_t k = recv(a->fd, heard + a->n, sizeof heard - a->n, MSG_DONTWAIT);
    if (k < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (k <= 0) return true;
    size_t n = a->n + (size_t)k;
    if (memmem(heard, n, &here, sizeof here) || memmem(heard, n, &failed, sizeof failed)) return true;
    a->n = n < sizeof here ? n : sizeof here - 1;
    memcpy(a->end, heard + n - a->n, a->n);
    return false;
}

/* The silent rank when `rank` is reported late: that one, unless it answers and another does not. */
static int who_is_silent(struct clime_group *g, int rank, int speaker) {
    const int64_t until = clime_now_us() + ANSWER_US;
    const struct frame ask = {.kind = FRAME_ASK, .n = (uint64_t)until};
    struct ear ear[CLIME_GROUP_MAX];
    int others = 0;
    if (g->rank) return rank; /* a follower is connected only to rank 0, which queries when this is reported */
    for (int r = 0; r < g->world; r++) {
        ear[r] = (struct ear){.fd = r && r != speaker ? g->sock[r] : -1};
        others += ear[r].fd >= 0 && r != rank;
        if (ear[r].fd >= 0) send(ear[r].fd, &ask, sizeof ask, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    for (int64_t now; others && (now = clime_now_us()) < until;) {
        struct pollfd p[CLIME_GROUP_MAX];
        for (int r = 0; r < g->world; r++) p[r] = (struct pollfd){.fd = ear[r].fd, .events = POLLIN};
        if (poll(p, (nfds_t)g->world, (int)((until - now) / 1000) + 1) <= 0) continue;
        for (int r = 1; r < g->world; r++) {
            if (!p[r].revents || !has_answered(&ear[r], ask.n)) continue;
            ear[r].fd = -1;
            others -= r != rank;
        }
    }
    for (int r = 1; r < g->world && ear[rank].fd < 0; r++)
        if (ear[r].fd >= 0) return r;
    return rank;
}

enum clime_err clime_group_late(struct clime_group *g, int rank, const char *what, struct clime_error *e) {
    if (!g->is_lost) rank = who_is_silent(g, rank, -1);
    lose(g, rank, e, "%s: %s is not there within %.0f s: it is frozen, or it needs longer than the limit%s%s", what,
         clime_group_name(g, rank), (double)g->limit_us / 1e6, g->limit_option ? " of " : "",
         g->limit_option ? g->limit_option : "");
    g->lost.code = CLIME_ERR_TIMEOUT;
    if (e) e->code = CLIME_ERR_TIMEOUT;
    return CLIME_ERR_TIMEOUT;
}

/* ---- lost ranks ---- */

/* Returns the error of the lost rank again. */
static enum clime_err was_lost(const struct clime_group *g, struct clime_error *e) {
    if (e) *e = g->lost;
    return g->lost.code;
}

int clime_group_lost(const struct clime_group *g, enum clime_err *code) {
    *code = g->said ? g->said : g->lost.code;
    return g->lost_rank;
}

/* Peeks the next frame from a rank; zero = none. */
static struct frame next_frame(const struct clime_group *g, int rank) {
    struct frame f;
    if (g->sock[rank] < 0 || recv(g->sock[rank], &f, sizeof f, MSG_PEEK | MSG_DONTWAIT) != (ssize_t)sizeof f)
        return (struct frame){0};
    return f;
}

static bool has_last_words(const struct clime_group *g, int rank) {
    const struct frame f = next_frame(g, rank);
    return f.kind == FRAME_FAILED && f.n == sizeof(struct last_words);
}

/* Answers rank 0's liveness query. */
static enum clime_err answer(struct clime_group *g, struct clime_error *e) {
    const int64_t until = clime_now_us() + LAST_WORDS_US;
    struct frame f, here = {.kind = FRAME_HERE};
    enum clime_err rc = clime_group_move(g, 0, g->sock[0], &f, sizeof f, false, "a question", until, e);
    here.n = f.n;
    return rc ? rc : clime_group_move(g, 0, g->sock[0], &here, sizeof here, true, "an answer", until, e);
}

enum clime_err clime_group_answer(struct clime_group *g, struct clime_error *e) {
    bool asked = g->rank && next_frame(g, 0).kind == FRAME_ASK;
    if (g->is_lost || !(asked || (g->rank && has_last_words(g, 0)))) return CLIME_OK;
    return asked ? answer(g, e) : look(g, 0, false, e);
}

/* Handles a poll event of the socket to `rank`. */
static enum clime_err look(struct clime_group *g, int rank, bool ended, struct clime_error *e) {
    struct frame f;
    struct last_words last = {0};
    if (has_last_words(g, rank)) {
        int64_t until = clime_now_us() + LAST_WORDS_US;
        enum clime_err rc = clime_group_move(g, rank, g->sock[rank], &f, sizeof f, false, "last words", until, e);
        if (!rc) rc = clime_group_move(g, rank, g->sock[rank], &last, sizeof last, false, "last words", until, e);
        if (rc) return rc;
        int lost = last.lost >= 0 && last.lost < g->world ? (int)last.lost : rank;
        /* A rank that only saw another end does not know why; that one may have reported it. */
        if (lost != rank && has_last_words(g, lost)) return look(g, lost, false, e);
        last.why.msg[sizeof last.why.msg - 1] = 0;
        if (!g->is_lost) g->said = last.why.code;
        int silent = last.why.code == CLIME_ERR_TIMEOUT && !g->is_lost ? who_is_silent(g, lost, rank) : lost;
        if (silent != lost)
            return lose(g, silent, e, "%s: %.300s. It answers, and %s does not", clime_group_name(g, rank),
                        last.why.msg, clime_group_name(g, silent));
        return lose(g, lost, e, "%s: %.400s", clime_group_name(g, rank), last.why.msg);
    }
    if (next_frame(g, rank).kind == FRAME_ASK) { /* a rank that has ended may have sent its report after it */
        enum clime_err rc = answer(g, e);
        return rc || !ended ? rc : look(g, rank, true, e);
    }
    if (!ended && recv(g->sock[rank], &f, sizeof f, MSG_PEEK | MSG_DONTWAIT) != 0)
        return CLIME_OK; /* a message, left to its receiver */
    return lose(g, rank, e, "%s is gone: its connection has ended", clime_group_name(g, rank));
}

/* Polls the other ranks for up to `ms`; returns early when `from` (-1 = none) has sent data or a rank has ended. A
 * follower that waits for rank 0 leaves failure detection to it: at an orderly end others may have left. */
static enum clime_err look_around(struct clime_group *g, int from, int ms, bool *readable, struct clime_error *e) {
    struct pollfd p[CLIME_GROUP_MAX];
    enum clime_err rc = CLIME_OK;
    for (int r = 0; r < g->world; r++) {
        bool socket = g->sock[r] >= 0;
        p[r] = (struct pollfd){.fd = socket     ? g->sock[r]
                                     : from < 0 ? g->process[r]
                                                : -1,
                               .events = !socket || r == from || !ms ? POLLIN | POLLRDHUP : POLLRDHUP};
    }
    *readable = false;
    if (poll(p, (nfds_t)g->world, ms) <= 0) return CLIME_OK;
    *readable = from >= 0 && p[from].revents & POLLIN; /* its message takes precedence over another rank's end */
    for (int r = 0; r < g->world && !rc && !*readable; r++) {
        if (!p[r].revents) continue;
        bool ended = p[r].revents & (POLLRDHUP | POLLHUP | POLLERR);
        if (g->sock[r] < 0)
            rc = lose(g, r, e, "%s is gone: its process has ended", clime_group_name(g, r));
        else
            rc = look(g, r, ended, e);
    }
    return rc;
}

enum clime_err clime_group_check(struct clime_group *g, struct clime_error *e) {
    bool unused;
    if (g->is_lost) return was_lost(g, e);
    return look_around(g, -1, 0, &unused, e);
}

/* ---- messages ---- */

static enum clime_err send_frame(struct clime_group *g, int to, enum frame_kind kind, const void *data, size_t n,
                                 int64_t limit_us, struct clime_error *e) {
    struct frame f = {.kind = kind, .n = n};
    int64_t until = clime_now_us() + limit_us;
    enum clime_err rc = clime_group_move(g, to, g->sock[to], &f, sizeof f, true, "sending a message", until, e);
    if (!rc) rc = clime_group_move(g, to, g->sock[to], (void *)(uintptr_t)data, n, true, "sending a message", until, e);
    return rc;
}

enum clime_err clime_group_send(struct clime_group *g, int to, const void *data, size_t n, struct clime_error *e) {
    if (g->is_lost) return was_lost(g, e);
    return send_frame(g, to, FRAME_MESSAGE, data, n, g->limit_us, e);
}

bool clime_group_said(struct clime_group *g, int from, int ms) {
    struct pollfd p = {.fd = g->sock[from], .events = POLLIN | POLLRDHUP};
    return poll(&p, 1, ms) > 0;
}

enum clime_err clime_group_receive(struct clime_group *g, int from, const char *what, int64_t limit_us,
                                   struct clime_buf *out, struct clime_error *e) {
    struct frame f;
    int64_t until = limit_us < 0 ? INT64_MAX : clime_now_us() + limit_us;
    bool readable = false;
    if (g->is_lost) return was_lost(g, e);
    while (!readable) {
        enum clime_err rc = look_around(g, from, LOOK_MS, &readable, e);
        bool unused;
        if (!rc && !readable && g->rank == 0) rc = look_around(g, -1, 0, &unused, e); /* reports of live ranks */
        if (rc) return rc;
        if (!readable && clime_now_us() >= until) return clime_group_late(g, from, what, e);
        if (readable && next_frame(g, from).kind == FRAME_ASK) {
            if ((rc = answer(g, e))) return rc;
            readable = false;
        }
    }
    until = clime_now_us() + g->limit_us;
    if (next_frame(g, from).kind == FRAME_FAILED) return look(g, from, true, e);
    enum clime_err rc = clime_group_move(g, from, g->sock[from], &f, sizeof f, false, what, until, e);
    if (rc) return rc;
    clime_buf_clear(out);
    char *at = f.kind == FRAME_MESSAGE ? clime_buf_reserve(out, f.n) : NULL;
    if (!at)
        return lose(g, from, e, "%s: %s has sent a message of %llu bytes, more than the %zu that are taken", what,
                    clime_group_name(g, from), (unsigned long long)f.n, out->cap);
    rc = clime_group_move(g, from, g->sock[from], at, f.n, false, what, until, e);
    if (!rc) clime_buf_grew(out, f.n);
    return rc;
}

void clime_group_fail(struct clime_group *g, const struct clime_error *why) {
    const struct last_words last = {g->lost_rank >= 0 ? g->lost_rank : g->rank, *why};
    for (int r = 0; r < g->world; r++)
        if (g->sock[r] >= 0) send_frame(g, r, FRAME_FAILED, &last, sizeof last, LAST_WORDS_US, NULL);
}

void clime_group_give_up(struct clime_group *g, const struct clime_error *why) {
    if (g->is_lost) return;
    g->is_lost = true;
    g->lost_rank = g->rank;
    g->lost = *why;
}

/* ---- agreement ---- */

/* Rank 0: compares the facts of each other rank with its own. */
static enum clime_err compare_all(struct clime_group *g, const struct clime_facts *mine, struct clime_error *e) {
    static const char what[] = "what every rank must have alike";
    struct clime_buf said;
    enum clime_err rc = CLIME_OK;
    clime_buf_init(&said, CLIME_FACTS_BYTES);
    for (int r = 1; r < g->world && !rc; r++) {
        struct clime_facts theirs = {0};
        struct clime_error why;
        if ((rc = clime_group_receive(g, r, what, g->limit_us, &said, e))) break;
        rc = clime_facts_read(clime_buf_str(&said), &theirs, &why);
        if (!rc) rc = clime_facts_compare(clime_group_name(g, r), &theirs, "rank 0", mine, NULL, 0, &why);
        clime_facts_free(&theirs);
        if (!rc) continue;
        lose(g, r, e, "%s", why.msg);
        rc = g->lost.code = CLIME_ERR_INPUT;
        if (e) e->code = rc;
        clime_group_fail(g, &g->lost);
    }
    for (int r = 1; r < g->world && !rc; r++) rc = clime_group_send(g, r, "", 0, e);
    clime_buf_free(&said);
    return rc;
}

enum clime_err clime_group_compare(struct clime_group *g, const struct clime_facts *mine, struct clime_error *e) {
    struct clime_buf text;
    struct clime_jw w;
    if (g->rank == 0) return compare_all(g, mine, e);
    clime_buf_init(&text, CLIME_FACTS_BYTES);
    clime_jw_init(&w, &text);
    clime_facts_write(mine, &w);
    enum clime_err rc =
        text.full ? clime_fail(e, CLIME_ERR_LIMIT, "what every rank must have alike has over %zu bytes", text.cap)
                  : clime_group_send(g, 0, text.data, text.len, e);
    if (!rc) rc = clime_group_receive(g, 0, "what every rank must have alike", g->limit_us, &text, e);
    clime_buf_free(&text);
    return rc;
}

enum clime_err clime_group_agree(struct clime_group *g, const char *mine, struct clime_error *e) {
    struct clime_facts f = {0};
    clime_facts_put(&f, "state", mine);
    enum clime_err rc = clime_group_compare(g, &f, e);
    clime_facts_free(&f);
    return rc;
}

/* ---- all-gather of small data ---- */

static enum clime_err receive_part(struct clime_group *g, int from, const char *what, void *at, size_t n,
                                   struct clime_error *e) {
    struct clime_buf b;
    clime_buf_init(&b, n);
    enum clime_err rc = clime_group_receive(g, from, what, g->limit_us, &b, e);
    if (!rc && b.len != n)
        rc = lose(g, from, e, "%s: %s has sent %zu bytes instead of %zu", what, clime_group_name(g, from), b.len, n);
    if (!rc && n) memcpy(at, b.data, n);
    clime_buf_free(&b);
    return rc;
}

enum clime_err clime_group_share(struct clime_group *g, const char *what, void *buf, const size_t *from,
                                 struct clime_error *e) {
    char *at = buf;
    enum clime_err rc = CLIME_OK;
    if (g->rank) {
        rc = clime_group_send(g, 0, at + from[g->rank], from[g->rank + 1] - from[g->rank], e);
        return rc ? rc : receive_part(g, 0, what, at, from[g->world], e);
    }
    for (int r = 1; r < g->world && !rc; r++) rc = receive_part(g, r, what, at + from[r], from[r + 1] - from[r], e);
    for (int r = 1; r < g->world && !rc; r++) rc = clime_group_send(g, r, at, from[g->world], e);
    return rc;
}
