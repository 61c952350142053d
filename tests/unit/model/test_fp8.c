/* An FP8 folder is the bf16 folder that torch makes of it (tests/golden/make_fp8_golden.py), to the bit; and what is
 * wrong with one is said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/log.h"
#include "common/os/atomic_file.h"
#include "common/os/dirs.h"
#include "model/weights/fp8.h"
#include "model/weights/safetensors.h"
#include "model/weights/weights.h"

static char dir[] = "/tmp/clime-fp8-XXXXXX";

static void read_golden(const char *name, struct clime_buf *b) {
    const char *root = getenv("CLIME_GOLDEN");
    struct clime_error e;
    char *path = xasprintf("%s/fp8/%s", root ? root : "tests/golden", name);
    clime_buf_init(b, 1 << 20);
    if (clime_buf_read_file(b, path, &e)) fail_msg("%s", e.msg);
    free(path);
}

static void put(const char *name, const struct clime_buf *b) {
    char *path = xasprintf("%s/%s", dir, name);
    assert_int_equal(clime_atomic_save(path, b->data, b->len, NULL), CLIME_OK);
    free(path);
}

/* Of the folder in dir. */
static enum clime_err import(enum clime_dtype dt, void **flat, size_t *bytes, struct clime_error *e) {
    struct clime_config c;
    struct clime_layout l;
    *flat = NULL;
    enum clime_err rc = clime_config_load(dir, &c, e);
    if (rc) return rc;
    clime_layout_make(&c, dt, &l);
    *bytes = (size_t)l.bytes;
    *flat = xmalloc(*bytes);
    rc = clime_weights_import(dir, &c, &l, *flat, e);
    clime_layout_free(&l);
    return rc;
}

static void as_torch_reads_it(void **state) {
    (void)state;
    struct clime_buf config, codes, wide;
    struct clime_error e = {0};
    void *ours, *theirs, *f32;
    size_t n, m;
    read_golden("config.json", &config);
    read_golden("model.safetensors", &codes);
    read_golden("torch.safetensors", &wide);
    put("config.json", &config);
    put("model.safetensors", &codes);
    if (import(CLIME_BF16, &ours, &n, &e)) fail_msg("%s", e.msg);
    if (import(CLIME_F32, &f32, &m, &e)) fail_msg("%s", e.msg);
    put("model.safetensors", &wide); /* a folder that says FP8 may hold tensors that are not */
    if (import(CLIME_BF16, &theirs, &m, &e)) fail_msg("%s", e.msg);
    assert_int_equal(n, m);
    assert_memory_equal(ours, theirs, n);
    int differ = 0;
    for (size_t i = 0; i < n / 2; i++) { /* fp32 has what was rounded away */
        uint32_t u = (uint32_t)((uint16_t *)ours)[i] << 16, w;
        memcpy(&w, (char *)f32 + 4 * i, 4);
        differ += u != w;
    }
    assert_true(differ > 1000);
    free(ours);
    free(theirs);
    free(f32);
    clime_buf_free(&config);
    clime_buf_free(&codes);
    clime_buf_free(&wide);
}

static const struct {
    const char *from, *to, *error; /* the first two of one length */
} wrong[] = {
    {"q_proj.weight_scale_inv", "q_prox.weight_scale_inv", "scales nothing of this model"},
    {"q_proj.weight_scale_inv", "q_proj.weight_scale_inw", "is not part of this model"},
    {"up_proj.weight_scale_inv", "_____rotary_emb.inv_freq", "up_proj.weight_scale_inv is missing"},
    {"\"model.layers.0.self_attn.q_proj.weight_scale_inv\"", "\"model.embed_tokens.weight_scale_inv\"             ",
     "'model.embed_tokens.weight' is BF16 and model.embed_tokens.weight_scale_inv is there"},
    {"\"F8_E4M3\"", "\"F8_E5M2\"", "has type F8_E5M2; BF16, F16 and F32"},
    {"[2,1]", "[1,2]", "must be F32, BF16 or F16 of shape [2, 1]"},
    {"\"fp8\"", "\"awq\"", "only FP8 in blocks is read"},
    {"\"e4m3\"", "\"e5m2\"", "only FP8 in blocks is read"},
    {"quantization_config", "quantization_confix", "is not part of this model"},
};

static void what_is_wrong_is_said(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(wrong); i++) {
        struct clime_buf file[2];
        struct clime_error e = {0};
        void *flat;
        size_t n, len = strlen(wrong[i].from);
        read_golden("config.json", &file[0]);
        read_golden("model.safetensors", &file[1]);
        char *at = memmem(file[0].data, file[0].len, wrong[i].from, len);
        if (!at) at = memmem(file[1].data, file[1].len, wrong[i].from, len);
        assert_non_null(at);
        memcpy(at, wrong[i].to, len);
        put("config.json", &file[0]);
        put("model.safetensors", &file[1]);
        assert_int_not_equal(import(CLIME_BF16, &flat, &n, &e), CLIME_OK);
        if (!strstr(e.msg, wrong[i].error)) fail_msg("case %zu: %s", i, e.msg);
        free(flat);
        clime_buf_free(&file[0]);
        clime_buf_free(&file[1]);
    }
}

