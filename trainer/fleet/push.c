/* Requests of weight pushes. The fleet's owner prepares a push, the fleet's loop makes the calls.
 *
 * Owns only a call's memory; the training loop owns the weights and their host copy.
 */
#include "trainer/fleet/push.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "trainer/fleet/source.h"

#define MAX_REPLY ((size_t)64 << 10)
#define MAX_HANDLES ((size_t)1 << 25) /* a body with the addresses of the weights */
#define STALL_US 60000000             /* limit without progress of a body, or for a server to apply it */
#define PULL_BYTES_PER_US 8           /* slowest link for pulls */

const char *const clime_way_names[] = {
    [CLIME_BY_HTTP] = "over HTTP",
    [CLIME_BY_IPC] = "by a copy from the trainer's device memory",
    [CLIME_BY_NCCL] = "by broadcast in a group of the two",
    [CLIME_BY_SHARE] = "in place: the trainer's own memory, nothing is copied",
    [CLIME_BY_PULL] = "in packets that it pulls",
};

const char *const clime_push_writing_body = "{\"mode\":\"writing\"}";

void clime_push_body(struct clime_push *p) {
    if (p->sha256[0]) return;
    if (!p->flat) p->flat = p->host(p->arg);
    struct clime_weights_source from = clime_weights_in_host(p->flat);
    CHECK(!clime_weights_sha256(&p->model->layout, &from, 0, p->sha256, NULL)); /* from host memory */
}

enum clime_err clime_push_export(struct clime_push *p, struct clime_error *e) {
    if (p->exported) return CLIME_OK;
    if (!p->model->ring) clime_push_checksum(p);
    enum clime_err rc = p->model->ring ? p->locate(p->arg, &p->parts, e) : clime_model_show(p->model, 0, &p->card, e);
    p->exported = rc == CLIME_OK;
    return rc;
}

void clime_push_checksum(struct clime_push *p) {
    const struct clime_model *m = p->model;
    CHECK(!m->ring);
    if (!p->checksum) p->checksum = m->ops->checksum(m->dev, 0, clime_model_bytes(m), m->flat);
}

enum clime_err clime_push_packets(struct clime_push *p, struct clime_error *e) {
    if (p->packed) return CLIME_OK;
    if (!p->flat) p->flat = p->host(p->arg);
    enum clime_err rc = clime_source_publish(p->source, &p->model->layout, p->version, p->flat, e);
    p->packed = rc == CLIME_OK;
    return rc;
}

static int64_t read_weights(void *arg, void *out, size_t size) {
    return clime_weights_writer_read(((struct clime_push_call *)arg)->writer, out, size);
}

static bool stopped(void *arg) {
    const struct clime_push_call *c = arg;
    return c->stop && atomic_load(c->stop);
}

enum clime_err clime_push_read_label(const char *url, struct clime_str reply, struct clime_push_label *out,
                                     struct clime_error *e) {
    struct clime_arena a;
    struct clime_error je = {0};
    struct clime_json j;
    struct clime_str key, now = {0}, before = {0}, instance = {0};
    enum clime_err rc = CLIME_OK;
    clime_arena_init(&a, MAX_REPLY);
    clime_json_init(&j, reply.ptr, reply.len, &a, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "weight_version"))
            clime_json_string(&j, &now);
        else if (clime_str_is(key, "previous_version") && clime_json_peek(&j) == CLIME_JSON_STRING)
            clime_json_string(&j, &before);
        else if (clime_str_is(key, "instance") && clime_json_peek(&j) == CLIME_JSON_STRING)
            clime_json_string(&j, &instance);
        else
            clime_json_skip(&j, NULL);
    }
    if (!clime_json_end(&j)) rc = clime_fail(e, CLIME_ERR_INTERNAL, "%s/get_weight_version: %s", url, je.msg);
    if (rc) now = before = instance = (struct clime_str){0};
    clime_label_copy(out->now, now);
    clime_label_copy(out->before, before);
    snprintf(out->instance, sizeof out->instance, CLIME_STR_FMT, CLIME_STR_ARG(instance));
    clime_arena_free(&a);
    return rc;
}

static void make_body(const struct clime_push *p, const char *url, struct clime_push_call *out) {
    const char *inflight = p->keep_kv ? "keep" : "recompute";
    out->url = xasprintf("%s/weights/%s?inflight=%s", url, p->label, inflight);
    out->writer = clime_weights_writer_new(&p->model->layout, p->flat);
    snprintf(out->sha, sizeof out->sha, "X-Clime-Weights-SHA256: %s", p->sha256);
    out->headers[0] = out->sha;
    out->call = (struct clime_http_call){.method = "PUT",
                                         .content_type = "application/octet-stream",
                                         .headers = out->headers,
                                         .stall_us = STALL_US,
                                         .read_body = read_weights,
                                         .body_length = clime_weights_writer_length(out->writer),
                                         .cancel = stopped,
                                         .arg = out};
}

