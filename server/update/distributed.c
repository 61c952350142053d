/* SGLang's API for weights by broadcast: /init_weights_update_group, /update_weights_from_distributed,
 * /destroy_weights_update_group. HTTP workers; implemented by group.c and incoming.c, one request at a time.
 *
 * A request carries some or all tensors. They are swapped in when the model's set is complete, or, if fewer, when
 * generation resumes after a pause (clime_update_resume). SGLang instead changes the weights at each request, under
 * running sequences.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/job/fields.h"
#include "server/server_metrics.h"
#include "server/update/weight_update.h"

#define ARENA_BYTES ((size_t)16 << 20)
#define MAX_WORLD 4096

struct group_request { /* slices of the body */
    struct clime_str name, backend, id, address, version, load_format, checksum;
    struct clime_str names, dtypes, shapes; /* the lists, read later */
    int64_t rank, world, port;
    double timeout;
    bool abort_all, flush_cache;
};

#define AT(field) offsetof(struct group_request, field)

#define NAME_AND_TIME                                                                                                  \
    {"group_name", CLIME_MEMBER_STRING, AT(name)}, {                                                                   \
        "timeout", CLIME_MEMBER_DOUBLE, AT(timeout), .min = 0, .max = 3600                                             \
    }

static const struct clime_member init_rows[] = {
    NAME_AND_TIME,
    {"backend", CLIME_MEMBER_STRING, AT(backend)},
    {"nccl_id", CLIME_MEMBER_STRING, AT(id)},
    {"master_address", CLIME_MEMBER_STRING, AT(address)},
    {"master_port", CLIME_MEMBER_INT, AT(port), .min = 0, .max = 65535},
    {"rank_offset", CLIME_MEMBER_INT, AT(rank), .min = 1, .max = MAX_WORLD - 1},
    {"world_size", CLIME_MEMBER_INT, AT(world), .min = 2, .max = MAX_WORLD},
};
static const struct clime_member destroy_rows[] = {{"group_name", CLIME_MEMBER_STRING, AT(name)}};
static const struct clime_member update_rows[] = {
    NAME_AND_TIME,
    {"names", CLIME_MEMBER_RAW, AT(names)},
    {"dtypes", CLIME_MEMBER_RAW, AT(dtypes)},
    {"shapes", CLIME_MEMBER_RAW, AT(shapes)},
    {"load_format", CLIME_MEMBER_STRING, AT(load_format)},
    {"weight_version", CLIME_MEMBER_STRING, AT(version)},
    {"checksum", CLIME_MEMBER_STRING, AT(checksum)},
    {"abort_all_requests", CLIME_MEMBER_BOOL, AT(abort_all)},
    {"flush_cache", CLIME_MEMBER_BOOL, AT(flush_cache)},
};
static const struct clime_members init_members = {init_rows, CLIME_COUNT(init_rows)},
                                  destroy_members = {destroy_rows, CLIME_COUNT(destroy_rows)},
                                  update_members = {update_rows, CLIME_COUNT(update_rows)};
static const struct clime_field no_others[] = {{NULL, NULL}},
                                update_others[] = {{"torch_empty_cache", CLIME_FIELD_INERT}, {NULL, NULL}};
static const struct clime_fields
    init_fields = {.where = "/init_weights_update_group", .rows = {no_others}, .read = {&init_members}},
    destroy_fields = {.where = "/destroy_weights_update_group", .rows = {no_others}, .read = {&destroy_members}},
    update_fields = {.where = "/update_weights_from_distributed", .rows = {update_others}, .read = {&update_members}};

static enum clime_err read_body(struct clime_server *s, struct clime_http_request *rq,
                                const struct clime_fields *fields, struct clime_arena *a, struct group_request *r,
                                struct clime_error *e) {
    *r = (struct group_request){.name = clime_str_of("weight_update_group"),
                                .backend = clime_str_of("nccl"),
                                .rank = -1,
                                .world = -1,
                                .port = -1,
                                .timeout = 60,
                                .flush_cache = true};
    if (clime_fields_read(fields, s->field_watch, clime_http_body(rq), a, r, e)) return e->code;
    if (r->name.len == 0 || r->name.len >= sizeof((struct clime_update_group *)0)->name)
        return clime_fail(e, CLIME_ERR_INPUT, "group_name has 1 to 63 bytes");
    if (!(r->timeout > 0)) return clime_fail(e, CLIME_ERR_INPUT, "timeout must be above 0 and at most 3600 seconds");
    return CLIME_OK;
}

/* ---- the group --------------------------------------------------------------------------------------------- */

