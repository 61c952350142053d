/* vLLM's API for weights by broadcast: /init_weight_transfer_engine, /start_weight_update, /update_weights,
 * /finish_weight_update, /shutdown_weight_transfer_engine. HTTP workers; implemented by group.c and incoming.c, one
 * request at a time. /update_weights may name a folder instead (prime-rl).
 *
 * Since vLLM 0.28 trainers send the packing at group creation and may send the tensor lists in the first update only;
 * older ones send both with each update. Both are accepted.
 *
 * Between start and finish tensors wait for finish, which swaps in those received, all or not. Trainers of older vLLM
 * send neither: their tensors are swapped in when complete, or before generation resumes, as with SGLang.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base64.h"
#include "common/clock.h"
#include "common/log.h"
#include "server/job/fields.h"
#include "server/server_metrics.h"
#include "server/update/weight_update.h"

#define ARENA_BYTES ((size_t)16 << 20)
#define GROUP "weight transfer" /* the only one; requests do not name it */
#define MAX_WORLD 4096
#define TIMEOUT_S 300 /* vLLM's trainers send none; its own group's timeout */

struct transfer_request { /* slices of the body */
    struct clime_str address, id, version;
    struct clime_str folder;                /* /update_weights: a path instead of update_info */
    struct clime_str names, dtypes, shapes; /* the lists, read later */
    int64_t rank, world, port, bucket_bytes;
    double timeout;
    bool packed, has_info;
    struct clime_field_watch *watch; /* for members of nested objects */
};

/* Each endpoint's own members; those of another endpoint are unknown. */
#define AT(field) offsetof(struct transfer_request, field)
static const struct clime_field no_others[] = {{NULL, NULL}};

static void read_info(struct clime_json *j, const struct clime_fields *f, struct transfer_request *r) {
    struct clime_str key;
    if (clime_json_peek(j) == CLIME_JSON_NULL) {
        clime_json_null(j);
        return;
    }
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (!clime_members_read(f->read[0], j, key, r)) clime_fields_other(f, r->watch, j, key);
}

#define PACKED_ROWS                                                                                                    \
    {"packed", CLIME_MEMBER_BOOL, AT(packed)}, {                                                                       \
        "packed_buffer_size_bytes", CLIME_MEMBER_INT, AT(bucket_bytes), .min = 1, .max = (double)((int64_t)1 << 62)    \
    }
#define PACKED_OTHERS                                                                                                  \
    { "packed_num_buffers", CLIME_FIELD_INERT } /* the sender's own */

static bool read_init_info(struct clime_json *j, void *request) {
    static const struct clime_member rows[] = {
        {"master_address", CLIME_MEMBER_STRING, AT(address)},
        {"master_port", CLIME_MEMBER_INT, AT(port), .min = 1, .max = 65535},
        {"rank_offset", CLIME_MEMBER_INT, AT(rank), .min = 1, .max = MAX_WORLD - 1},
        {"world_size", CLIME_MEMBER_INT, AT(world), .min = 2, .max = MAX_WORLD},
        {"nccl_unique_id_b64", CLIME_MEMBER_STRING, AT(id)},
        PACKED_ROWS,
    };
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_field others[] = {PACKED_OTHERS, {NULL, NULL}};
    static const struct clime_fields fields = {.where = "init_info", .rows = {others}, .read = {&members}};
    read_info(j, &fields, request);
    return !j->failed;
}

static bool read_update_info(struct clime_json *j, void *request) {
    static const struct clime_member rows[] = {
        {"names", CLIME_MEMBER_RAW, AT(names)},
        {"dtype_names", CLIME_MEMBER_RAW, AT(dtypes)},
        {"shapes", CLIME_MEMBER_RAW, AT(shapes)},
        PACKED_ROWS,
    };
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_field others[] = {
        PACKED_OTHERS,    {"ipc_handles", NULL},      {"ipc_handles_pickled", NULL},
        {"sparse", NULL}, {"num_updates_list", NULL}, {NULL, NULL}};
    static const struct clime_fields fields = {.where = "update_info", .rows = {others}, .read = {&members}};
    struct transfer_request *r = request;
    int n = 0;
    r->has_info |= clime_json_peek(j) != CLIME_JSON_NULL;
    if (clime_json_peek(j) != CLIME_JSON_ARRAY) {
        read_info(j, &fields, request);
        return !j->failed;
    }
    for (clime_json_array(j); clime_json_item(j) && n < 2; n++) read_info(j, &fields, request);
    return !j->failed && (n < 2 || clime_json_bad(j, "a list has one entry: send the others in requests of their own"));
}

