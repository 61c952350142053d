/* POST /update_weights_from_tensor: tensors by reference (SGLang on one host: a pickle of torch's GPU memory handles)
 * or by value (a safetensors body). HTTP workers, under the update lock.
 *
 * serialized_named_tensors has a text per model rank; only the first is read, since every sender puts whole tensors in
 * each. As with a broadcast, tensors gather until complete, or until generation resumes (incoming.c). Invariant:
 * foreign memory is mapped only while the request runs, and every named tensor is released to its owner, also after an
 * error.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/base64.h"
#include "common/clock.h"
#include "common/log.h"
#include "server/job/fields.h"
#include "server/server_metrics.h"
#include "server/update/torch_tensor.h"
#include "server/update/weight_update.h"

#define BODY_ARENA_BYTES ((size_t)4 << 20)
#define TREE_ARENA_BYTES ((size_t)256 << 20)
#define MAX_MAPPED 64 /* allocations per request */
#define EVENT_LIMIT_US ((int64_t)60000000)

struct tensor_request {
    struct clime_str text, version, format; /* text: the first rank's, as in the body */
    bool bucket, abort_all, flush_cache;
};

static bool read_texts(struct clime_json *j, void *object) {
    struct clime_str raw, *text = object;
    int n = 0;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_array(j); clime_json_item(j) && clime_json_skip(j, &raw); n++)
        if (n == 0) *text = raw;
    return !j->failed;
}

#define AT(field) offsetof(struct tensor_request, field)

static const struct clime_member body_rows[] = {
    {"serialized_named_tensors", CLIME_MEMBER_CALL, AT(text), .read = read_texts},
    {"load_format", CLIME_MEMBER_STRING, AT(format)},
    {"weight_version", CLIME_MEMBER_STRING, AT(version)},
    {"abort_all_requests", CLIME_MEMBER_BOOL, AT(abort_all)},
    {"flush_cache", CLIME_MEMBER_BOOL, AT(flush_cache)},
};
static const struct clime_members members = {body_rows, CLIME_COUNT(body_rows)};
static const struct clime_field others[] = {
    {"torch_empty_cache", CLIME_FIELD_INERT}, {"disable_draft_model", CLIME_FIELD_INERT}, {NULL, NULL}};
static const struct clime_fields fields = {
    .where = "/update_weights_from_tensor", .rows = {others}, .read = {&members}};

static enum clime_err read_body(struct clime_server *s, struct clime_http_request *rq, struct clime_arena *a,
                                struct tensor_request *r, struct clime_error *e) {
    *r = (struct tensor_request){.flush_cache = true};
    if (clime_fields_read(&fields, s->field_watch, clime_http_body(rq), a, r, e)) return e->code;
    r->bucket = clime_str_is(r->format, "flattened_bucket");
    if (!r->bucket && r->format.len > 0 && !clime_str_is(r->format, "direct"))
        return clime_fail(e, CLIME_ERR_INPUT, "load_format must be null, direct or flattened_bucket");
    if (r->text.len < 2 || r->text.ptr[0] != '"')
        return clime_fail(e, CLIME_ERR_INPUT, "serialized_named_tensors must be a list of texts in base64");
    r->text.ptr++; /* base64 has no escapes: the text is what is between the quotes */
    r->text.len -= 2;
    return r->version.len > 0 ? clime_update_label(r->version, e) : CLIME_OK;
}

/* ---- a safetensors body ------------------------------------------------------------------------------------ */

