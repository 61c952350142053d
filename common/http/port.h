/* Checks that a server can listen at its address, before slow start-up work. Any thread. */
#ifndef CLIME_COMMON_HTTP_PORT_H
#define CLIME_COMMON_HTTP_PORT_H

#include "common/err.h"

/* CLIME_ERR_INPUT: the host is unknown or not of this machine, the port is in use, or binding is not permitted. The
 * message names host_option or option, both passed without dashes. Port 0 (any) is always free; a negative port (none)
 * skips the host check too. Another program may still take the port afterwards. */
enum clime_err clime_http_port_check(const char *option, const char *host_option, const char *host, int port,
                                     struct clime_error *e);

/* AF_INET or AF_INET6: the family a server listens on for this host. */
int clime_http_port_family(const char *host);

#endif
