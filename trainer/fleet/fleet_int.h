/* What the files of the fleet share: a server, the fleet, and which thread may touch what. Internal to trainer/fleet/.
 *
 * Two threads. The fleet's own (loop.c) moves every server from state to state and has all HTTP calls under way at
 * once. The owner's (whoever calls the functions of fleet.h, one thread at a time) says what is wanted, and does what
 * only it may: the device's part of a push. Everything is under `lock`, which the loop holds but while it waits and
 * while calls move; the owner lets go of it while it works for a server, which is `with_owner` meanwhile.
 *
 * States of a server
 *   starting     it does not answer yet (a child)
 *   loading      it answers, and is asked what it is, or gets the weights
 *   pushed       it has said that it has the version; the router is told of it
 *   admitted     the router may choose it
 *   suspect      it was admitted and gave no answer once: it is asked again, and still chosen
 *   draining     the router is told not to choose it any more; what it answers already goes on
 *   quarantined  it is left alone for a while, then asked whether it answers; each time for twice as long. A child is
 *                not started meanwhile; it comes to that where it fails again and again, and others do not
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

#define CLIME_FLEET_SERVERS 1024 /* as many as a router has workers */
#define CLIME_FLEET_MOST 4096    /* requests in flight, however many servers there are */
#define CLIME_FLEET_ROOM 1024    /* requests in flight that a router and a server have room for by default */
#define CLIME_FLEET_GPUS 1024    /* of a server, at most */
#define CLIME_FLEET_TOGETHER 256 /* that a server of ours runs together by default, at most */
#define CLIME_FLEET_CONTROL_US 10000000
#define CLIME_FLEET_PROBE_US 3000000  /* for one that gave no answer before to say anything */
#define CLIME_FLEET_READY_US 60000000 /* beside the time that pushes take */
#define CLIME_FLEET_LOOK_US 2000000   /* how often an external router, and each of its workers, is asked */
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

/* What a call under way is for. */
enum clime_fleet_doing {
    CLIME_DOING_NOTHING,
    CLIME_DOING_INFO,    /* what and where it is */
    CLIME_DOING_PROBE,   /* whether it answers, before a push */
    CLIME_DOING_RESUME,  /* it takes its KV memory back */
    CLIME_DOING_PUSH,    /* weights */
    CLIME_DOING_CONFIRM, /* which version it has after that */
    CLIME_DOING_ADMIT,
    CLIME_DOING_CHECK, /* which version an admitted one has */
    CLIME_DOING_DRAIN,
};

