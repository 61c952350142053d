/* Fills the flat weight buffer from a Hugging Face folder; its checks are shared with uploads.
 *
 * Called at start (straight to the device) and by weight updates from disk (to host memory), on any thread that owns
 * the buffer; owns the mapped files and, for the duration, threads that read and convert ahead of it
 * (common/os/blocks.h). Invariant: when import succeeds, every element of the buffer was written exactly once (slices
 * from the checkpoint, padding with zeros); when it fails, the content is undefined and the caller discards it, which
 * is why updates import into a staging buffer.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/os/blocks.h"
#include "kernels/finite.h"
#include "model/weights/convert.h"
#include "model/weights/fp8.h"
#include "model/weights/weights.h"
#include "model/weights/weights_map.h"

#define IMPORT_BLOCK (256 << 10) /* elements converted at a time: a block stays in a core's cache */

/* ---- placing tensors ----------------------------------------------------------------------------------------- */

/* [E, rows, cols] of a layer; its bytes are those of the slices from `first` on. */
static void add_fused(struct clime_weights_seen *s, int layer, const char *name, int first, int rows, int cols) {
    struct clime_slice *f = &s->fused[s->n_fused++];
    *f = s->l->slices[first];
    snprintf(f->name, sizeof f->name, "model.layers.%d.mlp.experts.%s", layer, name);
    f->dim[0] = rows;
    f->dim[1] = cols;
    f->n = s->c->router.E * (int64_t)rows * cols;
    f->bytes = f->n * (int64_t)clime_dtype_bytes(f->type);
}

void clime_weights_seen_init(struct clime_weights_seen *s, const struct clime_config *c, const struct clime_layout *l) {
    *s = (struct clime_weights_seen){.l = l, .c = c};
    s->have = xcalloc((size_t)l->n_slices, sizeof *s->have);
    s->fused = xcalloc(2 * (size_t)c->L, sizeof *s->fused);
    for (int i = 0; i < c->L; i++) {
        const int *w = l->layer[i].w;
        if (!clime_config_has_experts(c, i)) continue;
        add_fused(s, i, "gate_up_proj", w[CLIME_W_EXPERTS_GU], 2 * c->F_expert, c->D);
        add_fused(s, i, "down_proj", w[CLIME_W_EXPERTS_DOWN], c->D, c->F_expert);
    }
}

void clime_weights_seen_free(struct clime_weights_seen *s) {
    free(s->have);
    free(s->fused);
    s->have = NULL;
    s->fused = NULL;
}

/* "[2, 3]"; at most the first two dimensions. */
static void shape_text(int n, const int64_t *dim, char *out, size_t size) {
    if (n == 0)
        snprintf(out, size, "[]");
    else if (n == 1)
        snprintf(out, size, "[%" PRId64 "]", dim[0]);
    else
        snprintf(out, size, "[%" PRId64 ", %" PRId64 "%s]", dim[0], dim[1], n > 2 ? ", ..." : "");
}

static const struct clime_slice *find_fused(const struct clime_weights_seen *s, const char *name) {
    for (int i = 0; i < s->n_fused; i++)
        if (strcmp(s->fused[i].name, name) == 0) return &s->fused[i];
    return NULL;
}

/* Marks the slice as placed, or all that begin in a fused one. */
static enum clime_err take(struct clime_weights_seen *s, const struct clime_slice *at, bool fused,
                           struct clime_error *e) {
    int first = fused ? 0 : (int)(at - s->l->slices);
    while (s->l->slices[first].offset < at->offset) first++;
    for (int i = first; i < s->l->n_slices && s->l->slices[i].offset < at->offset + at->bytes; i++) {
        if (s->have[i]) return clime_fail(e, CLIME_ERR_INPUT, "tensor '%s' is in two files", s->l->slices[i].name);
        s->have[i] = true;
    }
    return CLIME_OK;
}