static void put_handle(struct clime_buf *b, const char *before, const uint8_t handle[CLIME_SHARE_BYTES]) {
    clime_buf_adds(b, before);
    for (int i = 0; i < CLIME_SHARE_BYTES; i++) clime_buf_printf(b, "%02x", handle[i]);
    clime_buf_adds(b, "\"");
}

/* Sharded version: each of the server's devices copies the parts it needs. */
static void put_parts(struct clime_buf *b, const struct clime_weight_parts *p) {
    clime_buf_printf(b, "\"checksum\":\"%016" PRIx64 "\",\"handles\":[", p->checksum);
    for (int r = 0; r < p->n_handles; r++) put_handle(b, r ? ",\"" : "\"", p->handles[r]);
    clime_buf_adds(b, "],\"ranges\":[");
    for (int i = 0; i < p->n_ranges; i++) {
        const struct clime_range *r = &p->ranges[i];
        clime_buf_printf(b, "%s[%d,%" PRId64 ",%" PRId64 ",%" PRId64 "]", i ? "," : "", r->rank, r->lo, r->hi, r->at);
    }
    clime_buf_adds(b, "]}");
}

static void make_handle(const struct clime_push *p, enum clime_way way, const char *url,
                        const struct clime_model_card *owners, int n_owners, struct clime_push_call *out) {
    struct clime_buf *b = &out->body;
    out->url = xasprintf("%s" CLIME_PUSH_IPC_PATH, url);
    out->call = (struct clime_http_call){.method = "POST"};
    clime_buf_init(b, MAX_HANDLES);
    clime_buf_printf(b, "{\"mode\":\"%s\",\"weight_version\":\"%s\",\"dtype\":\"%s\",",
                     way == CLIME_BY_SHARE ? "share" : "copy", p->label,
                     p->model->layout.type == CLIME_BF16 ? "bf16" : "f32");
    clime_buf_printf(b, "\"layout\":\"%016" PRIx64 "\",", p->model->handover);
    if (p->keep_kv) clime_buf_adds(b, "\"flush_cache\":false,");
    if (way == CLIME_BY_IPC && p->model->ring) {
        put_parts(b, &p->parts);
    } else {
        if (way == CLIME_BY_IPC) clime_buf_printf(b, "\"checksum\":\"%016" PRIx64 "\",", p->checksum);
        clime_buf_printf(b, "\"device_unit\":\"%s\",", owners->unit);
        clime_buf_adds(b, n_owners > 1 ? "\"handles\":[" : "\"handle\":");
        for (int r = 0; r < n_owners; r++) put_handle(b, r ? ",\"" : "\"", owners[r].handle);
        clime_buf_adds(b, n_owners > 1 ? "]}" : "}");
    }
    CHECK(!b->full);
    out->call.body = clime_buf_str(b);
}

/* The time limit covers all packets it may fetch. */
static void make_request(const struct clime_push *p, const char *url, const char *relay, struct clime_push_call *out) {
    int64_t limit_us = STALL_US + (int64_t)(clime_source_bytes(p->source) / PULL_BYTES_PER_US);
    out->url = xasprintf("%s/pull_weights", url);
    clime_source_body(p->source, p->version, p->label, relay, p->keep_kv, limit_us, &out->body);
    out->call = (struct clime_http_call){.method = "POST",
                                         .body = clime_buf_str(&out->body),
                                         .timeout_us = limit_us + STALL_US,
                                         .cancel = stopped,
                                         .arg = out};
}

void clime_push_call_make(const struct clime_push *p, enum clime_way way, const char *url, const char *relay,
                          const struct clime_model_card *owners, int n_owners, const atomic_bool *stop,
                          struct clime_push_call *out) {
    CHECK(way != CLIME_BY_NCCL);
    *out = (struct clime_push_call){.stop = stop};
    if (way == CLIME_BY_PULL) {
        CHECK(p->packed);
        make_request(p, url, relay, out);
    } else if (way == CLIME_BY_HTTP) {
        CHECK(p->sha256[0]);
        make_body(p, url, out);
    } else {
        const bool share = way == CLIME_BY_SHARE;
        CHECK(share ? owners != NULL : p->exported);
        make_handle(p, way, url, share ? owners : &p->card, share ? n_owners : 1, out);
    }
    out->call.url = out->url;
    if (!out->call.timeout_us) out->call.timeout_us = p->timeout_us;
    out->call.max_reply = MAX_REPLY;
}

void clime_push_call_free(struct clime_push_call *c) {
    clime_weights_writer_free(c->writer);
    clime_buf_free(&c->body);
    free(c->url);
    *c = (struct clime_push_call){0};
}