static const struct clime_member init_rows[] = {
    {"init_info", CLIME_MEMBER_CALL, .read = read_init_info},
    {"timeout", CLIME_MEMBER_DOUBLE, AT(timeout), .min = 0, .max = 3600},
};
static const struct clime_member update_rows[] = {
    {"update_info", CLIME_MEMBER_CALL, .read = read_update_info},
    {"weight_dir", CLIME_MEMBER_STRING, AT(folder)},
    {"weight_version", CLIME_MEMBER_STRING, AT(version)},
    {"timeout", CLIME_MEMBER_DOUBLE, AT(timeout), .min = 0, .max = 3600},
};
static const struct clime_member finish_rows[] = {{"weight_version", CLIME_MEMBER_STRING, AT(version)}};
static const struct clime_members init_members = {init_rows, CLIME_COUNT(init_rows)}, start_members = {NULL, 0},
                                  update_members = {update_rows, CLIME_COUNT(update_rows)},
                                  finish_members = {finish_rows, CLIME_COUNT(finish_rows)};
static const struct clime_field start_others[] = {{"is_checkpoint_format", "true"}, {NULL, NULL}};
static const struct clime_fields
    init_fields = {.where = "/init_weight_transfer_engine", .rows = {no_others}, .read = {&init_members}},
    start_fields = {.where = "/start_weight_update", .rows = {start_others}, .read = {&start_members}},
    update_fields = {.where = "/update_weights", .rows = {no_others}, .read = {&update_members}},
    finish_fields = {.where = "/finish_weight_update", .rows = {no_others}, .read = {&finish_members}},
    shutdown_fields = {.where = "/shutdown_weight_transfer_engine", .rows = {no_others}, .read = {&start_members}};

/* A body is {}, empty, or has what the endpoint needs. */
static enum clime_err read_body(struct clime_server *s, struct clime_http_request *rq,
                                const struct clime_fields *fields, struct clime_arena *a, struct transfer_request *r,
                                struct clime_error *e) {
    *r = (struct transfer_request){.rank = -1, .world = -1, .port = -1, .timeout = TIMEOUT_S, .watch = s->field_watch};
    if (clime_fields_read(fields, s->field_watch, clime_http_body(rq), a, r, e)) return e->code;
    if (!(r->timeout > 0)) return clime_fail(e, CLIME_ERR_INPUT, "timeout must be above 0 and at most 3600 seconds");
    return r->version.len > 0 ? clime_update_label(r->version, e) : CLIME_OK;
}

/* ---- settings kept between updates ----------------------------------------------------------------------- */

/* Absent, or an empty list. */
static bool names_nothing(struct clime_str list) {
    return list.len == 0 || clime_lenient_nothing(list);
}

static struct clime_incoming_ask ask_of(const struct clime_transfer *t, const struct transfer_request *r) {
    struct clime_incoming_ask ask = {.names = r->names,
                                     .dtypes = r->dtypes,
                                     .shapes = r->shapes,
                                     .bucket = r->packed || t->packed,
                                     .bucket_bytes = r->bucket_bytes ? r->bucket_bytes : t->bucket_bytes,
                                     .timeout = r->timeout};
    if (t->names && names_nothing(r->names) && names_nothing(r->dtypes) && names_nothing(r->shapes)) {
        ask.names = clime_str_of(t->names);
        ask.dtypes = clime_str_of(t->dtypes);
        ask.shapes = clime_str_of(t->shapes);
    }
    return ask;
}

static void keep_lists(struct clime_transfer *t, const struct clime_incoming_ask *ask) {
    if (ask->names.ptr == t->names) return;
    free(t->names);
    free(t->dtypes);
    free(t->shapes);
    t->names = xstrndup(ask->names.ptr, ask->names.len);
    t->dtypes = xstrndup(ask->dtypes.ptr, ask->dtypes.len);
    t->shapes = xstrndup(ask->shapes.ptr, ask->shapes.len);
}

/* ---- the five endpoints ---------------------------------------------------------------------------------- */

