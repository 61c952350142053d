/* /weights_checker and /get_weights_by_name (SGLang), /weight_checker (vLLM): checksums of the current weights per
 * tensor, and whether an update changed all of them. HTTP workers, under the update lock, so that no update intervenes;
 * weights are read in pieces between two steps. Owns the checksums of the last snapshot.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "model/weights/convert.h"
#include "server/job/fields.h"
#include "server/update/weight_update.h"

#define PIECE_BYTES ((size_t)8 << 20) /* bounds a step's delay */
#define MAX_SAID 5                    /* names in a message */

typedef uint8_t digest[32];

/* SHA-256 of each tensor's bytes in device layout: out[n_slices]. */
static enum clime_err checksums(struct clime_server *s, digest *out, struct clime_error *e) {
    const struct clime_layout *l = &s->model->layout;
    uint8_t *piece = xmalloc(PIECE_BYTES);
    enum clime_err err = CLIME_OK;
    for (int i = 0; i < l->n_slices && !err; i++) {
        const struct clime_slice *t = &l->slices[i];
        struct clime_sha256 sha;
        size_t left = (size_t)t->bytes, at = (size_t)t->offset;
        clime_sha256_init(&sha);
        while (left > 0 && !err) {
            size_t n = left < PIECE_BYTES ? left : PIECE_BYTES;
            if ((err = clime_engine_read_weights(s->engine, at, n, piece, e))) break;
            clime_sha256_add(&sha, piece, n);
            at += n;
            left -= n;
        }
        clime_sha256_done(&sha, out[i]);
    }
    free(piece);
    return err;
}

/* One checksum of all tensors' names and checksums, in layout order. */
static void whole(const struct clime_layout *l, const digest *sums, char hex[65]) {
    struct clime_sha256 sha;
    uint8_t out[32];
    clime_sha256_init(&sha);
    for (int i = 0; i < l->n_slices; i++) {
        clime_sha256_add(&sha, l->slices[i].name, strlen(l->slices[i].name) + 1);
        clime_sha256_add(&sha, sums[i], sizeof sums[i]);
    }
    clime_sha256_done(&sha, out);
    clime_sha256_hex(out, hex);
}

static void write_sums(struct clime_jw *w, const struct clime_layout *l, const digest *sums) {
    char hex[65];
    clime_jw_key(w, "checksums");
    clime_jw_object(w);
    for (int i = 0; i < l->n_slices; i++) {
        clime_sha256_hex(sums[i], hex);
        clime_jw_put_strz(w, l->slices[i].name, hex);
    }
    clime_jw_close(w);
}

static void reply_sums(struct clime_http_request *rq, const struct clime_server *s, const digest *sums) {
    const struct clime_layout *l = &s->model->layout;
    struct clime_buf body;
    struct clime_jw w;
    char hex[65];
    clime_buf_init(&body, CLIME_MAX_REPLY);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    clime_jw_put_bool(&w, "success", true);
    clime_jw_put_strz(&w, "message", "SHA-256 of each tensor's bytes on the device");
    clime_jw_key(&w, "ranks");
    clime_jw_array(&w);
    clime_jw_object(&w);
    write_sums(&w, l, sums);
    whole(l, sums, hex);
    clime_jw_put_strz(&w, "per_gpu_checksum", hex);
    clime_jw_key(&w, "parallelism_info");
    clime_jw_object(&w);
    clime_jw_put_int(&w, "tp_rank", 0);
    clime_jw_put_int(&w, "tp_size", 1);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_jw_put_strz(&w, "per_engine_checksum", hex);
    clime_jw_put_strz(&w, "weight_version", clime_engine_version(s->engine)->name);
    clime_jw_close(&w);
    clime_reply_buf(rq, 200, &body);
}

/* CLIME_ERR_INPUT names tensors that differ. */
static enum clime_err compare(const struct clime_layout *l, const digest *was, const digest *now,
                              struct clime_error *e) {
    char names[400] = "";
    size_t at = 0;
    int n = 0;
    for (int i = 0; i < l->n_slices; i++) {
        if (memcmp(was[i], now[i], sizeof was[i]) == 0) continue;
        if (n++ < MAX_SAID && at < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", n > 1 ? ", " : "", l->slices[i].name);
    }
    if (n == 0) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "%d of %d tensors are not those of the snapshot: %s%s", n, l->n_slices, names,
                      n > MAX_SAID ? ", ..." : "");
}