static enum clime_err put_safetensors(struct clime_server *s, const uint8_t *bytes, size_t n, struct clime_error *e) {
    static const char *const words[] = {
        [CLIME_ST_F32] = "float32", [CLIME_ST_F16] = "float16", [CLIME_ST_BF16] = "bfloat16"};
    struct clime_st_header h;
    uint64_t length;
    enum clime_err err = clime_st_header_length(bytes, &length, e);
    if (!err && length > n - 8) err = clime_fail(e, CLIME_ERR_INPUT, "the safetensors body ends inside its header");
    if (!err) err = clime_st_header_parse((const char *)bytes + 8, (size_t)length, &h, e);
    if (err) return err;
    if (h.data_bytes != n - 8 - length)
        err = clime_fail(e, CLIME_ERR_INPUT, "the safetensors body has %zu bytes of tensors, its header says %llu",
                         n - 8 - (size_t)length, (unsigned long long)h.data_bytes);
    for (int i = 0; i < h.n && !err; i++) {
        const struct clime_st_tensor *t = &h.tensors[i];
        const char *word = t->type < (int)CLIME_COUNT(words) ? words[t->type] : t->dtype;
        struct clime_incoming_tensor in = {.name = t->name,
                                           .dtype = clime_str_of(word),
                                           .n_dim = t->n_dim,
                                           .dim = t->dim,
                                           .from = (const char *)bytes + 8 + length + t->begin,
                                           .n_bytes = (size_t)(t->end - t->begin),
                                           .host = true};
        err = clime_incoming_put(s, &in, e);
    }
    clime_st_header_free(&h);
    return err;
}

/* ---- memory by reference --------------------------------------------------------------------------------- */

struct mapped { /* a request's allocations, all recorded before the first is mapped, so each is mapped once */
    struct {
        const uint8_t *handle;
        void *at;     /* NULL until one of its tensors is mapped */
        size_t bytes; /* up to the end of its last tensor */
    } of[MAX_MAPPED];
    int n;
};

static enum clime_err note_memory(struct mapped *m, const struct clime_torch_tensor *t, struct clime_error *e) {
    int i = 0;
    while (i < m->n && memcmp(m->of[i].handle, t->handle, CLIME_SHARE_BYTES) != 0) i++;
    if (i == MAX_MAPPED) return clime_fail(e, CLIME_ERR_LIMIT, "tensors of more than %d allocations", i);
    if (i == m->n) m->of[m->n++].handle = t->handle;
    if (m->of[i].bytes < t->at + t->n_bytes) m->of[i].bytes = t->at + t->n_bytes;
    return CLIME_OK;
}

static bool same_unit(struct clime_str theirs, const char *own) { /* the prefix "GPU-" is optional */
    const char *plain = strncmp(own, "GPU-", 4) == 0 ? own + 4 : own;
    return theirs.len == 0 || clime_str_is(theirs, own) || clime_str_is(theirs, plain);
}

/* Address of a recorded tensor in this process, after waiting for its content. NULL with e. */
static const char *map_tensor(struct clime_server *s, struct mapped *m, const struct clime_torch_tensor *t,
                              struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    const char *own = clime_dev_info(u->dev)->unit;
    bool same;
    int i = 0;
    if (!same_unit(t->unit, own))
        return clime_fail(e, CLIME_ERR_INPUT, "a tensor lies on " CLIME_STR_FMT ", this server computes on %s",
                          CLIME_STR_ARG(t->unit), own),
               NULL;
    if (t->event && u->ops->share_wait && u->ops->share_wait(u->dev, t->event, EVENT_LIMIT_US, e)) return NULL;
    while (memcmp(m->of[i].handle, t->handle, CLIME_SHARE_BYTES) != 0) i++;
    if (!m->of[i].at && u->ops->share_open(u->dev, t->handle, m->of[i].bytes, &same, &m->of[i].at, e)) return NULL;
    return (const char *)m->of[i].at + t->at;
}

static enum clime_err read_named(const struct clime_pickle_value *pair, struct clime_torch_tensor *t,
                                 struct clime_error *e) {
    if (pair->kind != CLIME_PICKLE_TUPLE || pair->n != 2 || pair->items[0]->kind != CLIME_PICKLE_TEXT)
        return clime_fail(e, CLIME_ERR_INPUT, "the pickle must be a list of pairs of a name and a tensor");
    return clime_torch_tensor_read(pair->items[1], t, e);
}

