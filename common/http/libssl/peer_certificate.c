/* The whole of a shared library called libssl.so (see common/http/tls.h): the one function that CivetWeb 1.15 takes
 * from there and OpenSSL 3 has under another name only. All else it finds behind it, in libssl.so.3.
 */
void *SSL_get1_peer_certificate(const void *ssl);
void *SSL_get_peer_certificate(const void *ssl);

void *SSL_get_peer_certificate(const void *ssl) {
    return SSL_get1_peer_certificate(ssl);
}
