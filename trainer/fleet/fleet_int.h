/* Structures of the fleet and a server, and their thread rules. Internal to trainer/fleet/.
 *
 * Two threads. The fleet's thread (loop.c) moves every server from state to state and runs all HTTP calls concurrently.
 * The owner (the caller of fleet.h, one thread at a time) sets the goals and does the device's part of a push.
 * Everything is under `lock`. The loop holds it except while it waits and while calls progress; the owner releases it
 * while it works for a server, which is marked `with_owner`.
 *
 * States of a server
 *   starting     a child that does not answer yet
 *   loading      it answers; it is being identified or gets the weights
 *   pushed       it confirmed the version; registration with the router is in progress
 *   admitted     the router may choose it
 *   suspect      admitted, but missed one answer: it is asked again, and still chosen
 *   draining     removal from the router is in progress; its running requests continue
 *   quarantined  not contacted for a while, then probed; the time doubles with each failure. A child is not restarted
 *                meanwhile; it is quarantined if it fails repeatedly while others do not
 */
#ifndef CLIME_TRAINER_FLEET_FLEET_INT_H
#define CLIME_TRAINER_FLEET_FLEET_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/http/secret.h"
#include "common/os/waits.h"
#include "trainer/fleet/broadcast.h"
#include "trainer/fleet/fleet.h"
#include "trainer/fleet/program.h"
#include "trainer/fleet/source.h"

struct clime_json;

#define CLIME_FLEET_SERVERS 1024 /* = a router's maximum of workers */
#define CLIME_FLEET_MOST 4096    /* maximum requests in flight over all servers */
#define CLIME_FLEET_ROOM 1024    /* default room for requests in flight of a router and a server */
#define CLIME_FLEET_GPUS 1024    /* maximum per server */
#define CLIME_FLEET_TOGETHER 256 /* default maximum of requests that our own server runs together */
#define CLIME_FLEET_CONTROL_US 10000000
#define CLIME_FLEET_PROBE_US 3000000  /* limit for an answer from a server that missed one */
#define CLIME_FLEET_READY_US 60000000 /* on top of the time of pushes */
#define CLIME_FLEET_LOOK_US 2000000   /* polling interval of an external router and each of its workers */
#define CLIME_FLEET_MAX_REPLY ((size_t)4 << 20)

enum clime_fleet_state {
    CLIME_SERVER_STARTING,
    CLIME_SERVER_LOADING,
    CLIME_SERVER_PUSHED,
    CLIME_SERVER_ADMITTED,
    CLIME_SERVER_SUSPECT,
    CLIME_SERVER_DRAINING,
    CLIME_SERVER_QUARANTINED,
};

/* Purpose of the call in flight. */
enum clime_fleet_doing {
    CLIME_DOING_NOTHING,
    CLIME_DOING_INFO,    /* what and where the server is */
    CLIME_DOING_PROBE,   /* whether it answers, before a push */
    CLIME_DOING_RESUME,  /* allocate its KV memory again */
    CLIME_DOING_PUSH,    /* weights */
    CLIME_DOING_CONFIRM, /* which version it has after a push */
    CLIME_DOING_ADMIT,
    CLIME_DOING_CHECK, /* which version an admitted server has */
    CLIME_DOING_DRAIN,
};

