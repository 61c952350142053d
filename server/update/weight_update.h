/* New weights for a running server: over HTTP or from a folder (weight_update.c), from another process's memory on this
 * host (ipc.c), by broadcast in a group (group.c), asked for in SGLang's words (distributed.c) or vLLM's (transfer.c),
 * or pulled from wherever they are (pull.c). Into staging memory, verified, then swapped in at a step boundary
 * (server/engine/engine.h), but for memory that is shared with its owner. One update at a time; any thread.
 */
#ifndef CLIME_SERVER_UPDATE_WEIGHT_UPDATE_H
#define CLIME_SERVER_UPDATE_WEIGHT_UPDATE_H

#include <pthread.h>

#include "server/server.h"

#define CLIME_MAX_GROUPS 8

struct clime_shelf;
struct clime_torch_store;
struct clime_weights_gather;

struct clime_update_group {
    char name[64];                   /* "" = free */
    struct clime_comm *comm;         /* NULL: not joined yet */
    struct clime_torch_store *store; /* where the group's id will be, before it is joined; else NULL */
    int rank, world;
    bool apart; /* its sender launches one broadcast at a time, so we must, too: NCCL chooses how by what goes together
                 */
};

/* What vLLM's trainers say of their group once: how tensors are packed, and the last lists of them. */
struct clime_transfer {
    bool packed;
    int64_t bucket_bytes;
    char *names, *dtypes, *shapes; /* JSON lists; NULL: none yet. Owned */
};
void clime_transfer_free(struct clime_transfer *t);

/* What a PUT says that its weights are: one of two headers. */
struct clime_put_sha {
    bool of_weights; /* X-Clime-Weights-SHA256, clime_weights_sha256; else X-Clime-SHA256, the body's as it comes */
    char hex[65];    /* lower case */
};

struct clime_weight_update {
    pthread_mutex_t lock;              /* held by the update that is going on */
    struct clime_http_request *client; /* whose update it is: what waits for others gives up when it has left. Under
                                        * lock */
    struct clime_put_sha last; /* what the present version was put with; hex "" = it came otherwise. Under lock */
    uint8_t (*snapshot)[32];   /* [tensors] checksums that /weights_checker compares with; NULL = none. Under lock */
    struct clime_dev *dev;     /* a second context on the model's device, for copies beside the engine's; NULL until one
                                * was needed. Under lock */
    const struct clime_ops *ops;                        /* of dev */
    struct clime_update_group groups[CLIME_MAX_GROUPS]; /* under lock, as what follows */
    struct clime_transfer transfer;                     /* of vLLM's group */
    char evicted[64];                                   /* the group that was closed last to make room; "" = none */
    void *incoming;                                     /* of dev: tensors that came so far; NULL = none */
    struct clime_weights_gather *gather;                /* which */
    char label[CLIME_MAX_LABEL + 1];                    /* what they are to be called; "" = as now */
    enum clime_inflight inflight;                       /* what then becomes of sequences */
    bool to_be_finished;       /* they wait for /finish_weight_update, even when all are there */
    void *kept;                /* host memory: the weights of a sleeping server; NULL = none */
    uint64_t kept_number;      /* their version's */
    struct clime_shelf *shelf; /* what was pulled, for others to pull from here; own lock */
    bool torn; /* a part of this update has failed: what came after it is in force only if it is all tensors */
};

/* relay_bytes: of packets that were pulled and are kept for others. */
void clime_weight_update_init(struct clime_weight_update *u, int64_t relay_bytes);
void clime_weight_update_free(struct clime_weight_update *u);

/* For the files of updates. */
/* CLIME_ERR_BUSY when one goes on. */
enum clime_err clime_update_lock(struct clime_weight_update *u, struct clime_http_request *client,
                                 struct clime_error *e);
void clime_update_unlock(struct clime_weight_update *u);
bool clime_update_client_left(void *request); /* a struct clime_http_request's client */
enum clime_err clime_update_label(struct clime_str label, struct clime_error *e); /* may it be a weight version? */
void clime_update_reply(struct clime_http_request *rq, const char *message, const char *version, int n_inflight);

/* Host memory for all weights of an update, zero; NULL: there is none. free: NULL is fine. */
void *clime_update_staging(const struct clime_server *s, struct clime_error *e);
void clime_update_staging_free(const struct clime_server *s, void *staging);

/* The weights of a Hugging Face folder, in force when it returns; under lock. label: "" = as now. */
enum clime_err clime_update_from_folder(struct clime_server *s, const char *path, const char *label,
                                        enum clime_inflight inflight, int *n_inflight, struct clime_error *e);

/* n bytes, or a number, of 2n or 16 hex digits. */
enum clime_err clime_update_hex(const char *name, struct clime_str text, uint8_t *out, size_t n, struct clime_error *e);
enum clime_err clime_update_hex64(const char *name, struct clime_str text, uint64_t *out, struct clime_error *e);

/* ---- groups (group.c); under lock ---- */

struct clime_group_ask {
    const char *name;
    int rank, world;
    double timeout;    /* seconds */
    const uint8_t *id; /* [CLIME_COMM_ID_BYTES], or NULL: it will be in the torch store at host:port, */
    const char *host;
    int port;
    bool vllm; /* as vLLM's trainers put it there, else as torch does; and the sender opens with an all-reduce */
};

