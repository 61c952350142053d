/* Pushing weights. Called by the fleet on the main thread; push_all starts one short-lived thread a server.
 *
 * Owns nothing: weights and their host copy are the loop's. Invariant: a push has succeeded only when the server itself
 * has said the new version's label; an answer of 200 is not enough.
 */
#include "trainer/fleet/push.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/hash.h"
#include "common/json/scan.h"
#include "common/log.h"

#define MAX_REPLY ((size_t)64 << 10)
#define CONTROL_TIMEOUT_US 10000000
#define PIECE ((size_t)1 << 20)
#define STALL_US 60000000 /* of a body under way, or of a server that puts it into force */
#define WORD_EVERY_S 10   /* what pushes wait for is said so often */

const char *const clime_way_names[] = {
    [CLIME_BY_HTTP] = "over HTTP",
    [CLIME_BY_IPC] = "by a copy from the trainer's device memory",
    [CLIME_BY_NCCL] = "by broadcast in a group of the two",
    [CLIME_BY_SHARE] = "in place: the trainer's own memory, nothing is copied",
};

static enum clime_dtype dtype_of(const struct clime_push *p) {
    return clime_dev_info(p->model->dev)->dt;
}

void clime_push_body(struct clime_push *p) {
    if (p->flat) return;
    p->flat = p->host(p->arg);
    struct clime_weights_writer *w = clime_weights_writer_new(&p->model->layout, dtype_of(p), p->flat);
    struct clime_sha256 sha;
    uint8_t digest[32];
    char *piece = xmalloc(PIECE);
    int64_t n;
    clime_sha256_init(&sha);
    while ((n = clime_weights_writer_read(w, piece, PIECE)) > 0) clime_sha256_add(&sha, piece, (size_t)n);
    clime_sha256_done(&sha, digest);
    clime_sha256_hex(digest, p->body_sha256);
    free(piece);
    clime_weights_writer_free(w);
}

enum clime_err clime_push_export(struct clime_push *p, struct clime_error *e) {
    const struct clime_model *m = p->model;
    enum clime_err rc = p->exported ? CLIME_OK : m->ops->share_export(m->dev, m->flat, p->handle, e);
    p->exported = rc == CLIME_OK;
    return rc;
}

void clime_push_checksum(struct clime_push *p) {
    const struct clime_model *m = p->model;
    if (!p->checksum) p->checksum = m->ops->checksum(m->dev, clime_model_bytes(m), m->flat);
}

static int64_t read_weights(void *arg, void *out, size_t size) {
    return clime_weights_writer_read(arg, out, size);
}

enum clime_err clime_weight_version(struct clime_http_client *c, const char *url, int64_t timeout_us, char label[64],
                                    struct clime_error *e) {
    char *full = xasprintf("%s/get_weight_version", url);
    struct clime_http_call call = {.method = "GET", .url = full, .timeout_us = timeout_us, .max_reply = MAX_REPLY};
    struct clime_http_result r = {0};
    label[0] = 0;
    enum clime_err rc = clime_http_client_call(c, &call, &r, e);
    if (!rc && r.status != 200) rc = clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s answers %d", full, r.status);
    if (!rc) {
        struct clime_arena a;
        struct clime_error je = {0};
        struct clime_json j;
        struct clime_str key, v = {0};
        clime_arena_init(&a, MAX_REPLY);
        clime_json_init(&j, r.reply.data, r.reply.len, &a, &je);
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            if (clime_str_is(key, "weight_version"))
                clime_json_string(&j, &v);
            else
                clime_json_skip(&j, NULL);
        }
        if (!clime_json_end(&j) || v.len > 63)
            rc = clime_fail(e, CLIME_ERR_INTERNAL, "%s: %s", full, je.code ? je.msg : "the label is too long");
        else
            snprintf(label, 64, CLIME_STR_FMT, CLIME_STR_ARG(v));
        clime_arena_free(&a);
    }
    clime_buf_free(&r.reply);
    free(full);
    return rc;
}

/* One call whose only good answer is 200. what: the words before an error of the transport. */
static enum clime_err send_call(struct clime_http_client *c, const struct clime_http_call *call, const char *what,
                                struct clime_error *e) {
    struct clime_http_result r = {0};
    enum clime_err rc = clime_http_client_call(c, call, &r, e);
    if (rc)
        clime_error_prefix(e, "%s", what);
    else if (r.status != 200)
        rc = clime_fail(e, CLIME_ERR_INTERNAL, "%s %s answers %d: %.300s", call->method, call->url, r.status,
                        r.reply.len ? r.reply.data : "");
    clime_buf_free(&r.reply);
    return rc;
}

