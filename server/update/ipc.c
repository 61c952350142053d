/* POST /update_weights_from_ipc: weights from the memory of another process on this host. HTTP workers.
 *
 * One handle of all weights, or several of parts. Three modes. "copy": map, copy into staging memory on the device,
 * compare the checksum, swap in at a step boundary; with several handles "ranges" say what each contains, and each of
 * this server's devices copies its share. "share": use the owner's memory in place; with several handles, one for each
 * of this server's devices. "writing": the owner is about to rewrite the shared memory; the reply confirms that no step
 * runs, and "share" with the new version ends it. Invariant: a handle is mapped only when layout and type match this
 * model; a rejected update leaves the old version serving.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/job/fields.h"
#include "server/server_metrics.h"
#include "server/update/weight_update.h"

#define MAX_RANGES (1 << 20) /* more than any trainer's parts; fits a message to followers */

enum mode { MODE_COPY, MODE_SHARE, MODE_WRITING };

struct ipc_request {
    enum mode mode;
    uint8_t handles[CLIME_GROUP_MAX][CLIME_SHARE_BYTES];
    int n_handles;
    struct clime_range *ranges; /* [n_ranges] owned */
    int n_ranges;
    uint64_t checksum;
    char label[CLIME_MAX_LABEL + 1];
    bool abort_all, flush_cache;
    double timeout; /* seconds allowed for writing */
};

/* ---- the body ---------------------------------------------------------------------------------------------- */

static enum clime_err check_model(const struct clime_model *m, struct clime_str layout, struct clime_str dtype,
                                  struct clime_error *e) {
    uint64_t hash;
    const char *own = clime_dev_info(m->dev)->dt == CLIME_BF16 ? "bf16" : "f32";
    if (clime_update_hex64("layout", layout, &hash, e)) return e->code;
    if (hash != m->handover)
        return clime_fail(e, CLIME_ERR_INPUT, "layout " CLIME_STR_FMT " is another model's; this one's is %016llx",
                          CLIME_STR_ARG(layout), (unsigned long long)m->handover);
    if (!clime_str_is(dtype, own))
        return clime_fail(e, CLIME_ERR_INPUT, "dtype must be \"%s\", the type that this server computes in", own);
    return CLIME_OK;
}

struct ipc_words { /* slices of the body */
    struct clime_str mode, handle, layout, dtype, checksum, label, unit;
    struct clime_str handles[CLIME_GROUP_MAX];
    int n_handles;
    struct clime_range *ranges; /* [n_ranges] the request's to free */
    int n_ranges;
    bool abort_all, flush_cache;
    double timeout;
};

static bool read_handles(struct clime_json *j, void *words) {
    struct ipc_words *w = words;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    w->n_handles = 0;
    for (clime_json_array(j); clime_json_item(j);) {
        if (w->n_handles == CLIME_GROUP_MAX)
            return clime_json_bad(j, "there are more of them than a server has devices");
        clime_json_string(j, &w->handles[w->n_handles++]);
    }
    return !j->failed;
}

static bool refuse_sockets(struct clime_json *j, void *words) {
    struct clime_str raw;
    (void)words;
    if (!clime_json_skip(j, &raw) || clime_lenient_nothing(raw)) return !j->failed;
    return clime_json_bad(j, "these are torch's; this server takes `handle`, of a buffer in its own layout");
}

/* [[handle, from, to, at], ...] */
static bool read_ranges(struct clime_json *j, void *words) {
    struct ipc_words *w = words;
    int room = 0;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    w->n_ranges = 0; /* of duplicate members the last counts */
    for (clime_json_array(j); clime_json_item(j);) {
        int64_t v[4];
        int n = 0;
        for (clime_json_array(j); clime_json_item(j); n++)
            if (n < 4)
                clime_json_int(j, 0, INT64_MAX, &v[n]);
            else
                clime_json_skip(j, NULL);
        if (n != 4 || v[0] >= CLIME_GROUP_MAX) return clime_json_bad(j, "each of them is [handle, from, to, at]");
        if (w->n_ranges == MAX_RANGES) return clime_json_bad(j, "more of them than %d", MAX_RANGES);
        if (w->n_ranges == room) {
            room = room ? 2 * room : 64;
            w->ranges = xrealloc(w->ranges, (size_t)room * sizeof *w->ranges);
        }
        w->ranges[w->n_ranges++] = (struct clime_range){.lo = v[1], .hi = v[2], .at = v[3], .rank = (int)v[0]};
    }
    return !j->failed;
}

