/* Finding a connection's socket (see peer.h). Called by the HTTP server; owns nothing. */
#include "common/http/peer.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

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

int clime_peer_socket(const char *remote_addr, int remote_port, int local_port) {
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return -1;
    int found = -1, n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char *end;
        long fd = strtol(entry->d_name, &end, 10);
        if (end == entry->d_name || *end || !matches((int)fd, remote_addr, remote_port, local_port)) continue;
        found = (int)fd;
        n++;
    }
    closedir(dir);
    return n == 1 ? found : -1;
}

static int events_of(int socket, short wanted) {
    struct pollfd p = {.fd = socket, .events = wanted};
    return poll(&p, 1, 0) > 0 ? p.revents : 0;
}

bool clime_peer_closed(int socket) {
    return events_of(socket, POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR);
}

bool clime_peer_writable(int socket) {
    return events_of(socket, POLLOUT) & (POLLOUT | POLLHUP | POLLERR);
}