/* Sets the weights to small finite numbers, distinct per place and in no checkpoint, to reveal what an update omits. */
static enum clime_err reset(struct clime_server *s, struct clime_error *e) {
    size_t bytes = clime_model_bytes(s->model);
    uint8_t *flat = malloc(bytes);
    if (!flat) return clime_fail(e, CLIME_ERR_LIMIT, "%zu bytes for other weights cannot be had", bytes);
    if (s->model->layout.type == CLIME_F32)
        for (size_t i = 0; i < bytes / 4; i++)
            memcpy(flat + i * 4, &(uint32_t){0x3c000000u | (uint32_t)(i * 2654435761u) >> 9}, 4);
    else
        for (size_t i = 0; i < bytes / 2; i++)
            memcpy(flat + i * 2, &(uint16_t){(uint16_t)(0x3c00u | (uint32_t)(i * 2654435761u) >> 25)}, 2);
    const struct clime_weight_source from = {.kind = CLIME_FROM_HOST, .flat = flat};
    enum clime_err err =
        clime_engine_update(s->engine, &from, clime_engine_version(s->engine)->name, CLIME_INFLIGHT_RECOMPUTE, NULL, e);
    if (!err) s->update->last.hex[0] = '\0';
    free(flat);
    return err;
}

/* ---- the request ------------------------------------------------------------------------------------------- */

struct ask {
    struct clime_str action;
};

static enum clime_err read_ask(struct clime_server *s, struct clime_http_request *rq, struct clime_arena *a,
                               struct ask *out, struct clime_error *e) {
    static const struct clime_member rows[] = {{"action", CLIME_MEMBER_STRING, offsetof(struct ask, action)}};
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_field others[] = {{"allow_quant_error", NULL}, {NULL, NULL}}; /* no quantization here */
    static const struct clime_fields fields = {.where = "/weights_checker", .rows = {others}, .read = {&members}};
    static const char *const actions[] = {"checksum", "snapshot", "compare", "reset_tensors"};
    if (clime_fields_read(&fields, s->field_watch, clime_http_body(rq), a, out, e)) return e->code;
    for (size_t i = 0; i < CLIME_COUNT(actions); i++)
        if (clime_str_is(out->action, actions[i])) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "action must be checksum, snapshot, compare or reset_tensors");
}

static enum clime_err act(struct clime_server *s, const struct ask *ask, digest *sums, struct clime_error *e) {
    struct clime_weight_update *u = s->update;
    size_t bytes = (size_t)s->model->layout.n_slices * sizeof *sums;
    enum clime_err err;
    if (clime_str_is(ask->action, "reset_tensors")) return reset(s, e);
    if (clime_str_is(ask->action, "compare") && !u->snapshot)
        return clime_fail(e, CLIME_ERR_INPUT, "there is no snapshot to compare with: ask for one first");
    if ((err = checksums(s, sums, e))) return err;
    if (clime_str_is(ask->action, "compare"))
        return compare(&s->model->layout, (const digest *)u->snapshot, (const digest *)sums, e);
    if (clime_str_is(ask->action, "snapshot")) {
        if (!u->snapshot) u->snapshot = xmalloc(bytes);
        memcpy(u->snapshot, sums, bytes);
    }
    return CLIME_OK;
}

void clime_handle_weights_checker(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    struct clime_arena a;
    struct ask ask = {{"", 0}};
    digest *sums = xmalloc((size_t)s->model->layout.n_slices * sizeof *sums);
    clime_arena_init(&a, clime_http_body(rq).len * 2 + 65536);
    enum clime_err err = read_ask(s, rq, &a, &ask, &e);
    bool locked = !err && !(err = clime_update_lock(s->update, rq, &e));
    if (locked) err = act(s, &ask, sums, &e);
    if (locked) clime_update_unlock(s->update);
    if (err && err != CLIME_ERR_INPUT)
        clime_http_reply_err(rq, &e);
    else if (!err && clime_str_is(ask.action, "checksum"))
        reply_sums(rq, s, (const digest *)sums);
    else
        clime_reply_success(rq, err, err ? e.msg : "Success.");
    clime_arena_free(&a);
    free(sums);
}

