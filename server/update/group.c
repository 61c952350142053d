/* Weights by broadcast: /init_weights_update_group, /update_weights_from_distributed, /destroy_weights_update_group,
 * with SGLang's fields. HTTP workers, one at a time under the update lock.
 *
 * The group is NCCL's between GPUs, and sockets between CPUs (ops->comm_backend). Its id comes in the request, since a
 * torch store is not joined. Requests may bring the tensors in several parts: they gather in staging memory on the
 * device, and take effect together when the last is there.
 * Invariant: a wait for the sender has a limit, and after any error what had gathered is dropped: the old version
 * serves.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/server_metrics.h"
#include "server/update/weight_update.h"

#define ARENA_BYTES ((size_t)16 << 20)
#define MAX_WORLD 4096

struct group_request { /* slices of the body */
    struct clime_str name, backend, id, version, load_format, checksum;
    struct clime_str names_text, dtypes_text, shapes_text; /* the lists, read later */
    int64_t rank, world;
    double timeout;
    bool abort_all, flush_cache;
};

static enum clime_err read_body(struct clime_http_request *rq, struct clime_arena *a, struct group_request *r,
                                struct clime_error *e) {
    struct clime_json j;
    struct clime_str key, body = clime_http_body(rq);
    const struct {
        const char *name;
        struct clime_str *at;
        bool raw; /* a list, read later */
    } words[] = {{"group_name", &r->name, false},
                 {"backend", &r->backend, false},
                 {"nccl_id", &r->id, false},
                 {"weight_version", &r->version, false},
                 {"load_format", &r->load_format, false},
                 {"checksum", &r->checksum, false},
                 {"names", &r->names_text, true},
                 {"dtypes", &r->dtypes_text, true},
                 {"shapes", &r->shapes_text, true}};
    *r = (struct group_request){.name = clime_str_of("weight_update_group"),
                                .backend = clime_str_of("nccl"),
                                .rank = -1,
                                .world = -1,
                                .timeout = 60,
                                .flush_cache = true};
    clime_json_init(&j, body.ptr, body.len, a, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        size_t i = 0;
        while (i < CLIME_COUNT(words) && !clime_str_is(key, words[i].name)) i++;
        if (clime_json_peek(&j) == CLIME_JSON_NULL)
            clime_json_null(&j);
        else if (i < CLIME_COUNT(words) && words[i].raw)
            clime_json_skip(&j, words[i].at);
        else if (i < CLIME_COUNT(words))
            clime_json_string(&j, words[i].at);
        else if (clime_str_is(key, "rank_offset"))
            clime_json_int(&j, 1, MAX_WORLD - 1, &r->rank);
        else if (clime_str_is(key, "world_size"))
            clime_json_int(&j, 2, MAX_WORLD, &r->world);
        else if (clime_str_is(key, "timeout"))
            clime_json_double(&j, &r->timeout);
        else if (clime_str_is(key, "abort_all_requests"))
            clime_json_bool(&j, &r->abort_all);
        else if (clime_str_is(key, "flush_cache"))
            clime_json_bool(&j, &r->flush_cache);
        else
            clime_json_skip(&j, NULL);
    }
    if (!clime_json_end(&j)) return e->code;
    if (r->name.len == 0 || r->name.len >= sizeof((struct clime_update_group *)0)->name)
        return clime_fail(e, CLIME_ERR_INPUT, "group_name has 1 to 63 bytes");
    if (!(r->timeout > 0 && r->timeout <= 3600))
        return clime_fail(e, CLIME_ERR_INPUT, "timeout must be above 0 and at most 3600 seconds");
    return CLIME_OK;
}

static struct clime_update_group *find_group(struct clime_weight_update *u, struct clime_str name) {
    for (int i = 0; i < CLIME_MAX_GROUPS; i++)
        if (clime_str_is(name, u->groups[i].name)) return &u->groups[i];
    return NULL;
}

static void drop_incoming(struct clime_weight_update *u) {
    if (u->incoming) u->ops->free(u->dev, u->incoming);
    free(u->have);
    u->incoming = NULL;
    u->have = NULL;
    u->n_have = 0;
}

static void close_group(struct clime_weight_update *u, struct clime_update_group *g) {
    u->ops->comm_close(g->comm);
    *g = (struct clime_update_group){0};
}

void clime_update_groups_close(struct clime_weight_update *u) {
    drop_incoming(u);
    for (int i = 0; i < CLIME_MAX_GROUPS; i++)
        if (u->groups[i].name[0]) close_group(u, &u->groups[i]);
}

/* A sender that is gone without a word must not keep the next one out for ever, so the oldest makes room; everybody
 * is told. */
