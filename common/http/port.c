/* Port check (see port.h). Called by main functions at start; owns a socket during the call. */
#include "common/http/port.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/os/lookup.h"

#define LOOKUP_US 3000000 /* limit of the name look-up */

/* 0, or the errno of bind. Ignores addresses of closed connections, like the server. */
static int try_bind(const struct addrinfo *a) {
    int one = 1, why = 0, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) || bind(fd, a->ai_addr, a->ai_addrlen) ||
        listen(fd, 1))
        why = errno;
    close(fd);
    return why;
}

int clime_http_port_family(const char *host) {
    return strchr(host, ':') ? AF_INET6 : AF_INET; /* CivetWeb's rule */
}

enum clime_err clime_http_port_check(const char *option, const char *host_option, const char *host, int port,
                                     struct clime_error *e) {
    const int family = clime_http_port_family(host);
    struct addrinfo *all;
    if (port < 0) return CLIME_OK;
    if (clime_lookup(host, port, clime_now_us() + LOOKUP_US, NULL, NULL, &all, e)) {
        e->code = CLIME_ERR_INPUT;
        return clime_error_prefix(e, "--%s: %s is no address to listen on", host_option, host);
    }
    const struct addrinfo *a = all;
    while (a && a->ai_family != family) a = a->ai_next;
    int why = a ? try_bind(a) : EADDRNOTAVAIL;
    freeaddrinfo(all);
    if (!why) return CLIME_OK;
    if (why == EADDRNOTAVAIL)
        return clime_fail(e, CLIME_ERR_INPUT, "--%s: %s is no address of this machine", host_option, host);
    if (why == EADDRINUSE)
        return clime_fail(e, CLIME_ERR_INPUT, "--%s: port %d of %s is in use; 0 takes any free one", option, port,
                          host);
    return clime_fail(e, CLIME_ERR_INPUT, "--%s: port %d of %s cannot be listened on: %s", option, port, host,
                      strerror(why));
}
