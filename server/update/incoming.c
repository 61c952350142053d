/* Receives tensors, places their bytes, and swaps in the gathered set. Called by the handlers of distributed.c and
 * transfer.c and before generation resumes, HTTP workers, under the update lock.
 *
 * Tensors gather in staging memory in the model's layout on its device, over any number of requests. Tensors of the
 * model's type are received in place; other types, and buckets whose tensors are not adjacent here, go through scratch
 * memory. Invariant: staging and list exist together: after any error both are freed, and the old version serves.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "model/weights/weights_gather.h"
#include "server/update/weight_update.h"

#define MAX_UNUSED 64 /* tensors of one request without a row in the layout: a tied head, tables */

enum clime_err clime_incoming_refuse_torn(struct clime_weight_update *u, struct clime_error *e) {
    if (!u->torn) return CLIME_OK;
    clime_incoming_forget(u);
    return clime_fail(e, CLIME_ERR_INPUT,
                      "a part of this update has failed, so nothing of it is in force: send all of it again");
}

int clime_incoming_count(const struct clime_weight_update *u) {
    return u->gather ? clime_weights_gather_count(u->gather) : 0;
}

bool clime_incoming_complete(const struct clime_server *s) {
    return clime_incoming_count(s->update) == s->model->layout.n_slices;
}

enum clime_err clime_incoming_begin(struct clime_server *s, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    struct clime_dev *dev;
    size_t bytes = clime_model_bytes(s->model);
    enum clime_err err = clime_update_device(s, &dev, e);
    if (err || u->incoming) return err;
    err = u->ops->alloc(dev, bytes, "staging of the weights", &u->incoming, e);
    if (err) return err;
    u->ops->zero(dev, u->incoming, bytes); /* padding between tensors */
    u->gather = clime_weights_gather_new(&s->model->cfg, &s->model->layout);
    return u->ops->sync(dev, e);
}

/* ---- the lists --------------------------------------------------------------------------------------------- */

static enum clime_err read_shape(struct clime_json *j, int64_t dim[CLIME_ST_MAX_DIMS], int *n, struct clime_error *e) {
    int64_t v;
    *n = 0;
    for (clime_json_array(j); clime_json_item(j) && clime_json_int(j, 0, INT64_MAX, &v); (*n)++)
        if (*n < CLIME_ST_MAX_DIMS) dim[*n] = v;
    return e->code;
}

static enum clime_err lengths_differ(struct clime_error *e) {
    return e->code ? e->code : clime_fail(e, CLIME_ERR_INPUT, "names, dtypes and shapes differ in length");
}

/* Fills out[most]; returns the number, or -1. */
static int read_lists(struct clime_weights_gather *g, const struct clime_incoming_ask *ask, struct clime_arena *a,
                      struct clime_gather_tensor *out, int most, struct clime_error *e) {
    struct clime_json names, dtypes, shapes;
    struct clime_str name, dtype;
    int n = 0;
    if (!ask->names.len || !ask->dtypes.len || !ask->shapes.len)
        return clime_fail(e, CLIME_ERR_INPUT, "names, dtypes and shapes are required"), -1;
    clime_json_init(&names, ask->names.ptr, ask->names.len, a, e);
    clime_json_init(&dtypes, ask->dtypes.ptr, ask->dtypes.len, a, e);
    clime_json_init(&shapes, ask->shapes.ptr, ask->shapes.len, a, e);
    clime_json_array(&dtypes);
    clime_json_array(&shapes);
    for (clime_json_array(&names); clime_json_item(&names); n++) {
        int64_t dim[CLIME_ST_MAX_DIMS];
        int n_dim;
        if (n == most) return clime_fail(e, CLIME_ERR_INPUT, "more tensors than the model has"), -1;
        if (!clime_json_string(&names, &name) || !clime_json_item(&dtypes) || !clime_json_string(&dtypes, &dtype) ||
            !clime_json_item(&shapes))
            return lengths_differ(e), -1;
        const char *text = clime_arena_strdup(a, name);
        if (!text) return clime_fail(e, CLIME_ERR_LIMIT, "the names are too long"), -1;
        if (read_shape(&shapes, dim, &n_dim, e) || clime_weights_gather_take(g, text, dtype, n_dim, dim, &out[n], e))
            return -1;
    }
    if (!clime_json_end(&names) || clime_json_item(&dtypes) || clime_json_item(&shapes)) return lengths_differ(e), -1;
    if (n == 0) return clime_fail(e, CLIME_ERR_INPUT, "no tensor is named"), -1;
    return n;
}

/* ---- placing bytes --------------------------------------------------------------------------------------- */