static struct clime_update_group *make_room(struct clime_weight_update *u, const char *for_whom) {
    LOG_WARN("the update group \"%s\", the oldest of %d, is closed to make room for \"%s\"; groups that are done "
             "with are to be destroyed (/destroy_weights_update_group)",
             u->groups[0].name, CLIME_MAX_GROUPS, for_whom);
    memcpy(u->evicted, u->groups[0].name, sizeof u->evicted);
    close_group(u, &u->groups[0]);
    memmove(&u->groups[0], &u->groups[1], sizeof u->groups - sizeof u->groups[0]);
    struct clime_update_group *g = &u->groups[CLIME_MAX_GROUPS - 1];
    *g = (struct clime_update_group){0};
    return g;
}

static enum clime_err no_group(const struct clime_weight_update *u, struct clime_str name, struct clime_error *e) {
    bool evicted = name.len > 0 && clime_str_is(name, u->evicted);
    return clime_fail(e, CLIME_ERR_INPUT, "there is no group \"" CLIME_STR_FMT "\"%s", CLIME_STR_ARG(name),
                      evicted ? ": it was the oldest and made room for another" : "");
}

/* ---- the group --------------------------------------------------------------------------------------------- */

static enum clime_err join_group(struct clime_server *s, const struct group_request *r, const uint8_t *id,
                                 bool *evicted, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    struct clime_comm_wait wait = {.limit_us = (int64_t)(r->timeout * 1e6)};
    struct clime_dev *dev;
    if (find_group(u, r->name))
        return clime_fail(e, CLIME_ERR_INPUT, "the group \"" CLIME_STR_FMT "\" is there already",
                          CLIME_STR_ARG(r->name));
    enum clime_err err = clime_update_device(s, &dev, e);
    if (err) return err;
    struct clime_update_group *g = find_group(u, clime_str_of(""));
    char name[sizeof g->name];
    snprintf(name, sizeof name, CLIME_STR_FMT, CLIME_STR_ARG(r->name));
    *evicted = !g;
    if (!g) g = make_room(u, name);
    err = u->ops->comm_open(dev, id, (int)r->rank, (int)r->world, &wait, &g->comm, e);
    if (!err) memcpy(g->name, name, sizeof name);
    return err;
}

void clime_handle_init_group(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct group_request r;
    struct clime_arena a;
    struct clime_error e = {0};
    uint8_t id[CLIME_COMM_ID_BYTES];
    bool evicted = false;
    char message[200] = "Succeeded to initialize the group.";
    clime_arena_init(&a, ARENA_BYTES);
    enum clime_err err = read_body(rq, &a, &r, &e);
    if (!err && !clime_str_is(r.backend, s->model->ops->comm_backend)) {
        char text[160];
        snprintf(text, sizeof text,
                 "backend \"%.40s\" is not there: groups of this server's device are of backend \"%s\"",
                 clime_arena_strdup(&a, r.backend), s->model->ops->comm_backend);
        clime_http_reply_error(rq, 501, text);
        goto done;
    }
    if (!err && r.id.len == 0) {
        clime_http_reply_error(rq, 501,
                               "a torch store at master_address is not joined: give nccl_id, the group's id in hex");
        goto done;
    }
    if (!err && (r.world < 0 || r.rank < 0 || r.rank >= r.world))
        err = clime_fail(&e, CLIME_ERR_INPUT, "rank_offset must be 1 to world_size - 1; rank 0 sends");
    if (!err) err = clime_update_hex("nccl_id", r.id, id, sizeof id, &e);
    if (!err && !(err = clime_update_lock(s->update, &e))) {
        err = join_group(s, &r, id, &evicted, &e);
        if (evicted)
            snprintf(message + strlen(message), sizeof message - strlen(message),
                     " The oldest of %d, \"%s\", was closed to make room.", CLIME_MAX_GROUPS, s->update->evicted);
        clime_update_unlock(s->update);
    }
    if (err) {
        LOG_WARN("no group for weight updates: %s", e.msg);
        clime_http_reply_err(rq, &e);
    } else {
        clime_reply_success(rq, CLIME_OK, message);
    }
done:
    clime_arena_free(&a);
}

void clime_handle_destroy_group(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct group_request r;
    struct clime_arena a;
    struct clime_error e = {0};
    clime_arena_init(&a, ARENA_BYTES);
    enum clime_err err = read_body(rq, &a, &r, &e);
    if (!err && !(err = clime_update_lock(s->update, &e))) {
        struct clime_update_group *g = find_group(s->update, r.name);
        if (g) {
            s->update->ops->bind(s->update->dev);
            close_group(s->update, g);
            drop_incoming(s->update);
        } else {
            err = no_group(s->update, r.name, &e);
        }
        clime_update_unlock(s->update);
    }
    if (err)
        clime_http_reply_err(rq, &e);
    else
        clime_reply_success(rq, CLIME_OK, "Succeeded to destroy the group.");
    clime_arena_free(&a);
}

