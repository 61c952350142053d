/* DNS look-up with a time limit. getaddrinfo has none and cannot be cancelled: a silent name server blocks it for the
 * resolver's timeouts. Any thread. */
#ifndef CLIME_COMMON_OS_LOOKUP_H
#define CLIME_COMMON_OS_LOOKUP_H

#include <netdb.h>
#include <stdint.h>

#include "common/err.h"

/* *out: at least one address for SOCK_STREAM, for the caller to freeaddrinfo; NULL unless CLIME_OK. until_us:
 * clime_now_us scale. cancel is polled a few times a second, true gives up; may be NULL. CLIME_ERR_INPUT: the name has
 * no address; CLIME_ERR_TIMEOUT: no reply in time; CLIME_ERR_ABORTED; CLIME_ERR_UNAVAILABLE: cannot start a thread,
 * which only names need. The message names the host. An abandoned thread ends at the resolver's timeout. */
enum clime_err clime_lookup(const char *host, int port, int64_t until_us, bool (*cancel)(void *arg), void *arg,
                            struct addrinfo **out, struct clime_error *e);

#endif
