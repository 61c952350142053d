/* Registration with a router: a thread that makes this server known, again and again, so that a restarted router finds
 * it, and takes it out at the end. */
#ifndef CLIME_SERVER_REGISTRATION_H
#define CLIME_SERVER_REGISTRATION_H

struct clime_registration;

struct clime_registration_options {
    const char *router;        /* its URL; any state of it is fine: it is tried until it works */
    const char *key;           /* bearer key for it, or NULL */
    const char *advertise_url; /* how the router reaches this server, or NULL: by scheme, host and port */
    const char *scheme, *host; /* a host that means all addresses becomes the one that leads to the router */
    int port, health_port;     /* health_port -1 = none */
};

/* Strings are copied. */
struct clime_registration *clime_registration_start(const struct clime_registration_options *o);

/* Takes the server out (one short try) and joins the thread. NULL is fine. Call it before draining, so that the router
 * sends nothing more. */
void clime_registration_stop(struct clime_registration *r);

#endif
