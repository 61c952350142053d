/* Where a server listens, and whether it can, asked before a program does what takes long. Any thread. */
#ifndef CLIME_COMMON_HTTP_PORT_H
#define CLIME_COMMON_HTTP_PORT_H

#include "common/err.h"

/* CLIME_ERR_INPUT when the host is unknown or none of this machine, somebody listens there, or it may not be taken; the
 * message names the option that is to blame, host_option or option, both without dashes. Port 0 (any) is always free,
 * of one below (none) the host is not looked at either. Another program may still take it afterwards. */
enum clime_err clime_http_port_check(const char *option, const char *host_option, const char *host, int port,
                                     struct clime_error *e);

/* AF_INET or AF_INET6: of the addresses of a host, those that a server listens on when it is given that. */
int clime_http_port_family(const char *host);

#endif
