/* TLS set-up of the HTTP server. CivetWeb loads OpenSSL by name ("libssl.so") when TLS is on.
 *
 * CivetWeb 1.15 (Debian 12) takes SSL_get_peer_certificate from it unchecked; OpenSSL 3 renamed it to
 * SSL_get1_peer_certificate, so the first connection would jump to address 0. The programs therefore embed a library of
 * that name with this one function and open it first: the dynamic linker then returns it for later opens of the name.
 */
#ifndef CLIME_COMMON_HTTP_TLS_H
#define CLIME_COMMON_HTTP_TLS_H

#include "common/err.h"

/* Call before CivetWeb starts TLS; any thread, any number of times. CLIME_ERR_NOT_FOUND: no certificate, or no OpenSSL;
 * CLIME_ERR_INPUT: TLS cannot work. */
enum clime_err clime_tls_prepare(const char *certificate, struct clime_error *e);

#endif
