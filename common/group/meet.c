/* Rendezvous of a group (see group.h). The other ranks connect to rank 0 and send their cards; rank 0 admits all at
 * once, or sends every rank present the reason for failure. The owner's thread.
 *
 * Invariant: no connection can block the others. Cards are read as they arrive, silent connections do not count, and a
 * connection that is no rank of this group (a port scanner, another run's process) is closed without a reply. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/group/group_int.h"
#include "common/group/start.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/os/host.h"
#include "common/os/lookup.h"
#include "common/version.h"

#define KNOCKING 32 /* connections without a complete card */
#define TRY_AGAIN_US 50000
#define WORD_EVERY_US 10000000

/* ---- this rank's card ---- */

static uint64_t read_into_checksum(const char *path) {
    struct clime_checksum c;
    char piece[65536];
    clime_checksum_init(&c);
    FILE *f = fopen(path, "rb");
    for (size_t n; f && (n = fread(piece, 1, sizeof piece, f)) > 0;) clime_checksum_add(&c, piece, n);
    if (f) fclose(f);
    return clime_checksum_done(&c);
}

static struct clime_group_card own_card(const struct clime_place *p) {
    char space[64] = "", boot[64];
    struct clime_group_card c = {.magic = CLIME_GROUP_MAGIC,
                                 .secret = p->secret,
                                 .build = read_into_checksum("/proc/self/exe"),
                                 .pid = getpid(),
                                 .rank = p->rank,
                                 .world = p->world,
                                 .version = CLIME_VERSION};
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = 0;
    clime_host_id(boot, sizeof boot);
    c.host = clime_hash_bytes(boot, strlen(boot), 0) ^ clime_hash_bytes(space, strlen(space), 0);
    if (!boot[0]) c.host = p->secret; /* known only to ranks of one start, on one host */
    if (gethostname(c.where, sizeof c.where - 1)) snprintf(c.where, sizeof c.where, "?");
    return c;
}

static struct clime_group *new_group(const struct clime_group_options *o) {
    struct clime_group *g = xcalloc(1, sizeof *g);
    *g = (struct clime_group){.rank = o->place.rank,
                              .world = o->place.world,
                              .limit_us = o->limit_us,
                              .limit_option = o->limit_option,
                              .lost_rank = -1};
    g->sock = xmalloc((size_t)g->world * sizeof *g->sock);
    g->process = xmalloc((size_t)g->world * sizeof *g->process);
    g->card = xcalloc((size_t)g->world, sizeof *g->card);
    for (int i = 0; i < g->world; i++) g->sock[i] = g->process[i] = -1;
    g->card[g->rank] = own_card(&o->place);
    return g;
}

/* A follower of a group with a lost rank stays until rank 0 has closed the group: a later observer would mistake its
 * end for the cause, and its failure report could be lost with its connection. */
#define STAY_MS 10000
static void stay(const struct clime_group *g) {
    struct pollfd w = {.fd = g->sock[0], .events = POLLRDHUP};
    poll(&w, 1, STAY_MS);
}

void clime_group_close(struct clime_group *g) {
    if (!g) return;
    if (g->is_lost && g->rank && g->sock[0] >= 0) stay(g);
    for (int i = 0; i < g->world; i++) {
        if (g->sock[i] >= 0) close(g->sock[i]);
        if (g->process[i] >= 0) close(g->process[i]);
    }
    free(g->sock);
    free(g->process);
    free(g->card);
    free(g);
}

int clime_group_rank(const struct clime_group *g) {
    return g->rank;
}

int clime_group_world(const struct clime_group *g) {
    return g->world;
}

int64_t clime_group_limit_us(const struct clime_group *g) {
    return g->limit_us;
}

void clime_group_set_limit(struct clime_group *g, int64_t limit_us, const char *option) {
    g->limit_us = limit_us;
    g->limit_option = option;
}

bool clime_group_one_host(const struct clime_group *g) {
    return g->one_host;
}

