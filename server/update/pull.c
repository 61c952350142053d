/* POST /pull_weights: updates to a version by packets from listed sources; GET /weight_packets/{id}: relays pulled
 * packets to others. HTTP workers, under the update lock except the second.
 *
 * Uses the chain of deltas from the served version if the weights match it bit for bit; else the newest whole version
 * and its successors, fetching only blocks it does not have. Works on a copy of the weights in staging memory and swaps
 * it in like any other update. Invariant: new weights match the checksums of the manifest whose hash the request names;
 * any error leaves the old version serving.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/os/roots.h"
#include "common/thread/threadpool.h"
#include "kernels/finite.h"
#include "model/packet/shelf.h"
#include "server/job/fields.h"
#include "server/server_metrics.h"
#include "server/update/fetch.h"
#include "server/update/weight_update.h"

#define ARENA_BYTES ((size_t)1 << 20)
#define READ_BYTES ((size_t)8 << 20) /* of current weights, between two steps */
#define MAX_PACKETS 256
#define MAX_VERSION ((int64_t)1 << 53)

struct step { /* a packet in the request */
    int64_t version, base;
    struct clime_str hex; /* its id */
    uint8_t id[CLIME_PACKET_ID];
};

struct pull_request {
    int64_t version;
    struct clime_str label; /* the version's label; empty: its number */
    struct step packets[MAX_PACKETS];
    int n_packets;
    struct clime_str sources[CLIME_FETCH_SOURCES];
    int n_sources;
    double timeout, stall; /* seconds */
    bool abort_all, flush_cache;
    struct clime_field_watch *watch; /* for members of packets */
};

struct pull {
    struct clime_server *s;
    struct clime_http_request *rq;
    const struct pull_request *r;
    struct clime_packet_shape shape;
    struct clime_fetch fetch;
    uint8_t *staging; /* host memory that packets are applied to */
    uint64_t *sums;   /* of staging; NULL = no current weights and nothing applied */
    int64_t label;    /* number at the start of the current label, a candidate version; -1 = none */
    bool is_here;     /* the requested version is already current */
    int n_applied;
    struct clime_packet *got[MAX_PACKETS]; /* [n_got] to be relayed on success */
    int n_got;
};

/* ---- the body ---------------------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct pull_request, field)
static const struct clime_field no_others[] = {{NULL, NULL}};

static void read_packet(struct clime_json *j, struct pull_request *r) {
    static const struct clime_member rows[] = {
        {"version", CLIME_MEMBER_INT, offsetof(struct step, version), .min = 0, .max = (double)MAX_VERSION},
        {"base", CLIME_MEMBER_INT, offsetof(struct step, base), .min = 0, .max = (double)MAX_VERSION},
        {"id", CLIME_MEMBER_STRING, offsetof(struct step, hex)},
    };
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_fields fields = {.where = "packets", .rows = {no_others}, .read = {&members}};
    struct clime_str key;
    struct step p = {.version = -1, .base = -1};
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (!clime_members_read(&members, j, key, &p)) clime_fields_other(&fields, r->watch, j, key);
    if (p.version < 0 || p.version == p.base || !clime_packet_unhex(p.hex, p.id))
        clime_json_bad(j, "a packet has a version, another one as base or none, and an id of 64 hex digits");
    else if (r->n_packets == MAX_PACKETS)
        clime_json_bad(j, "more packets than a chain may have");
    else
        r->packets[r->n_packets++] = p;
}

static void read_source(struct clime_json *j, struct pull_request *r) {
    struct clime_str text = {"", 0};
    clime_json_string(j, &text);
    bool url = clime_str_starts(text, "http://") || clime_str_starts(text, "https://");
    if ((!url && !clime_str_starts(text, "/")) || memchr(text.ptr, 0, text.len))
        clime_json_bad(j, "a source is an http:// or https:// URL, or the full path of a folder");
    else if (r->n_sources == CLIME_FETCH_SOURCES)
        clime_json_bad(j, "more sources than can be used");
    else
        r->sources[r->n_sources++] = text;
}

static bool read_packets(struct clime_json *j, void *request) {
    for (clime_json_array(j); clime_json_item(j);) read_packet(j, request);
    return !j->failed;
}

static bool read_source_list(struct clime_json *j, void *request) {
    for (clime_json_array(j); clime_json_item(j);) read_source(j, request);
    return !j->failed;
}

static enum clime_err read_body(struct clime_server *s, struct clime_http_request *rq, struct clime_arena *a,
                                struct pull_request *r, struct clime_error *e) {
    static const struct clime_member rows[] = {
        {"version", CLIME_MEMBER_INT, AT(version), .min = 0, .max = (double)MAX_VERSION},
        {"weight_version", CLIME_MEMBER_STRING, AT(label)},
        {"packets", CLIME_MEMBER_CALL, .read = read_packets},
        {"sources", CLIME_MEMBER_CALL, .read = read_source_list},
        {"timeout", CLIME_MEMBER_DOUBLE, AT(timeout), .min = 0.001, .max = 86400},
        {"stall_timeout", CLIME_MEMBER_DOUBLE, AT(stall), .min = 0.001, .max = 86400},
        {"abort_all_requests", CLIME_MEMBER_BOOL, AT(abort_all)},
        {"flush_cache", CLIME_MEMBER_BOOL, AT(flush_cache)},
    };
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_fields fields = {.where = "/pull_weights", .rows = {no_others}, .read = {&members}};
    *r =
        (struct pull_request){.version = -1, .timeout = 600, .stall = 10, .flush_cache = true, .watch = s->field_watch};
    if (clime_fields_read(&fields, s->field_watch, clime_http_body(rq), a, r, e)) return e->code;
    if (r->version < 0 || !r->n_packets || !r->n_sources)
        return clime_fail(e, CLIME_ERR_INPUT, "version, packets and sources are required");
    return r->label.len ? clime_update_label(r->label, e) : CLIME_OK;
}

static enum clime_err read_sources(struct pull *p, struct clime_arena *a, struct clime_error *e) {
    const struct clime_server_options *o = &p->s->opts;
    for (int i = 0; i < p->r->n_sources; i++) {
        char *text = clime_arena_strdup(a, p->r->sources[i]);
        if (!text) return clime_fail(e, CLIME_ERR_LIMIT, "the sources are too long");
        if (text[0] == '/' && clime_roots_check(o->file_roots.items, o->file_roots.n, text, e)) return e->code;
        for (size_t n = strlen(text); n > 1 && text[n - 1] == '/'; n--) text[n - 1] = 0;
        p->fetch.sources[p->fetch.n_sources++] = text;
    }
    return CLIME_OK;
}

/* ---- current weights ------------------------------------------------------------------------------------- */

