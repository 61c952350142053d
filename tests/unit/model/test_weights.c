/* The flat buffer and its ways in and out: layout, number formats, export and import (whole, sharded, streamed in
 * pieces of any size), checksum, and what happens to checkpoints that do not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/os/atomic_file.h"
#include "common/rng.h"
#include "model/weights/convert.h"
#include "model/weights/weights.h"
#include "model/weights/weights_map.h"

#define PIECE 37 /* elements: less than a tensor */

static char dir[64];

static void clear_dir(void) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
        if (f->d_name[0] != '.') unlink(path);
    }
    closedir(d);
}

static int make_dir(void **state) {
    (void)state;
    clime_log_open("test", CLIME_LOG_WARN);
    snprintf(dir, sizeof dir, "/tmp/clime_weights_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    clear_dir();
    return rmdir(dir);
}

/* One of each family; odd sizes so that padding between joined tensors is exercised. */
static const struct clime_config configs[] = {
    {.family = CLIME_QWEN3,
     .architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .D = 24,
     .L = 2,
     .H = 4,
     .HK = 2,
     .Dh = 6,
     .F = 20,
     .V = 33,
     .max_pos = 64,
     .eps = 1e-6f,
     .tied = true,
     .qk_norm = true,
     .rope_theta = 1e6,
     .rope_rot = 6,
     .bos_id = -1,
     .pad_id = -1},
    {.family = CLIME_QWEN2,
     .architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .D = 24,
     .L = 1,
     .H = 3,
     .HK = 1,
     .Dh = 8,
     .F = 28,
     .V = 31,
     .max_pos = 64,
     .eps = 1e-6f,
     .qkv_bias = true,
     .rope_theta = 1e6,
     .rope_rot = 8,
     .bos_id = -1,
     .pad_id = -1},
    {.family = CLIME_LLAMA,
     .architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .D = 16,
     .L = 3,
     .H = 2,
     .HK = 2,
     .Dh = 8,
     .F = 12,
     .V = 17,
     .max_pos = 64,
     .eps = 1e-5f,
     .qkv_bias = true,
     .o_bias = true,
     .rope_theta = 1e4,
     .rope_rot = 8,
     .bos_id = 1,
     .pad_id = -1},
    {.family = CLIME_GLM4,
     .architecture = "Glm4ForCausalLM",
     .model_type = "glm4",
     .D = 16,
     .L = 2,
     .H = 4,
     .HK = 2,
     .Dh = 8,
     .F = 12,
     .V = 19,
     .max_pos = 64,
     .eps = 1e-5f,
     .qkv_bias = true,
     .post_norms = true,
     .fused_gate_up = true,
     .rope_theta = 1e4,
     .rope_rot = 4,
     .rope_interleaved = true,
     .bos_id = -1,
     .pad_id = -1},
    {.family = CLIME_QWEN2_MOE,
     .architecture = "Qwen2MoeForCausalLM",
     .model_type = "qwen2_moe",
     .D = 16,
     .L = 3,
     .H = 4,
     .HK = 2,
     .Dh = 4,
     .F = 12,
     .V = 19,
     .max_pos = 64,
     .eps = 1e-5f,
     .qkv_bias = true,
     .router = {.E = 5, .k = 2, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1},
     .F_expert = 3,
     .F_shared = 7,
     .shared_gate = true,
     .dense = {1, 0, 0},
     .rope_theta = 1e4,
     .rope_rot = 4,
     .bos_id = -1,
     .pad_id = -1},
    {.family = CLIME_GLM4_MOE,
     .architecture = "Glm4MoeForCausalLM",
     .model_type = "glm4_moe",
     .D = 16,
     .L = 2,
     .H = 4,
     .HK = 2,
     .Dh = 4,
     .F = 12,
     .V = 19,
     .max_pos = 64,
     .eps = 1e-5f,
     .qk_norm = true,
     .router = {.E = 7, .k = 3, .sigmoid = true, .renormalize = true, .scale = 2.5f, .n_groups = 1, .k_groups = 1},
     .F_expert = 3,
     .F_shared = 6,
     .router_bias = true,
     .dense = {1, 0},
     .rope_theta = 1e4,
     .rope_rot = 2,
     .bos_id = -1,
     .pad_id = -1},
    {.family = CLIME_DEEPSEEK_V3,
     .architecture = "DeepseekV3ForCausalLM",
     .model_type = "deepseek_v3",
     .D = 16,
     .L = 2,
     .H = 4,
     .HK = 4,
     .Dh = 7,
     .F = 12,
     .V = 19,
     .max_pos = 64,
     .eps = 1e-5f,
     .latent = {6, 3, 4, 5},
     .q_rank = 10,
     .router = {.E = 7, .k = 3, .sigmoid = true, .renormalize = true, .scale = 2.5f, .n_groups = 1, .k_groups = 1},
     .F_expert = 3,
     .F_shared = 6,
     .router_bias = true,
     .dense = {1, 0},
     .rope_theta = 1e4,
     .rope_rot = 4,
     .bos_id = -1,
     .pad_id = -1},
};

static void *random_weights(const struct clime_layout *l, uint64_t seed) {
    void *w = xmalloc((size_t)l->bytes);
    clime_weights_init(l, w, 0.02f, seed);
    for (int i = 0; i < l->n_slices; i++) { /* of an fp32 that no shorter type holds */
        const struct clime_slice *t = &l->slices[i];
        float *x = clime_weights_at(w, t->offset);
        for (int64_t k = 0; t->update == CLIME_CONSTANT && k < t->n; k++) x[k] = 1.0f / (float)(3 + k) - 0.2f;
    }
    return w;
}

/* By formula, to check the layout by: a tied head counts once. */
static int64_t params(const struct clime_config *c) {
    int64_t qkv_rows = (int64_t)(c->H + 2 * c->HK) * c->Dh, D = c->D;
    int64_t layer = 2 * D + qkv_rows * D + (int64_t)c->H * c->Dh * D + 3 * (int64_t)c->F * D;
    if (c->latent.R) {
        int64_t R = c->latent.R, Q = (int64_t)c->H * c->Dh, q = c->q_rank ? c->q_rank * (D + 1 + Q) : D * Q;
        layer = 2 * D + 3 * (int64_t)c->F * D + q + (R + c->latent.Dr) * D + R +
                R * c->H * (c->latent.Dn + c->latent.Dv) + D * c->H * c->latent.Dv;
    }
    if (c->qkv_bias) layer += qkv_rows;
    if (c->o_bias) layer += D;
    if (c->qk_norm) layer += 2 * (int64_t)c->Dh;
    if (c->post_norms) layer += 2 * D;
    int64_t n = (c->tied ? 1 : 2) * (int64_t)c->V * D + c->L * layer + D;
    for (int l = 0; l < c->L; l++)
        if (clime_config_has_experts(c, l))
            n += (c->router_bias ? c->router.E : 0) + D * (c->router.E + 3 * (int64_t)c->router.E * c->F_expert +
                                                           3 * c->F_shared + c->shared_gate - 3 * c->F);
    return n;
}

static void test_layout(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(configs); i++) {
        const struct clime_config *c = &configs[i];
        struct clime_layout l, again;
        clime_layout_make(c, CLIME_BF16, &l);
        clime_layout_make(c, CLIME_F32, &again);
        assert_true(l.hash == again.hash);
        int64_t end = 0, n = 0;
        for (int k = 0; k < l.n_slices; k++) {
            const struct clime_slice *s = &l.slices[k];
            assert_true(s->offset >= end && s->offset - end < 128);
            end = s->offset + s->bytes;
            n += s->n;
            assert_int_equal(s->bytes, s->n * (s->update == CLIME_CONSTANT ? 4 : 2));
            assert_int_equal(again.slices[k].bytes, 4 * s->n);
            assert_ptr_equal(clime_layout_find(&l, l.slices[k].name), &l.slices[k]);
        }
        assert_int_equal(n, params(c));
        assert_int_equal(n, clime_layout_params(&l, false));
        assert_int_equal(l.bytes % 128, 0);
        assert_int_equal(l.head == l.embed, c->tied);
        int64_t D = c->D, q = (int64_t)c->H * c->Dh, kv = (int64_t)c->HK * c->Dh;
        const struct clime_slice *k_proj = clime_layout_find(&l, "model.layers.0.self_attn.k_proj.weight");
        const struct clime_slice *v_proj = clime_layout_find(&l, "model.layers.0.self_attn.v_proj.weight");
        assert_int_equal(c->latent.R > 0, !k_proj && !v_proj);
        if (k_proj && v_proj) { /* joined without a gap */
            assert_int_equal(k_proj->offset, l.slices[l.layer[0].w[CLIME_W_QKV]].offset + 2 * q * D);
            assert_int_equal(v_proj->offset, l.slices[l.layer[0].w[CLIME_W_QKV]].offset + 2 * (q + kv) * D);
        }
        assert_int_equal(l.slices[l.layer[0].w[CLIME_W_GU]].offset % 128, 0);
        assert_null(clime_layout_find(&l, "model.layers.0"));
        struct clime_config other = *c;
        other.F += 4;
        clime_layout_free(&again);
        clime_layout_make(&other, CLIME_BF16, &again);
        assert_true(l.hash != again.hash);
        clime_layout_free(&l);
        clime_layout_free(&again);
    }
}