/* ---- tensors ----------------------------------------------------------------------------------------------- */

/* The slices that the three lists name, in their order; their number, or -1. */
static int read_slices(const struct clime_model *m, const struct group_request *r, struct clime_arena *a,
                       const struct clime_slice **out, struct clime_error *e) {
    struct clime_json names, dtypes, shapes;
    struct clime_str name, dtype;
    const char *own = clime_dev_info(m->dev)->dt == CLIME_BF16 ? "bfloat16" : "float32";
    int n = 0;
    if (!r->names_text.len || !r->dtypes_text.len || !r->shapes_text.len)
        return clime_fail(e, CLIME_ERR_INPUT, "names, dtypes and shapes are required"), -1;
    clime_json_init(&names, r->names_text.ptr, r->names_text.len, a, e);
    clime_json_init(&dtypes, r->dtypes_text.ptr, r->dtypes_text.len, a, e);
    clime_json_init(&shapes, r->shapes_text.ptr, r->shapes_text.len, a, e);
    clime_json_array(&dtypes);
    clime_json_array(&shapes);
    for (clime_json_array(&names); clime_json_item(&names); n++) {
        int64_t dim[2] = {0, 0}, k = 0, v;
        if (n == m->layout.n_slices) return clime_fail(e, CLIME_ERR_INPUT, "more tensors than the model has"), -1;
        if (!clime_json_string(&names, &name) || !clime_json_item(&dtypes) || !clime_json_string(&dtypes, &dtype) ||
            !clime_json_item(&shapes)) {
            if (!e->code) clime_fail(e, CLIME_ERR_INPUT, "names, dtypes and shapes differ in length");
            return -1;
        }
        for (clime_json_array(&shapes); clime_json_item(&shapes) && clime_json_int(&shapes, 0, INT64_MAX, &v); k++)
            if (k < 2) dim[k] = v;
        if (e->code) return -1;
        const char *text = clime_arena_strdup(a, name);
        const struct clime_slice *s = text ? clime_layout_find(&m->layout, text) : NULL;
        if (!s) return clime_fail(e, CLIME_ERR_INPUT, "tensor \"%.100s\" is none of the model's", text ? text : ""), -1;
        if (dtype.len > 6 && !memcmp(dtype.ptr, "torch.", 6)) dtype = (struct clime_str){dtype.ptr + 6, dtype.len - 6};
        if (!clime_str_is(dtype, own))
            return clime_fail(e, CLIME_ERR_INPUT, "tensor \"%s\": dtype must be %s", s->name, own), -1;
        if (k != s->n_dim || dim[0] != s->dim[0] || (k == 2 && dim[1] != s->dim[1]))
            return clime_fail(e, CLIME_ERR_INPUT, "tensor \"%s\" has another shape", s->name), -1;
        out[n] = s;
    }
    if (!clime_json_end(&names) || clime_json_item(&dtypes) || clime_json_item(&shapes)) {
        if (!e->code) clime_fail(e, CLIME_ERR_INPUT, "names, dtypes and shapes differ in length");
        return -1;
    }
    if (n == 0) return clime_fail(e, CLIME_ERR_INPUT, "no tensor is named"), -1;
    return n;
}

/* One transfer a tensor, or one for all when they are neighbours in the layout. Their number, or -1. */
static int make_parts(const struct clime_model *m, const struct group_request *r, char *base,
                      const struct clime_slice *const *slices, int n, struct clime_comm_part *out,
                      struct clime_error *e) {
    size_t width = clime_dtype_bytes(clime_dev_info(m->dev)->dt);
    bool bucket = clime_str_is(r->load_format, "flattened_bucket");
    if (!bucket && r->load_format.len > 0)
        return clime_fail(e, CLIME_ERR_INPUT, "load_format must be null or flattened_bucket"), -1;
    for (int i = 0; i < n; i++)
        out[i] = (struct clime_comm_part){base + (size_t)slices[i]->offset * width, (size_t)slices[i]->n * width};
    for (int i = 1; bucket && i < n; i++) {
        if (slices[i]->offset != slices[i - 1]->offset + slices[i - 1]->n)
            return clime_fail(
                       e, CLIME_ERR_INPUT,
                       "flattened_bucket: \"%s\" does not follow \"%s\" in the server's layout; send them without "
                       "load_format",
                       slices[i]->name, slices[i - 1]->name),
                   -1;
        out[0].bytes += out[i].bytes;
    }
    return bucket ? 1 : n;
}

