/* What the files of the fleet share: a server and the fleet itself. Internal to fleet*.c. Main thread, but for url. */
#ifndef CLIME_TRAINER_FLEET_FLEET_INT_H
#define CLIME_TRAINER_FLEET_FLEET_INT_H

#include <pthread.h>

#include "trainer/fleet/broadcast.h"
#include "trainer/fleet/fleet.h"
#include "trainer/fleet/program.h"

struct clime_json;

#define CLIME_FLEET_SERVERS 256
#define CLIME_FLEET_CONTROL_US 10000000
#define CLIME_FLEET_READY_US 60000000 /* beside the time that pushes take */
#define CLIME_FLEET_MAX_REPLY ((size_t)4 << 20)

struct clime_fleet_server {
    char url[CLIME_FLEET_URL];   /* "" = not up */
    struct clime_program *child; /* NULL = external */
    int64_t pushed;              /* version it serves, -1 = unknown */
    enum clime_way way;          /* how it gets weights */
    bool way_known;              /* it was asked where it is */
    struct clime_broadcast group;
    bool admitted;
    bool out;                /* external: taken out of its router by us, until it has the version */
    int n_failures;          /* in a row */
    int64_t retry_us;        /* nothing is tried before; clime_now_us scale */
    char device[64];         /* kind, as it says; "" = not asked yet */
    struct clime_error last; /* why it is not further */
};

struct clime_fleet {
    struct clime_fleet_options o;
    struct clime_program router, *children; /* children[n_children] */
    int n_children;
    struct clime_fleet_server servers[CLIME_FLEET_SERVERS];
    int n_servers;
    struct clime_push push;
    bool has_push;
    char key[33]; /* of our own router and servers; "" with an external one */
    struct clime_http_client *http;
    int64_t next_external_us, external_seen_us; /* when to ask the external router again; when it last answered */
    char device[64];                            /* kind of the trainer's own; without one that of the first server */
    bool publishing;                            /* the model holds the version that is pushed */
    bool was_published;                         /* a version was served by all once */
    struct clime_metric *known, *serving;       /* for /metrics */
    pthread_mutex_t *lock; /* of url; behind a pointer so that clime_fleet_url may take a const fleet */
    char url[CLIME_FLEET_URL];
};

void clime_fleet_set_url(struct clime_fleet *f, const char *url);

/* A short call; the reply is dropped unless asked for. */
enum clime_err clime_fleet_call(struct clime_fleet *f, const char *method, const char *url, struct clime_str body,
                                int64_t timeout_us, struct clime_buf *reply, struct clime_error *e);

/* GET, whose answer is one JSON value that `read` takes. */
enum clime_err clime_fleet_read(struct clime_fleet *f, const char *url, void (*read)(void *arg, struct clime_json *j),
                                void *arg, struct clime_error *e);

/* External: out of the router for a while, after which it is pushed to and admitted again. Why: s->last. */
void clime_fleet_quarantine(struct clime_fleet *f, struct clime_fleet_server *s);

/* The server does not serve (any more): dismissed from the router, to be pushed to and admitted again. */
void clime_fleet_lost(struct clime_fleet *f, struct clime_fleet_server *s);

/* children.c: starts router and servers; looks after them once. */
enum clime_err clime_fleet_open_children(struct clime_fleet *f, struct clime_error *e);
enum clime_err clime_fleet_poll_children(struct clime_fleet *f, struct clime_error *e);

/* external.c: an external router's workers become the servers, whatever comes and goes. now: else every 2 s. */
enum clime_err clime_fleet_read_workers(struct clime_fleet *f, struct clime_error *e);
enum clime_err clime_fleet_poll_external(struct clime_fleet *f, bool now, struct clime_error *e);
/* Tells an external router which weights the fleet is on, so that a worker that was started again gets no requests
 * before it has them. Said after each push, and at each look, since the router may be started again too; one that does
 * not know the call does without. Not before a worker has the version: until then those that are behind are all there
 * is. */
void clime_fleet_announce(struct clime_fleet *f);

#endif