/* fp16 by its definition: sign, 2^(e-15) * 1.m, subnormals, infinities. */
static double half_value(unsigned h) {
    unsigned e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static void test_convert(void **state) {
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        uint16_t in = (uint16_t)h;
        float f;
        clime_convert(CLIME_ST_F16, CLIME_F32, 1, &in, &f);
        double want = half_value(h);
        assert_true(isnan(want) ? isnan(f) : (double)f == want && !signbit(f) == !signbit(want));
        clime_convert(CLIME_ST_BF16, CLIME_F32, 1, &in, &f);
        uint16_t back;
        clime_convert(CLIME_ST_F32, CLIME_BF16, 1, &f, &back);
        if (isnan(f))
            assert_true((back & 0x7fff) > 0x7f80);
        else
            assert_int_equal(back, h);
    }
    static const struct {
        uint32_t f32;
        uint16_t bf16;
    } rounding[] = {
        {0x3f808000, 0x3f80}, /* tie to even */ {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
        {0x7f7fffff, 0x7f80}, /* to infinity */ {0x00008000, 0x0000}, {0x80018000, 0x8002},
        {0x7f800001, 0x7fc0}, /* NaN stays NaN */
    };
    for (size_t i = 0; i < CLIME_COUNT(rounding); i++) {
        uint16_t out;
        clime_convert(CLIME_ST_F32, CLIME_BF16, 1, &rounding[i].f32, &out);
        assert_int_equal(out, rounding[i].bf16);
    }
}

/* As from a device: what a read gave is gone with the next. */
static enum clime_err read_piece(const struct clime_weights_source *s, int64_t offset, int64_t n, const void **out,
                                 struct clime_error *e) {
    static char piece[PIECE];
    (void)e;
    assert_in_range(n, 1, PIECE);
    memset(piece, 0xff, sizeof piece);
    memcpy(piece, clime_weights_at(s->arg, offset), (size_t)n);
    *out = piece;
    return CLIME_OK;
}

static int n_reads;

static enum clime_err read_some(const struct clime_weights_source *s, int64_t offset, int64_t n, const void **out,
                                struct clime_error *e) {
    (void)e;
    assert_in_range(n, 1, s->most);
    n_reads++;
    *out = clime_weights_at(s->arg, offset);
    return CLIME_OK;
}

static void sha_of(const struct clime_layout *l, const void *w, char hex[65]) {
    struct clime_weights_source from = clime_weights_in_host(w);
    assert_int_equal(clime_weights_sha256(l, &from, 1, hex, NULL), CLIME_OK);
}

/* Tensors of several of the pieces that are hashed: the same whoever reads how much at a time, on any threads; small
 * tensors come many at a time. */
static void test_sha256_of_pieces(void **state) {
    (void)state;
    struct clime_config c = configs[0];
    struct clime_layout l;
    struct clime_error e = {0};
    char whole[65], pieces[65];
    c.V = 150001; /* of 24 columns: 7 MB in bf16 */
    clime_layout_make(&c, CLIME_BF16, &l);
    uint8_t *w = random_weights(&l, 5);
    sha_of(&l, w, whole);
    for (int threads = 1; threads <= 3; threads++) {
        struct clime_weights_source from = {.most = threads << 21, .read = read_some, .arg = w};
        n_reads = 0;
        assert_int_equal(clime_weights_sha256(&l, &from, threads, pieces, &e), CLIME_OK);
        assert_string_equal(whole, pieces);
        assert_true(n_reads <= (int)(l.bytes / from.most) + 3 && n_reads < l.n_slices);
    }
    const struct clime_slice *longest = &l.slices[0];
    for (int i = 0; i < l.n_slices; i++)
        if (l.slices[i].n > longest->n) longest = &l.slices[i];
    assert_true(longest->n > (3 << 20) / 2);
    w[longest->offset + longest->bytes - 2] ^= 1;
    sha_of(&l, w, pieces);
    assert_string_not_equal(whole, pieces);
    free(w);
    clime_layout_free(&l);
}

static void test_folder(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(configs); i++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            for (int64_t shard = 0; shard <= 2000; shard += 2000) {
                enum clime_dtype dt = bf16 ? CLIME_BF16 : CLIME_F32;
                struct clime_layout l;
                struct clime_error e = {0};
                struct clime_config c;
                clime_layout_make(&configs[i], dt, &l);
                void *w = random_weights(&l, 5), *got = xmalloc((size_t)l.bytes);
                struct clime_weights_source from = {.most = PIECE, .read = read_piece, .arg = w};
                assert_int_equal(clime_weights_export(dir, &configs[i], &l, &from, NULL, shard, &e), CLIME_OK);
                assert_int_equal(clime_config_load(dir, &c, &e), CLIME_OK);
                assert_int_equal(c.dtype, dt);
                if (clime_weights_import(dir, &c, &l, got, &e)) fail_msg("%s", e.msg);
                assert_memory_equal(got, w, (size_t)l.bytes);
                char a[65], b[65];
                sha_of(&l, w, a);
                sha_of(&l, got, b);
                assert_string_equal(a, b);
                ((uint8_t *)got)[l.slices[1].offset] ^= 1;
                sha_of(&l, got, b);
                assert_string_not_equal(a, b);
                free(w);
                free(got);
                clime_layout_free(&l);
            }
        }
    }
}

