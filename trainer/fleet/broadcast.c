/* Weight push by broadcast (see broadcast.h). Called by the fleet's owner; owns the trainer's end of a server's group.
 *
 * If a server refuses, its answer cancels the waiting transfer, so no time limit has to expire. Weights are sent in
 * place, in one transfer if the layout has no gaps, else one tensor at a time.
 */
#include "trainer/fleet/broadcast.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"

#define LIMIT_S 60
#define MAX_REPLY ((size_t)64 << 10)
#define MAX_BODY ((size_t)16 << 20)

/* ---- request, concurrent with the transfer ---- */

struct post {
    char *url;
    const char *api_key;
    struct clime_buf body;
    pthread_t thread;
    atomic_bool failed;
    bool has_thread;
    enum clime_err err;
    struct clime_error error;
};

static void *run_post(void *arg) {
    struct post *p = arg;
    struct clime_http_client *c = clime_http_client_new();
    struct clime_http_call call = {.method = "POST",
                                   .url = p->url,
                                   .body = clime_buf_str(&p->body),
                                   .bearer = p->api_key,
                                   .timeout_us = (int64_t)2 * LIMIT_S * 1000000,
                                   .max_reply = MAX_REPLY};
    struct clime_http_result r = {0};
    p->err = clime_http_client_call(c, &call, &r, &p->error);
    if (!p->err && r.status != 200)
        p->err = clime_fail(&p->error, CLIME_ERR_INTERNAL, "POST %s answers %d: %.300s", clime_url_shown(p->url).text,
                            r.status, r.reply.len ? r.reply.data : "");
    if (p->err) atomic_store(&p->failed, true);
    clime_buf_free(&r.reply);
    clime_http_client_free(c);
    return NULL;
}

static bool post_failed(void *arg) {
    struct post *p = arg;
    return atomic_load(&p->failed);
}

static struct clime_comm_wait begin_post(struct post *p, const struct clime_push *push, const char *url,
                                         const char *path) {
    p->api_key = push->api_key;
    p->url = xasprintf("%s/%s", url, path);
    atomic_init(&p->failed, false);
    p->has_thread = !pthread_create(&p->thread, NULL, run_post, p);
    if (!p->has_thread) {
        p->err = clime_fail(&p->error, CLIME_ERR_UNAVAILABLE, "POST %s: no thread is to be had",
                            clime_url_shown(p->url).text);
        atomic_store(&p->failed, true);
    }
    return (struct clime_comm_wait){.limit_us = (int64_t)LIMIT_S * 1000000, .cancelled = post_failed, .arg = p};
}

/* mine: result of the transfer on this side. If the server refused, its message is more precise. */
static enum clime_err end_post(struct post *p, enum clime_err mine, struct clime_error *e) {
    if (p->has_thread) pthread_join(p->thread, NULL);
    if (p->err && e && (!mine || mine == CLIME_ERR_ABORTED)) *e = p->error;
    clime_buf_free(&p->body);
    free(p->url);
    return mine ? mine : p->err;
}

/* ---- the group ---- */

static enum clime_err make_group(struct clime_broadcast *b, const char *url, const struct clime_push *p,
                                 struct clime_error *e) {
    static int n_made;
    uint8_t id[CLIME_COMM_ID_BYTES];
    struct post post = {0};
    b->ops = p->model->ops;
    enum clime_err rc = b->ops->comm_id(p->model->dev, id, e);
    if (rc) return rc;
    snprintf(b->name, sizeof b->name, "clime-%d-%d", (int)getpid(), n_made++);
    clime_buf_init(&post.body, 4096);
    clime_buf_printf(&post.body,
                     "{\"group_name\":\"%s\",\"backend\":\"%s\",\"rank_offset\":1,\"world_size\":2,"
                     "\"master_address\":\"127.0.0.1\",\"master_port\":0,\"timeout\":%d,\"nccl_id\":\"",
                     b->name, b->ops->comm_backend, LIMIT_S);
    for (int i = 0; i < CLIME_COMM_ID_BYTES; i++) clime_buf_printf(&post.body, "%02x", id[i]);
    clime_buf_adds(&post.body, "\"}");
    struct clime_comm_wait wait = begin_post(&post, p, url, "init_weights_update_group");
    return end_post(&post, b->ops->comm_open(p->model->dev, id, 0, 2, &wait, &b->comm, e), e);
}