/* ---- /weight_checker --------------------------------------------------------------------------------------- */

/* vLLM's server keeps no snapshot: the client sends its baseline. */
struct baseline_ask {
    struct clime_str action, baseline; /* raw JSON: {name: hex} */
};

static enum clime_err read_baseline_ask(struct clime_server *s, struct clime_http_request *rq, struct clime_arena *a,
                                        struct baseline_ask *out, struct clime_error *e) {
    static const struct clime_member rows[] = {{"action", CLIME_MEMBER_STRING, offsetof(struct baseline_ask, action)},
                                               {"baseline", CLIME_MEMBER_RAW, offsetof(struct baseline_ask, baseline)}};
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_field others[] = {{"checksums", NULL}, {NULL, NULL}};
    static const struct clime_fields fields = {.where = "/weight_checker", .rows = {others}, .read = {&members}};
    if (clime_fields_read(&fields, s->field_watch, clime_http_body(rq), a, out, e)) return e->code;
    bool compare = clime_str_is(out->action, "compare");
    if (!compare && !clime_str_is(out->action, "checksum") && !clime_str_is(out->action, "reset"))
        return clime_fail(e, CLIME_ERR_INPUT, "action must be checksum, reset or compare");
    if (compare && (out->baseline.len == 0 || out->baseline.ptr[0] != '{'))
        return clime_fail(e, CLIME_ERR_INPUT, "compare needs a baseline: the checksums to compare with");
    return CLIME_OK;
}

/* Writes names missing on one side or with different sums to an open array; true when there are none. */
static bool write_mismatches(struct clime_jw *w, const struct clime_layout *l, const digest *sums,
                             struct clime_json *j) {
    bool *met = xcalloc((size_t)l->n_slices + 1, sizeof *met);
    struct clime_str key, value;
    bool same = true;
    for (clime_json_object(j); clime_json_key(j, &key) && clime_json_string(j, &value);) {
        char name[sizeof l->slices->name], hex[65];
        snprintf(name, sizeof name, CLIME_STR_FMT, CLIME_STR_ARG(key));
        const struct clime_slice *t = key.len < sizeof name ? clime_layout_find(l, name) : NULL;
        if (t) {
            met[t - l->slices] = true;
            clime_sha256_hex(sums[t - l->slices], hex);
            if (clime_str_is(value, hex)) continue;
        }
        same = false;
        clime_jw_str(w, key);
    }
    for (int i = 0; i < l->n_slices; i++) {
        if (met[i]) continue;
        same = false;
        clime_jw_strz(w, l->slices[i].name);
    }
    free(met);
    return same;
}

static enum clime_err write_comparison(struct clime_jw *w, const struct clime_layout *l, const digest *sums,
                                       struct clime_str baseline, struct clime_arena *a, struct clime_error *e) {
    struct clime_json j;
    clime_json_init(&j, baseline.ptr, baseline.len, a, e);
    clime_jw_key(w, "mismatches");
    clime_jw_array(w);
    bool same = write_mismatches(w, l, sums, &j);
    clime_jw_close(w);
    clime_jw_put_bool(w, "match", same);
    return clime_json_end(&j) ? CLIME_OK : clime_error_prefix(e, "baseline");
}

void clime_handle_weight_checker(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    struct clime_arena a;
    struct clime_buf body;
    struct clime_jw w;
    struct baseline_ask ask = {{"", 0}, {"", 0}};
    digest *sums = xmalloc((size_t)s->model->layout.n_slices * sizeof *sums);
    clime_arena_init(&a, clime_http_body(rq).len * 2 + 65536);
    clime_buf_init(&body, CLIME_MAX_REPLY);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    enum clime_err err = read_baseline_ask(s, rq, &a, &ask, &e);
    bool resets = !err && clime_str_is(ask.action, "reset");
    bool locked = !err && !(err = clime_update_lock(s->update, rq, &e));
    if (locked) err = resets ? reset(s, &e) : checksums(s, sums, &e);
    if (locked) clime_update_unlock(s->update);
    if (err || resets)
        clime_jw_put_strz(&w, "status", "reset");
    else if (clime_str_is(ask.action, "checksum"))
        write_sums(&w, &s->model->layout, (const digest *)sums);
    else
        err = write_comparison(&w, &s->model->layout, (const digest *)sums, ask.baseline, &a, &e);
    clime_jw_close(&w);
    if (err) {
        clime_http_reply_err(rq, &e);
        clime_buf_free(&body);
    } else {
        clime_reply_buf(rq, 200, &body);
    }
    clime_arena_free(&a);
    free(sums);
}