/* With an id, and in vLLM's groups, returns when all ranks have come. In torch's only the store has been joined: the id
 * appears with the sender's first broadcast, and the rest is done with ours. *evicted: another group made room. */
enum clime_err clime_update_group_join(struct clime_server *s, const struct clime_group_ask *a, bool *evicted,
                                       struct clime_error *e);
struct clime_update_group *clime_update_group_find(struct clime_weight_update *u, struct clime_str name); /* or NULL */
enum clime_err clime_update_group_absent(const struct clime_weight_update *u, struct clime_str name,
                                         struct clime_error *e); /* why find has found none */
/* From the sender; done when it returns. After an error the group is closed. */
enum clime_err clime_update_group_receive(struct clime_server *s, struct clime_update_group *g,
                                          const struct clime_comm_part *parts, int n, double timeout,
                                          struct clime_error *e);
void clime_update_group_close(struct clime_weight_update *u, struct clime_update_group *g);
void clime_update_groups_close(struct clime_weight_update *u);

/* ---- tensors that gather (incoming.c); under lock ---- */

struct clime_incoming_ask {
    struct clime_str names, dtypes, shapes; /* JSON lists */
    bool bucket;                            /* several tensors a broadcast, their bytes behind each other */
    int64_t bucket_bytes;                   /* one ends with the tensor that takes it past this; 0 = all in one */
    double timeout;
};

/* Takes the tensors that the lists name from g. After an error all that had gathered is dropped, and the update torn.
 */
enum clime_err clime_incoming_receive(struct clime_server *s, struct clime_update_group *g,
                                      const struct clime_incoming_ask *ask, struct clime_arena *a,
                                      struct clime_error *e);

struct clime_incoming_tensor { /* one that another process has */
    const char *name;
    struct clime_str dtype; /* torch's word */
    int n_dim;
    const int64_t *dim;
    const char *from; /* [n_bytes], in the device's memory, or the host's */
    size_t n_bytes;
    bool host;
};
/* Takes tensors without a group: begin, put for each, settle. put may read `from` until the device is synced. */
enum clime_err clime_incoming_begin(struct clime_server *s, struct clime_error *e);
enum clime_err clime_incoming_put(struct clime_server *s, const struct clime_incoming_tensor *t, struct clime_error *e);
void clime_incoming_tear(struct clime_weight_update *u); /* after any error since begin */
/* What a request has brought is here: in force if that is all, and nobody waits for a finish. version: empty = as now.
 */
enum clime_err clime_incoming_settle(struct clime_server *s, struct clime_str version, enum clime_inflight inflight,
                                     struct clime_str checksum, bool *complete, int *n_inflight, struct clime_error *e);
void clime_incoming_reply(struct clime_http_request *rq, const struct clime_server *s, bool complete, int n_have,
                          int n_inflight);

int clime_incoming_count(const struct clime_weight_update *u); /* tensors that are here */
bool clime_incoming_complete(const struct clime_server *s);    /* all of the model's */
/* What has gathered is verified and in force, tensors that did not come staying as they are; dropped if not. checksum:
 * of the whole layout, 16 hex digits; empty = not compared. */
enum clime_err clime_incoming_apply(struct clime_server *s, struct clime_str checksum, int *n_inflight,
                                    struct clime_error *e);
/* CLIME_ERR_INPUT, and nothing is left, when the update is torn. */
enum clime_err clime_incoming_refuse_torn(struct clime_weight_update *u, struct clime_error *e);
/* What has gathered is dropped, and that there was an update. */
void clime_incoming_forget(struct clime_weight_update *u);

/* SGLang's two flags as one word. */
static inline enum clime_inflight clime_update_inflight(bool abort_all, bool flush_cache) {
    return abort_all ? CLIME_INFLIGHT_ABORT : flush_cache ? CLIME_INFLIGHT_RECOMPUTE : CLIME_INFLIGHT_KEEP;
}

/* The context for copies, opened at first use and taken over by the calling thread. Under lock. */
enum clime_err clime_update_device(struct clime_server *s, struct clime_dev **out, struct clime_error *e);

/* Generation goes on; what has gathered without being finished comes into force first, and an update that failed is
 * over. An error: it does not go on. Takes the lock; an update that is going on beside is left alone. */
enum clime_err clime_update_resume(struct clime_server *s, struct clime_http_request *client, struct clime_error *e);

/* KV and weights are given back, and with keep_weights these stay in the host's memory until they are taken back.
 * Generation is paused; abort: requests that come in between are ended, else they are CLIME_ERR_BUSY (sleep.c). */
enum clime_err clime_update_sleep(struct clime_server *s, struct clime_http_request *client, bool keep_weights,
                                  bool abort, struct clime_error *e);
/* Takes back what was given, of enum clime_memory_tag's tags; weights that were kept are in force again. */
enum clime_err clime_update_take_back(struct clime_server *s, struct clime_http_request *client, unsigned tags,
                                      struct clime_memory_change *out, struct clime_error *e);

#endif
