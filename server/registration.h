/* Registration with a router: a thread that keeps this server registered, also after a router restart, and deregisters
 * it at the end. */
#ifndef CLIME_SERVER_REGISTRATION_H
#define CLIME_SERVER_REGISTRATION_H

struct clime_registration;

struct clime_registration_options {
    const char *router;        /* its URL; it need not be up: retried until it answers */
    const char *key;           /* its bearer key, or NULL */
    const char *advertise_url; /* URL of this server for the router; NULL: from scheme, host and port */
    const char *scheme, *host; /* a wildcard host becomes the local address that routes to the router */
    int port, health_port;     /* health_port -1 = none */
};

/* Strings are copied. */
struct clime_registration *clime_registration_start(const struct clime_registration_options *o);

/* Deregisters (one short try) and joins the thread. NULL is fine. Call before draining, so that the router sends no
 * more requests. */
void clime_registration_stop(struct clime_registration *r);

#endif