/* Copies current weights, if any, to staging and computes checksums. */
static enum clime_err read_weights(struct pull *p, struct clime_error *e) {
    struct clime_engine *g = p->s->engine;
    size_t bytes = clime_model_bytes(p->s->model);
    char *end;
    if (!(p->staging = clime_update_staging(p->s, e))) return e->code;
    p->label = -1;
    if (!clime_engine_has_weights(g)) return CLIME_OK;
    for (size_t at = 0; at < bytes; at += READ_BYTES) {
        size_t n = bytes - at < READ_BYTES ? bytes - at : READ_BYTES;
        if (clime_engine_read_weights(g, at, n, p->staging + at, e)) return e->code;
    }
    const char *label = clime_engine_version(g)->name;
    int64_t version = label[0] >= '0' && label[0] <= '9' ? strtoll(label, &end, 10) : -1;
    if (version >= 0 && (!*end || *end == '@')) p->label = version;
    p->sums = xcalloc((size_t)clime_packet_n_blocks(&p->shape), sizeof *p->sums);
    struct clime_pool *pool = clime_pool_new(1);
    clime_packet_sums(pool, &p->shape, p->staging, p->sums);
    clime_pool_free(pool);
    return CLIME_OK;
}

static bool has_base(const struct pull *p, const struct clime_packet *x) {
    for (int i = 0; i < x->n_blocks; i++)
        if (x->blocks[i].base_sum != p->sums[i]) return false;
    return true;
}

/* ---- the path -------------------------------------------------------------------------------------------- */

/* Finds deltas from version `from` to the requested one: fills way[], returns how many; -1: none. */
static int find_deltas(const struct pull_request *r, int64_t from, const struct step **way) {
    int n = 0;
    for (int64_t at = from; at != r->version;) {
        int i = 0;
        while (i < r->n_packets && r->packets[i].base != at) i++;
        if (i == r->n_packets || n == MAX_PACKETS - 1) return -1;
        way[n++] = &r->packets[i];
        at = r->packets[i].version;
    }
    return n;
}

/* Finds the shortest path that begins with a whole version. */
static int find_whole(const struct pull_request *r, const struct step **way) {
    const struct step *rest[MAX_PACKETS];
    int best = -1;
    for (int i = 0; i < r->n_packets; i++) {
        if (r->packets[i].base >= 0) continue;
        int n = find_deltas(r, r->packets[i].version, rest);
        if (n < 0 || (best >= 0 && n + 1 >= best)) continue;
        way[0] = &r->packets[i];
        memcpy(way + 1, rest, (size_t)n * sizeof *rest);
        best = n + 1;
    }
    return best;
}

