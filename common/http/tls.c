/* TLS set-up (see tls.h). Called when a server starts; owns the open libraries, which stay until the process ends.
 *
 * Invariant: nothing has opened "libssl.so" by that name before, or the linker maps it to the real one (libcurl's is
 * libssl.so.3). This is verified at the end, so a mistake is an error, not a crash.
 */
#include "common/http/tls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define NEEDED "SSL_get_peer_certificate"

/* libssl/peer_certificate.c as a shared library; the Makefile makes these names. */
extern const char _binary_libssl_so_start[], _binary_libssl_so_end[];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards ready */
static bool ready;

/* Opens a library from memory. */
static void *open_own(void) {
    size_t n = (size_t)(_binary_libssl_so_end - _binary_libssl_so_start);
    char path[64];
    void *own = NULL;
    int fd = memfd_create("libssl.so", MFD_CLOEXEC);
    if (fd < 0) return NULL;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (write(fd, _binary_libssl_so_start, n) == (ssize_t)n) own = dlopen(path, RTLD_NOW);
    close(fd);
    return own;
}

static enum clime_err open_libraries(struct clime_error *e) {
    void *ssl = dlopen("libssl.so.3", RTLD_LAZY);
    bool lacks = ssl && !dlsym(ssl, NEEDED);
    if (lacks && !open_own())
        return clime_fail(e, CLIME_ERR_INPUT, "TLS does not work here: %s; put a TLS proxy in front", dlerror());
    void *named = dlopen("libssl.so", RTLD_LAZY);
    if (!named || !dlopen("libcrypto.so", RTLD_LAZY))
        return clime_fail(e, CLIME_ERR_NOT_FOUND, "TLS needs libssl.so and libcrypto.so: install libssl-dev");
    if (!dlsym(named, NEEDED))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "TLS does not work with this CivetWeb and OpenSSL 3; put a TLS proxy in front");
    return CLIME_OK;
}

enum clime_err clime_tls_prepare(const char *certificate, struct clime_error *e) {
    if (access(certificate, R_OK) != 0)
        return clime_fail(e, CLIME_ERR_NOT_FOUND, "cannot read the TLS certificate %s", certificate);
    pthread_mutex_lock(&lock);
    enum clime_err err = ready ? CLIME_OK : open_libraries(e);
    ready = !err;
    pthread_mutex_unlock(&lock);
    return err;
}
