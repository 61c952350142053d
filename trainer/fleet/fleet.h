/* The router and the servers that a trainer generates with: its own children on this machine, or an external router
 * with whatever workers it has.
 *
 * The fleet keeps one promise: a server that the router may choose holds the current weights. A server is admitted
 * (registered with the router) only after the current version was pushed to it and it said so; one that is behind when
 * a quorum has the version is out until it has it too; a server that dies is started again, gets the weights, and is
 * admitted again; a router that was restarted gets all its workers again.
 *
 * A thread of its own moves all servers at once, whatever the trainer does meanwhile (fleet_int.h has the states). The
 * functions here are the owner's: one thread at a time, but for clime_fleet_url and clime_fleet_api_key. What only the
 * owner's thread may do, since a device's context is its own, is done in them: clime_fleet_poll, a few times a second,
 * while it waits for samples.
 */
#ifndef CLIME_TRAINER_FLEET_FLEET_H
#define CLIME_TRAINER_FLEET_FLEET_H

#include "common/options/options.h"
#include "trainer/fleet/push.h"
#include "trainer/fleet/source.h"
#include "trainer/ledger/ledger.h"

#define CLIME_FLEET_URL 256

struct clime_fleet;

/* How weights travel to servers that have memory of their own. auto: by a copy on the device to those on the trainer's
 * own GPU, by broadcast to those on another GPU of this host, over HTTP to all others. pull: each fetches packets, from
 * one another and from the trainer. */
enum clime_transport {
    CLIME_TRANSPORT_AUTO,
    CLIME_TRANSPORT_HTTP,
    CLIME_TRANSPORT_IPC,
    CLIME_TRANSPORT_NCCL,
    CLIME_TRANSPORT_PULL
};

struct clime_fleet_options {
    const char *run;            /* its start: whose the weights are (label.h) */
    const char *run_dir;        /* ports/ and logs/ are made in it */
    const char *hf_checkpoint;  /* config and tokenizer of the servers */
    const char *device, *dtype; /* as the trainer's own */
    int num_servers;
    int tp_size;                      /* devices of each */
    int64_t start_limit_us;           /* for a program that is started to answer */
    int64_t silence_us, ask_every_us; /* one that says nothing for so long is replaced; how often it is asked */
    int64_t evict_us;                 /* external: one that answers nothing for so long is forgotten; 0 = never */
    const char *router_url;           /* NULL = start a router and num_servers servers */
    const char *api_key; /* of an external router and its servers, their admin key where they have one; NULL = none */
    int concurrency; /* requests in flight for each server, for which router and servers must have room; 0: as many as
                      * it says that it runs together, at most 1,024 */
    const struct clime_model_card *owners; /* [n_owners] the servers are on the devices of these ranks, and compute with
                                            * the trainer's own weights (--colocate). NULL = they are elsewhere */
    int n_owners;
    bool in_parts; /* each server computes with the parts of all of them, */
    bool copied;   /* or has weights of its own, which it copies from the parts that it needs */
    enum clime_transport transport;
    struct {
        const char *host;   /* where the trainer hands packets out, as servers reach it */
        const char *folder; /* NULL = it does; else they are files there */
        int chain, fanout;  /* deltas that are kept; servers that pull from one at a time */
    } pull;
    const struct clime_facts *truth; /* what servers must say of themselves (model/policy.h), by which they are taken */
    const struct clime_facts *served;     /* serve_folder: checksum of the weights they must have, by their type's name;
                                           * empty: they are our own servers' */
    const struct clime_opt_list *allowed; /* keys of it that may differ */
    int longest;                          /* tokens of the longest sample, for which servers must have room */
    bool mixed_devices;                   /* servers may be of other kinds of device than the trainer, or each other */
    bool moving;       /* weights change between publishes without a word (--async): only a publish may read them */
    bool says_experts; /* of a model with experts, servers must say which every position chose
                          (--enable-return-routed-experts) */
    bool lends;        /* clime_fleet_offload is called */
    bool serve_folder; /* the servers' own weights are version 0, nothing is ever pushed (evaluation) */
    const struct clime_opt_list *server_args, *router_args;
    struct clime_ledger *ledger; /* for events */
    int64_t incarnation;
    double quorum; /* part of the servers that must serve a version before publish returns; the others catch up */
};

/* Starts the children (they need a moment) or finds the external router. */
enum clime_err clime_fleet_open(const struct clime_fleet_options *o, struct clime_fleet **out, struct clime_error *e);
void clime_fleet_close(struct clime_fleet *f); /* NULL is fine; children are stopped */

/* The router's URL now, "" and false while there is none. Any thread. */
bool clime_fleet_url(const struct clime_fleet *f, char *out, size_t size);

/* From now on the weights of *p are the current ones (copied; what it borrows must stay valid until the next publish,
 * and the weights unchanged until clime_fleet_writing or the next publish). Pushes them to every server and returns
 * when a quorum of those that are not out for a while serve the version and are admitted; with fewer than ten servers
 * and a quorum over 0.9 those are all. CLIME_ERR_TIMEOUT names what it waited for. */
enum clime_err clime_fleet_publish(struct clime_fleet *f, const struct clime_push *p, struct clime_error *e);

/* No push is under way any more when this returns, and none begins before the next publish: what the last one borrowed
 * may change. A server that was in the middle of one keeps the weights it had. */
void clime_fleet_hold(struct clime_fleet *f);

/* The current weights are about to be rewritten: no server that shares them computes any more when this returns, and
 * none will before the next publish. */
void clime_fleet_writing(struct clime_fleet *f);

/* Asks every server for its KV memory until clime_fleet_onload gives it back. A server that does not do its part is
 * started again, or quarantined where it is external, and serves when it has its memory back. */
void clime_fleet_offload(struct clime_fleet *f);
enum clime_err clime_fleet_onload(struct clime_fleet *f, struct clime_error *e);

/* Waits until a quorum serves the current version and is admitted; publish ends with it. */
enum clime_err clime_fleet_wait(struct clime_fleet *f, struct clime_error *e);

/* Waits until the servers that this trainer starts answer; their memory is taken then. No other server is waited for.
 */
enum clime_err clime_fleet_wait_up(struct clime_fleet *f, struct clime_error *e);

/* Does the owner's part of what the fleet's thread is at. Does not wait, but for the copy or the broadcast of weights
 * to a server that needs one. An error means that the fleet cannot be kept up (a program that dies at every start). */
enum clime_err clime_fleet_poll(struct clime_fleet *f, struct clime_error *e);

/* Aborts on every server the requests whose rid begins with prefix. Best effort within a few seconds. */
void clime_fleet_abort(struct clime_fleet *f, const char *prefix);

/* What requests to the router must send as a bearer: the external one's key, or the one that this fleet was given for
 * the time of the run (in RUN/ports/api-key, readable by its owner). NULL = none. Any thread. */
const char *clime_fleet_api_key(const struct clime_fleet *f);

/* Requests that may be under way at a time: the options' concurrency for each server that is not out for a while, as
 * far as open files allow. */
int clime_fleet_room(const struct clime_fleet *f);

/* The last packet of versions that are pulled; false: there is none. */
bool clime_fleet_packet(const struct clime_fleet *f, struct clime_source_packet *out);

int clime_fleet_gpus(const struct clime_fleet *f);     /* devices of all servers known, one where none is said */
const char *clime_fleet_device(struct clime_fleet *f); /* kind of device the servers report; "" = unknown */

#endif
