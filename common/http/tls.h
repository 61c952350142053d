/* TLS of the HTTP server is CivetWeb's own, with OpenSSL, which it opens by name ("libssl.so") when it is asked for.
 *
 * CivetWeb 1.15 (Debian 12) takes SSL_get_peer_certificate from there without asking whether it is there; OpenSSL 3
 * calls it SSL_get1_peer_certificate, and the first connection would jump to address 0. So a library of that name and
 * of this one function, which stands before the real one, is part of the programs and opened first: the dynamic linker
 * gives what is open under a name to whoever asks for it later.
 */
#ifndef CLIME_COMMON_HTTP_TLS_H
#define CLIME_COMMON_HTTP_TLS_H

#include "common/err.h"

/* Before CivetWeb is asked for TLS, any thread, any number of times. CLIME_ERR_NOT_FOUND: the certificate, or OpenSSL;
 * CLIME_ERR_INPUT where TLS cannot work. */
enum clime_err clime_tls_prepare(const char *certificate, struct clime_error *e);

#endif
