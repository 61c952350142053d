/* Kernel queries about a connection (see peer.h). Called by the HTTP server; owns nothing. */
#include "common/http/peer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

int64_t clime_peer_idle_us(int socket) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &len) ? 0 : (int64_t)info.tcpi_last_data_recv * 1000;
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
    /* The receiving side is shut by the peer's FIN or by us; after ours the connection is still established. */
    return (events & POLLRDHUP) &&
           !(getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_ESTABLISHED);
}

bool clime_peer_writable(int socket) {
    return events_of(socket, POLLOUT) & (POLLOUT | POLLHUP | POLLERR);
}
