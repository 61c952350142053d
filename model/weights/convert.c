/* Conversion loops between the number formats of checkpoints and of weights.
 *
 * Called by weights_import.c and weights_stream.c on any thread; owns nothing. Invariant: a value that the target can
 * represent is kept exactly. Sources are read through memcpy, since a safetensors header may put data at any offset.
 * fp16 is converted through fp32: its subnormals are normal numbers there, so the second step rounds once.
 */
#include "model/weights/convert.h"

/* IEEE 754 binary16. A subnormal is its integer times 2^-24, which fp32 holds exactly. */
static float half_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff, u;
    if (exp == 0) {
        float x = (float)man * 0x1p-24f;
        memcpy(&u, &x, 4);
    } else {
        u = (exp == 31 ? 0x7f800000 : (exp + 112) << 23) | man << 13;
    }
    u |= sign;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static void to_f32(enum clime_st_dtype from, size_t n, const uint8_t *src, float *dst) {
    uint16_t h;
    if (from == CLIME_ST_F32) {
        memcpy(dst, src, n * 4);
    } else if (from == CLIME_ST_BF16) {
        for (size_t i = 0; i < n; i++) memcpy(&h, src + 2 * i, 2), dst[i] = clime_bf16_float(h);
    } else {
        for (size_t i = 0; i < n; i++) memcpy(&h, src + 2 * i, 2), dst[i] = half_float(h);
    }
}

void clime_convert(enum clime_st_dtype from, enum clime_dtype to, size_t n, const void *src, void *dst) {
    CHECK(from < CLIME_ST_FP8);
    if (to == CLIME_F32) {
        to_f32(from, n, src, dst);
        return;
    }
    if (from == CLIME_ST_BF16) {
        memcpy(dst, src, n * 2);
        return;
    }
    const uint8_t *at = src;
    uint16_t *out = dst;
    float block[256];
    for (size_t i = 0; i < n; i += CLIME_COUNT(block)) {
        size_t m = n - i < CLIME_COUNT(block) ? n - i : CLIME_COUNT(block);
        to_f32(from, m, at + i * clime_st_width(from), block);
        for (size_t k = 0; k < m; k++) out[i + k] = clime_bf16_of(block[k]);
    }
}