/* One handle of all weights, or one for each rank of a trainer that keeps parts. */
static enum clime_err check_handles(const struct clime_server *s, struct ipc_request *r, struct ipc_words *w,
                                    struct clime_error *e) {
    const int n = w->n_handles;
    if (n && w->handle.len) return clime_fail(e, CLIME_ERR_INPUT, "handle and handles: only one of them can be meant");
    if (r->mode == MODE_COPY && !n != !r->n_ranges)
        return clime_fail(e, CLIME_ERR_INPUT, "handles of parts to be copied need ranges, which say what each has");
    if (n && r->mode == MODE_SHARE && (n < 2 || n != s->model->ranks.n))
        return clime_fail(e, CLIME_ERR_INPUT, "%d handles of parts are not those of a server over %d device%s", n,
                          s->model->ranks.n, s->model->ranks.n == 1 ? "" : "s");
    if (!n) w->handles[0] = w->handle;
    r->n_handles = n ? n : 1;
    enum clime_err err = CLIME_OK;
    for (int i = 0; i < r->n_handles && !err; i++)
        err = clime_update_hex(n ? "each of handles" : "handle", w->handles[i], r->handles[i], sizeof r->handles[i], e);
    return err;
}

#define AT(field) offsetof(struct ipc_words, field)

static enum clime_err read_body(struct clime_server *s, struct clime_http_request *rq, struct clime_arena *a,
                                struct ipc_words *w, struct clime_error *e) {
    static const struct clime_member rows[] = {
        {"mode", CLIME_MEMBER_STRING, AT(mode)},
        {"handle", CLIME_MEMBER_STRING, AT(handle)},
        {"handles", CLIME_MEMBER_CALL, .read = read_handles},
        {"ranges", CLIME_MEMBER_CALL, .read = read_ranges},
        {"layout", CLIME_MEMBER_STRING, AT(layout)},
        {"dtype", CLIME_MEMBER_STRING, AT(dtype)},
        {"checksum", CLIME_MEMBER_STRING, AT(checksum)},
        {"weight_version", CLIME_MEMBER_STRING, AT(label)},
        {"device_unit", CLIME_MEMBER_STRING, AT(unit)},
        {"timeout", CLIME_MEMBER_DOUBLE, AT(timeout), .min = 0, .max = 86400},
        {"abort_all_requests", CLIME_MEMBER_BOOL, AT(abort_all)},
        {"flush_cache", CLIME_MEMBER_BOOL, AT(flush_cache)},
        {"zmq_handles", CLIME_MEMBER_CALL, .read = refuse_sockets},
    };
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_field others[] = {{NULL, NULL}};
    static const struct clime_fields fields = {
        .where = "/update_weights_from_ipc", .rows = {others}, .read = {&members}};
    return clime_fields_read(&fields, s->field_watch, clime_http_body(rq), a, w, e);
}

static enum clime_err parse(struct clime_server *s, struct clime_http_request *rq, struct clime_arena *a,
                            struct ipc_request *r, struct clime_error *e) {
    static const char *const modes[] = {[MODE_COPY] = "copy", [MODE_SHARE] = "share", [MODE_WRITING] = "writing"};
    struct ipc_words w = {.flush_cache = true, .timeout = 600};
    enum clime_err err = read_body(s, rq, a, &w, e);
    r->ranges = w.ranges;
    r->n_ranges = w.n_ranges;
    if (err) return err;
    r->abort_all = w.abort_all;
    r->flush_cache = w.flush_cache;
    r->timeout = w.timeout;
    int mode = 0;
    while (mode < (int)CLIME_COUNT(modes) && !clime_str_is(w.mode, modes[mode])) mode++;
    if (mode == (int)CLIME_COUNT(modes)) return clime_fail(e, CLIME_ERR_INPUT, "mode must be copy, share or writing");
    r->mode = (enum mode)mode;
    if (!(r->timeout > 0)) return clime_fail(e, CLIME_ERR_INPUT, "timeout must be above 0 and at most 86400 seconds");
    if (r->mode == MODE_WRITING) return CLIME_OK;
    if ((err = clime_update_label(w.label, e)) || (err = check_model(s->model, w.layout, w.dtype, e)) ||
        (err = check_handles(s, r, &w, e)))
        return err;
    const char *own = clime_dev_info(s->model->dev)->unit;
    if (r->mode == MODE_SHARE && w.unit.len > 0 && !clime_str_is(w.unit, own))
        return clime_fail(e, CLIME_ERR_INPUT, "the weights lie on " CLIME_STR_FMT ", this server computes on %s",
                          CLIME_STR_ARG(w.unit), own);
    snprintf(r->label, sizeof r->label, CLIME_STR_FMT, CLIME_STR_ARG(w.label));
    return r->mode == MODE_COPY ? clime_update_hex64("checksum", w.checksum, &r->checksum, e) : CLIME_OK;
}