static enum clime_err begin_incoming(struct clime_server *s, struct clime_dev *dev, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    size_t bytes = clime_model_bytes(s->model);
    if (u->incoming) return CLIME_OK;
    enum clime_err err = u->ops->alloc(dev, bytes, "staging of the weights", &u->incoming, e);
    if (err) return err;
    u->ops->zero(dev, u->incoming, bytes); /* what lies between tensors */
    u->have = xcalloc((size_t)s->model->layout.n_slices, sizeof *u->have);
    return u->ops->sync(dev, e);
}

/* All tensors are there: verified where a checksum is given, then in force. */
static enum clime_err finish_incoming(struct clime_server *s, struct clime_dev *dev, const struct group_request *r,
                                      const char *label, int *n_inflight, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    uint64_t want, sum;
    if (r->checksum.len > 0) {
        if (clime_update_hex64("checksum", r->checksum, &want, e)) return e->code;
        sum = u->ops->checksum(dev, clime_model_bytes(s->model), u->incoming);
        if (sum != want)
            return clime_fail(e, CLIME_ERR_INPUT, "the checksum of what came is %016llx, the request says %016llx",
                              (unsigned long long)sum, (unsigned long long)want);
    }
    if (clime_update_finite(s->model, dev, u->incoming, e)) return e->code;
    struct clime_weight_source from = {.kind = CLIME_FROM_DEVICE, .flat = u->incoming};
    return clime_engine_update(s->engine, &from, label, clime_update_inflight(r->abort_all, r->flush_cache), n_inflight,
                               e);
}

static enum clime_err receive(struct clime_server *s, const struct group_request *r, struct clime_arena *a,
                              const char *label, bool *complete, int *n_inflight, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    const struct clime_model *m = s->model;
    struct clime_comm_wait wait = {.limit_us = (int64_t)(r->timeout * 1e6)};
    struct clime_update_group *g = find_group(u, r->name);
    if (!g) return no_group(u, r->name, e);
    const struct clime_slice **slices = xcalloc((size_t)m->layout.n_slices, sizeof *slices);
    struct clime_comm_part *parts = xcalloc((size_t)m->layout.n_slices, sizeof *parts);
    struct clime_dev *dev;
    bool lost = false;
    int n = read_slices(m, r, a, slices, e), n_parts = -1;
    if (n > 0 && !clime_update_device(s, &dev, e) && !begin_incoming(s, dev, e))
        n_parts = make_parts(m, r, u->incoming, slices, n, parts, e);
    for (int i = 0; i < n && n_parts > 0; i++) {
        bool *have = &u->have[slices[i] - m->layout.slices];
        if (*have && !e->code)
            clime_fail(e, CLIME_ERR_INPUT, "tensor \"%s\" came twice in one update", slices[i]->name);
        *have = true;
        u->n_have++;
    }
    if (!e->code) lost = u->ops->comm_broadcast(g->comm, parts, n_parts, &wait, e) != CLIME_OK;
    *complete = !e->code && u->n_have == m->layout.n_slices;
    if (*complete) finish_incoming(s, dev, r, label, n_inflight, e);
    if (lost) close_group(u, g); /* it is of no more use */
    if (u->incoming && (e->code || *complete)) drop_incoming(u);
    free(slices);
    free(parts);
    return e->code;
}

void clime_handle_update_from_distributed(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct group_request r;
    struct clime_arena a;
    struct clime_error e = {0};
    char label[CLIME_MAX_LABEL + 1], message[120];
    bool complete = false;
    int n_inflight = 0, n_have = 0;
    int64_t t0 = clime_now_us();
    clime_arena_init(&a, ARENA_BYTES);
    enum clime_err err = read_body(rq, &a, &r, &e);
    if (!err && r.version.len > 0) err = clime_update_label(r.version, &e);
    if (!err && !(err = clime_update_lock(s->update, &e))) {
        if (r.version.len > 0)
            snprintf(label, sizeof label, CLIME_STR_FMT, CLIME_STR_ARG(r.version));
        else
            snprintf(label, sizeof label, "%s", clime_engine_version(s->engine)->name);
        err = receive(s, &r, &a, label, &complete, &n_inflight, &e);
        n_have = s->update->n_have;
        if (complete && !err) s->update->last_sha[0] = '\0';
        clime_update_unlock(s->update);
    }
    if (err) {
        LOG_WARN("update by broadcast refused: %s", e.msg);
        clime_http_reply_err(rq, &e);
    } else {
        if (complete) clime_server_metrics_load_time(s->metrics, (double)(clime_now_us() - t0) / 1e6);
        snprintf(message, sizeof message,
                 complete ? "Weights updated." : "%d of %d tensors are here; the old version serves on.", n_have,
                 s->model->layout.n_slices);
        clime_update_reply(rq, message, clime_engine_version(s->engine)->name, n_inflight);
    }
    clime_arena_free(&a);
}
