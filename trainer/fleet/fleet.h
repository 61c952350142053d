/* The fleet: the router and servers that a trainer generates with. Either child processes on this machine, or an
 * external router with its workers.
 *
 * Invariant: every server that the router may choose has the current weights. A server is admitted (registered with the
 * router) only after it has confirmed the current version; one that lacks it when a quorum has it is removed until it
 * catches up; a server that dies is restarted, pushed to and admitted again; a restarted router gets all its workers
 * again.
 *
 * The fleet's own thread drives all servers concurrently (states: fleet_int.h). The functions here belong to the owner,
 * one thread at a time, except clime_fleet_url and clime_fleet_api_key. They also do the work that needs the owner's
 * device context: call clime_fleet_poll a few times a second while waiting for samples.
 */
#ifndef CLIME_TRAINER_FLEET_FLEET_H
#define CLIME_TRAINER_FLEET_FLEET_H

#include "common/options/options.h"
#include "trainer/fleet/push.h"
#include "trainer/fleet/source.h"
#include "trainer/ledger/ledger.h"

#define CLIME_FLEET_URL 256

struct clime_fleet;

/* How weights reach servers with their own memory. auto: device copy on the trainer's own GPU, broadcast to another GPU
 * of this host, HTTP otherwise. pull: servers fetch packets from each other and from the trainer. */
enum clime_transport {
    CLIME_TRANSPORT_AUTO,
    CLIME_TRANSPORT_HTTP,
    CLIME_TRANSPORT_IPC,
    CLIME_TRANSPORT_NCCL,
    CLIME_TRANSPORT_PULL
};

struct clime_fleet_options {
    const char *run;            /* name of this start, in the weights' labels (label.h) */
    const char *run_dir;        /* ports/ and logs/ are created in it */
    const char *hf_checkpoint;  /* config and tokenizer of the servers */
    const char *device, *dtype; /* the trainer's own */
    int num_servers;
    int tp_size;                      /* devices per server */
    int64_t start_limit_us;           /* limit for a started program to answer */
    int64_t silence_us, ask_every_us; /* replace a server silent for this long; interval of health checks */
    int64_t evict_us;                 /* external: forget a server silent for this long; 0 = never */
    const char *router_url;           /* NULL = start a router and num_servers servers */
    const char *api_key; /* of an external router and its servers (admin key if they have one); NULL = none */
    int concurrency;     /* requests in flight per server, for which router and servers must have room; 0: as many as it
                            reports to run together, at most 1,024 */
    const struct clime_model_card *owners; /* [n_owners] --colocate: servers run on these ranks' devices and compute
                                              with the trainer's weights. NULL = servers are elsewhere */
    int n_owners;
    bool in_parts; /* each server computes with the parts of all owners */
    bool copied;   /* or with its own weights, copied from the parts it needs */
    enum clime_transport transport;
    struct {
        const char *host;   /* address where servers fetch packets from the trainer */
        const char *folder; /* packets are files in it; NULL = the trainer serves them */
        int chain, fanout;  /* deltas kept; concurrent pulls from one server */
    } pull;
    const struct clime_facts *truth;      /* facts that a server must report to be accepted (model/policy.h) */
    const struct clime_facts *served;     /* serve_folder: required checksum by dtype name; empty for own servers */
    const struct clime_opt_list *allowed; /* keys of truth that may differ */
    int longest;                          /* tokens of the longest sample, which servers must accept */
    bool mixed_devices;                   /* servers may have other kinds of device than the trainer or each other */
    bool moving;       /* --async: weights change between publishes, so only a publish may read them */
    bool says_experts; /* servers of a model with experts must return every position's experts
                          (--enable-return-routed-experts) */
    bool lends;        /* clime_fleet_offload will be called */
    bool serve_folder; /* evaluation: the servers' own weights are version 0; nothing is pushed */
    const struct clime_opt_list *server_args, *router_args;
    struct clime_ledger *ledger; /* for events */
    int64_t incarnation;
    double quorum; /* fraction of the servers that must serve a version before publish returns; the others catch up */
};

/* Starts the children without waiting for them, or finds the external router. */
enum clime_err clime_fleet_open(const struct clime_fleet_options *o, struct clime_fleet **out, struct clime_error *e);
void clime_fleet_close(struct clime_fleet *f); /* stops the children; NULL is fine */

/* The router's current URL; "" and false while there is none. Any thread. */
bool clime_fleet_url(const struct clime_fleet *f, char *out, size_t size);

/* Makes the weights of *p current and pushes them to every server. Returns once a quorum of the servers not quarantined
 * serve the version and are admitted; with fewer than ten servers and a quorum above 0.9 that is all of them. *p is
 * copied; what it borrows must stay valid until the next publish, and the weights unchanged until clime_fleet_writing
 * or the next publish. CLIME_ERR_TIMEOUT names what it waited for. */
enum clime_err clime_fleet_publish(struct clime_fleet *f, const struct clime_push *p, struct clime_error *e);

/* Stops all pushes until the next publish; after return, what the last one borrowed may change. A server in the middle
 * of a push keeps its old weights. */
void clime_fleet_hold(struct clime_fleet *f);

/* Call before rewriting the current weights. Returns once no server that shares them computes; none does before the
 * next publish. */
void clime_fleet_writing(struct clime_fleet *f);

/* Makes every server release its KV memory until clime_fleet_onload. A server that fails to is restarted, or
 * quarantined if external, and serves again once it has its memory back. */
void clime_fleet_offload(struct clime_fleet *f);
enum clime_err clime_fleet_onload(struct clime_fleet *f, struct clime_error *e);

/* Waits until a quorum serves the current version and is admitted. The last step of publish. */
enum clime_err clime_fleet_wait(struct clime_fleet *f, struct clime_error *e);

/* Waits until the servers started by this trainer answer; they have then allocated their memory. */
enum clime_err clime_fleet_wait_up(struct clime_fleet *f, struct clime_error *e);

/* Does the owner's part of the fleet's work. Blocks only for the copy or broadcast of weights to a server that needs
 * one. An error means the fleet cannot be kept up (a program dies at every start). */
enum clime_err clime_fleet_poll(struct clime_fleet *f, struct clime_error *e);

/* Aborts on every server the requests whose rid starts with prefix. Best effort within a few seconds. */
void clime_fleet_abort(struct clime_fleet *f, const char *prefix);

/* Bearer token for requests to the router: the external router's key, or the key made for this run (RUN/ports/api-key,
 * readable by its owner). NULL = none. Any thread. */
const char *clime_fleet_api_key(const struct clime_fleet *f);

/* Maximum requests in flight: the sum over servers not taken out, limited by open files. */
int clime_fleet_room(const struct clime_fleet *f);

/* The last packet made for pulls; false if none. */
bool clime_fleet_packet(const struct clime_fleet *f, struct clime_source_packet *out);

int clime_fleet_gpus(const struct clime_fleet *f); /* devices of all known servers, 1 for a server that reports none */
const char *clime_fleet_device(struct clime_fleet *f); /* kind of device the servers report; "" = unknown */

#endif