/* A code of NaN is no weight. */
static void a_code_of_nan_is_refused(void **state) {
    (void)state;
    struct clime_buf config, codes;
    struct clime_error e = {0};
    void *flat;
    size_t n;
    read_golden("config.json", &config);
    read_golden("model.safetensors", &codes);
    codes.data[codes.len - 1] = 0x7f; /* one-byte types lie last */
    put("config.json", &config);
    put("model.safetensors", &codes);
    assert_int_equal(import(CLIME_BF16, &flat, &n, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "not finite"));
    free(flat);
    clime_buf_free(&config);
    clime_buf_free(&codes);
}

/* The golden folder's file with its scales cut off to bf16, and stored as such or as fp32. */
static void put_cut_scales(bool narrow) {
    struct clime_buf file, header, data;
    struct clime_st_file f;
    struct clime_error e = {0};
    read_golden("model.safetensors", &file);
    put("whole.safetensors", &file);
    char *path = xasprintf("%s/whole.safetensors", dir);
    if (clime_st_open(path, &f, &e)) fail_msg("%s", e.msg);
    clime_buf_init(&header, 1 << 20);
    clime_buf_init(&data, 1 << 20);
    for (int i = 0; i < f.header.n; i++) {
        const struct clime_st_tensor *t = &f.header.tensors[i];
        bool scale = strstr(t->name, "_scale_inv") != NULL;
        size_t from = data.len;
        for (const uint8_t *x = f.data + t->begin; x < f.data + t->end; x += scale ? 4 : 1) {
            uint8_t cut[4] = {0, 0, x[scale ? 2 : 0], x[scale ? 3 : 0]};
            clime_buf_add(&data, scale ? cut + (narrow ? 2 : 0) : x, scale ? (narrow ? 2 : 4) : 1);
        }
        clime_buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld", i ? "," : "{", t->name,
                         scale && narrow ? "BF16" : t->dtype, (long long)t->dim[0]);
        if (t->n_dim == 2) clime_buf_printf(&header, ",%lld", (long long)t->dim[1]);
        clime_buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", from, data.len);
    }
    clime_buf_addc(&header, '}');
    clime_buf_clear(&file);
    uint64_t len = header.len;
    clime_buf_add(&file, &len, 8);
    clime_buf_add(&file, header.data, header.len);
    clime_buf_add(&file, data.data, data.len);
    put("model.safetensors", &file);
    clime_st_close(&f);
    clime_buf_free(&file);
    clime_buf_free(&header);
    clime_buf_free(&data);
    free(path);
}

/* Qwen3's FP8 folders have their scales in bf16. */
static void scales_in_bf16(void **state) {
    (void)state;
    struct clime_buf config;
    struct clime_error e = {0};
    void *flat[2];
    size_t n, m;
    read_golden("config.json", &config);
    put("config.json", &config);
    put_cut_scales(false);
    if (import(CLIME_F32, &flat[0], &n, &e)) fail_msg("%s", e.msg);
    put_cut_scales(true);
    if (import(CLIME_F32, &flat[1], &m, &e)) fail_msg("%s", e.msg);
    assert_int_equal(n, m);
    assert_memory_equal(flat[0], flat[1], n);
    free(flat[0]);
    free(flat[1]);
    clime_buf_free(&config);
}

/* An import converts a large matrix in pieces, which may begin inside a row. */
static void pieces_are_the_whole(void **state) {
    (void)state;
    enum { ROWS = 260, K = 300, N = ROWS * K };
    static uint8_t codes[N];
    static float whole[N], piece[N];
    float scales[3 * 3];
    for (int i = 0; i < N; i++) codes[i] = (uint8_t)(i * 37 % 127); /* no NaN */
    for (int i = 0; i < 9; i++) scales[i] = 1 + (float)i;
    clime_fp8_convert(codes, scales, K, 0, N, CLIME_F32, whole);
    for (int first = 0, n; first < N; first += n) {
        n = N - first < 1021 ? N - first : 1021;
        clime_fp8_convert(codes, scales, K, first, n, CLIME_F32, piece + first);
    }
    assert_memory_equal(piece, whole, sizeof whole);
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    return clime_dir_remove(dir, NULL);
}

int main(void) {
    clime_log_open("test", CLIME_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_torch_reads_it), cmocka_unit_test(what_is_wrong_is_said),
                                       cmocka_unit_test(a_code_of_nan_is_refused), cmocka_unit_test(scales_in_bf16),
                                       cmocka_unit_test(pieces_are_the_whole)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