/* ---- addresses ---- */

static enum clime_err find_address(const struct clime_place *p, int64_t until_us, struct addrinfo **out,
                                   struct clime_error *e) {
    enum clime_err rc = clime_lookup(p->address, p->port, until_us, NULL, NULL, out, e);
    return rc ? clime_error_prefix(e, "rank 0's address") : CLIME_OK;
}

static void no_delay(int fd) { /* messages are small and latency-bound */
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* ---- rank 0 ---- */

enum clime_err clime_group_listen(const struct clime_place *p, int64_t until_us, int *out, struct clime_error *e) {
    struct addrinfo *list;
    int on = 1;
    enum clime_err rc = find_address(p, until_us, &list, e);
    if (rc) return rc;
    int fd = -1;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (fd >= 0 && !bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, CLIME_GROUP_MAX)) break;
        rc = clime_fail(e, CLIME_ERR_UNAVAILABLE, "rank 0 cannot listen at %s:%d: %s", p->address, p->port,
                        strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    if (fd >= 0) rc = CLIME_OK;
    *out = fd;
    return rc;
}

/* Error for a card that does not fit; the whole rendezvous then fails. */
static enum clime_err examine(const struct clime_group *g, const struct clime_group_card *c, struct clime_error *e) {
    const struct clime_group_card *mine = &g->card[0];
    char who[128];
    snprintf(who, sizeof who, "rank %d (pid %lld on %.60s)", c->rank, (long long)c->pid, c->where);
    if (c->world != g->world)
        return clime_fail(e, CLIME_ERR_INPUT, "%s was started for a group of %d, rank 0 for one of %d", who, c->world,
                          g->world);
    if (c->rank < 1 || c->rank >= g->world)
        return clime_fail(e, CLIME_ERR_INPUT, "%s is none of ranks 1 to %d", who, g->world - 1);
    if (g->sock[c->rank] >= 0)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "two processes say that they are rank %d: pid %lld on %.60s and pid %lld "
                          "on %.60s",
                          c->rank, (long long)g->card[c->rank].pid, g->card[c->rank].where, (long long)c->pid,
                          c->where);
    if (c->build != mine->build)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "%s is another build (%.20s, %016llx) than rank 0 (%.20s, %016llx): all ranks must run the "
                          "same file",
                          who, c->version, (unsigned long long)c->build, mine->version,
                          (unsigned long long)mine->build);
    return CLIME_OK;
}

struct knock { /* a connection without a complete card */
    int fd;
    size_t n;
    struct clime_group_card card;
};

