/* Weight updates of a running server: over HTTP or from a folder (weight_update.c), from another process's memory on
 * this host (ipc.c), by broadcast in a group (group.c) with SGLang's API (distributed.c) or vLLM's (transfer.c), or
 * pulled (pull.c). Weights go to staging memory, are verified, then swapped in at a step boundary
 * (server/engine/engine.h); memory shared with its owner is not copied. One update at a time; any thread.
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
    struct clime_torch_store *store; /* holds the group's id until it is joined; else NULL */
    int rank, world;
    bool apart; /* launch one broadcast at a time, as its sender does: NCCL picks the algorithm by what is grouped */
};

/* A vLLM trainer's settings, sent once per group: tensor packing and the last tensor lists. */
struct clime_transfer {
    bool packed;
    int64_t bucket_bytes;
    char *names, *dtypes, *shapes; /* JSON lists, owned; NULL: none yet */
};
void clime_transfer_free(struct clime_transfer *t);

/* The checksum header of a PUT, one of two. */
struct clime_put_sha {
    bool of_weights; /* X-Clime-Weights-SHA256 (clime_weights_sha256); else X-Clime-SHA256 of the raw body */
    char hex[65];    /* lower case */
};

struct clime_weight_update {
    pthread_mutex_t lock;              /* held by the running update */
    struct clime_http_request *client; /* the update's client: waits are cancelled when it leaves. Under lock */
    struct clime_put_sha last;         /* checksum of the current version's PUT; hex "" = not by PUT. Under lock */
    uint8_t (*snapshot)[32];           /* [tensors] checksums for /weights_checker; NULL = none. Under lock */
    struct clime_dev *dev;       /* a second context on the model's device, for copies concurrent with the engine; NULL
                                  * until needed. Under lock */
    const struct clime_ops *ops; /* of dev */
    struct clime_update_group groups[CLIME_MAX_GROUPS]; /* under lock, as all below */
    struct clime_transfer transfer;                     /* of vLLM's group */
    char evicted[64];                                   /* last group closed to make room; "" = none */
    void *incoming;                                     /* device memory: tensors received so far; NULL = none */
    struct clime_weights_gather *gather;                /* which tensors they are */
    char label[CLIME_MAX_LABEL + 1];                    /* their label; "" = keep the current one */
    enum clime_inflight inflight;                       /* what to do with sequences then */
    bool to_be_finished;                                /* wait for /finish_weight_update even when complete */
    void *kept;                                         /* host memory: the weights of a sleeping server; NULL = none */
    uint64_t kept_number;                               /* their version */
    struct clime_shelf *shelf;                          /* pulled packets, relayed to others; own lock */
    bool torn; /* a part of this update failed: later tensors are used only if they are all tensors */
};

/* relay_bytes: limit of pulled packets kept for others. */
void clime_weight_update_init(struct clime_weight_update *u, int64_t relay_bytes);
void clime_weight_update_free(struct clime_weight_update *u);

/* Internal to server/update. */
/* CLIME_ERR_BUSY when an update is running. */
enum clime_err clime_update_lock(struct clime_weight_update *u, struct clime_http_request *client,
                                 struct clime_error *e);
void clime_update_unlock(struct clime_weight_update *u);
bool clime_update_client_left(void *request); /* request: a struct clime_http_request */
enum clime_err clime_update_label(struct clime_str label, struct clime_error *e); /* validates a version label */
void clime_update_reply(struct clime_http_request *rq, const char *message, const char *version, int n_inflight);

/* Zeroed host memory for all weights; NULL: out of memory. free: NULL is fine. */
void *clime_update_staging(const struct clime_server *s, struct clime_error *e);
void clime_update_staging_free(const struct clime_server *s, void *staging);

/* Loads the weights of a Hugging Face folder and swaps them in; under lock. label: "" = keep the current one. */
enum clime_err clime_update_from_folder(struct clime_server *s, const char *path, const char *label,
                                        enum clime_inflight inflight, int *n_inflight, struct clime_error *e);

/* Parses 2n hex digits to n bytes, or 16 hex digits to a number. */
enum clime_err clime_update_hex(const char *name, struct clime_str text, uint8_t *out, size_t n, struct clime_error *e);
enum clime_err clime_update_hex64(const char *name, struct clime_str text, uint64_t *out, struct clime_error *e);

/* ---- groups (group.c); under lock ---- */

struct clime_group_ask {
    const char *name;
    int rank, world;
    double timeout;    /* seconds */
    const uint8_t *id; /* [CLIME_COMM_ID_BYTES], or NULL: read it from the torch store at host:port, */
    const char *host;
    int port;
    bool vllm; /* under vLLM's key, else torch's; and the sender starts with an all-reduce */
};

/* With an id, and in vLLM's groups, returns when all ranks have joined. In torch's, only the store is joined: the
 * sender sets the id at its first broadcast, and we join at our first receive. *evicted: another group was closed to
 * make room. */
