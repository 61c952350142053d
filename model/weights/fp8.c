/* FP8 checkpoints: reading a folder's scales, and converting codes to numbers.
 *
 * Called by weights_import.c, on the importing thread; owns the scales. Invariant: a number equals the dequantised one
 * of the checkpoint's own inference code, code times scale in fp32 and one rounding. Products with codes on both sides,
 * which such code may use, are not reproduced: activations keep their width.
 */
#include "model/weights/fp8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights/convert.h"
#include "model/weights/weights_map.h"

static const char suffix[] = "_scale_inv";

static int64_t blocks(int64_t n) {
    return (n + CLIME_FP8_BLOCK - 1) / CLIME_FP8_BLOCK;
}

bool clime_fp8_is_scale(const char *name) {
    size_t n = strlen(name), m = sizeof suffix - 1;
    return n > m && strcmp(name + n - m, suffix) == 0;
}

static enum clime_err keep(struct clime_fp8_scales *s, const struct clime_st_tensor *t, const uint8_t *data,
                           struct clime_error *e) {
    char name[96];
    size_t stem = strlen(t->name) - (sizeof suffix - 1);
    if (clime_weights_beyond(s->c, t->name)) return CLIME_OK;
    snprintf(name, sizeof name, "%.*s", stem < sizeof name ? (int)stem : 0, t->name);
    const struct clime_slice *at = clime_layout_find(s->l, name);
    if (!at || at->n_dim != 2)
        return clime_fail(e, CLIME_ERR_INPUT, "tensor '%.200s' scales nothing of this model", t->name);
    int64_t rows = blocks(at->dim[0]), columns = blocks(at->dim[1]);
    float **of = &s->of[at - s->l->slices];
    if (t->type >= CLIME_ST_FP8 || t->n_dim != 2 || t->dim[0] != rows || t->dim[1] != columns)
        return clime_fail(e, CLIME_ERR_INPUT, "tensor '%s' must be F32, BF16 or F16 of shape [%lld, %lld]", t->name,
                          (long long)rows, (long long)columns);
    if (*of) return clime_fail(e, CLIME_ERR_INPUT, "tensor '%s' is in two files", t->name);
    *of = xmalloc((size_t)(rows * columns) * sizeof **of);
    clime_convert(t->type, CLIME_F32, (size_t)(rows * columns), data, *of);
    return CLIME_OK;
}

static enum clime_err read_file(void *arg, const char *path, struct clime_error *e) {
    struct clime_fp8_scales *s = arg;
    struct clime_st_file f;
    enum clime_err rc = clime_st_open(path, &f, e);
    if (rc) return rc;
    for (int i = 0; i < f.header.n && !rc; i++) {
        const struct clime_st_tensor *t = &f.header.tensors[i];
        if (clime_fp8_is_scale(t->name) && (rc = keep(s, t, f.data + t->begin, e))) clime_error_prefix(e, "%s", path);
    }
    if (!rc && (rc = clime_st_check(&f, e))) clime_error_prefix(e, "%s", path);
    clime_st_close(&f);
    return rc;
}

enum clime_err clime_fp8_scales_read(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                     struct clime_fp8_scales *out, struct clime_error *e) {
    *out = (struct clime_fp8_scales){.l = l, .c = c, .of = xcalloc((size_t)l->n_slices, sizeof *out->of)};
    return clime_weights_files(dir, read_file, out, e);
}

void clime_fp8_scales_free(struct clime_fp8_scales *s) {
    for (int i = 0; s->of && i < s->l->n_slices; i++) free(s->of[i]);
    free(s->of);
    s->of = NULL;
}

/* e4m3: sign, 4 bits of exponent with bias 7, 3 bits; all ones is NaN, there is no infinity. */
static float code_value(uint8_t code) {
    int exp = code >> 3 & 15, man = code & 7;
    float x = exp ? (float)(8 + man) * (float)(1 << exp) / (1 << 10) : (float)man / (1 << 9);
    uint32_t nan = 0x7fc00000;
    if (exp == 15 && man == 7) memcpy(&x, &nan, sizeof x);
    return code & 0x80 ? -x : x;
}

void clime_fp8_convert(const uint8_t *codes, const float *scales, int64_t K, int64_t first, int64_t n,
                       enum clime_dtype to, void *dst) {
    float value[256];
    for (int i = 0; i < 256; i++) value[i] = code_value((uint8_t)i);
    int64_t row = first / K, column = first % K, per_row = blocks(K);
    for (int64_t i = 0; i < n; i++) {
        float x = value[codes[first + i]] * scales[row / CLIME_FP8_BLOCK * per_row + column / CLIME_FP8_BLOCK];
        if (to == CLIME_F32)
            ((float *)dst)[i] = x;
        else
            ((uint16_t *)dst)[i] = clime_bf16_of(x);
        if (++column == K) column = 0, row++;
    }
}