/* The whole stream of weights as bytes. */
static uint8_t *stream_of(const struct clime_layout *l, const void *w, size_t *len) {
    struct clime_weights_writer *out = clime_weights_writer_new(l, w);
    *len = (size_t)clime_weights_writer_length(out);
    uint8_t *s = xmalloc(*len);
    size_t at = 0;
    for (int64_t n, step = 1; (n = clime_weights_writer_read(out, s + at, (size_t)step)) > 0; step = step * 3 % 977)
        at += (size_t)n;
    assert_int_equal(at, *len);
    clime_weights_writer_free(out);
    return s;
}

static enum clime_err read_stream(const struct clime_config *c, const struct clime_layout *l, void *flat,
                                  const uint8_t *s, size_t len, struct clime_rng *r, size_t max_piece,
                                  struct clime_error *e) {
    struct clime_weights_reader *in = clime_weights_reader_new(c, l, flat);
    enum clime_err rc = CLIME_OK;
    for (size_t at = 0; at < len && rc == CLIME_OK;) {
        size_t n = 1 + clime_rng_below(r, max_piece);
        if (n > len - at) n = len - at;
        uint8_t *piece = xmalloc(n); /* its own block, so that a sanitizer sees reads past it */
        memcpy(piece, s + at, n);
        rc = clime_weights_reader_feed(in, piece, n, e);
        free(piece);
        at += n;
    }
    if (rc)
        assert_int_equal(clime_weights_reader_feed(in, s, 1, NULL), rc); /* an error stays */
    else
        rc = clime_weights_reader_done(in, e);
    clime_weights_reader_free(in);
    return rc;
}

