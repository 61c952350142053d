/* Whether a port can be listened on, asked before a program does what takes long. Any thread. */
#ifndef CLIME_COMMON_HTTP_PORT_H
#define CLIME_COMMON_HTTP_PORT_H

#include "common/err.h"

/* CLIME_ERR_INPUT when the host is unknown, somebody listens there, or it may not be taken; the message names the
 * option. Port 0 (any) and below (none) are always free. Another program may still take it afterwards. */
enum clime_err clime_http_port_check(const char *option, const char *host, int port, struct clime_error *e);

#endif