enum clime_err clime_weights_place(struct clime_weights_seen *s, const struct clime_st_tensor *t,
                                   const struct clime_slice **out, struct clime_error *e) {
    const struct clime_slice *at = clime_layout_find(s->l, t->name);
    *out = NULL;
    const struct clime_slice *fused = at ? NULL : find_fused(s, t->name);
    if (fused) at = fused;
    if (!at) {
        if (clime_weights_beyond(s->c, t->name)) return CLIME_OK;
        if (s->scales && clime_fp8_is_scale(t->name)) return CLIME_OK;
        bool head = s->c->tied && strcmp(t->name, "lm_head.weight") == 0;
        s->tied_head |= head;
        if (head || clime_weights_ends_with(t->name, "rotary_emb.inv_freq")) return CLIME_OK;
        return clime_fail(e, CLIME_ERR_INPUT, "tensor '%.200s' is not part of this model", t->name);
    }
    const int64_t all[] = {s->c->router.E, at->dim[0], at->dim[1]}, *dim = fused ? all : at->dim;
    int n_dim = fused ? 3 : at->n_dim;
    bool same = t->n_dim == n_dim;
    for (int i = 0; same && i < n_dim; i++) same = t->dim[i] == dim[i];
    if (!same) {
        char theirs[64], ours[64];
        shape_text(t->n_dim, t->dim, theirs, sizeof theirs);
        shape_text(n_dim, dim, ours, sizeof ours);
        return clime_fail(e, CLIME_ERR_INPUT, "tensor '%s' has shape %s, the model needs %s", t->name, theirs, ours);
    }
    bool fp8 = t->type == CLIME_ST_FP8 && s->scales && !fused;
    bool scaled = s->scales && !fused && s->scales->of[at - s->l->slices];
    if (fp8 && !scaled)
        return clime_fail(e, CLIME_ERR_INPUT, "tensor '%s' is FP8 and %s_scale_inv is missing", t->name, t->name);
    if (!fp8 && t->type >= CLIME_ST_FP8)
        return clime_fail(e, CLIME_ERR_INPUT, "tensor '%s' has type %s; BF16, F16 and F32 are supported", t->name,
                          t->dtype);
    if (!fp8 && scaled)
        return clime_fail(e, CLIME_ERR_INPUT, "tensor '%s' is %s and %s_scale_inv is there: only FP8 has a scale",
                          t->name, t->dtype, t->name);
    enum clime_err rc = take(s, at, fused != NULL, e);
    if (rc) return rc;
    s->n_half += t->type == CLIME_ST_F16;
    s->n_fp8 += fp8;
    s->n_narrowed += t->type == CLIME_ST_F32 && at->type == CLIME_BF16;
    *out = at;
    return CLIME_OK;
}

enum clime_err clime_weights_complete(const struct clime_weights_seen *s, struct clime_error *e) {
    for (int i = 0; i < s->l->n_slices; i++)
        if (!s->have[i]) return clime_fail(e, CLIME_ERR_INPUT, "tensor '%s' is missing", s->l->slices[i].name);
    return CLIME_OK;
}

enum clime_err clime_weights_not_finite(const char *name, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_INPUT, "tensor '%s' holds numbers that are not finite", name);
}

void clime_weights_tell(const struct clime_weights_seen *s) {
    const bool f32 = s->l->type == CLIME_F32;
    if (s->n_half) LOG_INFO("weights: %d fp16 tensors are held as %s", s->n_half, f32 ? "fp32 (exact)" : "bf16");
    if (s->n_fp8) LOG_INFO("weights: %d FP8 tensors with their scales became %s", s->n_fp8, f32 ? "fp32" : "bf16");
    if (s->n_narrowed) LOG_INFO("weights: %d fp32 tensors were rounded to bf16", s->n_narrowed);
}

