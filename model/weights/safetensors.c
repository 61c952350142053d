/* Reads the safetensors container: the header with strict checks, the file through mmap.
 *
 * Called by weights_import.c (files) and weights_stream.c (headers of uploads), on any thread; owns the mapping and the
 * arena of names. Invariant: in an accepted header, every tensor's byte range is inside the data, equals its shape
 * times its type, and overlaps no other; later code does not check offsets again.
 *
 * The arena's cap is a small multiple of the text's length, so a hostile header costs no more memory than it took to
 * send.
 */
#include "model/weights/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"

static const struct {
    const char *name;
    enum clime_st_dtype type;
    unsigned bytes;
} dtypes[] = {
    {"F32", CLIME_ST_F32, 4},       {"F16", CLIME_ST_F16, 2},     {"BF16", CLIME_ST_BF16, 2},
    {"F64", CLIME_ST_OTHER, 8},     {"I64", CLIME_ST_OTHER, 8},   {"I32", CLIME_ST_OTHER, 4},
    {"I16", CLIME_ST_OTHER, 2},     {"I8", CLIME_ST_OTHER, 1},    {"U64", CLIME_ST_OTHER, 8},
    {"U32", CLIME_ST_OTHER, 4},     {"U16", CLIME_ST_OTHER, 2},   {"U8", CLIME_ST_OTHER, 1},
    {"BOOL", CLIME_ST_OTHER, 1},    {"F8_E4M3", CLIME_ST_FP8, 1}, {"F8_E5M2", CLIME_ST_OTHER, 1},
    {"F8_E8M0", CLIME_ST_OTHER, 1}, {"C64", CLIME_ST_OTHER, 8},
};

enum clime_err clime_st_header_length(const uint8_t first8[8], uint64_t *len, struct clime_error *e) {
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | first8[i];
    if (n < 2) return clime_fail(e, CLIME_ERR_INPUT, "safetensors header of %" PRIu64 " bytes", n);
    if (n > CLIME_ST_MAX_HEADER)
        return clime_fail(e, CLIME_ERR_LIMIT, "safetensors header of %" PRIu64 " bytes is over the limit of %d", n,
                          CLIME_ST_MAX_HEADER);
    *len = n;
    return CLIME_OK;
}

/* ---- one tensor's entry -------------------------------------------------------------------------------------- */

static bool parse_shape(struct clime_json *j, struct clime_st_tensor *t) {
    t->n_dim = 0;
    if (!clime_json_array(j)) return false;
    while (clime_json_item(j)) {
        if (t->n_dim == CLIME_ST_MAX_DIMS)
            return clime_json_bad(j, "'%.80s' has more than %d dimensions", t->name, CLIME_ST_MAX_DIMS);
        if (!clime_json_int(j, 0, INT64_MAX, &t->dim[t->n_dim++])) return false;
    }
    return !j->failed;
}

static bool parse_offsets(struct clime_json *j, struct clime_st_tensor *t) {
    uint64_t at[2];
    int n = 0;
    if (!clime_json_array(j)) return false;
    while (clime_json_item(j)) {
        if (n == 2) return clime_json_bad(j, "data_offsets of '%.80s' must be two numbers", t->name);
        if (!clime_json_uint(j, &at[n++])) return false;
    }
    if (j->failed) return false;
    if (n != 2) return clime_json_bad(j, "data_offsets of '%.80s' must be two numbers", t->name);
    t->begin = at[0];
    t->end = at[1];
    return true;
}

static bool parse_dtype(struct clime_json *j, struct clime_st_tensor *t, unsigned *width) {
    struct clime_str s;
    if (!clime_json_string(j, &s)) return false;
    for (size_t i = 0; i < CLIME_COUNT(dtypes); i++) {
        if (!clime_str_is(s, dtypes[i].name)) continue;
        t->dtype = dtypes[i].name;
        t->type = dtypes[i].type;
        *width = dtypes[i].bytes;
        return true;
    }
    return clime_json_bad(j, "'%.80s' has the unknown type '%.*s'", t->name, (int)(s.len < 20 ? s.len : 20), s.ptr);
}

/* {"dtype": .., "shape": [..], "data_offsets": [..]}, each once, and end - begin = the product of all. */
static bool parse_tensor(struct clime_json *j, struct clime_st_tensor *t) {
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    unsigned seen = 0, width = 0;
    struct clime_str key;
    if (!clime_json_object(j)) return false;
    while (clime_json_key(j, &key)) {
        unsigned field = clime_str_is(key, "dtype")          ? DTYPE
                         : clime_str_is(key, "shape")        ? SHAPE
                         : clime_str_is(key, "data_offsets") ? OFFSETS
                                                             : 0;
        if (!field || (seen & field))
            return clime_json_bad(j, "'%.80s': the field '%.*s' is unknown or given twice", t->name,
                                  (int)(key.len < 40 ? key.len : 40), key.ptr);
        seen |= field;
        bool ok = field == DTYPE ? parse_dtype(j, t, &width) : field == SHAPE ? parse_shape(j, t) : parse_offsets(j, t);
        if (!ok) return false;
    }
    if (j->failed) return false;
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return clime_json_bad(j, "'%.80s' lacks dtype, shape or data_offsets", t->name);
    uint64_t bytes = width;
    for (int i = 0; i < t->n_dim; i++)
        if (__builtin_mul_overflow(bytes, (uint64_t)t->dim[i], &bytes))
            return clime_json_bad(j, "'%.80s': the shape overflows", t->name);
    if (t->end < t->begin || t->end - t->begin != bytes)
        return clime_json_bad(j, "'%.80s': %" PRIu64 " bytes by its shape, offsets [%" PRIu64 ", %" PRIu64 "]", t->name,
                              bytes, t->begin, t->end);
    return true;
}

