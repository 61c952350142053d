/* PUT /weights/{version} and POST /update_weights_from_disk. HTTP workers; the handler owns the staging memory while it
 * runs.
 *
 * Invariant: the engine sees weights only after the whole body is read, every tensor's shape is checked and the hash
 * matches; any error leaves the old version serving.
 */
#include "server/update/weight_update.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/os/roots.h"
#include "model/packet/shelf.h"
#include "server/job/fields.h"
#include "server/server_metrics.h"

#define PIECE_BYTES ((size_t)256 << 10)
#define RELAYED_DELTAS 64

void clime_weight_update_init(struct clime_weight_update *u, int64_t relay_bytes) {
    *u = (struct clime_weight_update){.shelf = clime_shelf_new(RELAYED_DELTAS, (uint64_t)relay_bytes)};
    pthread_mutex_init(&u->lock, NULL);
}

void clime_transfer_free(struct clime_transfer *t) {
    free(t->names);
    free(t->dtypes);
    free(t->shapes);
    *t = (struct clime_transfer){0};
}

void clime_weight_update_free(struct clime_weight_update *u) {
    if (u->dev) {
        clime_update_groups_close(u);
        u->ops->close(u->dev);
    }
    clime_transfer_free(&u->transfer);
    clime_shelf_free(u->shelf);
    free(u->snapshot);
    free(u->kept);
    pthread_mutex_destroy(&u->lock);
}

/* ---- over HTTP --------------------------------------------------------------------------------------------- */

/* The weights' hash is computed from staging by all cores; a body's is one serial chain, some 1 GB/s. */
static enum clime_err check_sha(const struct clime_model *m, const void *staging, const struct clime_put_sha *said,
                                struct clime_sha256 *body, struct clime_error *e) {
    char hex[65];
    if (said->of_weights) {
        struct clime_weights_source from = clime_weights_in_host(staging);
        CHECK(!clime_weights_sha256(&m->layout, &from, 0, hex, e)); /* cannot fail from host memory */
    } else {
        uint8_t digest[32];
        clime_sha256_done(body, digest);
        clime_sha256_hex(digest, hex);
    }
    if (strcmp(hex, said->hex) == 0) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "the %s SHA-256 is %s, the header says %s",
                      said->of_weights ? "weights'" : "body's", hex, said->hex);
}

static enum clime_err read_body(struct clime_server *s, struct clime_http_request *rq, void *staging,
                                const struct clime_put_sha *said, struct clime_error *e) {
    struct clime_model *m = s->model;
    struct clime_weights_reader *r = clime_weights_reader_new(&m->cfg, &m->layout, staging);
    char *piece = xmalloc(PIECE_BYTES); /* the worker's stack is too small for it */
    struct clime_sha256 sha;
    enum clime_err err = CLIME_OK;
    int64_t n;
    clime_sha256_init(&sha);
    while (!err && (n = clime_http_body_read(rq, piece, PIECE_BYTES)) != 0) {
        if (n < 0) {
            err = clime_fail(e, CLIME_ERR_INPUT, "the body broke off");
            break;
        }
        if (!said->of_weights) clime_sha256_add(&sha, piece, (size_t)n);
        err = clime_weights_reader_feed(r, piece, (size_t)n, e);
    }
    if (!err) err = clime_weights_reader_done(r, e);
    if (!err) err = check_sha(m, staging, said, &sha, e);
    clime_weights_reader_free(r);
    free(piece);
    return err;
}

static enum clime_err read_inflight(struct clime_http_request *rq, enum clime_inflight *out, struct clime_error *e) {
    static const char *const names[] = {
        [CLIME_INFLIGHT_KEEP] = "keep", [CLIME_INFLIGHT_RECOMPUTE] = "recompute", [CLIME_INFLIGHT_ABORT] = "abort"};
    char text[32];
    *out = CLIME_INFLIGHT_RECOMPUTE;
    bool given;
    if (clime_http_query(rq, "inflight", text, sizeof text, &given, e)) return e->code;
    if (!given) return CLIME_OK;
    for (int i = 0; i < (int)CLIME_COUNT(names); i++) {
        if (!clime_str_is(clime_str_of(text), names[i])) continue;
        *out = (enum clime_inflight)i;
        return CLIME_OK;
    }
    return clime_fail(e, CLIME_ERR_INPUT, "inflight must be keep, recompute or abort");
}