static void leave(struct clime_server *s) {
    struct clime_weight_update *u = s->update;
    struct clime_update_group *old = clime_update_group_find(u, clime_str_of(GROUP));
    clime_transfer_free(&u->transfer);
    if (!old) return;
    u->ops->bind(u->dev);
    clime_update_group_close(u, old);
}

/* Decodes the base64 id; *id = NULL when it will be in a torch store. */
static enum clime_err read_id(const struct transfer_request *r, uint8_t bytes[CLIME_COMM_ID_BYTES], const uint8_t **id,
                              struct clime_error *e) {
    size_t n = 0;
    *id = NULL;
    if (r->id.len == 0) return CLIME_OK;
    if (r->address.len > 0)
        return clime_fail(e, CLIME_ERR_INPUT, "init_info has nccl_unique_id_b64 or master_address, not both");
    if (r->id.len != (CLIME_COMM_ID_BYTES + 2) / 3 * 4 || clime_base64_decode(r->id, bytes, &n, NULL) ||
        n != CLIME_COMM_ID_BYTES)
        return clime_fail(e, CLIME_ERR_INPUT, "nccl_unique_id_b64 must be %d bytes in base64", CLIME_COMM_ID_BYTES);
    *id = bytes;
    return CLIME_OK;
}

/* Joins again: a restarted trainer has a new group. */
static enum clime_err do_init(struct clime_server *s, const struct transfer_request *r, struct clime_arena *a,
                              struct clime_error *e) {
    struct clime_group_ask ask = {.name = GROUP,
                                  .rank = (int)r->rank,
                                  .world = (int)r->world,
                                  .timeout = r->timeout,
                                  .host = clime_arena_strdup(a, r->address),
                                  .port = (int)r->port,
                                  .vllm = true};
    uint8_t id[(CLIME_COMM_ID_BYTES + 2) / 3 * 3];
    bool evicted;
    if (read_id(r, id, &ask.id, e)) return e->code;
    if (!ask.host || (!ask.id && (r->address.len == 0 || r->port < 0)) || r->rank < 0 || r->rank >= r->world)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "init_info needs master_address and master_port, or nccl_unique_id_b64, and world_size, and "
                          "rank_offset of 1 to world_size - 1");
    leave(s);
    enum clime_err err = clime_update_group_join(s, &ask, &evicted, e);
    if (err) return err;
    s->update->transfer.packed = r->packed;
    s->update->transfer.bucket_bytes = r->bucket_bytes ? r->bucket_bytes : (int64_t)1 << 30; /* vLLM's default */
    return CLIME_OK;
}

static enum clime_err do_shutdown(struct clime_server *s, const struct transfer_request *r, struct clime_arena *a,
                                  struct clime_error *e) {
    (void)r;
    (void)a;
    (void)e;
    leave(s);
    clime_incoming_forget(s->update);
    return CLIME_OK;
}

static enum clime_err do_start(struct clime_server *s, const struct transfer_request *r, struct clime_arena *a,
                               struct clime_error *e) {
    struct clime_dev *dev;
    (void)r;
    (void)a;
    if (clime_update_device(s, &dev, e)) return e->code;
    clime_incoming_forget(s->update); /* left by an unfinished update */
    s->update->to_be_finished = true;
    return CLIME_OK;
}

static enum clime_err apply(struct clime_server *s, struct clime_error *e) {
    int n_inflight;
    int64_t t0 = clime_now_us();
    enum clime_err err = clime_incoming_apply(s, (struct clime_str){"", 0}, &n_inflight, e);
    if (!err) clime_server_metrics_load_time(s->metrics, (double)(clime_now_us() - t0) / 1e6);
    return err;
}

/* prime-rl's /update_weights: a folder written by its trainer, for a server that it has paused. KV stays, as in vLLM:
 * prime-rl salts the cache of requests under new weights. */