/* Fetches a packet's blocks; for a whole version only those that differ from the current weights. */
static enum clime_err take_blocks(struct pull *p, struct clime_packet *x, struct clime_error *e) {
    bool *needed = xcalloc((size_t)x->n_blocks, sizeof *needed), all = true;
    for (int i = 0; i < x->n_blocks; i++) {
        needed[i] = x->base >= 0 || !p->sums || x->blocks[i].result_sum != p->sums[i];
        all = all && needed[i];
    }
    bool keep = all && clime_packet_bytes(x) <= (uint64_t)p->s->opts.relay_bytes; /* fits the shelf */
    enum clime_err rc = clime_fetch_blocks(&p->fetch, x, needed, keep, p->staging, e);
    free(needed);
    if (!rc) p->n_applied++;
    if (!p->sums) p->sums = xcalloc((size_t)x->n_blocks, sizeof *p->sums);
    for (int i = 0; i < x->n_blocks && !rc; i++) p->sums[i] = x->blocks[i].result_sum;
    if (!rc && keep)
        p->got[p->n_got++] = x;
    else
        clime_packet_free(x);
    return rc;
}

/* CLIME_ERR_NOT_FOUND: the current weights are not the path's base; nothing was applied. */
static enum clime_err follow(struct pull *p, const struct step *const *way, int n, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < n && !rc; i++) {
        struct clime_packet *x;
        if ((rc = clime_fetch_manifest(&p->fetch, way[i]->id, &p->shape, &x, e))) break;
        if (x->version != way[i]->version || x->base != way[i]->base)
            rc = clime_fail(e, CLIME_ERR_INPUT, "the packet to version %" PRId64 " leads from %" PRId64 " to %" PRId64,
                            way[i]->version, x->base, x->version);
        else if (x->base >= 0 && !has_base(p, x)) /* unchanged blocks must match too */
            rc = clime_fail(e, i ? CLIME_ERR_INPUT : CLIME_ERR_NOT_FOUND, "version %" PRId64 " is not %s, bit for bit",
                            x->base, i ? "what the packet before leads to" : "here");
        if (!rc)
            rc = take_blocks(p, x, e);
        else
            clime_packet_free(x);
    }
    return rc;
}

/* Checks whether the current bits are the requested version's, under any label. */
static enum clime_err look_whether_here(struct pull *p, struct clime_error *e) {
    struct clime_packet *x;
    int i = 0;
    while (i < p->r->n_packets && p->r->packets[i].version != p->r->version) i++;
    if (!p->sums || i == p->r->n_packets) return CLIME_OK;
    enum clime_err rc = clime_fetch_manifest(&p->fetch, p->r->packets[i].id, &p->shape, &x, e);
    if (rc) return rc;
    p->is_here = true;
    for (int k = 0; k < x->n_blocks; k++) p->is_here = p->is_here && x->blocks[k].result_sum == p->sums[k];
    clime_packet_free(x);
    return CLIME_OK;
}

static enum clime_err take_packets(struct pull *p, struct clime_error *e) {
    const struct step *way[MAX_PACKETS];
    int n = p->sums && p->label >= 0 ? find_deltas(p->r, p->label, way) : -1;
    enum clime_err rc = n > 0 ? follow(p, way, n, e) : CLIME_ERR_NOT_FOUND;
    if (rc != CLIME_ERR_NOT_FOUND) return rc;
    if (n > 0) LOG_INFO("pulling weights: %s; a whole version is taken", e->msg);
    rc = look_whether_here(p, e);
    if (rc || p->is_here) return rc;
    n = find_whole(p->r, way);
    if (n < 0)
        return clime_fail(e, CLIME_ERR_INPUT, "no packets lead from what is in force (\"%s\") to version %" PRId64,
                          clime_engine_version(p->s->engine)->name, p->r->version);
    return follow(p, way, n, e);
}

/* ---- swapping in ----------------------------------------------------------------------------------------- */

static enum clime_err check_finite(const struct pull *p, struct clime_error *e) {
    const struct clime_layout *l = &p->s->model->layout;
    for (int i = 0; i < l->n_slices; i++) {
        const struct clime_slice *t = &l->slices[i];
        if (!clime_all_finite(t->type, (size_t)t->n, p->staging + t->offset))
            return clime_weights_not_finite(t->name, e);
    }
    return CLIME_OK;
}

static bool nobody_waits(void *arg) {
    struct pull *p = arg;
    return clime_http_peer_gone(p->rq) || clime_http_stopping(p->rq);
}

