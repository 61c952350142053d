/* Weights to a server, by one of the ways of enum clime_way. The label of a version is its number as text.
 *
 * HTTP: PUT /weights/{version}, a safetensors body streamed from a host copy; the server checks its SHA-256.
 *
 * IPC: POST /update_weights_from_ipc; the server, on a device of this host, copies from the trainer's own memory and
 * compares the checksum.
 *
 * SHARE: the same endpoint; the server computes with the trainer's own memory, nothing is copied. Before the trainer
 * rewrites it, clime_push_writing has the server's word that no step runs.
 *
 * NCCL: a broadcast in a group of the two (trainer/fleet/broadcast.h).
 */
#ifndef CLIME_TRAINER_FLEET_PUSH_H
#define CLIME_TRAINER_FLEET_PUSH_H

#include "common/http/client.h"
#include "model/model.h"

enum clime_way { CLIME_BY_HTTP, CLIME_BY_IPC, CLIME_BY_NCCL, CLIME_BY_SHARE };
extern const char *const clime_way_names[]; /* for the log */

struct clime_push {
    int64_t version;
    const struct clime_model *model; /* borrowed; its weights must not change while pushes run */
    int64_t timeout_us;
    bool keep_kv;        /* HTTP, NCCL: requests in flight go on with the KV they have; else it is computed anew */
    const char *api_key; /* filled by the fleet; NULL = none */
    const void *(*host)(void *arg); /* the weights in host memory; called once, when a body is needed */
    void *arg;
    /* HTTP: filled by clime_push_body */
    const void *flat; /* host memory, layout.n elements; NULL = not asked for yet */
    char body_sha256[65];
    /* IPC, SHARE: filled by clime_push_export */
    bool exported;
    uint8_t handle[CLIME_SHARE_BYTES];
    uint64_t checksum; /* IPC, NCCL: filled by clime_push_checksum; 0 = not asked for yet */
};

/* What HTTP needs: the host copy, and its hash by one pass over it. Does nothing the second time. Main thread. */
void clime_push_body(struct clime_push *p);

/* What IPC and SHARE need: the handle of the model's weights (struct clime_model_options.shared). Main thread. */
enum clime_err clime_push_export(struct clime_push *p, struct clime_error *e);
void clime_push_checksum(struct clime_push *p);

/* Pushes to one server ("http://host:port"), not by NCCL, and asks it which version it serves now. Any thread, its own
 * client. CLIME_ERR_INTERNAL when the server answers with another version, or refuses (the message holds its words). */
enum clime_err clime_push_weights(struct clime_http_client *c, const char *url, const struct clime_push *p,
                                  enum clime_way way, struct clime_error *e);

/* The weights that the server shares are about to be rewritten: returns when no step of it runs any more. */
enum clime_err clime_push_writing(struct clime_http_client *c, const char *url, struct clime_error *e);

/* The label of the weights that a server serves. */
enum clime_err clime_weight_version(struct clime_http_client *c, const char *url, int64_t timeout_us, char label[64],
                                    struct clime_error *e);

/* Pushes to n servers at the same time, a thread each; err[i].code says how it went for urls[i]. */
void clime_push_all(const char *const *urls, const enum clime_way *ways, int n, const struct clime_push *p,
                    struct clime_error *err);

#endif