/* ---- the three modes --------------------------------------------------------------------------------------- */

static enum clime_err copy_parts(struct clime_server *s, const struct ipc_request *r, int *n_inflight,
                                 struct clime_error *e) {
    struct clime_weight_source from = {.kind = CLIME_FROM_PARTS,
                                       .parts = {.handles = r->handles,
                                                 .n_handles = r->n_handles,
                                                 .ranges = r->ranges,
                                                 .n_ranges = r->n_ranges,
                                                 .checksum = r->checksum}};
    return clime_engine_update(s->engine, &from, r->label, clime_update_inflight(r->abort_all, r->flush_cache),
                               n_inflight, e);
}

static enum clime_err copy_weights(struct clime_server *s, const struct ipc_request *r, int *n_inflight,
                                   struct clime_error *e) {
    const struct clime_ops *ops = s->model->ops;
    size_t bytes = clime_model_bytes(s->model);
    void *theirs = NULL, *staging = NULL;
    struct clime_dev *dev;
    bool same_unit;
    enum clime_err err = clime_update_device(s, &dev, e);
    if (err) return err;
    if ((err = ops->share_open(dev, r->handles[0], bytes, &same_unit, &theirs, e)) ||
        (err = ops->alloc(dev, bytes, "staging of the weights", &staging, e)))
        goto done;
    ops->copy(dev, staging, theirs, bytes);
    uint64_t sum = ops->checksum(dev, 0, bytes, staging);
    if ((err = ops->sync(dev, e))) goto done;
    if (sum != r->checksum) {
        err = clime_fail(e, CLIME_ERR_INPUT, "the copy's checksum is %016llx, the request says %016llx",
                         (unsigned long long)sum, (unsigned long long)r->checksum);
        goto done;
    }
    if ((err = clime_model_finite(s->model, dev, 0, s->model->layout.bytes, staging, e))) goto done;
    struct clime_weight_source from = {.kind = CLIME_FROM_DEVICE, .flat = staging};
    err = clime_engine_update(s->engine, &from, r->label, clime_update_inflight(r->abort_all, r->flush_cache),
                              n_inflight, e);
done:
    if (staging) ops->free(dev, staging);
    if (theirs) ops->share_close(dev, theirs);
    return err;
}

static enum clime_err do_request(struct clime_server *s, const struct ipc_request *r, int *n_inflight,
                                 struct clime_error *e) {
    struct clime_weight_source from = {.kind = CLIME_FROM_OWNER, .handles = r->handles, .n_handles = r->n_handles};
    switch (r->mode) {
    case MODE_COPY:
        return (r->n_ranges ? copy_parts : copy_weights)(s, r, n_inflight, e);
    case MODE_SHARE:
        return clime_engine_update(s->engine, &from, r->label, clime_update_inflight(r->abort_all, r->flush_cache),
                                   n_inflight, e);
    default:
        return clime_engine_writing(s->engine, (int64_t)(r->timeout * 1e6), e);
    }
}

void clime_handle_update_from_ipc(struct clime_http_request *rq, void *context) {
    static const char *const done[] = {[MODE_COPY] = "Weights copied and in force.",
                                       [MODE_SHARE] = "Weights in force, shared with their owner.",
                                       [MODE_WRITING] = "No step runs; the weights may be rewritten."};
    struct clime_server *s = context;
    struct ipc_request r = {0};
    struct clime_arena a;
    struct clime_error e = {0};
    int n_inflight = 0;
    int64_t t0 = clime_now_us();
    clime_arena_init(&a, (size_t)1 << 20);
    enum clime_err err = parse(s, rq, &a, &r, &e);
    if (!err && !(err = clime_update_lock(s->update, rq, &e))) {
        err = do_request(s, &r, &n_inflight, &e);
        if (!err) s->update->last.hex[0] = '\0';
        if (!err && r.mode != MODE_WRITING) clime_incoming_forget(s->update);
        clime_update_unlock(s->update);
    }
    if (err) {
        LOG_WARN("update by shared memory refused: %s", e.msg);
        clime_http_reply_err(rq, &e);
    } else {
        if (r.mode != MODE_WRITING) clime_server_metrics_load_time(s->metrics, (double)(clime_now_us() - t0) / 1e6);
        clime_update_reply(rq, done[r.mode], clime_engine_version(s->engine)->name, n_inflight);
    }
    free(r.ranges);
    clime_arena_free(&a);
}