static void test_stream(void **state) {
    (void)state;
    struct clime_rng r;
    clime_rng_init(&r, 7);
    for (size_t i = 0; i < CLIME_COUNT(configs); i++) {
        for (int k = 0; k < 4; k++) { /* every pair of stored and wanted type */
            enum clime_dtype stored = k & 1 ? CLIME_BF16 : CLIME_F32, dt = k & 2 ? CLIME_BF16 : CLIME_F32;
            struct clime_layout l, from;
            clime_layout_make(&configs[i], stored, &from);
            clime_layout_make(&configs[i], dt, &l);
            void *w = random_weights(&from, i), *want = xcalloc(1, (size_t)l.bytes), *got = xmalloc((size_t)l.bytes);
            for (int t = 0; t < l.n_slices; t++) { /* an fp32 stays one, whatever the types around it */
                const struct clime_slice *x = &from.slices[t], *y = &l.slices[t];
                float *whole = clime_weights_at(w, x->offset);
                assert_true(x->update != CLIME_CONSTANT ||
                            (whole[0] == 1.0f / 3 - 0.2f && whole[6] == 1.0f / 9 - 0.2f));
                clime_convert(clime_st_of(x->type), y->type, (size_t)x->n, whole, clime_weights_at(want, y->offset));
            }
            size_t len;
            uint8_t *s = stream_of(&from, w, &len);
            static const size_t pieces[] = {3, 17, 1000, 1 << 20};
            for (size_t p = 0; p < CLIME_COUNT(pieces); p++) {
                struct clime_error e = {0};
                memset(got, 0xaa, (size_t)l.bytes);
                if (read_stream(&configs[i], &l, got, s, len, &r, pieces[p], &e)) fail_msg("%s", e.msg);
                assert_memory_equal(got, want, (size_t)l.bytes);
            }
            for (int cut = 0; cut < 20; cut++) { /* truncated anywhere, or longer than it says */
                struct clime_error e = {0};
                size_t n = clime_rng_below(&r, len);
                assert_int_equal(read_stream(&configs[i], &l, got, s, n, &r, 500, &e), CLIME_ERR_INPUT);
                assert_non_null(strstr(e.msg, "truncated"));
            }
            s = xrealloc(s, len + 1);
            s[len] = 0;
            struct clime_error e = {0};
            assert_int_equal(read_stream(&configs[i], &l, got, s, len + 1, &r, 500, &e), CLIME_ERR_INPUT);
            assert_non_null(strstr(e.msg, "after the last tensor"));
            for (int n = 0; n < 200; n++) { /* any byte of the header changed: refused or taken, never a crash */
                size_t at = clime_rng_below(&r, 600);
                uint8_t old = s[at];
                s[at] = (uint8_t)clime_rng_u32(&r);
                read_stream(&configs[i], &l, got, s, len, &r, 4096, &e);
                s[at] = old;
            }
            free(s);
            free(w);
            free(want);
            free(got);
            clime_layout_free(&l);
            clime_layout_free(&from);
        }
    }
}

