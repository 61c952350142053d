/* Number formats of checkpoints to the formats of weights: fp32, fp16, bf16 in; fp32, bf16 out. Any thread. */
#ifndef CLIME_MODEL_WEIGHTS_CONVERT_H
#define CLIME_MODEL_WEIGHTS_CONVERT_H

#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"
#include "model/weights/safetensors.h"

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t clime_bf16_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float clime_bf16_float(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* dst[n] of type `to` from n elements at src (any alignment) of type `from`: F32, F16 or BF16. */
void clime_convert(enum clime_st_dtype from, enum clime_dtype to, size_t n, const void *src, void *dst);

/* The type in files, and its name there. */
static inline enum clime_st_dtype clime_st_of(enum clime_dtype t) {
    return t == CLIME_F32 ? CLIME_ST_F32 : CLIME_ST_BF16;
}
static inline const char *clime_st_name(enum clime_dtype t) {
    return t == CLIME_F32 ? "F32" : "BF16";
}

static inline size_t clime_st_width(enum clime_st_dtype t) { /* bytes of a readable type */
    return t == CLIME_ST_F32 ? 4 : 2;
}

#endif