struct receipt {                               /* one request's tensors */
    const struct clime_gather_tensor *tensors; /* [n] */
    int n;
    char **from; /* [n] in scratch; NULL: received in place */
    struct clime_comm_part *parts;
    int n_parts;
    void *scratch; /* device memory */
};

static char *place_of(const struct clime_server *s, const struct clime_gather_tensor *t) {
    return (char *)s->update->incoming + t->to->offset;
}

/* True when the tensors are adjacent in the layout as on the wire. */
static bool lie_as_they_come(const struct clime_server *s, const struct receipt *r) {
    for (int i = 0; i < r->n; i++) {
        const struct clime_gather_tensor *t = &r->tensors[i];
        if (!t->as_it_is || (i > 0 && place_of(s, t) != place_of(s, t - 1) + t[-1].bytes)) return false;
    }
    return true;
}

static enum clime_err take_scratch(struct clime_server *s, struct receipt *r, bool all, struct clime_error *e) {
    size_t bytes = 0;
    for (int i = 0; i < r->n; i++) bytes += all || !r->tensors[i].as_it_is ? r->tensors[i].bytes : 0;
    if (bytes == 0) return CLIME_OK;
    enum clime_err err = s->update->ops->alloc(s->update->dev, bytes, "tensors of another form", &r->scratch, e);
    char *at = r->scratch;
    for (int i = 0; i < r->n && !err; i++) {
        if (!all && r->tensors[i].as_it_is) continue;
        r->from[i] = at;
        at += r->tensors[i].bytes;
    }
    return err;
}

static enum clime_err plan(struct clime_server *s, struct receipt *r, const struct clime_incoming_ask *ask,
                           struct clime_error *e) {
    bool in_place = ask->bucket && lie_as_they_come(s, r);
    enum clime_err err = in_place ? CLIME_OK : take_scratch(s, r, ask->bucket, e);
    for (int i = 0; i < r->n && !err; i++) {
        const struct clime_gather_tensor *t = &r->tensors[i];
        struct clime_comm_part *last = r->n_parts ? &r->parts[r->n_parts - 1] : NULL;
        bool full = ask->bucket_bytes > 0 && last && (int64_t)last->bytes > ask->bucket_bytes;
        if (ask->bucket && last && !full)
            last->bytes += t->bytes;
        else
            r->parts[r->n_parts++] = (struct clime_comm_part){r->from[i] ? r->from[i] : place_of(s, t), t->bytes};
    }
    return err;
}

/* Copies a tensor's bytes, in device or host memory, to its place. */
static void unpack(struct clime_server *s, const struct clime_gather_tensor *t, const char *from, bool host) {
    struct clime_weight_update *u = s->update;
    if (!t->to) return;
    size_t bytes = (size_t)t->to->bytes;
    if (t->as_it_is) {
        (host ? u->ops->copy_in : u->ops->copy)(u->dev, place_of(s, t), from, t->bytes);
        return;
    }
    void *h_bytes = host ? NULL : xmalloc(t->bytes), *h_own = xmalloc(bytes);
    if (!host) u->ops->copy_out(u->dev, h_bytes, from, t->bytes);
    clime_weights_gather_convert(t, host ? from : h_bytes, h_own);
    u->ops->copy_in(u->dev, place_of(s, t), h_own, bytes);
    free(h_bytes);
    free(h_own);
}

static enum clime_err receive(struct clime_server *s, struct clime_update_group *g,
                              const struct clime_incoming_ask *ask, struct receipt *r, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    enum clime_err err = plan(s, r, ask, e);
    if (!err) err = clime_update_group_receive(s, g, r->parts, r->n_parts, ask->timeout, e);
    for (int i = 0; i < r->n && !err; i++)
        if (r->from[i]) unpack(s, &r->tensors[i], r->from[i], false);
    if (!err) err = u->ops->sync(u->dev, e);
    if (r->scratch) u->ops->free(u->dev, r->scratch);
    return err;
}

enum clime_err clime_incoming_receive(struct clime_server *s, struct clime_update_group *g,
                                      const struct clime_incoming_ask *ask, struct clime_arena *a,
                                      struct clime_error *e) {
    int most = s->model->layout.n_slices + MAX_UNUSED;
    struct clime_gather_tensor *tensors = xcalloc((size_t)most, sizeof *tensors);
    struct receipt r = {.tensors = tensors};
    enum clime_err err = clime_incoming_begin(s, e);
    if (!err) r.n = read_lists(s->update->gather, ask, a, tensors, most, e);
    if (!err && r.n < 0) err = e->code;
    if (!err) {
        r.from = xcalloc((size_t)r.n, sizeof *r.from);
        r.parts = xcalloc((size_t)r.n, sizeof *r.parts);
        err = receive(s, g, ask, &r, e);
    }
    if (err) clime_incoming_tear(s->update);
    free(r.from);
    free(r.parts);
    free(tensors);
    return err;
}