static enum clime_err read_sha(struct clime_http_request *rq, struct clime_put_sha *out, struct clime_error *e) {
    const char *of_body = clime_http_header(rq, "X-Clime-SHA256");
    const char *of_weights = clime_http_header(rq, "X-Clime-Weights-SHA256");
    const char *given = of_weights ? of_weights : of_body;
    if (of_body && of_weights)
        return clime_fail(e, CLIME_ERR_INPUT, "of the headers X-Clime-SHA256 and X-Clime-Weights-SHA256 one is enough");
    if (!given || strlen(given) != 64 || strspn(given, "0123456789abcdefABCDEF") != 64)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "the header X-Clime-SHA256 must hold the body's SHA-256 in hex, or X-Clime-Weights-SHA256 the "
            "weights'");
    out->of_weights = of_weights != NULL;
    for (int i = 0; i <= 64; i++) out->hex[i] = (char)(given[i] >= 'A' && given[i] <= 'F' ? given[i] + 32 : given[i]);
    return CLIME_OK;
}

static enum clime_err put_weights(struct clime_server *s, struct clime_http_request *rq, const char *label,
                                  const struct clime_put_sha *sha, enum clime_inflight inflight, int *n_inflight,
                                  struct clime_error *e) {
    void *staging = clime_update_staging(s, e);
    if (!staging) return e->code;
    enum clime_err err = read_body(s, rq, staging, sha, e);
    struct clime_weight_source from = {.kind = CLIME_FROM_HOST, .flat = staging};
    if (!err) err = clime_engine_update(s->engine, &from, label, inflight, n_inflight, e);
    clime_update_staging_free(s, staging);
    return err;
}

/* True when the current version is the one being sent again. */
static bool holds(struct clime_server *s, const char *label, const struct clime_put_sha *sha) {
    const struct clime_put_sha *last = &s->update->last;
    return last->of_weights == sha->of_weights && strcmp(last->hex, sha->hex) == 0 &&
           clime_engine_has_weights(s->engine) && strcmp(clime_engine_version(s->engine)->name, label) == 0;
}

