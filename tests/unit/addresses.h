/* A name with two addresses, for a test that has a resolver of its own. */
#ifndef CLIME_TESTS_UNIT_ADDRESSES_H
#define CLIME_TESTS_UNIT_ADDRESSES_H

#include <dlfcn.h>
#include <netdb.h>

/* The C library's, in a file that has one in its place. */
static int real_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                            struct addrinfo **out) {
    __typeof__(&getaddrinfo) real = (__typeof__(&getaddrinfo))dlsym(RTLD_NEXT, "getaddrinfo");
    return real(name, service, hints, out);
}

/* What getaddrinfo says of a name that has these two, in this order. */
static int two_addresses(const char *first, const char *second, const char *service, const struct addrinfo *hints,
                         struct addrinfo **out) {
    struct addrinfo any = *hints, *rest;
    any.ai_family = AF_UNSPEC;
    int rc = real_getaddrinfo(first, service, &any, out);
    if (rc) return rc;
    if ((rc = real_getaddrinfo(second, service, &any, &rest))) {
        freeaddrinfo(*out);
        return rc;
    }
    (*out)->ai_next = rest;
    return 0;
}

#endif