/* Checkpoints written by hand: name, type, shape, bytes of data. */
static void write_checkpoint(const char *json, size_t data) {
    char path[96];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    size_t len = strlen(json);
    uint64_t field = len;
    char *bytes = xcalloc(8 + len + data, 1);
    memcpy(bytes, &field, 8);
    memcpy(bytes + 8, json, len);
    assert_int_equal(clime_atomic_save(path, bytes, 8 + len + data, NULL), CLIME_OK);
    free(bytes);
}

/* All experts of a layer in one tensor: of this shape, and not beside an expert's own. */
static void check_fused_misfits(void) {
    static const struct {
        const char *json, *error;
    } cases[] = {
        {"{\"model.layers.1.mlp.experts.gate_up_proj\":{\"dtype\":\"BF16\",\"shape\":[7,16,6],\"data_offsets\":[0,1344]"
         "}}",
         "has shape [7, 16, ...], the model needs [7, 6, ...]"},
        {"{\"model.layers.0.mlp.experts.down_proj\":{\"dtype\":\"BF16\",\"shape\":[7,16,3],\"data_offsets\":[0,672]}}",
         "is not part of this model"}, /* a dense layer */
        {"{\"model.layers.1.mlp.experts.6.down_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[16,3],\"data_offsets\":[0,"
         "96]},"
         "\"model.layers.1.mlp.experts.down_proj\":{\"dtype\":\"BF16\",\"shape\":[7,16,3],\"data_offsets\":[96,768]}}",
         "'model.layers.1.mlp.experts.6.down_proj.weight' is in two files"},
        {"{\"model.layers.2.eh_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
         "'model.layers.2.eh_proj.weight' is not part of this model"}, /* its configuration has no further layer */
        {"{\"model.layers.1.mlp.gate.e_score_correction_bias\":{\"dtype\":\"F32\",\"shape\":[3,7],\"data_offsets\":[0,"
         "84]}}",
         "has shape [3, 7], the model needs [7]"},
    };
    const struct clime_config *c = &configs[CLIME_COUNT(configs) - 1];
    struct clime_layout l;
    struct clime_error e = {0};
    clime_layout_make(c, CLIME_F32, &l);
    void *flat = xmalloc((size_t)l.bytes);
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        write_checkpoint(cases[i].json, strtoul(strrchr(cases[i].json, ',') + 1, NULL, 10));
        assert_int_equal(clime_weights_import(dir, c, &l, flat, &e), CLIME_ERR_INPUT);
        if (!strstr(e.msg, cases[i].error)) fail_msg("case %zu: '%s' lacks '%s'", i, e.msg, cases[i].error);
    }
    free(flat);
    clime_layout_free(&l);
}