static enum clime_err from_folder(struct clime_server *s, const struct transfer_request *r, struct clime_arena *a,
                                  struct clime_error *e) {
    const char *path = clime_arena_strdup(a, r->folder);
    char label[CLIME_MAX_LABEL + 1];
    int n_inflight;
    if (r->has_info) return clime_fail(e, CLIME_ERR_INPUT, "give one of update_info and weight_dir");
    if (!path || strlen(path) != r->folder.len) return clime_fail(e, CLIME_ERR_INPUT, "weight_dir is not a path");
    snprintf(label, sizeof label, CLIME_STR_FMT, CLIME_STR_ARG(r->version));
    int64_t t0 = clime_now_us();
    enum clime_err err = clime_update_from_folder(s, path, label, CLIME_INFLIGHT_KEEP, &n_inflight, e);
    if (!err) clime_server_metrics_load_time(s->metrics, (double)(clime_now_us() - t0) / 1e6);
    return err;
}

static enum clime_err do_update(struct clime_server *s, const struct transfer_request *r, struct clime_arena *a,
                                struct clime_error *e) {
    if (r->folder.len > 0) return from_folder(s, r, a, e);
    struct clime_weight_update *u = s->update;
    struct clime_incoming_ask ask = ask_of(&u->transfer, r);
    struct clime_update_group *g = clime_update_group_find(u, clime_str_of(GROUP));
    if (!g) return clime_fail(e, CLIME_ERR_INPUT, "there is no group: /init_weight_transfer_engine comes first");
    enum clime_err err = clime_incoming_receive(s, g, &ask, a, e);
    if (err) return err;
    keep_lists(&u->transfer, &ask);
    u->inflight = CLIME_INFLIGHT_KEEP; /* vLLM keeps KV; /pause and /reset_prefix_cache drop it */
    if (r->version.len > 0) snprintf(u->label, sizeof u->label, CLIME_STR_FMT, CLIME_STR_ARG(r->version));
    return clime_incoming_complete(s) && !u->to_be_finished ? apply(s, e) : CLIME_OK;
}

static enum clime_err do_finish(struct clime_server *s, const struct transfer_request *r, struct clime_arena *a,
                                struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    (void)a;
    bool whole = clime_incoming_complete(s);
    if (!whole && clime_incoming_refuse_torn(u, e)) return e->code;
    bool none = clime_incoming_count(u) == 0;
    if (none && !u->to_be_finished)
        return clime_fail(e, CLIME_ERR_INPUT, "no tensor has come that is to be put in force");
    if (r->version.len > 0) snprintf(u->label, sizeof u->label, CLIME_STR_FMT, CLIME_STR_ARG(r->version));
    if (!none) return apply(s, e);
    if (u->label[0]) clime_engine_relabel(s->engine, u->label); /* an empty update, as vLLM allows */
    clime_incoming_forget(u);
    return CLIME_OK;
}

static void handle(struct clime_http_request *rq, struct clime_server *s, const struct clime_fields *fields,
                   enum clime_err (*run)(struct clime_server *, const struct transfer_request *, struct clime_arena *,
                                         struct clime_error *),
                   const char *done) {
    struct transfer_request r;
    struct clime_arena a;
    struct clime_error e = {0};
    clime_arena_init(&a, ARENA_BYTES);
    enum clime_err err = read_body(s, rq, fields, &a, &r, &e);
    if (!err && !(err = clime_update_lock(s->update, rq, &e))) {
        err = run(s, &r, &a, &e);
        clime_update_unlock(s->update);
    }
    if (err) {
        LOG_WARN("weight transfer refused: %s", e.msg);
        clime_http_reply_err(rq, &e);
    } else {
        clime_update_reply(rq, done, clime_engine_version(s->engine)->name, 0);
    }
    clime_arena_free(&a);
}

void clime_handle_init_transfer(struct clime_http_request *rq, void *context) {
    handle(rq, context, &init_fields, do_init, "Weight transfer initialized");
}

void clime_handle_start_update(struct clime_http_request *rq, void *context) {
    handle(rq, context, &start_fields, do_start, "Weight update started");
}

void clime_handle_update_weights(struct clime_http_request *rq, void *context) {
    handle(rq, context, &update_fields, do_update, "Weights updated");
}

void clime_handle_finish_update(struct clime_http_request *rq, void *context) {
    handle(rq, context, &finish_fields, do_finish, "Weight update finished");
}

void clime_handle_shutdown_transfer(struct clime_http_request *rq, void *context) {
    handle(rq, context, &shutdown_fields, do_shutdown, "Weight transfer engine shut down");
}

void clime_handle_start_draft_update(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_error(rq, 501, "there is no draft model here: drafts are looked up in what was said");
}
