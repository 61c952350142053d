/* Finding connections' sockets (see peer.h). Called by the HTTP server's table of connections; owns nothing. */
#include "common/http/peer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define LONGEST_GAP 8192 /* unused numbers between two descriptors */

/* Port of an internet address, or -1. */
static int port_of(const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET) return ntohs(((const struct sockaddr_in *)a)->sin_port);
    if (a->ss_family == AF_INET6) return ntohs(((const struct sockaddr_in6 *)a)->sin6_port);
    return -1;
}

static bool matches(int fd, const char *remote_addr, int remote_port, int local_port) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    if (getpeername(fd, (struct sockaddr *)&a, &len) || port_of(&a) != remote_port) return false;
    char text[NI_MAXHOST];
    if (getnameinfo((struct sockaddr *)&a, len, text, sizeof text, NULL, 0, NI_NUMERICHOST)) return false;
    if (strcmp(text, remote_addr) != 0) return false;
    len = sizeof a;
    return getsockname(fd, (struct sockaddr *)&a, &len) == 0 && port_of(&a) == local_port;
}

void clime_peer_each(bool (*skip)(void *arg, int fd), void *skip_arg, bool (*fn)(void *arg, int fd), void *arg) {
    /* A new descriptor has the lowest free number, so a long gap is the end of them. /proc/self/fd would be exact, but
     * opening it takes a descriptor, which is what a crowded server may lack. */
    struct rlimit limit;
    int most = getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > 1 << 24 ? 1 << 24 : (int)limit.rlim_cur;
    for (int fd = 0, gap = 0; fd < most && gap < LONGEST_GAP; fd++, gap++) {
        if (skip(skip_arg, fd)) {
            gap = 0;
            continue;
        }
        if (fcntl(fd, F_GETFD) < 0) continue;
        gap = 0;
        if (!fn(arg, fd)) return;
    }
}

struct wanted {
    const char *remote_addr;
    int remote_port, local_port, found;
};

static bool look(void *arg, int fd) {
    struct wanted *w = arg;
    if (!matches(fd, w->remote_addr, w->remote_port, w->local_port)) return true;
    w->found = fd;
    return false;
}

int clime_peer_socket(const char *remote_addr, int remote_port, int local_port, bool (*skip)(void *arg, int fd),
                      void *skip_arg) {
    struct wanted w = {remote_addr, remote_port, local_port, -1};
    clime_peer_each(skip, skip_arg, look, &w);
    return w.found;
}

bool clime_peer_idle(int fd, int local_port, struct clime_peer_idle *out) {
    struct sockaddr_storage a;
    struct tcp_info info;
    socklen_t len = sizeof a, info_len = sizeof info, cookie_len = sizeof out->cookie;
    if (getsockname(fd, (struct sockaddr *)&a, &len) || port_of(&a) != local_port) return false;
    len = sizeof a;
    if (getpeername(fd, (struct sockaddr *)&a, &len)) return false; /* listens, or is not connected any more */
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_len)) return false;
    if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &out->cookie, &cookie_len)) return false;
    out->idle_us = (int64_t)info.tcpi_last_data_recv * 1000;
    return true;
}

bool clime_peer_unread(int socket) {
    int n = 0;
    return ioctl(socket, FIONREAD, &n) == 0 && n > 0;
}

static int events_of(int socket, short wanted) {
    struct pollfd p = {.fd = socket, .events = wanted};
    return poll(&p, 1, 0) > 0 ? p.revents : 0;
}

bool clime_peer_closed(int socket) {
    int events = events_of(socket, POLLRDHUP);
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    if (events & (POLLHUP | POLLERR)) return true;
    /* The receiving side is shut by the peer's FIN, or by ourselves, and then the connection is still established. */
    return (events & POLLRDHUP) &&
           !(getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_ESTABLISHED);
}

bool clime_peer_writable(int socket) {
    return events_of(socket, POLLOUT) & (POLLOUT | POLLHUP | POLLERR);
}