void clime_handle_put_weights(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    struct clime_str param = clime_http_param(rq);
    enum clime_inflight inflight;
    struct clime_put_sha sha;
    char label[CLIME_MAX_LABEL + 1];
    int n_inflight = 0;
    int64_t t0 = clime_now_us();
    if (clime_update_label(param, &e) || read_sha(rq, &sha, &e) || read_inflight(rq, &inflight, &e) ||
        clime_update_lock(s->update, rq, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    snprintf(label, sizeof label, CLIME_STR_FMT, CLIME_STR_ARG(param));
    bool held = holds(s, label, &sha);
    enum clime_err err = held ? CLIME_OK : put_weights(s, rq, label, &sha, inflight, &n_inflight, &e);
    if (!err) {
        s->update->last = sha;
        clime_incoming_forget(s->update); /* older than these: /continue_generation must not apply it */
    }
    clime_update_unlock(s->update);
    if (err) {
        LOG_WARN("weights \"%s\" refused: %s", label, e.msg);
        clime_http_reply_err(rq, &e);
        return;
    }
    if (!held) clime_server_metrics_load_time(s->metrics, (double)(clime_now_us() - t0) / 1e6);
    clime_update_reply(rq, held ? "This version is already in force." : "Weights updated.", label, n_inflight);
}

/* ---- from a folder ----------------------------------------------------------------------------------------- */

struct disk_request {
    struct clime_str path, version; /* as in the body */
    char *model_path;
    char label[CLIME_MAX_LABEL + 1]; /* "" = keep the label */
    bool abort_all, flush_cache;
};

#define AT(field) offsetof(struct disk_request, field)

static const struct clime_member disk_rows[] = {
    {"model_path", CLIME_MEMBER_STRING, AT(path)},
    {"weight_version", CLIME_MEMBER_STRING, AT(version)},
    {"abort_all_requests", CLIME_MEMBER_BOOL, AT(abort_all)},
    {"flush_cache", CLIME_MEMBER_BOOL, AT(flush_cache)},
};
static const struct clime_members disk_members = {disk_rows, CLIME_COUNT(disk_rows)};
static const struct clime_field disk_others[] = {
    {"load_format", "\"auto\"|\"safetensors\""},
    {"manifest", NULL},
    {"is_async", CLIME_FIELD_INERT}, /* the way, not the result */
    {"torch_empty_cache", CLIME_FIELD_INERT},
    {"recapture_cuda_graph", CLIME_FIELD_INERT}, /* recorded graphs stay valid */
    {"keep_pause", CLIME_FIELD_INERT},           /* an update never ends a pause */
    {"token_step", CLIME_FIELD_INERT},           /* replies have each token's version */
    {NULL, NULL},
};
static const struct clime_fields disk_fields = {
    .where = "/update_weights_from_disk", .rows = {disk_others}, .read = {&disk_members}};

static enum clime_err parse_disk(struct clime_server *s, struct clime_http_request *rq, struct disk_request *d,
                                 struct clime_arena *a, struct clime_error *e) {
    if (clime_fields_read(&disk_fields, s->field_watch, clime_http_body(rq), a, d, e)) return e->code;
    if (d->path.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "model_path is missing");
    if (d->version.len > 0 && clime_update_label(d->version, e)) return e->code;
    d->model_path = clime_arena_strdup(a, d->path);
    if (!d->model_path || strlen(d->model_path) != d->path.len)
        return clime_fail(e, CLIME_ERR_INPUT, "model_path is not a path");
    snprintf(d->label, sizeof d->label, CLIME_STR_FMT, CLIME_STR_ARG(d->version));
    return CLIME_OK;
}

/* Weights are served with the configuration of the start: a folder with a different one is another model. Some trainers
 * write no configuration. */
static enum clime_err check_config(const char *dir, const struct clime_config *served, struct clime_error *e) {
    struct clime_config theirs;
    char *path = xasprintf("%s/config.json", dir);
    const bool there = !access(path, F_OK);
    free(path);
    if (!there) return CLIME_OK;
    enum clime_err err = clime_config_load(dir, &theirs, e);
    return err ? err : clime_config_compare(dir, &theirs, "the model that is served", served, e);
}

enum clime_err clime_update_from_folder(struct clime_server *s, const char *path, const char *label,
                                        enum clime_inflight inflight, int *n_inflight, struct clime_error *e) {
    struct clime_model *m = s->model;
    if (!label[0]) label = clime_engine_version(s->engine)->name;
    if (clime_roots_check(s->opts.file_roots.items, s->opts.file_roots.n, path, e) || check_config(path, &m->cfg, e))
        return e->code;
    void *staging = clime_update_staging(s, e);
    if (!staging) return e->code;
    enum clime_err err = clime_weights_import(path, &m->cfg, &m->layout, staging, e);
    struct clime_weight_source from = {.kind = CLIME_FROM_HOST, .flat = staging};
    if (!err) err = clime_engine_update(s->engine, &from, label, inflight, n_inflight, e);
    if (!err) {
        s->update->last.hex[0] = '\0';
        clime_incoming_forget(s->update);
    }
    clime_update_staging_free(s, staging);
    return err;
}

void clime_handle_update_from_disk(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct disk_request d = {.flush_cache = true};
    struct clime_arena a;
    struct clime_error e = {0};
    int n_inflight = 0;
    int64_t t0 = clime_now_us();
    clime_arena_init(&a, (size_t)1 << 20);
    enum clime_err err = parse_disk(s, rq, &d, &a, &e);
    if (!err && !(err = clime_update_lock(s->update, rq, &e))) {
        err = clime_update_from_folder(s, d.model_path, d.label, clime_update_inflight(d.abort_all, d.flush_cache),
                                       &n_inflight, &e);
        clime_update_unlock(s->update);
    }
    if (err) {
        LOG_WARN("update from disk refused: %s", e.msg);
        clime_reply_success(rq, err == CLIME_ERR_BUSY ? err : CLIME_ERR_INPUT, e.msg);
    } else {
        char message[CLIME_MAX_LABEL + 100];
        clime_server_metrics_load_time(s->metrics, (double)(clime_now_us() - t0) / 1e6);
        if (d.label[0])
            snprintf(message, sizeof message, "Succeeded to update model weights. Weight version updated to %s.",
                     d.label);
        else
            snprintf(message, sizeof message, "Succeeded to update model weights.");
        clime_update_reply(rq, message, clime_engine_version(s->engine)->name, n_inflight);
    }
    clime_arena_free(&a);
}
