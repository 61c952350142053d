/* Weights to a server, by one of the ways of enum clime_way. The label of a version names the run, too (label.h).
 *
 * HTTP: PUT /weights/{version}, a safetensors body streamed from a host copy; the server checks its SHA-256.
 *
 * IPC: POST /update_weights_from_ipc; the server, on devices of this host, copies from the trainer's own memory and
 * compares the checksum. Of a sharded trainer it gets the handles of all ranks' parts, and which has what.
 *
 * SHARE: the same endpoint; the server computes with the trainer's own memory, nothing is copied. Before the trainer
 * rewrites it, it has the server's word that no step runs (clime_push_writing_body).
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
    bool keep_kv;        /* requests in flight go on with the KV they have; else it is computed anew */
    const char *api_key; /* filled by the fleet; NULL = none */
    char label[CLIME_VERSION_LABEL];
    const void *(*host)(void *arg); /* the weights in host memory; called once, when a body is needed */
    void *arg;
    const void *flat; /* HTTP, PULL: host memory, layout.n elements; NULL = not asked for yet */
    char sha256[65];  /* HTTP: clime_weights_sha256, filled by clime_push_body; "" = not asked for yet */
    /* IPC: filled by clime_push_export; of a model in parts by `locate` */
    bool exported;
    struct clime_model_card card;
    uint64_t checksum; /* IPC, NCCL: filled by clime_push_checksum; 0 = not asked for yet */
    enum clime_err (*locate)(void *arg, struct clime_weight_parts *out, struct clime_error *e);
    struct clime_weight_parts parts; /* what it points to stays until the next publish */
    /* PULL: filled by the fleet, and by clime_push_packets */
    struct clime_source *source;
    bool packed; /* the version's packets are there */
};

/* What HTTP needs: the host copy, and its hash by all cores. Does nothing the second time. The owner's thread. */
void clime_push_body(struct clime_push *p);

/* What IPC needs: where the model's weights are (struct clime_model_options.shared), and their checksum; the second is
 * what NCCL needs. The owner's thread. */
enum clime_err clime_push_export(struct clime_push *p, struct clime_error *e);
void clime_push_checksum(struct clime_push *p);

/* What PULL needs: the version's packets, made of the host copy. */
enum clime_err clime_push_packets(struct clime_push *p, struct clime_error *e);

/* Does a push by this way read the device's memory while it lasts? */
static inline bool clime_way_reads_device(enum clime_way way) {
    return way != CLIME_BY_HTTP && way != CLIME_BY_PULL;
}

/* One push under way, by HTTP, IPC, SHARE or PULL: `call` is to be made, and clime_push_call_free frees what it needs.
 * An answer of 200 is not enough: a push has succeeded when the server has said the new version's label. */
struct clime_push_call {
    struct clime_http_call call;
    char *url;
    struct clime_buf body;
    struct clime_weights_writer *writer;
    const atomic_bool *stop; /* HTTP, PULL: set, the call is cancelled. NULL = it is not */
    char sha[96];
    const char *headers[2];
};

/* What the way needs is there. relay: PULL: the server that url's server is to ask first, or NULL. owners: SHARE: where
 * the weights are that it computes with, of several the parts of its devices in turn. *out must stay where it is. */
void clime_push_call_make(const struct clime_push *p, enum clime_way way, const char *url, const char *relay,
                          const struct clime_model_card *owners, int n_owners, const atomic_bool *stop,
                          struct clime_push_call *out);
void clime_push_call_free(struct clime_push_call *c); /* zero is fine */

/* What says that the weights which a server shares are about to be rewritten: it answers when no step of it runs any
 * more. The body of a POST to CLIME_PUSH_IPC_PATH. */
#define CLIME_PUSH_IPC_PATH "/update_weights_from_ipc"
extern const char *const clime_push_writing_body;

/* The answer of /get_weight_version: labels as clime_label_copy, and which start of the server says so. "": it does
 * not say. */
#define CLIME_PUSH_INSTANCE 32
struct clime_push_label {
    char now[CLIME_VERSION_LABEL],
        before[CLIME_VERSION_LABEL]; /* of the weights in force, and of those they replaced */
    char instance[CLIME_PUSH_INSTANCE];
};
enum clime_err clime_push_read_label(const char *url, struct clime_str reply, struct clime_push_label *out,
                                     struct clime_error *e);

#endif
