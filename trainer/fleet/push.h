/* Pushes weights to a server by one of enum clime_way. A version's label also names the run (label.h).
 *
 * HTTP: PUT /weights/{version}, a safetensors body streamed from a host copy; the server verifies its SHA-256.
 *
 * IPC: POST /update_weights_from_ipc; the server, on this host's devices, copies from the trainer's memory and verifies
 * the checksum. A sharded trainer sends the handles and layout of all ranks' parts.
 *
 * SHARE: the same endpoint; the server computes in place with the trainer's memory. Before rewriting it the trainer
 * waits for the server to confirm that no step runs (clime_push_writing_body).
 *
 * NCCL: a broadcast in a group of the two (trainer/fleet/broadcast.h).
 *
 * PULL: POST /pull_weights; the server fetches the version's packets from another server, from the trainer's listener,
 * or from a folder (trainer/fleet/source.h).
 */
#ifndef CLIME_TRAINER_FLEET_PUSH_H
#define CLIME_TRAINER_FLEET_PUSH_H

#include <stdatomic.h>

#include "common/http/client.h"
#include "model/model.h"
#include "trainer/sample/label.h"

enum clime_way { CLIME_BY_HTTP, CLIME_BY_IPC, CLIME_BY_NCCL, CLIME_BY_SHARE, CLIME_BY_PULL };
extern const char *const clime_way_names[]; /* for the log */

struct clime_source;

struct clime_push {
    int64_t version;
    const struct clime_model *model; /* borrowed; its weights must not change while pushes run */
    int64_t timeout_us;
    bool keep_kv;        /* requests in flight keep their KV; else it is recomputed */
    const char *api_key; /* filled by the fleet; NULL = none */
    char label[CLIME_VERSION_LABEL];
    const void *(*host)(void *arg); /* returns the weights in host memory; called once, when first needed */
    void *arg;
    const void *flat; /* HTTP, PULL: host memory, layout.n elements; NULL = not made yet */
    char sha256[65];  /* HTTP: clime_weights_sha256, filled by clime_push_body; "" = not made yet */
    /* IPC: filled by clime_push_export; for a sharded model by `locate` */
    bool exported;
    struct clime_model_card card;
    uint64_t checksum; /* IPC, NCCL: filled by clime_push_checksum; 0 = not made yet */
    enum clime_err (*locate)(void *arg, struct clime_weight_parts *out, struct clime_error *e);
    struct clime_weight_parts parts; /* its pointers are valid until the next publish */
    /* PULL: filled by the fleet and clime_push_packets */
    struct clime_source *source;
    bool packed; /* the version's packets exist */
};

/* Prepares HTTP: the host copy and its hash, on all cores. A no-op the second time. Owner's thread. */
void clime_push_body(struct clime_push *p);

/* Prepare IPC: the address of the model's weights (struct clime_model_options.shared) and their checksum; NCCL needs
 * only the checksum. Owner's thread. */
enum clime_err clime_push_export(struct clime_push *p, struct clime_error *e);
void clime_push_checksum(struct clime_push *p);

/* Prepares PULL: makes the version's packets from the host copy. */
enum clime_err clime_push_packets(struct clime_push *p, struct clime_error *e);

/* Whether a push by this way reads device memory. */
static inline bool clime_way_reads_device(enum clime_way way) {
    return way != CLIME_BY_HTTP && way != CLIME_BY_PULL;
}

/* One push by HTTP, IPC, SHARE or PULL: the caller runs `call`, then clime_push_call_free. A 200 is not enough: the
 * push has succeeded when the server reports the new version's label. */
struct clime_push_call {
    struct clime_http_call call;
    char *url;
    struct clime_buf body;
    struct clime_weights_writer *writer;
    const atomic_bool *stop; /* HTTP, PULL: cancels the call when set; may be NULL */
    char sha[96];
    const char *headers[2];
};

/* The way must be prepared. relay (PULL): the server to pull from first, or NULL. owners (SHARE): addresses of the
 * weights it computes with; if several, the parts of its devices in order. *out must not move. */
void clime_push_call_make(const struct clime_push *p, enum clime_way way, const char *url, const char *relay,
                          const struct clime_model_card *owners, int n_owners, const atomic_bool *stop,
                          struct clime_push_call *out);
void clime_push_call_free(struct clime_push_call *c); /* zero is fine */

/* Body of a POST to CLIME_PUSH_IPC_PATH before shared weights are rewritten: the server answers once none of its steps
 * runs. */
#define CLIME_PUSH_IPC_PATH "/update_weights_from_ipc"
extern const char *const clime_push_writing_body;

/* Answer of /get_weight_version: labels as from clime_label_copy, and the server's instance. "" = not reported. */
#define CLIME_PUSH_INSTANCE 32
struct clime_push_label {
    char now[CLIME_VERSION_LABEL], before[CLIME_VERSION_LABEL]; /* of the current weights, and of those they replaced */
    char instance[CLIME_PUSH_INSTANCE];
};
enum clime_err clime_push_read_label(const char *url, struct clime_str reply, struct clime_push_label *out,
                                     struct clime_error *e);

#endif