static enum clime_err push_body(struct clime_http_client *c, const char *url, const struct clime_push *p,
                                struct clime_error *e) {
    char sha[96];
    const char *inflight = p->keep_kv ? "keep" : "recompute";
    char *full = xasprintf("%s/weights/%" PRId64 "?inflight=%s", url, p->version, inflight);
    struct clime_weights_writer *w = clime_weights_writer_new(&p->model->layout, dtype_of(p), p->flat);
    snprintf(sha, sizeof sha, "%s: %s", "X-Clime-SHA256", p->body_sha256);
    const char *headers[] = {sha, NULL};
    struct clime_http_call call = {.method = "PUT",
                                   .url = full,
                                   .content_type = "application/octet-stream",
                                   .headers = headers,
                                   .timeout_us = p->timeout_us,
                                   .stall_us = STALL_US,
                                   .max_reply = MAX_REPLY,
                                   .read_body = read_weights,
                                   .body_length = clime_weights_writer_length(w),
                                   .arg = w};
    enum clime_err rc = send_call(c, &call, "pushing weights", e);
    clime_weights_writer_free(w);
    free(full);
    return rc;
}

static enum clime_err post_ipc(struct clime_http_client *c, const char *url, struct clime_buf *body, int64_t timeout_us,
                               struct clime_error *e) {
    char *full = xasprintf("%s/update_weights_from_ipc", url);
    struct clime_http_call call = {
        .method = "POST", .url = full, .body = clime_buf_str(body), .timeout_us = timeout_us, .max_reply = MAX_REPLY};
    enum clime_err rc = send_call(c, &call, "handing weights over", e);
    clime_buf_free(body);
    free(full);
    return rc;
}

static enum clime_err push_handle(struct clime_http_client *c, const char *url, const struct clime_push *p,
                                  enum clime_way way, struct clime_error *e) {
    struct clime_buf body;
    clime_buf_init(&body, 4096);
    clime_buf_printf(&body, "{\"mode\":\"%s\",\"weight_version\":\"%" PRId64 "\",\"dtype\":\"%s\",",
                     way == CLIME_BY_SHARE ? "share" : "copy", p->version, dtype_of(p) == CLIME_BF16 ? "bf16" : "f32");
    if (way == CLIME_BY_IPC) clime_buf_printf(&body, "\"checksum\":\"%016" PRIx64 "\",", p->checksum);
    clime_buf_printf(&body, "\"device_unit\":\"%s\",", clime_dev_info(p->model->dev)->unit);
    clime_buf_printf(&body, "\"layout\":\"%016" PRIx64 "\",\"handle\":\"", p->model->handover);
    for (int i = 0; i < CLIME_SHARE_BYTES; i++) clime_buf_printf(&body, "%02x", p->handle[i]);
    clime_buf_adds(&body, "\"}");
    return post_ipc(c, url, &body, p->timeout_us, e);
}

enum clime_err clime_push_writing(struct clime_http_client *c, const char *url, struct clime_error *e) {
    struct clime_buf body;
    clime_buf_init(&body, 256);
    clime_buf_adds(&body, "{\"mode\":\"writing\"}");
    return post_ipc(c, url, &body, CONTROL_TIMEOUT_US, e);
}

enum clime_err clime_push_weights(struct clime_http_client *c, const char *url, const struct clime_push *p,
                                  enum clime_way way, struct clime_error *e) {
    char label[64], want[24];
    snprintf(want, sizeof want, "%" PRId64, p->version);
    CHECK(way != CLIME_BY_NCCL && (way == CLIME_BY_HTTP ? p->flat != NULL : p->exported && !p->keep_kv));
    enum clime_err rc = way == CLIME_BY_HTTP ? push_body(c, url, p, e) : push_handle(c, url, p, way, e);
    if (!rc && !(rc = clime_weight_version(c, url, CONTROL_TIMEOUT_US, label, e)) && strcmp(label, want))
        rc = clime_fail(e, CLIME_ERR_INTERNAL, "%s serves version \"%s\" after the push of %s", url, label, want);
    return rc;
}

struct one_push {
    const char *url;
    const struct clime_push *push;
    enum clime_way way;
    struct clime_error *err;
    pthread_t thread;
    bool started;
};

static void *push_one(void *arg) {
    struct one_push *o = arg;
    struct clime_http_client *c = clime_http_client_new();
    clime_http_client_bearer(c, o->push->api_key);
    clime_push_weights(c, o->url, o->push, o->way, o->err);
    clime_http_client_free(c);
    return NULL;
}

void clime_push_all(const char *const *urls, const enum clime_way *ways, int n, const struct clime_push *p,
                    struct clime_error *err) {
    struct one_push *all = xcalloc((size_t)n + 1, sizeof *all);
    for (int i = 0; i < n; i++) {
        err[i].code = CLIME_OK;
        all[i] = (struct one_push){.url = urls[i], .push = p, .way = ways[i], .err = &err[i]};
        all[i].started = !pthread_create(&all[i].thread, NULL, push_one, &all[i]);
        if (!all[i].started) push_one(&all[i]); /* no thread to be had: in turn */
    }
    for (int i = 0, waited_s = 0; i < n; i++) {
        struct timespec until;
        while (all[i].started) {
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += WORD_EVERY_S;
            if (!pthread_timedjoin_np(all[i].thread, NULL, &until)) break;
            waited_s += WORD_EVERY_S;
            LOG_INFO("waiting for %s to take the weights of version %" PRId64 " %s: %d s of at most %d s", urls[i],
                     p->version, clime_way_names[ways[i]], waited_s, (int)(p->timeout_us / 1000000));
        }
    }
    free(all);
}
