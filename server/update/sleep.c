/* vLLM's sleep and wake (server/api/handlers_vllm_control.c): frees device memory and, at level 1, keeps the weights in
 * host memory. HTTP workers, under the update lock, so that no update intervenes.
 *
 * Invariant: kept weights are restored with the weight memory, by any API, unless an update replaced them; until then
 * they are not freed.
 */
#include <stdlib.h>

#include "common/log.h"
#include "server/update/weight_update.h"

#define AGAIN 20 /* retries when requests arrive between abort and release: they are aborted too */

static void forget_kept(struct clime_weight_update *u) {
    free(u->kept);
    u->kept = NULL;
}

/* Replaces the kept weights by a copy of the current ones; on failure keeps the old. */
static enum clime_err keep(struct clime_server *s, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    size_t bytes = clime_model_bytes(s->model);
    if (clime_engine_lent(s->engine) & CLIME_MEMORY_WEIGHTS) return CLIME_OK; /* already asleep */
    void *copy = malloc(bytes);
    if (!copy)
        return clime_fail(e, CLIME_ERR_LIMIT, "the host has no %zu bytes to keep the weights in; level 2 drops them",
                          bytes);
    enum clime_err err = clime_engine_read_weights(s->engine, 0, bytes, copy, e);
    if (err) {
        free(copy);
        return err;
    }
    forget_kept(u);
    u->kept = copy;
    u->kept_number = clime_engine_version(s->engine)->number;
    return CLIME_OK;
}

static enum clime_err give_back(struct clime_server *s, bool abort, struct clime_memory_change *c,
                                struct clime_error *e) {
    unsigned tags = CLIME_MEMORY_KV | CLIME_MEMORY_WEIGHTS;
    enum clime_err err;
    for (int i = 0; (err = clime_engine_give_back(s->engine, tags, c, e)) == CLIME_ERR_BUSY && abort && i < AGAIN;
         i++) {
        clime_job_table_mark(&s->jobs, NULL);
        clime_engine_pause(s->engine, CLIME_PAUSE_ABORT);
    }
    return err;
}

enum clime_err clime_update_sleep(struct clime_server *s, struct clime_http_request *client, bool keep_weights,
                                  bool abort, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    struct clime_memory_change c;
    enum clime_err err = clime_update_lock(u, client, e);
    if (err) return err;
    if (keep_weights) err = keep(s, e);
    if (!err) err = give_back(s, abort, &c, e);
    if (!(clime_engine_lent(s->engine) & CLIME_MEMORY_WEIGHTS) && clime_engine_has_weights(s->engine))
        forget_kept(u); /* they stayed in place: the owner's, or nothing was freed */
    if (!err)
        LOG_INFO("asleep: KV %zu bytes, weights %zu bytes given back%s", c.kv, c.weights,
                 u->kept ? ", the weights kept by the host" : "");
    clime_update_unlock(u);
    return err;
}

static enum clime_err restore(struct clime_server *s, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    const struct clime_weight_label *now = clime_engine_version(s->engine);
    struct clime_weight_source from = {.kind = CLIME_FROM_HOST, .flat = u->kept};
    enum clime_err err = CLIME_OK;
    int n;
    if (now->number == u->kept_number)
        err = clime_engine_update(s->engine, &from, now->name, CLIME_INFLIGHT_RECOMPUTE, &n, e);
    if (!err) forget_kept(u);
    return err;
}

enum clime_err clime_update_take_back(struct clime_server *s, struct clime_http_request *client, unsigned tags,
                                      struct clime_memory_change *out, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    if (!(tags & CLIME_MEMORY_WEIGHTS)) return clime_engine_take_back(s->engine, tags, out, e);
    enum clime_err err = clime_update_lock(u, client, e);
    if (err) return err;
    err = clime_engine_take_back(s->engine, tags, out, e);
    if (!err && u->kept) err = restore(s, e);
    clime_update_unlock(u);
    return err;
}