/* Reads more of a card. *in: the card is a rank's, and the group now owns the socket. fd -1: closed. */
static enum clime_err read_card(struct clime_group *g, struct knock *k, bool *in, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    ssize_t n = recv(k->fd, (char *)&k->card + k->n, sizeof k->card - k->n, 0);
    *in = false;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return CLIME_OK;
    if (n > 0) k->n += (size_t)n;
    if (n > 0 && k->n < sizeof k->card) return CLIME_OK;
    bool ours = n > 0 && k->card.magic == CLIME_GROUP_MAGIC && k->card.secret == g->card[0].secret;
    k->card.version[sizeof k->card.version - 1] = k->card.where[sizeof k->card.where - 1] = 0;
    if (ours && !(rc = examine(g, &k->card, e))) {
        no_delay(k->fd);
        g->sock[k->card.rank] = k->fd;
        g->card[k->card.rank] = k->card;
        *in = true;
    } else if (ours) {
        struct clime_group_verdict v = {CLIME_GROUP_MAGIC, *e}; /* also sends it the reason, if still connected */
        (void)!send(k->fd, &v, sizeof v, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(k->fd);
    } else {
        close(k->fd);
    }
    k->fd = -1;
    return rc;
}

/* "ranks 2, 3 of 4" */
static const char *who_is_missing(const struct clime_group *g, char *out, size_t size) {
    size_t at = 0;
    int n = 0;
    for (int r = 1; r < g->world; r++) n += g->sock[r] < 0;
    at += (size_t)snprintf(out, size, "%s", n > 1 ? "ranks" : "rank");
    for (int r = 1; r < g->world && at < size; r++)
        if (g->sock[r] < 0) at += (size_t)snprintf(out + at, size - at, " %d%s", r, --n ? "," : "");
    if (at < size) snprintf(out + at, size - at, " of %d", g->world);
    return out;
}

static enum clime_err wait_for_all(struct clime_group *g, const struct clime_group_options *o, int listener,
                                   struct clime_error *e) {
    struct knock knock[KNOCKING];
    char missing[300];
    int64_t began = clime_now_us(), word = began + WORD_EVERY_US;
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < KNOCKING; i++) knock[i].fd = -1;
    for (int n = 1; n < g->world && !rc;) {
        struct pollfd p[KNOCKING + 1];
        int64_t now = clime_now_us();
        for (int i = 0; i < KNOCKING; i++) p[i] = (struct pollfd){.fd = knock[i].fd, .events = POLLIN};
        p[KNOCKING] = (struct pollfd){.fd = listener, .events = POLLIN};
        poll(p, KNOCKING + 1, 50);
        for (int i = 0; i < KNOCKING && !rc; i++) {
            bool in = false;
            if (knock[i].fd >= 0 && p[i].revents) rc = read_card(g, &knock[i], &in, e);
            n += in;
        }
        int fd = p[KNOCKING].revents ? accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
        if (fd >= 0) { /* a new connection replaces the oldest silent one */
            int at = 0;
            while (at < KNOCKING && knock[at].fd >= 0) at++;
            if (at == KNOCKING) {
                close(knock[0].fd);
                memmove(knock, knock + 1, sizeof knock - sizeof knock[0]);
                at--;
            }
            knock[at] = (struct knock){.fd = fd};
        }
        if (!rc && o->children) rc = clime_group_children_check(o->children, &g->lost_rank, e);
        if (!rc && n < g->world && now - began >= o->meet_limit_us) {
            for (g->lost_rank = 1; g->sock[g->lost_rank] >= 0;) g->lost_rank++;
            rc = clime_fail(e, CLIME_ERR_TIMEOUT, "meeting the group: %s did not come to %s:%d within %.0f s",
                            who_is_missing(g, missing, sizeof missing), o->place.address, o->place.port,
                            (double)o->meet_limit_us / 1e6);
        }
        if (!rc && n < g->world && now >= word) {
            LOG_INFO("waiting for %s: %.0f s of at most %.0f s", who_is_missing(g, missing, sizeof missing),
                     (double)(now - began) / 1e6, (double)o->meet_limit_us / 1e6);
            word = now + WORD_EVERY_US;
        }
    }
    for (int i = 0; i < KNOCKING; i++)
        if (knock[i].fd >= 0) close(knock[i].fd);
    return rc;
}

static enum clime_err receive_all(struct clime_group *g, const struct clime_group_options *o, struct clime_error *e) {
    int listener = o->listener;
    enum clime_err rc =
        o->children ? CLIME_OK : clime_group_listen(&o->place, clime_now_us() + o->meet_limit_us, &listener, e);
    if (rc) return rc;
    rc = wait_for_all(g, o, listener, e);
    if (!o->children) close(listener);
    struct clime_group_verdict v = {.magic = CLIME_GROUP_MAGIC};
    if (rc && e) v.why = *e;
    v.why.code = rc;
    for (int r = 1; r < g->world; r++) {
        int64_t until = clime_now_us() + g->limit_us;
        struct clime_error *err = rc ? NULL : e;
        if (g->sock[r] < 0) continue;
        enum clime_err sent = clime_group_move(g, r, g->sock[r], &v, sizeof v, true, "meeting the group", until, err);
        if (!rc && !sent)
            sent = clime_group_move(g, r, g->sock[r], g->card, (size_t)g->world * sizeof *g->card, true,
                                    "meeting the group", until, err);
        if (!rc) rc = sent;
    }
    return rc;
}

