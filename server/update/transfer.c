/* vLLM's words for weights by broadcast: /init_weight_transfer_engine, /start_weight_update, /update_weights,
 * /finish_weight_update. HTTP workers; group.c and incoming.c do it, one request at a time.
 *
 * Between start and finish everything waits for finish, which puts all tensors in force, or those that came. Trainers
 * of older vLLM send neither: their tensors are in force when all are there, or before generation goes on, as SGLang's
 * are.
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
#define GROUP "weight transfer" /* there is one, without a name in the requests */
#define MAX_WORLD 4096
#define TIMEOUT_S 300 /* vLLM's trainers name none, and its own group waits this long */

struct transfer_request { /* slices of the body */
    struct clime_str address, version;
    struct clime_str names, dtypes, shapes; /* the lists, read later */
    int64_t rank, world, port, bucket_bytes;
    double timeout;
    bool packed;
    struct clime_field_watch *watch; /* for members of the objects inside */
};

/* Each endpoint's own members: one of another's is told of as unknown. */
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

static bool read_init_info(struct clime_json *j, void *request) {
    static const struct clime_member rows[] = {
        {"master_address", CLIME_MEMBER_STRING, AT(address)},
        {"master_port", CLIME_MEMBER_INT, AT(port), .min = 1, .max = 65535},
        {"rank_offset", CLIME_MEMBER_INT, AT(rank), .min = 1, .max = MAX_WORLD - 1},
        {"world_size", CLIME_MEMBER_INT, AT(world), .min = 2, .max = MAX_WORLD},
    };
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_fields fields = {.where = "init_info", .rows = {no_others}, .read = {&members}};
    read_info(j, &fields, request);
    return !j->failed;
}

static bool read_update_info(struct clime_json *j, void *request) {
    static const struct clime_member rows[] = {
        {"names", CLIME_MEMBER_RAW, AT(names)},
        {"dtype_names", CLIME_MEMBER_RAW, AT(dtypes)},
        {"shapes", CLIME_MEMBER_RAW, AT(shapes)},
        {"packed", CLIME_MEMBER_BOOL, AT(packed)},
        {"packed_buffer_size_bytes", CLIME_MEMBER_INT, AT(bucket_bytes), .min = 1, .max = (double)((int64_t)1 << 62)},
    };
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_field others[] = {{"packed_num_buffers", CLIME_FIELD_INERT}, /* the sender's own */
                                                {"ipc_handles", NULL},
                                                {"ipc_handles_pickled", NULL},
                                                {"sparse", NULL},
                                                {"num_updates_list", NULL},
                                                {NULL, NULL}};
    static const struct clime_fields fields = {.where = "update_info", .rows = {others}, .read = {&members}};
    read_info(j, &fields, request);
    return !j->failed;
}

static const struct clime_member init_rows[] = {
    {"init_info", CLIME_MEMBER_CALL, .read = read_init_info},
    {"timeout", CLIME_MEMBER_DOUBLE, AT(timeout), .min = 0, .max = 3600},
};
static const struct clime_member update_rows[] = {
    {"update_info", CLIME_MEMBER_CALL, .read = read_update_info},
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
    finish_fields = {.where = "/finish_weight_update", .rows = {no_others}, .read = {&finish_members}};

/* A body is {}, nothing, or has what the endpoint needs. */
static enum clime_err read_body(struct clime_server *s, struct clime_http_request *rq,
                                const struct clime_fields *fields, struct clime_arena *a, struct transfer_request *r,
                                struct clime_error *e) {
    *r = (struct transfer_request){.rank = -1,
                                   .world = -1,
                                   .port = -1,
                                   .bucket_bytes = (int64_t)1 << 30,
                                   .timeout = TIMEOUT_S,
                                   .watch = s->field_watch};
    if (clime_fields_read(fields, s->field_watch, clime_http_body(rq), a, r, e)) return e->code;
    if (!(r->timeout > 0)) return clime_fail(e, CLIME_ERR_INPUT, "timeout must be above 0 and at most 3600 seconds");
    return r->version.len > 0 ? clime_update_label(r->version, e) : CLIME_OK;
}

/* ---- the four ---------------------------------------------------------------------------------------------- */

/* Joins anew: a trainer that was started again has another group. */
static enum clime_err do_init(struct clime_server *s, const struct transfer_request *r, struct clime_arena *a,
                              struct clime_error *e) {
    struct clime_group_ask ask = {.name = GROUP,
                                  .rank = (int)r->rank,
                                  .world = (int)r->world,
                                  .timeout = r->timeout,
                                  .host = clime_arena_strdup(a, r->address),
                                  .port = (int)r->port,
                                  .vllm = true};
    bool evicted;
    if (!ask.host || r->address.len == 0 || r->port < 0 || r->rank < 0 || r->rank >= r->world)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "init_info needs master_address, master_port, world_size, and rank_offset of 1 to "
                          "world_size - 1");
    struct clime_update_group *old = clime_update_group_find(s->update, clime_str_of(GROUP));
    if (old) {
        s->update->ops->bind(s->update->dev);
        clime_update_group_close(s->update, old);
    }
    return clime_update_group_join(s, &ask, &evicted, e);
}

static enum clime_err do_start(struct clime_server *s, const struct transfer_request *r, struct clime_arena *a,
                               struct clime_error *e) {
    struct clime_dev *dev;
    (void)r;
    (void)a;
    if (clime_update_device(s, &dev, e)) return e->code;
    clime_incoming_forget(s->update); /* what an update that was never finished has left */
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

static enum clime_err do_update(struct clime_server *s, const struct transfer_request *r, struct clime_arena *a,
                                struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    struct clime_incoming_ask ask = {.names = r->names,
                                     .dtypes = r->dtypes,
                                     .shapes = r->shapes,
                                     .bucket = r->packed,
                                     .bucket_bytes = r->bucket_bytes,
                                     .timeout = r->timeout};
    struct clime_update_group *g = clime_update_group_find(u, clime_str_of(GROUP));
    if (!g) return clime_fail(e, CLIME_ERR_INPUT, "there is no group: /init_weight_transfer_engine comes first");
    enum clime_err err = clime_incoming_receive(s, g, &ask, a, e);
    if (err) return err;
    u->inflight =
        CLIME_INFLIGHT_KEEP; /* vLLM goes on with the KV that is there; /pause and /reset_prefix_cache drop it */
    if (r->version.len > 0) snprintf(u->label, sizeof u->label, CLIME_STR_FMT, CLIME_STR_ARG(r->version));
    return clime_incoming_complete(s) && !u->to_be_finished ? apply(s, e) : CLIME_OK;
}

static enum clime_err do_finish(struct clime_server *s, const struct transfer_request *r, struct clime_arena *a,
                                struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    (void)a;
    bool whole = clime_incoming_complete(s);
    if (!whole && clime_incoming_refuse_torn(u, e)) return e->code;
    if (clime_incoming_count(u) == 0) {
        u->to_be_finished = false;
        return clime_fail(e, CLIME_ERR_INPUT, "no tensor has come that is to be put in force");
    }
    if (r->version.len > 0) snprintf(u->label, sizeof u->label, CLIME_STR_FMT, CLIME_STR_ARG(r->version));
    return apply(s, e);
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
