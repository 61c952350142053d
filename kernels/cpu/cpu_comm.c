/* Groups of processes on CPUs of one host, over sockets: the CPU's counterpart of NCCL, so that a handover by broadcast
 * uses the same code and is tested without a GPU.
 *
 * Rank 0 listens on a loopback port that is in the id, with a random secret that a peer must send; the others connect.
 * Every socket is non-blocking; every wait polls for the deadline, the cancel flag and a closed peer.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"

struct clime_comm {
    int rank, world;
    int *peer; /* sockets: [world - 1] at rank 0, [1] elsewhere; -1 = none */
    int n_peers;
};

struct id {
    uint64_t secret;
    int32_t listener; /* in the process that made the id */
    uint16_t port;    /* network order */
    uint16_t family;  /* AF_INET: not zeros */
};

struct hello {
    uint64_t secret;
    int64_t rank;
};

struct waiting {
    int64_t until_us;
    const struct clime_comm_wait *wait;
    const char *what;
};

static enum clime_err wait_for(const struct waiting *w, int fd, short events, struct clime_error *e) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        if (w->wait->cancelled && w->wait->cancelled(w->wait->arg))
            return clime_fail(e, CLIME_ERR_ABORTED, "%s: given up", w->what);
        if (poll(&p, 1, 5) > 0) return CLIME_OK;
        if (clime_now_us() >= w->until_us)
            return clime_fail(e, CLIME_ERR_TIMEOUT, "%s: no peer within the time limit", w->what);
    }
}

static enum clime_err move(const struct waiting *w, int fd, void *at, size_t n, bool out, struct clime_error *e) {
    char *p = at;
    while (n > 0) {
        ssize_t k = out ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
            enum clime_err rc = wait_for(w, fd, out ? POLLOUT : POLLIN, e);
            if (rc) return rc;
        } else {
            return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s: a peer is gone", w->what);
        }
    }
    return CLIME_OK;
}

enum clime_err clime_cpu_comm_id(struct clime_dev *d, uint8_t id[CLIME_COMM_ID_BYTES], struct clime_error *e) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    struct id out = {.family = AF_INET};
    (void)d;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 64) ||
        getsockname(fd, (struct sockaddr *)&a, &len)) {
        if (fd >= 0) close(fd);
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "a group cannot listen: %s", strerror(errno));
    }
    clime_random_bytes(&out.secret, sizeof out.secret);
    out.listener = fd;
    out.port = a.sin_port;
    memset(id, 0, CLIME_COMM_ID_BYTES);
    memcpy(id, &out, sizeof out);
    return CLIME_OK;
}

/* Rank 0: accepts the others; closes connections without the secret or with a rank already present. */
static enum clime_err accept_all(struct clime_comm *c, const struct id *id, const struct waiting *w,
                                 struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    for (int n = 0; n < c->n_peers && !rc;) {
        struct hello h;
        if ((rc = wait_for(w, id->listener, POLLIN, e))) break;
        int fd = accept4(id->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) continue;
        if (!move(w, fd, &h, sizeof h, false, e) && h.secret == id->secret && h.rank > 0 && h.rank < c->world &&
            c->peer[h.rank - 1] < 0) {
            c->peer[h.rank - 1] = fd;
            n++;
        } else {
            close(fd);
        }
    }
    close(id->listener);
    char go = 1;
    for (int i = 0; i < c->n_peers && !rc; i++) rc = move(w, c->peer[i], &go, 1, true, e);
    return rc;
}

static enum clime_err join(struct clime_comm *c, const struct id *id, const struct waiting *w, struct clime_error *e) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = id->port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct hello h = {id->secret, c->rank};
    char go;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    c->peer[0] = fd;
    if (fd < 0 || (connect(fd, (struct sockaddr *)&a, sizeof a) && errno != EINPROGRESS))
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s: %s", w->what, strerror(errno));
    enum clime_err rc = wait_for(w, fd, POLLOUT, e);
    if (!rc) rc = move(w, fd, &h, sizeof h, true, e);
    return rc ? rc : move(w, fd, &go, 1, false, e);
}

enum clime_err clime_cpu_comm_open(struct clime_dev *d, const uint8_t raw[CLIME_COMM_ID_BYTES], int rank, int world,
                                   const struct clime_comm_wait *wait, struct clime_comm **out, struct clime_error *e) {
    struct waiting w = {clime_now_us() + wait->limit_us, wait, "joining a group over sockets"};
    struct id id;
    (void)d;
    *out = NULL;
    memcpy(&id, raw, sizeof id);
    CHECK(rank >= 0 && rank < world);
    if (id.family != AF_INET) return clime_fail(e, CLIME_ERR_INPUT, "the id is none of a group over sockets");
    struct clime_comm *c = xcalloc(1, sizeof *c);
    *c = (struct clime_comm){.rank = rank, .world = world, .n_peers = rank ? 1 : world - 1};
    c->peer = xmalloc((size_t)world * sizeof *c->peer);
    for (int i = 0; i < world; i++) c->peer[i] = -1;
    enum clime_err rc = rank ? join(c, &id, &w, e) : accept_all(c, &id, &w, e);
    if (rc)
        clime_cpu_comm_close(c);
    else
        *out = c;
    return rc;
}

enum clime_err clime_cpu_comm_broadcast(struct clime_comm *c, const struct clime_comm_part *parts, int n,
                                        const struct clime_comm_wait *wait, struct clime_error *e) {
    struct waiting w = {clime_now_us() + wait->limit_us, wait, "a broadcast over sockets"};
    enum clime_err rc = CLIME_OK;
    for (int p = 0; p < c->n_peers && !rc; p++)
        for (int i = 0; i < n && !rc; i++) rc = move(&w, c->peer[p], parts[i].at, parts[i].bytes, c->rank == 0, e);
    return rc;
}

/* Rank 0 computes the sum. */
enum clime_err clime_cpu_comm_greet(struct clime_comm *c, const struct clime_comm_wait *wait, struct clime_error *e) {
    struct waiting w = {clime_now_us() + wait->limit_us, wait, "a greeting over sockets"};
    enum clime_err rc = CLIME_OK;
    float sum = 0, theirs;
    for (int p = 0; p < c->n_peers && !rc; p++) {
        if (c->rank) rc = move(&w, c->peer[p], &sum, sizeof sum, true, e);
        if (!rc) rc = move(&w, c->peer[p], &theirs, sizeof theirs, false, e);
        if (!rc) sum += theirs;
    }
    for (int p = 0; p < c->n_peers && !rc && c->rank == 0; p++) rc = move(&w, c->peer[p], &sum, sizeof sum, true, e);
    return rc;
}

void clime_cpu_comm_close(struct clime_comm *c) {
    if (!c) return;
    for (int i = 0; i < c->n_peers; i++)
        if (c->peer[i] >= 0) close(c->peer[i]);
    free(c->peer);
    free(c);
}