void clime_broadcast_close(struct clime_broadcast *b) {
    if (b->comm) b->ops->comm_close(b->comm);
    *b = (struct clime_broadcast){0};
}

/* ---- a push ---- */

static bool without_gaps(const struct clime_layout *l) {
    for (int i = 1; i < l->n_slices; i++)
        if (l->slices[i].offset != l->slices[i - 1].offset + l->slices[i - 1].bytes) return false;
    return true;
}

static void write_list(struct clime_buf *out, const char *key, const struct clime_push *p, int which) {
    const struct clime_layout *l = &p->model->layout;
    clime_buf_printf(out, ",\"%s\":[", key);
    for (int i = 0; i < l->n_slices; i++) {
        const struct clime_slice *s = &l->slices[i];
        const char *comma = i ? "," : "";
        if (which == 0) clime_buf_printf(out, "%s\"%s\"", comma, s->name);
        if (which == 1) clime_buf_printf(out, "%s\"%s\"", comma, s->type == CLIME_BF16 ? "bfloat16" : "float32");
        if (which == 2 && s->n_dim == 1) clime_buf_printf(out, "%s[%" PRId64 "]", comma, s->dim[0]);
        if (which == 2 && s->n_dim == 2)
            clime_buf_printf(out, "%s[%" PRId64 ",%" PRId64 "]", comma, s->dim[0], s->dim[1]);
    }
    clime_buf_adds(out, "]");
}

static int make_parts(const struct clime_push *p, bool bucket, struct clime_comm_part *out) {
    const struct clime_layout *l = &p->model->layout;
    size_t all = 0;
    for (int i = 0; i < l->n_slices; i++) {
        const struct clime_slice *s = &l->slices[i];
        out[i] = (struct clime_comm_part){clime_model_at(p->model, s->offset), (size_t)s->bytes};
        all += out[i].bytes;
    }
    if (bucket) out[0].bytes = all;
    return bucket ? 1 : l->n_slices;
}

static enum clime_err send_weights(struct clime_broadcast *b, const char *url, const struct clime_push *p,
                                   struct clime_error *e) {
    static const char *const lists[] = {"names", "dtypes", "shapes"};
    bool bucket = without_gaps(&p->model->layout);
    struct post post = {0};
    struct clime_comm_part *parts = xcalloc((size_t)p->model->layout.n_slices, sizeof *parts);
    clime_buf_init(&post.body, MAX_BODY);
    clime_buf_printf(&post.body,
                     "{\"group_name\":\"%s\",\"weight_version\":\"%s\",\"checksum\":\"%016" PRIx64 "\",\"timeout\":%d",
                     b->name, p->label, p->checksum, LIMIT_S);
    if (bucket) clime_buf_adds(&post.body, ",\"load_format\":\"flattened_bucket\"");
    if (p->keep_kv) clime_buf_adds(&post.body, ",\"flush_cache\":false");
    for (int i = 0; i < 3; i++) write_list(&post.body, lists[i], p, i);
    clime_buf_adds(&post.body, "}");
    int n = make_parts(p, bucket, parts);
    int64_t t0 = clime_now_us();
    struct clime_comm_wait wait = begin_post(&post, p, url, "update_weights_from_distributed");
    enum clime_err rc = b->ops->comm_broadcast(b->comm, parts, n, &wait, e);
    int64_t us = clime_now_us() - t0;
    rc = end_post(&post, rc, e);
    if (!rc)
        LOG_INFO("weights of version %" PRId64 " broadcast to %s in %.2f ms, %.1f GB/s; in force after %.2f ms",
                 p->version, url, (double)us / 1e3,
                 (double)clime_model_bytes(p->model) / 1e3 / (double)(us > 0 ? us : 1),
                 (double)(clime_now_us() - t0) / 1e3);
    free(parts);
    return rc;
}

enum clime_err clime_broadcast_push(struct clime_broadcast *b, const char *url, const struct clime_push *p,
                                    struct clime_error *e) {
    enum clime_err rc = b->comm ? CLIME_OK : make_group(b, url, p, e);
    if (!rc) rc = send_weights(b, url, p, e);
    if (rc) clime_broadcast_close(b);
    return rc;
}