static enum clime_err pull(struct pull *p, struct clime_arena *a, int *n_inflight, struct clime_error *e) {
    const struct clime_model *m = p->s->model;
    const struct clime_server_options *o = &p->s->opts;
    int64_t now = clime_now_us();
    char label[CLIME_MAX_LABEL + 1];
    p->shape = clime_packet_shape_of(&m->layout);
    p->fetch = (struct clime_fetch){.bearer = o->admin_api_key ? o->admin_api_key : o->api_key,
                                    .deadline_us = now + (int64_t)(p->r->timeout * 1e6),
                                    .stall_us = (int64_t)(p->r->stall * 1e6),
                                    .cancel = nobody_waits,
                                    .arg = p,
                                    .http = clime_http_client_new()};
    enum clime_err rc = read_sources(p, a, e);
    if (!rc) rc = read_weights(p, e);
    if (!rc) rc = take_packets(p, e);
    if (!rc) rc = check_finite(p, e);
    clime_http_client_free(p->fetch.http);
    if (p->r->label.len)
        snprintf(label, sizeof label, CLIME_STR_FMT, CLIME_STR_ARG(p->r->label));
    else
        snprintf(label, sizeof label, "%" PRId64, p->r->version);
    struct clime_weight_source from = {.kind = CLIME_FROM_HOST, .flat = p->staging};
    if (!rc && !(p->is_here && !strcmp(clime_engine_version(p->s->engine)->name, label)))
        rc = clime_engine_update(p->s->engine, &from, label, clime_update_inflight(p->r->abort_all, p->r->flush_cache),
                                 n_inflight, e);
    for (int i = 0; i < p->n_got; i++) {
        if (rc)
            clime_packet_free(p->got[i]);
        else
            clime_shelf_put(p->s->update->shelf, p->got[i]);
    }
    free(p->sums);
    clime_update_staging_free(p->s, p->staging);
    return rc;
}

/* True when a packet to this version can be relayed. */
static bool relays(const struct pull *p) {
    bool has = false;
    for (int i = 0; i < p->r->n_packets; i++)
        has = has ||
              (p->r->packets[i].version == p->r->version && clime_shelf_has(p->s->update->shelf, p->r->packets[i].id));
    return has;
}

static void reply(struct clime_http_request *rq, const struct pull *p, int n_inflight) {
    struct clime_buf body;
    struct clime_jw w;
    clime_buf_init(&body, 8192);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    clime_jw_put_bool(&w, "success", true);
    clime_jw_put_strz(&w, "message", "Weights pulled and in force.");
    clime_jw_put_strz(&w, "weight_version", clime_engine_version(p->s->engine)->name);
    clime_jw_put_int(&w, "num_paused_requests", n_inflight);
    clime_jw_put_int(&w, "packets", p->n_applied);
    clime_jw_put_int(&w, "pulled_bytes", (int64_t)p->fetch.n_bytes);
    clime_jw_put_int(&w, "sources_failed", p->fetch.n_turned);
    clime_jw_put_bool(&w, "relays", relays(p));
    clime_jw_close(&w);
    clime_reply_buf(rq, 200, &body);
}

void clime_handle_pull_weights(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct pull_request *r = xcalloc(1, sizeof *r); /* the worker's stack is too small for it */
    struct pull *p = xcalloc(1, sizeof *p);
    struct clime_arena a;
    struct clime_error e = {0};
    int n_inflight = 0;
    int64_t t0 = clime_now_us();
    p->s = s;
    p->rq = rq;
    p->r = r;
    clime_arena_init(&a, ARENA_BYTES);
    enum clime_err err = read_body(s, rq, &a, r, &e);
    if (!err && !(err = clime_update_lock(s->update, rq, &e))) {
        err = pull(p, &a, &n_inflight, &e);
        if (!err) {
            s->update->last.hex[0] = '\0';
            clime_incoming_forget(s->update);
        }
        clime_update_unlock(s->update);
    }
    if (err) {
        LOG_WARN("weights were not pulled: %s", e.msg);
        clime_http_reply_err(rq, &e);
    } else {
        int64_t us = clime_now_us() - t0;
        clime_server_metrics_load_time(s->metrics, (double)us / 1e6);
        LOG_INFO("weights of version %" PRId64 " pulled from %s: %d packets, %" PRIu64 " bytes, %.3f s", r->version,
                 p->fetch.sources[p->fetch.at], p->n_applied, p->fetch.n_bytes, (double)us / 1e6);
        reply(rq, p, n_inflight);
    }
    clime_arena_free(&a);
    free(p);
    free(r);
}

void clime_handle_weight_packets(struct clime_http_request *rq, void *context) {
    clime_shelf_serve(((struct clime_server *)context)->update->shelf, rq);
}