/* ---- other ranks ---- */

/* Retries until rank 0 listens at one of its addresses. */
static enum clime_err connect_to(const struct clime_place *p, int64_t limit_us, int *out, struct clime_error *e) {
    struct addrinfo *list;
    int64_t until = clime_now_us() + limit_us;
    enum clime_err rc = find_address(p, until, &list, e);
    if (rc) return rc;
    for (const struct addrinfo *a = list;; a = a->ai_next ? a->ai_next : list) {
        int err = 0;
        socklen_t len = sizeof err;
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS) err = errno;
        struct pollfd w = {.fd = fd, .events = POLLOUT};
        if (fd >= 0 && !err && poll(&w, 1, 1000) != 1) err = ETIMEDOUT;
        if (fd >= 0 && !err) getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len);
        *out = fd;
        if (fd >= 0 && !err) break;
        if (fd >= 0) close(fd);
        if (clime_now_us() >= until) {
            rc = clime_fail(e, CLIME_ERR_TIMEOUT, "meeting the group: rank 0 at %s:%d has not answered within %.0f s",
                            p->address, p->port, (double)limit_us / 1e6);
            break;
        }
        clime_sleep_us(TRY_AGAIN_US);
    }
    freeaddrinfo(list);
    return rc;
}

static enum clime_err join(struct clime_group *g, const struct clime_group_options *o, struct clime_error *e) {
    struct clime_group_verdict v;
    int fd;
    enum clime_err rc = connect_to(&o->place, o->meet_limit_us, &fd, e);
    if (rc) return rc;
    int64_t until = clime_now_us() + o->meet_limit_us;
    no_delay(fd);
    g->sock[0] = fd;
    rc = clime_group_move(g, 0, fd, &g->card[g->rank], sizeof *g->card, true, "meeting the group", until, e);
    /* rank 0 waits for the others as long as this rank may, then reports */
    if (!rc) rc = clime_group_move(g, 0, fd, &v, sizeof v, false, "meeting the group", until + g->limit_us, e);
    if (!rc && v.magic != CLIME_GROUP_MAGIC)
        rc = clime_fail(e, CLIME_ERR_INPUT, "who listens at %s:%d is no rank 0", o->place.address, o->place.port);
    if (!rc && v.why.code) {
        v.why.msg[sizeof v.why.msg - 1] = 0;
        rc = clime_fail(e, v.why.code, "rank 0 says: %.480s", v.why.msg);
    }
    if (!rc)
        rc = clime_group_move(g, 0, fd, g->card, (size_t)g->world * sizeof *g->card, false, "meeting the group", until,
                              e);
    return rc;
}

/* Opens pidfds of the ranks without a socket, when all are on one host. */
static void watch(struct clime_group *g) {
    g->one_host = g->card[0].host != 0;
    for (int r = 0; r < g->world; r++) g->one_host &= g->card[r].host == g->card[0].host;
    for (int r = 0; g->one_host && r < g->world; r++)
        if (r != g->rank && g->sock[r] < 0) g->process[r] = (int)syscall(SYS_pidfd_open, (pid_t)g->card[r].pid, 0);
}

enum clime_err clime_group_meet(const struct clime_group_options *o, struct clime_group **out, struct clime_error *e) {
    struct clime_error own; /* its text is also sent to the other ranks */
    CHECK(o->place.world > 1 && o->place.world <= CLIME_GROUP_MAX && o->limit_us > 0);
    struct clime_group *g = new_group(o);
    enum clime_err rc = g->rank == 0 ? receive_all(g, o, &own) : join(g, o, &own);
    *out = NULL;
    if (rc) {
        if (e) *e = own;
        if (o->lost) *o->lost = g->lost_rank;
        clime_group_close(g);
        return rc;
    }
    watch(g);
    *out = g;
    return CLIME_OK;
}
