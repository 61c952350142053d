/* The rotary table: cos and sin of every position, computed on the host once and uploaded.
 *
 * Called by clime_model_prepare; owns nothing. Invariant: server and trainer read one table, so their rotation is
 * equal. Angles are formed in fp32 as the reference implementations do (fp32 inverse frequency times fp32 position): at
 * position 10^5 an angle in double would differ by 10^-3 from theirs, which the checkpoints were trained with. cos and
 * sin are computed in double and rounded once.
 *
 * Formulas: Su et al. 2021, "RoFormer" (theta_i = base^(-2i/rot)); llama3 scaling as published with Llama 3.1 (long
 * wavelengths divided by `factor`, short ones kept, a linear blend between); Peng et al. 2023, "YaRN": the same with a
 * blend over dimensions, and a factor on what is rotated, as published with DeepSeek-V2: mscale of the rotated part
 * over mscale of the whole head, whose square is in the scale of attention.
 */
#include "model/rope.h"

#include <math.h>
#include <stdlib.h>

#include "common/err.h"
#include "common/hash.h"

/* The dimension with this many turns over the original context length. */
static double yarn_dim(const struct clime_config *c, double turns) {
    return c->rope_rot * log(c->rope_scaling.original_max_pos / (turns * 2 * M_PI)) / (2 * log(c->rope_theta));
}

static float yarn_freq(const struct clime_config *c, int i, float f) {
    double low = floor(yarn_dim(c, c->rope_scaling.beta_fast)), high = ceil(yarn_dim(c, c->rope_scaling.beta_slow));
    if (low < 0) low = 0;
    if (high > c->rope_rot - 1) high = c->rope_rot - 1;
    if (high == low) high += 0.001;
    double ramp = (i - low) / (high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return (float)(f / c->rope_scaling.factor * ramp + f * (1 - ramp));
}

static double yarn_mscale(const struct clime_config *c, double mscale) {
    double factor = c->rope_scaling.factor;
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

/* The factor on cos and sin. */
static float table_scale(const struct clime_config *c) {
    double part = c->rope_scaling.mscale, whole = c->rope_scaling.mscale_all_dim;
    if (!c->rope_scaling.yarn) return 1;
    return (float)(part > 0 && whole > 0 ? yarn_mscale(c, part) / yarn_mscale(c, whole) : yarn_mscale(c, 1));
}

float clime_rope_attention_scale(const struct clime_config *c) {
    double m = c->rope_scaling.yarn && c->latent.R ? yarn_mscale(c, c->rope_scaling.mscale_all_dim) : 1;
    return 1.0f / sqrtf((float)c->Dh) * (float)(m * m);
}

static float inv_freq(const struct clime_config *c, int i) {
    float f = (float)(1.0 / pow(c->rope_theta, 2.0 * i / c->rope_rot));
    double factor = c->rope_scaling.factor;
    if (factor == 0) return f;
    if (c->rope_scaling.yarn) return yarn_freq(c, i, f);
    double old = c->rope_scaling.original_max_pos, low = c->rope_scaling.low_freq, high = c->rope_scaling.high_freq;
    double wavelength = 2 * M_PI / f;
    if (wavelength < old / high) return f;
    if (wavelength > old / low) return (float)(f / factor);
    double smooth = (old / wavelength - low) / (high - low);
    return (float)((1 - smooth) * f / factor + smooth * f);
}

enum clime_err clime_rope_check(const struct clime_config *c, struct clime_error *e) {
    float scale = clime_rope_attention_scale(c);
    bool good = isfinite(table_scale(c)) && isfinite(scale) && scale > 0;
    for (int i = 0; i < c->rope_rot / 2 && good; i++) good = isfinite((float)CLIME_MAX_POSITIONS * inv_freq(c, i));
    if (good) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "rope_theta %g and rope_scaling give a rotation that is no finite number",
                      c->rope_theta);
}

void clime_rope_table(const struct clime_config *c, int first, int n, float *cos_out, float *sin_out) {
    int half = c->rope_rot / 2;
    float scale = table_scale(c);
    for (int i = 0; i < half; i++) {
        float f = inv_freq(c, i);
        for (int p = 0; p < n; p++) {
            float angle = (float)(first + p) * f;
            cos_out[(size_t)p * (size_t)half + (size_t)i] = (float)cos((double)angle) * scale;
            sin_out[(size_t)p * (size_t)half + (size_t)i] = (float)sin((double)angle) * scale;
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