static enum clime_err put_named(struct clime_server *s, struct mapped *m, struct clime_arena *a,
                                const struct clime_pickle_value *pair, struct clime_error *e) {
    struct clime_torch_tensor t;
    if (read_named(pair, &t, e)) return e->code;
    const char *name = clime_arena_strdup(a, pair->items[0]->text);
    if (!name) return clime_fail(e, CLIME_ERR_LIMIT, "the names are too long");
    const char *from = map_tensor(s, m, &t, e);
    struct clime_incoming_tensor in = {
        .name = name, .dtype = t.dtype, .n_dim = t.n_dim, .dim = t.dim, .from = from, .n_bytes = t.n_bytes};
    return from ? clime_incoming_put(s, &in, e) : e->code;
}

static enum clime_err put_list(struct clime_server *s, struct mapped *m, struct clime_arena *a,
                               const struct clime_pickle_value *root, struct clime_error *e) {
    struct clime_torch_tensor t;
    enum clime_err err = CLIME_OK;
    if (root->kind != CLIME_PICKLE_LIST && root->kind != CLIME_PICKLE_TUPLE)
        return clime_fail(e, CLIME_ERR_INPUT, "the pickle must be a list of pairs of a name and a tensor");
    for (int i = 0; i < root->n && !err; i++)
        if (!(err = read_named(root->items[i], &t, e))) err = note_memory(m, &t, e);
    for (int i = 0; i < root->n && !err; i++) err = put_named(s, m, a, root->items[i], e);
    return err;
}

/* A row of a bucket's list: SGLang's FlattenedTensorMetadata, whose fields are in its state. */
static enum clime_err put_row(struct clime_server *s, struct clime_arena *a, const struct clime_pickle_value *row,
                              const char *from, size_t n_bytes, struct clime_error *e) {
    int64_t dim[CLIME_ST_MAX_DIMS];
    int n_dim;
    const struct clime_pickle_value *state = row->kind == CLIME_PICKLE_CALL ? row->items[2] : row;
    const struct clime_pickle_value *name = clime_pickle_at(state, "name"),
                                    *begin = clime_pickle_at(state, "start_idx"),
                                    *end = clime_pickle_at(state, "end_idx");
    if (!name || name->kind != CLIME_PICKLE_TEXT || !begin || begin->kind != CLIME_PICKLE_INT || !end ||
        end->kind != CLIME_PICKLE_INT)
        return clime_fail(e, CLIME_ERR_INPUT, "a bucket's metadata needs name, shape, dtype, start_idx and end_idx");
    if (begin->number < 0 || end->number < begin->number || (uint64_t)end->number > n_bytes)
        return clime_fail(e, CLIME_ERR_INPUT, "tensor \"" CLIME_STR_FMT "\" lies outside of the bucket",
                          (int)(name->text.len < 200 ? name->text.len : 200), name->text.ptr);
    const char *text = clime_arena_strdup(a, name->text);
    if (!text) return clime_fail(e, CLIME_ERR_LIMIT, "the names are too long");
    if (clime_torch_shape(clime_pickle_at(state, "shape"), dim, &n_dim, e)) return e->code;
    struct clime_incoming_tensor in = {.name = text,
                                       .dtype = clime_torch_dtype(clime_pickle_at(state, "dtype")),
                                       .n_dim = n_dim,
                                       .dim = dim,
                                       .from = from + begin->number,
                                       .n_bytes = (size_t)(end->number - begin->number)};
    return clime_incoming_put(s, &in, e);
}

static enum clime_err put_bucket(struct clime_server *s, struct mapped *m, struct clime_arena *a,
                                 const struct clime_pickle_value *root, struct clime_error *e) {
    struct clime_torch_tensor t;
    const struct clime_pickle_value *rows = clime_pickle_at(root, "metadata");
    if (!rows || rows->kind != CLIME_PICKLE_LIST)
        return clime_fail(e, CLIME_ERR_INPUT, "a flattened_bucket is a dict of flattened_tensor and metadata, a list");
    enum clime_err err = clime_torch_tensor_read(clime_pickle_at(root, "flattened_tensor"), &t, e);
    if (err || (err = note_memory(m, &t, e))) return err;
    const char *from = map_tensor(s, m, &t, e);
    if (!from) return e->code;
    for (int i = 0; i < rows->n && !err; i++) err = put_row(s, a, rows->items[i], from, t.n_bytes, e);
    return err;
}