struct clime_fleet_server {
    struct clime_fleet *fleet;
    char url[CLIME_FLEET_URL];   /* "" = not up */
    struct clime_program *child; /* NULL = external */
    enum clime_fleet_state state;
    struct clime_wait wait;                /* for the next state, unless admitted */
    int64_t since_us;                      /* entry into this state; clime_now_us scale */
    int64_t answered_us;                   /* last answer of any kind, or when it was added */
    int64_t pushed;                        /* version it serves, -1 = unknown */
    enum clime_way way;                    /* how weights are pushed to it */
    const struct clime_model_card *owners; /* SHARE: [n_owners] owners of the memory it computes with */
    int n_owners;
    bool way_known;                     /* `way` was decided from its location */
    char device[64];                    /* kind it reports; "" = unknown yet */
    char instance[CLIME_PUSH_INSTANCE]; /* identifies the process that reported it; "" = not reported */
    int together;                       /* requests it reports to run together; 0 = not reported */
    int gpus;                           /* devices it reports (tp_size); 0 = not reported */
    bool in_router;                     /* as far as we know */
    int64_t told_us;                    /* last registration with the router: a list requested earlier is ignored */
    bool lost;                          /* it does not serve: remove it from the router and start over */
    bool died;                          /* its process ended: its URL is invalid too */
    bool killed;                        /* killed by us: no calls until its end is seen */
    bool lent;                          /* its KV memory is or may be released: no other calls until it is back */
    bool out;                           /* we removed it from its router until it has the version */
    bool unlisted;                      /* external: its router no longer lists it; forget it */
    int n_failures;                     /* consecutive quarantines */
    int n_probed;                       /* n_failures when it last answered a probe */
    int n_failed, n_ends;               /* child, since its last new version: failed calls; ended processes */
    int64_t retry_us;                   /* no call before this time; clime_now_us scale */
    int64_t next_look_us;               /* external, admitted: time of the next version check */
    struct clime_error last;            /* why it is stuck */
    /* ownership of its weights (owner.c) */
    bool was_ours;                   /* it has served our weights */
    char met[CLIME_VERSION_LABEL];   /* label before that; "" = no run's */
    char taker[CLIME_VERSION_LABEL]; /* last foreign label seen since */
    int n_taken;                     /* consecutive times */
    /* the owner's part */
    bool wants_owner, with_owner, close_group;
    struct clime_broadcast group;
    /* the call in flight; the loop owns its memory until it is done */
    enum clime_fleet_doing doing;
    bool void_call; /* discard its result */
    int64_t call_version;
    enum clime_way call_way;
    struct clime_fleet_server *relay; /* PULL: server it pulls from; NULL = the trainer */
    bool relays;                      /* PULL: it reports that others can pull from it */
    int n_pulling;                    /* servers pulling from it */
    atomic_bool outdated;             /* PULL: cancel this call, a newer version is out */
    bool spared;                      /* PULL: do not cancel the next call: a slow server must get some version */
    struct clime_push_call push;
    struct clime_http_result result;
    struct clime_error call_error;
    const char *call_method;
    char call_url[4 * CLIME_FLEET_URL + 48]; /* its query may hold another, encoded URL */
    struct clime_buf body;
};

struct clime_fleet {
    struct clime_fleet_options o;
    struct clime_program router, *children; /* children[n_children] */
    int n_children;
    struct clime_fleet_server *servers[CLIME_FLEET_SERVERS];
    int n_servers;
    struct clime_push push;
    bool has_push;
    struct clime_source *source;      /* of pulled versions; else NULL */
    int n_pulling;                    /* servers pulling from source */
    bool relays_full;                 /* no source had room at this look */
    bool host_said;                   /* logged that servers may not reach the source's address */
    char key[CLIME_SECRET_CHARS + 1]; /* of our own router and servers; "" if external */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t *lock;        /* guards everything but url; a pointer, for functions that take a const fleet */
    pthread_cond_t changed;       /* signalled after each pass of the loop */
    struct clime_http_loop *http; /* the loop's */
    struct clime_http_loop *owner_http; /* the owner's */
    struct clime_http_client *one;      /* the owner's, for blocking calls */
    bool closing;
    struct clime_wait router_wait;
    bool publishing;          /* the model still has the pushed version */
    bool was_published;       /* all servers have served some version */
    bool writing;             /* weights on the device are being rewritten, or will be */
    bool lending;             /* the servers' KV memory is to be released */
    atomic_bool holding;      /* no push may begin; those from host memory are cancelled */
    int n_pins;               /* the owner is using servers: free none */
    struct clime_error fatal; /* the fleet cannot be kept up */
    char device[64];          /* the trainer's kind of device; without one, the first server's */
    /* external: list of workers, and announcement of the fleet's version */
    bool listing, list_now, list_counts, list_fresh; /* fresh: requested since the publish */
    int64_t list_us, next_list_us, external_seen_us; /* begun; due; last answered */
    struct clime_http_result list_result;
    struct clime_error list_error;
    char list_url[CLIME_FLEET_URL + 16];
    bool announcing, announce_now, announce_failed; /* the last one */
    int64_t next_announce_us;                       /* earliest time; clime_now_us scale */
    struct clime_http_result announce_result;
    struct clime_error announce_error;
    char announce_url[CLIME_FLEET_URL + 24], announce_body[CLIME_VERSION_LABEL + 32];
    struct clime_metric *known, *serving; /* for /metrics */
    pthread_mutex_t *url_lock;
    char url[CLIME_FLEET_URL];
};

void clime_fleet_set_url(struct clime_fleet *f, const char *url);

