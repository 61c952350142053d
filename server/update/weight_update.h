/* New weights for a running server: over HTTP or from a folder (weight_update.c), from another process's memory on this
 * host (ipc.c), by broadcast in a group (group.c). Into staging memory, verified, then swapped in at a
 * step boundary (server/engine/engine.h), but for memory that is shared with its owner. One update at a time; any
 * thread.
 */
#ifndef CLIME_SERVER_UPDATE_WEIGHT_UPDATE_H
#define CLIME_SERVER_UPDATE_WEIGHT_UPDATE_H

#include <pthread.h>

#include "server/server.h"

#define CLIME_MAX_GROUPS 8

struct clime_update_group {
    char name[64]; /* "" = free */
    struct clime_comm *comm;
};

struct clime_weight_update {
    pthread_mutex_t lock;  /* held by the update that is going on */
    char last_sha[65];     /* hash of the body that made the present version; "" = it came otherwise. Under lock */
    struct clime_dev *dev; /* a second context on the model's device, for copies beside the engine's; NULL until one
                            * was needed. Under lock */
    const struct clime_ops *ops;                        /* of dev */
    struct clime_update_group groups[CLIME_MAX_GROUPS]; /* under lock, as what follows */
    char evicted[64];                                   /* the group that was closed last to make room; "" = none */
    void *incoming;                                     /* of dev: tensors broadcast so far; NULL = none */
    bool *have;                                         /* [layout.n_slices] which */
    int n_have;
};

void clime_weight_update_init(struct clime_weight_update *u);
void clime_weight_update_free(struct clime_weight_update *u);

/* For the files of updates. */
enum clime_err clime_update_lock(struct clime_weight_update *u, struct clime_error *e); /* BUSY when one goes on */
void clime_update_unlock(struct clime_weight_update *u);
enum clime_err clime_update_label(struct clime_str label, struct clime_error *e); /* may it be a weight version? */
void clime_update_reply(struct clime_http_request *rq, const char *message, const char *version, int n_inflight);

/* n bytes, or a number, of 2n or 16 lower-case hex digits. */
enum clime_err clime_update_hex(const char *name, struct clime_str text, uint8_t *out, size_t n, struct clime_error *e);
enum clime_err clime_update_hex64(const char *name, struct clime_str text, uint64_t *out, struct clime_error *e);

/* Of what came to staging memory of the device; CLIME_ERR_INPUT names the tensor. */
enum clime_err clime_update_finite(const struct clime_model *m, struct clime_dev *dev, const void *staging,
                                   struct clime_error *e);

void clime_update_groups_close(struct clime_weight_update *u);

/* SGLang's two flags as one word. */
static inline enum clime_inflight clime_update_inflight(bool abort_all, bool flush_cache) {
    return abort_all ? CLIME_INFLIGHT_ABORT : flush_cache ? CLIME_INFLIGHT_RECOMPUTE : CLIME_INFLIGHT_KEEP;
}

/* The context for copies, opened at first use and taken over by the calling thread. Under lock. */
enum clime_err clime_update_device(struct clime_server *s, struct clime_dev **out, struct clime_error *e);

#endif
