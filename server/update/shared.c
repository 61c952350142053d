/* Shared by all weight update paths: lock, device, staging memory, request parsing, reply.
 *
 * HTTP workers, under the update lock once acquired. Gathered tensors are dropped here, since every other path does so.
 * Staging is freed after each update: a model that fills the memory leaves no room for it. It is mmapped, not malloc'd:
 * glibc (2.36) cannot reuse an aligned block for the same size, so below malloc's mmap threshold
 * (common/os/malloc_limits.h) every update would leak its block.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "model/weights/weights_gather.h"
#include "server/update/weight_update.h"

enum clime_err clime_update_lock(struct clime_weight_update *u, struct clime_http_request *client,
                                 struct clime_error *e) {
    if (pthread_mutex_trylock(&u->lock)) return clime_fail(e, CLIME_ERR_BUSY, "another weight update is going on");
    u->client = client;
    return CLIME_OK;
}

bool clime_update_client_left(void *request) {
    return clime_http_peer_gone(request);
}

void clime_update_unlock(struct clime_weight_update *u) {
    pthread_mutex_unlock(&u->lock);
}

enum clime_err clime_update_device(struct clime_server *s, struct clime_dev **out, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    struct clime_dev_options o = {
        .dt = clime_dev_info(s->model->dev)->dt, .n_threads = 1, .isa = s->opts.isa, .gpu = s->opts.gpu};
    enum clime_err err = u->dev ? CLIME_OK : s->model->ops->open(&o, &u->dev, e);
    if (err) return err;
    u->ops = s->model->ops;
    u->ops->bind(u->dev);
    *out = u->dev;
    return CLIME_OK;
}

void *clime_update_staging(const struct clime_server *s, struct clime_error *e) {
    size_t bytes = clime_model_bytes(s->model);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED) {
        madvise(p, bytes, MADV_HUGEPAGE); /* small pages cost a third of an upload's time */
        return p;
    }
    clime_fail(e, CLIME_ERR_LIMIT, "no memory for %zu bytes of staging", bytes);
    return NULL;
}

void clime_update_staging_free(const struct clime_server *s, void *staging) {
    if (staging) munmap(staging, clime_model_bytes(s->model));
}

enum clime_err clime_update_label(struct clime_str label, struct clime_error *e) {
    if (label.len == 0 || label.len > CLIME_MAX_LABEL)
        return clime_fail(e, CLIME_ERR_INPUT, "a weight version has 1 to %d bytes", CLIME_MAX_LABEL);
    for (size_t i = 0; i < label.len; i++)
        if ((unsigned char)label.ptr[i] < 0x20) return clime_fail(e, CLIME_ERR_INPUT, "a weight version is plain text");
    return CLIME_OK;
}

void clime_update_reply(struct clime_http_request *rq, const char *message, const char *version, int n_inflight) {
    struct clime_buf body;
    struct clime_jw w;
    clime_buf_init(&body, 8192);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    clime_jw_put_bool(&w, "success", true);
    clime_jw_put_strz(&w, "message", message);
    clime_jw_put_strz(&w, "weight_version", version);
    clime_jw_put_int(&w, "num_paused_requests", n_inflight);
    clime_jw_close(&w);
    clime_reply_buf(rq, 200, &body);
}

enum clime_err clime_update_hex(const char *name, struct clime_str text, uint8_t *out, size_t n,
                                struct clime_error *e) {
    bool good = text.len == 2 * n;
    for (size_t i = 0; good && i < n; i++) {
        int high = clime_hex_digit(text.ptr[2 * i]), low = clime_hex_digit(text.ptr[2 * i + 1]);
        good = high >= 0 && low >= 0;
        if (good) out[i] = (uint8_t)(16 * high + low);
    }
    return good ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "%s must be %zu hex digits", name, 2 * n);
}

enum clime_err clime_update_hex64(const char *name, struct clime_str text, uint64_t *out, struct clime_error *e) {
    uint8_t b[8];
    enum clime_err err = clime_update_hex(name, text, b, sizeof b, e);
    if (err) return err;
    for (int i = *out = 0; i < 8; i++) *out = *out << 8 | b[i];
    return CLIME_OK;
}

/* Drops the gathered tensors. */
static void drop(struct clime_weight_update *u) {
    if (u->incoming) {
        u->ops->bind(u->dev);
        u->ops->free(u->dev, u->incoming);
    }
    clime_weights_gather_free(u->gather);
    u->incoming = NULL;
    u->gather = NULL;
    u->label[0] = '\0';
}

void clime_incoming_forget(struct clime_weight_update *u) {
    drop(u);
    u->to_be_finished = u->torn = false;
}

void clime_incoming_tear(struct clime_weight_update *u) {
    drop(u);
    u->torn = true;
}
