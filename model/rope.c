/* The rotary table: cos and sin of every position, made on the host once and uploaded.
 *
 * Called by clime_model_open; owns nothing. The invariant: server and trainer read one table, so rotation cannot differ
 * between them. Angles are formed in fp32 as the reference implementations do (fp32 inverse frequency times fp32
 * position): at position 10^5 an angle in double would differ from theirs by 10^-3, which the checkpoints were
 * trained with. cos and sin themselves are taken in double and rounded once.
 *
 * Formulas: Su et al. 2021, "RoFormer" (theta_i = base^(-2i/rot)); llama3 scaling as published with Llama 3.1
 * (long wavelengths divided by `factor`, short ones kept, a linear blend between).
 */
#include "model/rope.h"

#include <math.h>
#include <stdlib.h>

#include "common/err.h"
#include "common/hash.h"

static float inv_freq(const struct clime_config *c, int i) {
    float f = (float)(1.0 / pow(c->rope_theta, 2.0 * i / c->rope_rot));
    double factor = c->rope_scaling.factor;
    if (factor == 0) return f;
    double old = c->rope_scaling.original_max_pos, low = c->rope_scaling.low_freq, high = c->rope_scaling.high_freq;
    double wavelength = 2 * M_PI / f;
    if (wavelength < old / high) return f;
    if (wavelength > old / low) return (float)(f / factor);
    double smooth = (old / wavelength - low) / (high - low);
    return (float)((1 - smooth) * f / factor + smooth * f);
}

void clime_rope_table(const struct clime_config *c, int first, int n, float *cos_out, float *sin_out) {
    int half = c->rope_rot / 2;
    for (int i = 0; i < half; i++) {
        float f = inv_freq(c, i);
        for (int p = 0; p < n; p++) {
            float angle = (float)(first + p) * f;
            cos_out[(size_t)p * (size_t)half + (size_t)i] = (float)cos((double)angle);
            sin_out[(size_t)p * (size_t)half + (size_t)i] = (float)sin((double)angle);
        }
    }
}

uint64_t clime_rope_checksum(const struct clime_config *c) {
    enum { NEAR = 64, FARTHEST = 1 << 20 };
    struct clime_checksum sum;
    size_t half = (size_t)(c->rope_rot / 2);
    float *table = xmalloc(2 * half * sizeof *table + 1);
    clime_checksum_init(&sum);
    for (int p = 0; p <= FARTHEST; p = p < NEAR ? p + 1 : p + p / 2) {
        clime_rope_table(c, p, 1, table, table + half);
        clime_checksum_add(&sum, table, 2 * half * sizeof *table);
    }
    const uint8_t how = c->rope_interleaved;
    clime_checksum_add(&sum, &how, 1);
    free(table);
    return clime_checksum_done(&sum);
}