void clime_weights_zero_padding(const struct clime_layout *l, void *flat) {
    int64_t end = 0;
    for (int i = 0; i <= l->n_slices; i++) {
        int64_t next = i < l->n_slices ? l->slices[i].offset : l->bytes;
        memset(clime_weights_at(flat, end), 0, (size_t)(next - end));
        if (i < l->n_slices) end = next + l->slices[i].bytes;
    }
}

/* ---- folders ------------------------------------------------------------------------------------------------- */

struct import {
    struct clime_weights_seen seen;
    void (*put)(void *arg, int64_t offset, const void *data, int64_t bytes);
    void *arg;
    struct clime_blocks *blocks; /* of IMPORT_BLOCK elements */
    uint64_t bytes;              /* of the tensors read */
    _Atomic uint64_t sum;        /* of all blocks, in any order */
};

struct tensor { /* of a file, with its slice; blocks [first, first + n) of the file */
    const struct clime_st_tensor *t;
    const struct clime_slice *at;
    int64_t first, n;
};

struct file_import {
    struct import *im;
    struct clime_st_file f;
    struct tensor *tensors; /* ascending blocks */
    int n;
};

/* Elements of the block's part of the tensor, from *first on. */
static int64_t part_of(const struct tensor *x, int64_t block, int64_t *first) {
    *first = (block - x->first) * IMPORT_BLOCK;
    return x->at->n - *first < IMPORT_BLOCK ? x->at->n - *first : IMPORT_BLOCK;
}

static const struct tensor *tensor_of(const struct file_import *fi, int64_t block) {
    int lo = 0, hi = fi->n - 1;
    while (lo < hi) {
        int middle = (lo + hi + 1) / 2;
        if (fi->tensors[middle].first <= block)
            lo = middle;
        else
            hi = middle - 1;
    }
    return &fi->tensors[lo];
}

static uint64_t checksum_of(const void *data, size_t bytes) {
    struct clime_checksum c;
    clime_checksum_init(&c);
    clime_checksum_add(&c, data, bytes);
    return clime_checksum_done(&c);
}

/* On one of the blocks' threads; this is where the file is read. */
static bool make_block(void *arg, int64_t block, void *to) {
    const struct file_import *fi = arg;
    struct import *im = fi->im;
    const struct tensor *x = tensor_of(fi, block);
    const uint8_t *data = fi->f.data + x->t->begin;
    const enum clime_dtype type = x->at->type;
    const int64_t width = (int64_t)clime_dtype_bytes(type);
    int64_t i, n = part_of(x, block, &i);
    if (x->t->type == CLIME_ST_FP8)
        clime_fp8_convert(data, im->seen.scales->of[x->at - im->seen.l->slices], x->at->dim[1], i, n, type, to);
    else
        clime_convert(x->t->type, type, (size_t)n, data + (size_t)i * clime_st_width(x->t->type), to);
    const uint64_t words[] = {(uint64_t)(x->at->offset + i * width), checksum_of(to, (size_t)(n * width))};
    atomic_fetch_add(&im->sum, clime_hash64(words, CLIME_COUNT(words)));
    return clime_all_finite(type, (size_t)n, to);
}

static enum clime_err take_block(void *arg, int64_t block, bool finite, const void *data, struct clime_error *e) {
    const struct file_import *fi = arg;
    const struct tensor *x = tensor_of(fi, block);
    const int64_t width = (int64_t)clime_dtype_bytes(x->at->type);
    int64_t i, n = part_of(x, block, &i);
    if (!finite) return clime_weights_not_finite(x->t->name, e);
    fi->im->put(fi->im->arg, x->at->offset + i * width, data, n * width);
    return CLIME_OK;
}