/* Releases every tensor that the pickle names, used or not. */
static void release_all(const struct clime_pickle_value *root) {
    struct clime_torch_tensor t;
    struct clime_error ignored;
    if (!clime_torch_tensor_read(clime_pickle_at(root, "flattened_tensor"), &t, &ignored))
        clime_torch_tensor_release(&t);
    bool list = root->kind == CLIME_PICKLE_LIST || root->kind == CLIME_PICKLE_TUPLE;
    for (int i = 0; list && i < root->n; i++) {
        const struct clime_pickle_value *pair = root->items[i];
        if (pair->kind == CLIME_PICKLE_TUPLE && pair->n == 2 && !clime_torch_tensor_read(pair->items[1], &t, &ignored))
            clime_torch_tensor_release(&t);
    }
}

static enum clime_err put_pickle(struct clime_server *s, struct clime_str bytes, bool bucket, struct clime_error *e) {
    struct clime_arena a;
    struct mapped m = {.n = 0};
    const struct clime_pickle_value *root;
    clime_arena_init(&a, TREE_ARENA_BYTES);
    enum clime_err err = clime_pickle_read(bytes, &a, &root, e);
    if (!err) err = (bucket ? put_bucket : put_list)(s, &m, &a, root, e);
    struct clime_error late;
    if (m.n > 0 && s->update->ops->sync(s->update->dev, err ? &late : e) && !err) err = e->code;
    for (int i = 0; i < m.n; i++)
        if (m.of[i].at) s->update->ops->share_close(s->update->dev, m.of[i].at);
    if (root) release_all(root);
    clime_arena_free(&a);
    return err;
}

/* ---- a request --------------------------------------------------------------------------------------------- */

static enum clime_err take(struct clime_server *s, const struct tensor_request *r, struct clime_error *e) {
    uint8_t *bytes = malloc(r->text.len / 4 * 3 + 3);
    size_t n;
    if (!bytes) return clime_fail(e, CLIME_ERR_LIMIT, "no memory for the tensors of the request");
    enum clime_err err = clime_base64_decode(r->text, bytes, &n, e);
    if (!err && n < 9) err = clime_fail(e, CLIME_ERR_INPUT, "serialized_named_tensors[0] holds no tensors");
    if (!err) err = clime_incoming_begin(s, e);
    if (!err && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5) /* a pickle's first bytes */
        err = put_pickle(s, (struct clime_str){(const char *)bytes, n}, r->bucket, e);
    else if (!err)
        err = put_safetensors(s, bytes, n, e);
    if (!err) err = s->update->ops->sync(s->update->dev, e);
    free(bytes);
    if (err) clime_incoming_tear(s->update);
    return err;
}

void clime_handle_update_from_tensor(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct tensor_request r;
    struct clime_arena a;
    struct clime_error e = {0};
    bool complete = false;
    int n_inflight = 0, n_have = 0;
    int64_t t0 = clime_now_us();
    clime_arena_init(&a, BODY_ARENA_BYTES);
    enum clime_err err = read_body(s, rq, &a, &r, &e);
    if (!err && !(err = clime_update_lock(s->update, rq, &e))) {
        err = take(s, &r, &e);
        if (!err)
            err = clime_incoming_settle(s, r.version, clime_update_inflight(r.abort_all, r.flush_cache),
                                        (struct clime_str){"", 0}, &complete, &n_inflight, &e);
        n_have = clime_incoming_count(s->update);
        clime_update_unlock(s->update);
    }
    if (err) {
        LOG_WARN("update from tensors refused: %s", e.msg);
        clime_http_reply_err(rq, &e);
    } else {
        if (complete) clime_server_metrics_load_time(s->metrics, (double)(clime_now_us() - t0) / 1e6);
        clime_incoming_reply(rq, s, complete, n_have, n_inflight);
    }
    clime_arena_free(&a);
}