/* ---- /get_weights_by_name ---------------------------------------------------------------------------------- */

#define MAX_SHOWN ((size_t)32 << 20) /* bytes of a tensor in one reply */

struct name_ask {
    struct clime_str name;
    int64_t n_rows;
};

static enum clime_err read_name_ask(struct clime_server *s, struct clime_http_request *rq, struct clime_arena *a,
                                    struct name_ask *out, struct clime_error *e) {
    static const struct clime_member rows[] = {
        {"name", CLIME_MEMBER_STRING, offsetof(struct name_ask, name)},
        {"truncate_size", CLIME_MEMBER_INT, offsetof(struct name_ask, n_rows), .min = 1, .max = INT32_MAX}};
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_field none[] = {{NULL, NULL}};
    static const struct clime_fields fields = {.where = "/get_weights_by_name", .rows = {none}, .read = {&members}};
    if (clime_fields_read(&fields, s->field_watch, clime_http_body(rq), a, out, e)) return e->code;
    if (out->name.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "name is missing: a tensor's Hugging Face name");
    return CLIME_OK;
}

static float value_at(const uint8_t *data, enum clime_dtype type, int64_t i) {
    float v;
    clime_convert(clime_st_of(type), CLIME_F32, 1, data + (size_t)i * clime_dtype_bytes(type), &v);
    return v;
}

/* The first rows of a matrix as lists, or the first values of a vector. */
static enum clime_err write_values(struct clime_server *s, const struct name_ask *ask, struct clime_buf *body,
                                   struct clime_error *e) {
    char name[sizeof s->model->layout.slices->name];
    struct clime_jw w;
    snprintf(name, sizeof name, CLIME_STR_FMT, CLIME_STR_ARG(ask->name));
    const struct clime_slice *t = ask->name.len < sizeof name ? clime_layout_find(&s->model->layout, name) : NULL;
    if (!t) return clime_fail(e, CLIME_ERR_NOT_FOUND, "the model has no tensor %.100s", name);
    clime_jw_init(&w, body);
    int64_t n_rows = ask->n_rows < t->dim[0] ? ask->n_rows : t->dim[0], width = t->n_dim > 1 ? t->dim[1] : 1;
    size_t n_bytes = (size_t)(n_rows * width) * clime_dtype_bytes(t->type);
    if (n_bytes > MAX_SHOWN)
        return clime_fail(e, CLIME_ERR_INPUT, "%lld rows of %s are over %zu MB: lower truncate_size", (long long)n_rows,
                          name, MAX_SHOWN >> 20);
    uint8_t *data = xmalloc(n_bytes);
    enum clime_err err = clime_engine_read_weights(s->engine, (size_t)t->offset, n_bytes, data, e);
    clime_jw_array(&w);
    for (int64_t r = 0; r < n_rows && !err; r++) {
        if (t->n_dim > 1) clime_jw_array(&w);
        for (int64_t c = 0; c < width; c++) clime_jw_float(&w, value_at(data, t->type, r * width + c));
        if (t->n_dim > 1) clime_jw_close(&w);
    }
    clime_jw_close(&w);
    free(data);
    return err;
}

void clime_handle_weights_by_name(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    struct clime_arena a;
    struct clime_buf body;
    struct name_ask ask = {{"", 0}, 100};
    clime_arena_init(&a, clime_http_body(rq).len * 2 + 65536);
    clime_buf_init(&body, CLIME_MAX_REPLY);
    enum clime_err err = read_name_ask(s, rq, &a, &ask, &e);
    if (!err) err = write_values(s, &ask, &body, &e);
    if (err) {
        clime_http_reply_err(rq, &e);
        clime_buf_free(&body);
    } else {
        clime_reply_buf(rq, 200, &body);
    }
    clime_arena_free(&a);
}
