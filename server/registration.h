/* Registration with a router: a thread that makes this server known, again and again, so that a restarted router finds
 * it, and takes it out at the end. */
#ifndef CLIME_SERVER_REGISTRATION_H
#define CLIME_SERVER_REGISTRATION_H

struct clime_registration;

/* router: its URL; self: how the router reaches this server; health_port: where it asks for its health, -1 = the same
 * port; key: bearer key for the router or NULL. Strings are copied. Any router state is fine: it is tried until it
 * works. */
struct clime_registration *clime_registration_start(const char *router, const char *self, int health_port,
                                                    const char *key);

/* Takes the server out (one short try) and joins the thread. NULL is fine. Call it before draining, so that the router
 * sends nothing more. */
void clime_registration_stop(struct clime_registration *r);

#endif