struct clime_fleet_server {
    struct clime_fleet *fleet;
    char url[CLIME_FLEET_URL];   /* "" = not up */
    struct clime_program *child; /* NULL = external */
    enum clime_fleet_state state;
    struct clime_wait wait;                /* for the next state, unless it serves */
    int64_t since_us;                      /* in this state; clime_now_us scale */
    int64_t answered_us;                   /* when it last answered anything, or was added */
    int64_t pushed;                        /* version it serves, -1 = unknown */
    enum clime_way way;                    /* how it gets weights */
    const struct clime_model_card *owners; /* SHARE: [n_owners] of the memory that it computes with */
    int n_owners;
    bool way_known;                     /* it was asked where it is */
    char device[64];                    /* kind, as it says; "" = not asked yet */
    char instance[CLIME_PUSH_INSTANCE]; /* the start of it that said so; "" = it does not say */
    int together;                       /* requests that it runs together, as it says; 0 = it has not said */
    int gpus;                           /* devices that it computes on, as it says (tp_size); 0 = it has not said */
    bool in_router;                     /* as far as we know */
    int64_t told_us;         /* when the router was last told of it: a list that it began before says nothing */
    bool lost;               /* it does not serve (any more): out of the router, from the beginning */
    bool died;               /* with its process: its URL is void too */
    bool killed;             /* by us: nothing is asked before its end is seen */
    bool lent;               /* its KV memory is, or may be, not there: nothing else is asked of it before it is back */
    bool out;                /* taken out of its router by us, until it has the version */
    bool unlisted;           /* external: its router has it no more; it is forgotten */
    int n_failures;          /* quarantines in a row */
    int n_probed;            /* the failure after which it answered again */
    int n_failed, n_ends;    /* a child, since it last took a version: calls that failed; processes that ended */
    int64_t retry_us;        /* nothing is tried before; clime_now_us scale */
    int64_t next_look_us;    /* external, admitted: when it is asked for its version again */
    struct clime_error last; /* why it is not further */
    /* whose weights it has (owner.c) */
    bool was_ours;                   /* it has served ours */
    char met[CLIME_VERSION_LABEL];   /* whose it had before that; "" = no run's */
    char taker[CLIME_VERSION_LABEL]; /* whose it was found with since, the last time, */
    int n_taken;                     /* and how often one after another */
    /* the owner's part */
    bool wants_owner, with_owner, close_group;
    struct clime_broadcast group;
    /* the call under way; its memory is the loop's until it is done */
    enum clime_fleet_doing doing;
    bool void_call; /* what it brings is of no use any more */
    int64_t call_version;
    enum clime_way call_way;
    struct clime_fleet_server *relay; /* PULL: that it pulls from; NULL = from the trainer */
    bool relays;                      /* PULL: others can have what it has pulled, by its own word */
    int n_pulling;                    /* others that pull from it */
    atomic_bool outdated;             /* PULL: a newer version is out, this call is to end */
    bool spared;                      /* PULL: the next one is left to end: a slow server must get some version */
    struct clime_push_call push;
    struct clime_http_result result;
    struct clime_error call_error;
    const char *call_method;
    char call_url[4 * CLIME_FLEET_URL + 48]; /* may hold another URL in its query, encoded */
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
    struct clime_source *source;      /* of versions that are pulled; else NULL */
    int n_pulling;                    /* servers that pull from it */
    bool relays_full;                 /* nobody had room for one more at this look */
    bool host_said;                   /* that the source's address may be out of servers' reach */
    char key[CLIME_SECRET_CHARS + 1]; /* of our own router and servers; "" with an external one */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t *lock;        /* of everything but url; behind pointers for functions that take a const fleet */
    pthread_cond_t changed;       /* the loop has been round */
    struct clime_http_loop *http; /* the loop's */
    struct clime_http_loop *owner_http; /* the owner's */
    struct clime_http_client *one;      /* the owner's, for a call that it waits for */
    bool closing;
    struct clime_wait router_wait;
    bool publishing;          /* the model holds the version that is pushed */
    bool was_published;       /* a version was served by all once */
    bool writing;             /* weights on the device are, or are about to be, rewritten */
    bool lending;             /* the servers' KV memory is wanted elsewhere */
    atomic_bool holding;      /* no push may begin, and those of host memory end */
    int n_pins;               /* the owner uses servers: none is freed */
    struct clime_error fatal; /* the fleet cannot be kept up */
    char device[64];          /* kind of the trainer's own; without one that of the first server */
    /* external: the list of workers and the word which version the fleet is on */
    bool listing, list_now, list_counts, list_fresh; /* fresh: one was asked for since the version is published */
    int64_t list_us, next_list_us, external_seen_us; /* begun; due; last answered */
    struct clime_http_result list_result;
    struct clime_error list_error;
    char list_url[CLIME_FLEET_URL + 16];
    bool announcing, announce_now, announce_failed; /* the last one */
    int64_t next_announce_us;                       /* not before it; clime_now_us scale */
    struct clime_http_result announce_result;
    struct clime_error announce_error;
    char announce_url[CLIME_FLEET_URL + 24], announce_body[CLIME_VERSION_LABEL + 32];
    struct clime_metric *known, *serving; /* for /metrics */
    pthread_mutex_t *url_lock;
    char url[CLIME_FLEET_URL];
};

void clime_fleet_set_url(struct clime_fleet *f, const char *url);

/* All that follow: under the lock. */
const char *clime_fleet_name(const struct clime_fleet_server *s);
void clime_fleet_enter(struct clime_fleet_server *s, enum clime_fleet_state state);
struct clime_fleet_server *clime_fleet_add(struct clime_fleet *f); /* zero, but for what it always has */
void clime_fleet_free_server(struct clime_fleet_server *s);

/* What servers lend, and how they get it back. */
#define CLIME_FLEET_RESUME_PATH "/resume_memory_occupation"
extern const char *const clime_fleet_kv_body;