/* The functions below run under the lock. */
const char *clime_fleet_name(const struct clime_fleet_server *s);
void clime_fleet_enter(struct clime_fleet_server *s, enum clime_fleet_state state);
struct clime_fleet_server *clime_fleet_add(struct clime_fleet *f); /* zeroed except for permanent fields */
void clime_fleet_free_server(struct clime_fleet_server *s);

/* Names the KV memory in requests to release and resume it. */
#define CLIME_FLEET_RESUME_PATH "/resume_memory_occupation"
extern const char *const clime_fleet_kv_body;

/* Builds the body that registers a server with the router. */
void clime_fleet_admit_body(const struct clime_fleet_server *s, struct clime_buf *out);

/* server.c: advances a server's state as far as possible without waiting. Loop's thread. */
void clime_fleet_step(struct clime_fleet *f, struct clime_fleet_server *s, int64_t now);

/* Removes a server from the router, to be pushed to and admitted again; ends a child's process, so that a new one
 * replaces it. Any thread. */
void clime_fleet_replace(struct clime_fleet_server *s);

/* Handles a failed call (reason: s->last): restarts a child, quarantines an external server. */
void clime_fleet_failed(struct clime_fleet *f, struct clime_fleet_server *s);

/* External: not contacted for a while (reason: s->last), twice as long each time. */
void clime_fleet_quarantine(struct clime_fleet *f, struct clime_fleet_server *s);

/* info.c: handles the answer of /server_info: accepts the server, fails it, or leaves it out. */
void clime_fleet_take_info(struct clime_fleet *f, struct clime_fleet_server *s);

/* Quarantines a child that keeps failing (reason: s->last). false: not done, because all others have failed too. */
bool clime_fleet_leave_out(struct clime_fleet *f, struct clime_fleet_server *s);
static inline bool clime_fleet_left_out(const struct clime_fleet_server *s, int64_t now) {
    return s->n_failures && now < s->retry_us;
}
/* Handles the end of a child's process. */
void clime_fleet_ended(struct clime_fleet *f, struct clime_fleet_server *s);

/* Handles a failed push; a way chosen automatically falls back to the next simpler one. */
void clime_fleet_push_failed(struct clime_fleet *f, struct clime_fleet_server *s);
void clime_fleet_took(struct clime_fleet *f, struct clime_fleet_server *s); /* it confirmed the version */
enum clime_way clime_fleet_way_now(const struct clime_fleet *f, const struct clime_fleet_server *s);

/* owner.c: handles a reported weight label other than the one this run pushed last. _replaced: the label before this
 * run's. _after_push: right after a push was answered with 200. true: labels show that another run pushed in between.
 */
void clime_fleet_see_label(struct clime_fleet *f, struct clime_fleet_server *s, const char *label);
void clime_fleet_see_replaced(struct clime_fleet *f, struct clime_fleet_server *s, const char *label);
bool clime_fleet_see_label_after_push(struct clime_fleet *f, struct clime_fleet_server *s, const char *label);

/* relay.c: take chooses the source that s pulls from (false: none has room now); leave ends it. */
bool clime_fleet_take_relay(struct clime_fleet *f, struct clime_fleet_server *s);
void clime_fleet_leave_relay(struct clime_fleet *f, struct clime_fleet_server *s);

/* children.c: open starts router and servers (owner, before the loop); poll checks them once. */
enum clime_err clime_fleet_open_children(struct clime_fleet *f, struct clime_error *e);
enum clime_err clime_fleet_poll_children(struct clime_fleet *f, struct clime_error *e);

/* external.c: keeps the servers equal to an external router's workers. open waits for its list. */
enum clime_err clime_fleet_open_external(struct clime_fleet *f, struct clime_error *e);
void clime_fleet_poll_external(struct clime_fleet *f, int64_t now);
/* Announces the fleet's version to an external router, so that a restarted worker gets no requests before it has the
 * weights. Repeated after each push and at each poll, since the router may restart; skipped for a router without the
 * call. Starts once a worker has the version: until then only outdated workers exist. */
void clime_fleet_poll_announcement(struct clime_fleet *f);

/* loop.c */
void *clime_fleet_main(void *fleet);

/* publish.c, owner, under the lock, which both release while waiting: wait_for_loop for a pass of the loop or a moment;
 * wait_ready until a quorum serves the version and is admitted. */
void clime_fleet_wait_for_loop(struct clime_fleet *f);
enum clime_err clime_fleet_wait_ready(struct clime_fleet *f, struct clime_error *e);

/* tell.c, likewise: removes servers without the version from the router until they have it; the rollout continues. */
void clime_fleet_leave_behind(struct clime_fleet *f);

#endif