static enum clime_err read_ask(const struct group_request *r, struct clime_arena *a, uint8_t id[CLIME_COMM_ID_BYTES],
                               struct clime_group_ask *ask, struct clime_error *e) {
    *ask = (struct clime_group_ask){.name = clime_arena_strdup(a, r->name),
                                    .rank = (int)r->rank,
                                    .world = (int)r->world,
                                    .timeout = r->timeout,
                                    .host = clime_arena_strdup(a, r->address),
                                    .port = (int)r->port};
    if (!ask->name || !ask->host || strlen(ask->name) != r->name.len)
        return clime_fail(e, CLIME_ERR_INPUT, "group_name and master_address are plain text");
    if (r->world < 0 || r->rank < 0 || r->rank >= r->world)
        return clime_fail(e, CLIME_ERR_INPUT, "rank_offset must be 1 to world_size - 1; rank 0 sends");
    if (r->id.len > 0) {
        ask->id = id;
        return clime_update_hex("nccl_id", r->id, id, CLIME_COMM_ID_BYTES, e);
    }
    if (r->address.len == 0 || r->port < 1)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "master_address and master_port of the sender's torch store are required, or nccl_id, the "
                          "group's id in hex");
    return CLIME_OK;
}

void clime_handle_init_group(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct group_request r;
    struct clime_group_ask ask;
    struct clime_arena a;
    struct clime_error e = {0};
    uint8_t id[CLIME_COMM_ID_BYTES];
    bool evicted = false;
    char message[200] = "Succeeded to initialize the group.";
    clime_arena_init(&a, ARENA_BYTES);
    enum clime_err err = read_body(s, rq, &init_fields, &a, &r, &e);
    if (!err && !clime_str_is(r.backend, s->model->ops->comm_backend)) {
        char text[200];
        snprintf(text, sizeof text,
                 "backend \"%.40s\" is not there: groups of this server's device are of backend \"%s\"%s",
                 clime_arena_strdup(&a, r.backend), s->model->ops->comm_backend,
                 clime_str_is(r.backend, "gloo") ? "; torch's gloo is not spoken" : "");
        clime_http_reply_error(rq, 501, text);
        clime_arena_free(&a);
        return;
    }
    if (!err) err = read_ask(&r, &a, id, &ask, &e);
    if (!err && !(err = clime_update_lock(s->update, rq, &e))) {
        err = clime_update_group_join(s, &ask, &evicted, &e);
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
    clime_arena_free(&a);
}

void clime_handle_destroy_group(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct group_request r;
    struct clime_arena a;
    struct clime_error e = {0};
    clime_arena_init(&a, ARENA_BYTES);
    enum clime_err err = read_body(s, rq, &destroy_fields, &a, &r, &e);
    if (!err && !(err = clime_update_lock(s->update, rq, &e))) {
        struct clime_update_group *g = clime_update_group_find(s->update, r.name);
        if (g) {
            s->update->ops->bind(s->update->dev);
            clime_update_group_close(s->update, g);
            clime_incoming_forget(s->update);
        } else {
            err = clime_update_group_absent(s->update, r.name, &e);
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

static enum clime_err receive(struct clime_server *s, const struct group_request *r, struct clime_arena *a,
                              bool *complete, int *n_inflight, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    struct clime_incoming_ask ask = {.names = r->names,
                                     .dtypes = r->dtypes,
                                     .shapes = r->shapes,
                                     .bucket = clime_str_is(r->load_format, "flattened_bucket"),
                                     .timeout = r->timeout};
    if (!ask.bucket && r->load_format.len > 0)
        return clime_fail(e, CLIME_ERR_INPUT, "load_format must be null or flattened_bucket");
    struct clime_update_group *g = clime_update_group_find(u, r->name);
    if (!g) return clime_update_group_absent(u, r->name, e);
    enum clime_err err = clime_incoming_receive(s, g, &ask, a, e);
    if (err) return err;
    return clime_incoming_settle(s, r->version, clime_update_inflight(r->abort_all, r->flush_cache), r->checksum,
                                 complete, n_inflight, e);
}

void clime_handle_update_from_distributed(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct group_request r;
    struct clime_arena a;
    struct clime_error e = {0};
    bool complete = false;
    int n_inflight = 0, n_have = 0;
    int64_t t0 = clime_now_us();
    clime_arena_init(&a, ARENA_BYTES);
    enum clime_err err = read_body(s, rq, &update_fields, &a, &r, &e);
    if (!err && r.version.len > 0) err = clime_update_label(r.version, &e);
    if (!err && !(err = clime_update_lock(s->update, rq, &e))) {
        err = receive(s, &r, &a, &complete, &n_inflight, &e);
        n_have = clime_incoming_count(s->update);
        clime_update_unlock(s->update);
    }
    if (err) {
        LOG_WARN("update by broadcast refused: %s", e.msg);
        clime_http_reply_err(rq, &e);
    } else {
        if (complete) clime_server_metrics_load_time(s->metrics, (double)(clime_now_us() - t0) / 1e6);
        clime_incoming_reply(rq, s, complete, n_have, n_inflight);
    }
    clime_arena_free(&a);
}
