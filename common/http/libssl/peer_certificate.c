/* The complete shared library libssl.so (see common/http/tls.h): the one function that CivetWeb 1.15 needs and OpenSSL
 * 3 renamed. The other symbols come from its dependency, libssl.so.3.
 */
void *SSL_get1_peer_certificate(const void *ssl);
void *SSL_get_peer_certificate(const void *ssl);

void *SSL_get_peer_certificate(const void *ssl) {
    return SSL_get1_peer_certificate(ssl);
}