static enum clime_err place_tensors(struct file_import *fi, int64_t *n_blocks, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    *n_blocks = 0;
    fi->tensors = xcalloc((size_t)fi->f.header.n + 1, sizeof *fi->tensors);
    for (int i = 0; i < fi->f.header.n && !rc; i++) {
        struct tensor x = {.t = &fi->f.header.tensors[i], .first = *n_blocks};
        rc = clime_weights_place(&fi->im->seen, x.t, &x.at, e);
        if (rc || !x.at || x.at->n == 0) continue;
        x.n = (x.at->n + IMPORT_BLOCK - 1) / IMPORT_BLOCK;
        *n_blocks += x.n;
        fi->im->bytes += x.t->end - x.t->begin;
        fi->tensors[fi->n++] = x;
    }
    return rc;
}

static enum clime_err import_file(void *arg, const char *path, struct clime_error *e) {
    struct file_import fi = {.im = arg};
    int64_t n_blocks;
    enum clime_err rc = clime_st_open(path, &fi.f, e);
    if (rc) return rc;
    rc = place_tensors(&fi, &n_blocks, e);
    if (!rc) rc = clime_blocks_run(fi.im->blocks, n_blocks, make_block, take_block, &fi, e);
    struct clime_error changed;
    if (clime_st_check(&fi.f, &changed)) { /* before its numbers are blamed */
        *e = changed;
        rc = e->code;
    }
    if (rc) clime_error_prefix(e, "%s", path);
    free(fi.tensors);
    clime_st_close(&fi.f);
    return rc;
}

/* Writes the padding as zeros. */
static void put_padding(struct import *im, const struct clime_layout *l) {
    int64_t end = 0;
    void *zeros = xcalloc(1, IMPORT_BLOCK);
    for (int i = 0; i <= l->n_slices; i++) {
        int64_t next = i < l->n_slices ? l->slices[i].offset : l->bytes;
        CHECK(next - end < IMPORT_BLOCK);
        if (next > end) im->put(im->arg, end, zeros, next - end);
        if (i < l->n_slices) end = next + l->slices[i].bytes;
    }
    free(zeros);
}

enum clime_err clime_weights_import_blocks(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                           void (*put)(void *arg, int64_t offset, const void *data, int64_t bytes),
                                           void *arg, uint64_t *sum, struct clime_error *e) {
    struct clime_error own;
    if (!e) e = &own;
    struct import im = {.put = put, .arg = arg};
    struct clime_fp8_scales scales = {0};
    int64_t began_us = clime_now_us();
    im.blocks = clime_blocks_new(0, IMPORT_BLOCK * sizeof(float)); /* the widest type */
    clime_weights_seen_init(&im.seen, c, l);
    enum clime_err rc = c->fp8 ? clime_fp8_scales_read(dir, c, l, &scales, e) : CLIME_OK;
    if (c->fp8) im.seen.scales = &scales;
    struct clime_carried carried = {0};
    if (!c->fp8) rc = clime_carried_open(dir, c, &carried, e);
    clime_carried_close(&carried);
    if (!rc) rc = clime_weights_files(dir, import_file, &im, e);
    if (rc == CLIME_OK && (rc = clime_weights_complete(&im.seen, e))) clime_error_prefix(e, "%s", dir);
    if (rc == CLIME_OK && im.seen.tied_head) rc = clime_tied_head_check(dir, e);
    if (rc == CLIME_OK) {
        put_padding(&im, l);
        clime_weights_tell(&im.seen);
        if (sum) *sum = atomic_load(&im.sum);
        double gb = (double)im.bytes / 1e9, s = (double)(clime_now_us() - began_us + 1) / 1e6;
        LOG_INFO("weights: loaded %.3g GB in %.2f s, %.2g GB/s", gb, s, gb / s);
    }
    clime_weights_seen_free(&im.seen);
    clime_fp8_scales_free(&scales);
    clime_blocks_free(im.blocks);
    return rc;
}

static void put_host(void *flat, int64_t offset, const void *data, int64_t bytes) {
    memcpy(clime_weights_at(flat, offset), data, (size_t)bytes);
}

enum clime_err clime_weights_import(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                    void *flat, struct clime_error *e) {
    return clime_weights_import_blocks(dir, c, l, put_host, flat, NULL, e);
}
