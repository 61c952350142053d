/* Refusal of a group by a failing rank 0 (see group.h). Called on its main thread, at its end.
 *
 * A rank sends a card first, as in meet.c; a connection without a valid one is closed without a reply. One at a time: a
 * rank sends its card at once. */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/group/group_int.h"
#include "common/log.h"

#define CARD_US 1000000 /* limit for a complete card */

static bool within(int fd, int64_t until_us) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int64_t left_us = until_us - clime_now_us();
    return left_us > 0 && poll(&p, 1, (int)(left_us / 1000) + 1) == 1;
}

/* The rank that connected, or -1. */
static int read_card(const struct clime_place *p, int fd, int64_t until_us) {
    struct clime_group_card c;
    size_t n = 0;
    while (n < sizeof c && within(fd, until_us)) {
        ssize_t k = recv(fd, (char *)&c + n, sizeof c - n, MSG_DONTWAIT);
        if (k <= 0) return -1;
        n += (size_t)k;
    }
    bool ours = n == sizeof c && c.magic == CLIME_GROUP_MAGIC && c.secret == p->secret;
    return ours && c.rank > 0 && c.rank < p->world ? c.rank : -1;
}

void clime_group_refuse(const struct clime_place *p, int64_t limit_us, const struct clime_error *why) {
    const struct clime_group_verdict v = {CLIME_GROUP_MAGIC, *why};
    int64_t until_us = clime_now_us() + limit_us;
    bool told[CLIME_GROUP_MAX] = {false};
    int listener, n_told = 0;
    struct clime_error unused;
    CHECK(p->world > 1 && p->world <= CLIME_GROUP_MAX && why->code);
    if (clime_group_listen(p, until_us, &listener, &unused)) return; /* they then find no listener */
    LOG_INFO("the other ranks are told: %.0f s at most", (double)limit_us / 1e6);
    while (n_told < p->world - 1 && within(listener, until_us)) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        int64_t card_us = clime_now_us() + CARD_US;
        int rank = fd < 0 ? -1 : read_card(p, fd, card_us < until_us ? card_us : until_us);
        if (rank > 0 && send(fd, &v, sizeof v, MSG_NOSIGNAL) == sizeof v) {
            n_told += !told[rank];
            told[rank] = true;
        }
        if (fd >= 0) close(fd);
    }
    close(listener);
}