enum clime_err clime_update_group_join(struct clime_server *s, const struct clime_group_ask *a, bool *evicted,
                                       struct clime_error *e);
struct clime_update_group *clime_update_group_find(struct clime_weight_update *u, struct clime_str name); /* or NULL */
enum clime_err clime_update_group_absent(const struct clime_weight_update *u, struct clime_str name,
                                         struct clime_error *e); /* the error when find returns NULL */
/* Receives parts from the sender, complete on return. An error closes the group. */
enum clime_err clime_update_group_receive(struct clime_server *s, struct clime_update_group *g,
                                          const struct clime_comm_part *parts, int n, double timeout,
                                          struct clime_error *e);
void clime_update_group_close(struct clime_weight_update *u, struct clime_update_group *g);
void clime_update_groups_close(struct clime_weight_update *u);

/* ---- received tensors (incoming.c); under lock ------- */

struct clime_incoming_ask {
    struct clime_str names, dtypes, shapes; /* JSON lists */
    bool bucket;                            /* several contiguous tensors per broadcast */
    int64_t bucket_bytes;                   /* a bucket ends with the tensor that exceeds this; 0 = one bucket */
    double timeout;
};

/* Receives the listed tensors from g. An error drops everything received and marks the update torn. */
enum clime_err clime_incoming_receive(struct clime_server *s, struct clime_update_group *g,
                                      const struct clime_incoming_ask *ask, struct clime_arena *a,
                                      struct clime_error *e);

struct clime_incoming_tensor { /* a tensor in another process */
    const char *name;
    struct clime_str dtype; /* torch's name */
    int n_dim;
    const int64_t *dim;
    const char *from; /* [n_bytes] in device memory, or host memory */
    size_t n_bytes;
    bool host;
};
/* Receives tensors without a group: begin, put for each, settle. put may read `from` until the device is synced. */
enum clime_err clime_incoming_begin(struct clime_server *s, struct clime_error *e);
enum clime_err clime_incoming_put(struct clime_server *s, const struct clime_incoming_tensor *t, struct clime_error *e);
void clime_incoming_tear(struct clime_weight_update *u); /* after any error since begin */
/* Ends a request's tensors: swaps them in if the set is complete and no finish call is expected. version: empty = keep
 * the current one. */
enum clime_err clime_incoming_settle(struct clime_server *s, struct clime_str version, enum clime_inflight inflight,
                                     struct clime_str checksum, bool *complete, int *n_inflight, struct clime_error *e);
void clime_incoming_reply(struct clime_http_request *rq, const struct clime_server *s, bool complete, int n_have,
                          int n_inflight);

int clime_incoming_count(const struct clime_weight_update *u); /* tensors received so far */
bool clime_incoming_complete(const struct clime_server *s);    /* all of the model's are received */
/* Verifies the received tensors and swaps them in; tensors not received keep their values. Drops them on failure.
 * checksum: of the whole layout, 16 hex digits; empty = not compared. */
enum clime_err clime_incoming_apply(struct clime_server *s, struct clime_str checksum, int *n_inflight,
                                    struct clime_error *e);
/* CLIME_ERR_INPUT, after dropping everything, when the update is torn. */
enum clime_err clime_incoming_refuse_torn(struct clime_weight_update *u, struct clime_error *e);
/* Drops the received tensors and the update's state. */
void clime_incoming_forget(struct clime_weight_update *u);

/* SGLang's two flags as one enum. */
static inline enum clime_inflight clime_update_inflight(bool abort_all, bool flush_cache) {
    return abort_all ? CLIME_INFLIGHT_ABORT : flush_cache ? CLIME_INFLIGHT_RECOMPUTE : CLIME_INFLIGHT_KEEP;
}

/* The context for copies, opened at first use and bound to the calling thread. Under lock. */
enum clime_err clime_update_device(struct clime_server *s, struct clime_dev **out, struct clime_error *e);

/* Resumes generation, after swapping in received tensors that were not finished; a failed update ends. On error
 * generation stays paused. Takes the lock; does not disturb a running update. */
enum clime_err clime_update_resume(struct clime_server *s, struct clime_http_request *client, struct clime_error *e);

/* Frees KV and weight memory; with keep_weights the weights stay in host memory until take_back. Generation is paused.
 * abort: ends requests that arrive in between, else they cause CLIME_ERR_BUSY (sleep.c). */
enum clime_err clime_update_sleep(struct clime_server *s, struct clime_http_request *client, bool keep_weights,
                                  bool abort, struct clime_error *e);
/* Allocates freed memory again, by enum clime_memory_tag; kept weights are restored. */
enum clime_err clime_update_take_back(struct clime_server *s, struct clime_http_request *client, unsigned tags,
                                      struct clime_memory_change *out, struct clime_error *e);

#endif
