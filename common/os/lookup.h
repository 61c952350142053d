/* From a host's name to its addresses, within a limit. getaddrinfo has none: with a name server that says nothing it
 * takes as long as the resolver is patient, and nothing can call it off. Any thread. */
#ifndef CLIME_COMMON_OS_LOOKUP_H
#define CLIME_COMMON_OS_LOOKUP_H

#include <netdb.h>
#include <stdint.h>

#include "common/err.h"

/* *out: at least one address for connections (SOCK_STREAM), the caller's to freeaddrinfo; NULL unless CLIME_OK.
 * until_us: on clime_now_us' scale. cancel is asked a few times a second, true gives up; may be NULL.
 * CLIME_ERR_INPUT: the name has no address; CLIME_ERR_TIMEOUT: nothing was heard in time; CLIME_ERR_ABORTED;
 * CLIME_ERR_UNAVAILABLE: no thread could be started, which only names need. The message names the host. A thread that
 * is not waited for any more ends with the resolver's patience. */
enum clime_err clime_lookup(const char *host, int port, int64_t until_us, bool (*cancel)(void *arg), void *arg,
                            struct addrinfo **out, struct clime_error *e);

#endif