enum clime_err clime_incoming_put(struct clime_server *s, const struct clime_incoming_tensor *t,
                                  struct clime_error *e) {
    struct clime_gather_tensor g;
    enum clime_err err = clime_weights_gather_take(s->update->gather, t->name, t->dtype, t->n_dim, t->dim, &g, e);
    if (err) return err;
    if (g.bytes != t->n_bytes)
        return clime_fail(e, CLIME_ERR_INPUT, "tensor \"%.200s\" comes with %zu bytes and needs %zu", t->name,
                          t->n_bytes, g.bytes);
    unpack(s, &g, t->from, t->host);
    return CLIME_OK;
}

/* ---- swapping in ----------------------------------------------------------------------------------------- */

static enum clime_err check_sum(struct clime_server *s, struct clime_str checksum, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    uint64_t want, sum;
    if (checksum.len == 0) return CLIME_OK;
    if (clime_update_hex64("checksum", checksum, &want, e)) return e->code;
    if (!clime_incoming_complete(s))
        return clime_fail(e, CLIME_ERR_INPUT, "checksum is of all tensors, and only some have come");
    sum = u->ops->checksum(u->dev, 0, clime_model_bytes(s->model), u->incoming);
    if (sum == want) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "the checksum of what came is %016llx, the request says %016llx",
                      (unsigned long long)sum, (unsigned long long)want);
}

enum clime_err clime_incoming_apply(struct clime_server *s, struct clime_str checksum, int *n_inflight,
                                    struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    struct clime_dev *dev;
    const char *label = u->label[0] ? u->label : clime_engine_version(s->engine)->name;
    bool all = clime_incoming_complete(s);
    CHECK(u->incoming);
    enum clime_err err = clime_update_device(s, &dev, e);
    if (!err) err = check_sum(s, checksum, e);
    if (!err) err = clime_model_finite(s->model, dev, 0, s->model->layout.bytes, u->incoming, e);
    struct clime_weight_source from = {
        .kind = CLIME_FROM_DEVICE, .flat = u->incoming, .slices = all ? NULL : clime_weights_gather_have(u->gather)};
    if (!err) err = clime_engine_update(s->engine, &from, label, u->inflight, n_inflight, e);
    if (!err) u->last.hex[0] = '\0';
    clime_incoming_forget(u);
    return err;
}

enum clime_err clime_incoming_settle(struct clime_server *s, struct clime_str version, enum clime_inflight inflight,
                                     struct clime_str checksum, bool *complete, int *n_inflight,
                                     struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    if (version.len > 0) snprintf(u->label, sizeof u->label, CLIME_STR_FMT, CLIME_STR_ARG(version));
    u->inflight = inflight;
    *complete = clime_incoming_complete(s) && !u->to_be_finished;
    return *complete ? clime_incoming_apply(s, checksum, n_inflight, e) : CLIME_OK;
}

void clime_incoming_reply(struct clime_http_request *rq, const struct clime_server *s, bool complete, int n_have,
                          int n_inflight) {
    char message[120];
    snprintf(message, sizeof message,
             complete ? "Weights updated." : "%d of %d tensors are here; the old version serves on.", n_have,
             s->model->layout.n_slices);
    clime_update_reply(rq, message, clime_engine_version(s->engine)->name, n_inflight);
}

static enum clime_err apply_unfinished(struct clime_server *s, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    int n = clime_incoming_count(u), n_inflight;
    enum clime_err err = CLIME_OK;
    if (n == 0) {
        u->torn = false; /* the failed part's sender got the error; this is a new update */
        return CLIME_OK;
    }
    err = clime_incoming_refuse_torn(u, e);
    if (!err) err = clime_incoming_apply(s, (struct clime_str){"", 0}, &n_inflight, e);
    if (!err)
        LOG_INFO("%d of %d tensors came before generation went on, and are in force", n, s->model->layout.n_slices);
    return err;
}

enum clime_err clime_update_resume(struct clime_server *s, struct clime_http_request *client, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    enum clime_err err = CLIME_OK;
    if (!clime_update_lock(u, client, NULL)) {
        if (!u->to_be_finished) err = apply_unfinished(s, e);
        clime_update_unlock(u);
    }
    if (!err) clime_engine_resume(s->engine);
    return err;
}