/* What tells the router of a server. */
void clime_fleet_admit_body(const struct clime_fleet_server *s, struct clime_buf *out);

/* server.c: moves a server on, as far as it goes without waiting. The loop's thread. */
void clime_fleet_step(struct clime_fleet *f, struct clime_fleet_server *s, int64_t now);

/* It does not serve any more: out of the router, to be pushed to and admitted again; and a child's process is ended, so
 * that a fresh one takes its place. Any thread. */
void clime_fleet_replace(struct clime_fleet_server *s);

/* What it was asked to do failed (why: s->last): a child is started anew, an external one is left alone for a while. */
void clime_fleet_failed(struct clime_fleet *f, struct clime_fleet_server *s);

/* External: left alone for a while (why: s->last), twice as long each time. */
void clime_fleet_quarantine(struct clime_fleet *f, struct clime_fleet_server *s);

/* info.c: the answer of /server_info has come: the server is taken, or it is an error, or it stays out. */
void clime_fleet_take_info(struct clime_fleet *f, struct clime_fleet_server *s);

/* A child that cannot be had (why: s->last) is quarantined. false: nothing is done, for there is no other that has not
 * failed, too. */
bool clime_fleet_leave_out(struct clime_fleet *f, struct clime_fleet_server *s);
static inline bool clime_fleet_left_out(const struct clime_fleet_server *s, int64_t now) {
    return s->n_failures && now < s->retry_us;
}
/* The child's process has ended. */
void clime_fleet_ended(struct clime_fleet *f, struct clime_fleet_server *s);

/* A push by s->way failed; where the way was chosen and not asked for, it gives way to the next simpler. */
void clime_fleet_push_failed(struct clime_fleet *f, struct clime_fleet_server *s);
void clime_fleet_took(struct clime_fleet *f, struct clime_fleet_server *s); /* the version, by its own word */
enum clime_way clime_fleet_way_now(const struct clime_fleet *f, const struct clime_fleet_server *s);

/* owner.c: what label a server says its weights have, when it is not the one that this run gave it last. _replaced:
 * which it had before this run's. _after_push: it has just answered a push with 200. true: another run's weights came
 * in between, as far as the labels tell. */
void clime_fleet_see_label(struct clime_fleet *f, struct clime_fleet_server *s, const char *label);
void clime_fleet_see_replaced(struct clime_fleet *f, struct clime_fleet_server *s, const char *label);
bool clime_fleet_see_label_after_push(struct clime_fleet *f, struct clime_fleet_server *s, const char *label);

/* relay.c: whom s shall pull from; false: nobody has room for one more now. And that it does not any more. */
bool clime_fleet_take_relay(struct clime_fleet *f, struct clime_fleet_server *s);
void clime_fleet_leave_relay(struct clime_fleet *f, struct clime_fleet_server *s);

/* children.c: starts router and servers (owner, before the loop); looks after them once. */
enum clime_err clime_fleet_open_children(struct clime_fleet *f, struct clime_error *e);
enum clime_err clime_fleet_poll_children(struct clime_fleet *f, struct clime_error *e);

/* external.c: an external router's workers become the servers, whatever comes and goes. open waits for its list. */
enum clime_err clime_fleet_open_external(struct clime_fleet *f, struct clime_error *e);
void clime_fleet_poll_external(struct clime_fleet *f, int64_t now);
/* Tells an external router which weights the fleet is on, so that a worker that was started again gets no requests
 * before it has them: after each push, and at each look, since the router may be started again too; one that does not
 * know the call does without. Not before a worker has the version: until then those that are behind are all there is.
 */
void clime_fleet_poll_announcement(struct clime_fleet *f);

/* loop.c */
void *clime_fleet_main(void *fleet);

/* publish.c, the owner's, under the lock, which both let go of: until the loop has been round, or a moment; until a
 * quorum serves the version and is admitted. */
void clime_fleet_wait_for_loop(struct clime_fleet *f);
enum clime_err clime_fleet_wait_ready(struct clime_fleet *f, struct clime_error *e);

/* tell.c, likewise: the rollout goes on without those that lack the version, they are out of the router until they have
 * it. */
void clime_fleet_leave_behind(struct clime_fleet *f);

#endif