/* ---- the header ---------------------------------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b) {
    const struct clime_st_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end; /* empty tensors first */
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const struct clime_st_tensor *const *)a)->name, (*(const struct clime_st_tensor *const *)b)->name);
}

/* Ranges must be contiguous (the format forbids holes), names must differ. */
static enum clime_err check_whole(struct clime_st_header *h, struct clime_error *e) {
    if (h->n == 0) return CLIME_OK;
    qsort(h->tensors, (size_t)h->n, sizeof *h->tensors, by_begin);
    for (int i = 0; i < h->n; i++) {
        const struct clime_st_tensor *t = &h->tensors[i];
        if (t->begin != h->data_bytes)
            return clime_fail(e, CLIME_ERR_INPUT, "safetensors: '%.80s' starts at %" PRIu64 " where %" PRIu64 "%s",
                              t->name, t->begin, h->data_bytes,
                              t->begin < h->data_bytes ? " is in use by another (overlap)" : " was expected (hole)");
        h->data_bytes = t->end;
    }
    const struct clime_st_tensor **names = xmalloc((size_t)h->n * sizeof *names);
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < h->n; i++) names[i] = &h->tensors[i];
    qsort(names, (size_t)h->n, sizeof *names, by_name);
    for (int i = 1; i < h->n && rc == CLIME_OK; i++)
        if (strcmp(names[i - 1]->name, names[i]->name) == 0)
            rc = clime_fail(e, CLIME_ERR_INPUT, "safetensors: '%.80s' is given twice", names[i]->name);
    free(names);
    return rc;
}

static bool parse_entries(struct clime_json *j, struct clime_st_header *h) {
    int room = 0;
    struct clime_str key;
    if (!clime_json_object(j)) return false;
    while (clime_json_key(j, &key)) {
        if (clime_str_is(key, "__metadata__")) {
            if (!clime_json_skip(j, NULL)) return false;
            continue;
        }
        if (h->n == room) {
            room = room ? room * 2 : 64;
            h->tensors = xrealloc(h->tensors, (size_t)room * sizeof *h->tensors);
        }
        struct clime_st_tensor *t = &h->tensors[h->n];
        memset(t, 0, sizeof *t);
        if (memchr(key.ptr, 0, key.len)) return clime_json_bad(j, "a tensor's name holds a NUL");
        t->name = clime_arena_strdup(&h->arena, key);
        if (!t->name) return clime_json_bad(j, "the names are too long");
        if (!parse_tensor(j, t)) return false;
        h->n++;
    }
    return !j->failed;
}

enum clime_err clime_st_header_parse(const char *json, size_t len, struct clime_st_header *out, struct clime_error *e) {
    struct clime_error own;
    if (!e) e = &own;
    memset(out, 0, sizeof *out);
    if (len > CLIME_ST_MAX_HEADER) return clime_fail(e, CLIME_ERR_LIMIT, "safetensors header of %zu bytes", len);
    clime_arena_init(&out->arena, 4 * len + 65536);
    struct clime_json j;
    clime_json_init(&j, json, len, &out->arena, e);
    enum clime_err rc = CLIME_OK;
    if (!parse_entries(&j, out) || !clime_json_end(&j))
        rc = clime_error_prefix(e, "safetensors header");
    else
        rc = check_whole(out, e);
    if (rc) clime_st_header_free(out);
    return rc;
}

void clime_st_header_free(struct clime_st_header *h) {
    free(h->tensors);
    clime_arena_free(&h->arena);
    memset(h, 0, sizeof *h);
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static enum clime_err parse_mapped(struct clime_st_file *f, struct clime_error *e) {
    uint64_t len;
    if (f->map.bytes < 8) return clime_fail(e, CLIME_ERR_INPUT, "truncated: %zu bytes", f->map.bytes);
    enum clime_err rc = clime_st_header_length(f->map.at, &len, e);
    if (rc) return rc;
    if (len > f->map.bytes - 8)
        return clime_fail(e, CLIME_ERR_INPUT, "truncated: a header of %" PRIu64 " bytes in a file of %zu", len,
                          f->map.bytes);
    if ((rc = clime_st_header_parse((const char *)f->map.at + 8, len, &f->header, e))) return rc;
    f->data = f->map.at + 8 + len;
    uint64_t have = f->map.bytes - 8 - len;
    if (have == f->header.data_bytes) return CLIME_OK;
    rc = clime_fail(e, CLIME_ERR_INPUT, "%s: %" PRIu64 " bytes of tensors by the header, %" PRIu64 " in the file",
                    have < f->header.data_bytes ? "truncated" : "bytes after the last tensor", f->header.data_bytes,
                    have);
    clime_st_header_free(&f->header);
    return rc;
}

enum clime_err clime_st_open(const char *path, struct clime_st_file *out, struct clime_error *e) {
    struct clime_error own;
    if (!e) e = &own;
    memset(out, 0, sizeof *out);
    enum clime_err rc = clime_mapped_open(path, &out->map, e);
    if (!rc && (rc = parse_mapped(out, e))) clime_error_prefix(e, "%s", path);
    if (rc) clime_st_close(out);
    return rc;
}

enum clime_err clime_st_check(const struct clime_st_file *f, struct clime_error *e) {
    return clime_mapped_check(&f->map, e);
}

void clime_st_close(struct clime_st_file *f) {
    clime_mapped_close(&f->map);
    clime_st_header_free(&f->header);
    f->data = NULL;
}