/* Tensors of a layer that predicts further tokens are refused when they are read, where no folder could be made of
 * them: writing it is what a training ends with. */
static void check_carried_misfits(void) {
    static const char one[] = "{\"model.layers.2.%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    struct clime_config c = configs[CLIME_COUNT(configs) - 1];
    struct clime_layout l;
    struct clime_error e = {0};
    char from[96], to[96], name[256];
    c.n_next = 1;
    clime_layout_make(&c, CLIME_F32, &l);
    void *flat = xmalloc((size_t)l.bytes);
    clear_dir();
    for (int i = 0; i < 2; i++) {
        char *json = xasprintf(one, "eh_proj.weight");
        write_checkpoint(json, 2);
        free(json);
        snprintf(from, sizeof from, "%s/model.safetensors", dir);
        snprintf(to, sizeof to, "%s/%d.safetensors", dir, i);
        assert_int_equal(rename(from, to), 0);
    }
    static const char index[] = "{\"weight_map\":{\"a\":\"0.safetensors\",\"b\":\"1.safetensors\"}}";
    snprintf(from, sizeof from, "%s/model.safetensors.index.json", dir);
    assert_int_equal(clime_atomic_save(from, index, strlen(index), NULL), CLIME_OK);
    assert_int_equal(clime_weights_import(dir, &c, &l, flat, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "tensor 'model.layers.2.eh_proj.weight' is in two files"));
    clear_dir();
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    char *json = xasprintf(one, name);
    write_checkpoint(json, 2);
    free(json);
    assert_int_equal(clime_weights_import(dir, &c, &l, flat, &e), CLIME_ERR_LIMIT);
    assert_non_null(strstr(e.msg, "a tensor's name has more than"));
    free(flat);
    clime_layout_free(&l);
}

static void test_misfit(void **state) {
    (void)state;
    static const struct {
        const char *json;
        size_t data;
        const char *error;
    } cases[] = {
        {"{}", 0, "'model.embed_tokens.weight' is missing"},
        {"{\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[25],\"data_offsets\":[0,100]}}", 100,
         "'model.norm.weight' has shape [25], the model needs [24]"},
        {"{\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[24,1],\"data_offsets\":[0,96]}}", 96,
         "has shape [24, 1]"},
        {"{\"model.norm.weight\":{\"dtype\":\"F64\",\"shape\":[24],\"data_offsets\":[0,192]}}", 192, "type F64"},
        {"{\"model.layers.0.mlp.experts.0\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "is not part of this model"},
        {"{\"model.layers.2.input_layernorm.weight\":{\"dtype\":\"F32\",\"shape\":[24],\"data_offsets\":[0,96]}}", 96,
         "is not part of this model"},
        {"{\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "'model.embed_tokens.weight' is missing"}, /* a tied head is ignored */
    };
    clear_dir();
    struct clime_layout l;
    clime_layout_make(&configs[0], CLIME_F32, &l);
    void *flat = xmalloc((size_t)l.bytes);
    struct clime_error e = {0};
    assert_int_equal(clime_weights_import(dir, &configs[0], &l, flat, &e), CLIME_ERR_NOT_FOUND);
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        write_checkpoint(cases[i].json, cases[i].data);
        assert_int_equal(clime_weights_import(dir, &configs[0], &l, flat, &e), CLIME_ERR_INPUT);
        if (!strstr(e.msg, cases[i].error)) fail_msg("case %zu: '%s' lacks '%s'", i, e.msg, cases[i].error);
    }
    check_fused_misfits();
    check_carried_misfits();
    clear_dir();
    static const char *const indexes[] = {
        "{}", "{\"weight_map\":{\"a\":3}}", "{\"weight_map\":{\"a\":\"../x.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"pytorch_model.bin\"}}", "{\"weight_map\":{\"a\":\"gone.safetensors\"}}"};
    char path[96];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    for (size_t i = 0; i < CLIME_COUNT(indexes); i++) {
        assert_int_equal(clime_atomic_save(path, indexes[i], strlen(indexes[i]), NULL), CLIME_OK);
        assert_int_not_equal(clime_weights_import(dir, &configs[0], &l, flat, &e), CLIME_OK);
    }
    free(flat);
    clime_layout_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layout), cmocka_unit_test(test_convert),
                                       cmocka_unit_test(test_folder), cmocka_unit_test(test_sha256_of_pieces),
                                       cmocka_unit_test(test_stream), cmocka_unit_test(test_misfit)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
