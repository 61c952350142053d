/* Matrices of a checkpoint in DeepSeek's FP8: codes of e4m3 (no infinities), and for each block of 128 x 128 an fp32
 * (DeepSeek) or bf16 (Qwen3) that they are multiplied by, in a tensor of its own. They are read, never written.
 * Internal to model/.
 *
 * Nouns: `scales` are those of a whole folder, by row of the layout; they may lie in other files than their codes, so
 * they are read first. Owned by the import; immutable once read. */
#ifndef CLIME_MODEL_WEIGHTS_FP8_H
#define CLIME_MODEL_WEIGHTS_FP8_H

#include "model/config/config.h"
#include "model/weights/layout.h"
#include "model/weights/safetensors.h"

#define CLIME_FP8_BLOCK 128

struct clime_fp8_scales {
    const struct clime_layout *l;
    const struct clime_config *c;
    float **of; /* [l->n_slices]: [ceil(rows / block), ceil(columns / block)]; NULL: that tensor has none */
};

/* Of all files of DIR. CLIME_ERR_INPUT names a tensor of scales that belongs to nothing or has another shape or type.
 */
enum clime_err clime_fp8_scales_read(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                     struct clime_fp8_scales *out, struct clime_error *e);
void clime_fp8_scales_free(struct clime_fp8_scales *s);

/* A tensor of scales by its name. */
bool clime_fp8_is_scale(const char *name);

/* Elements [first, first + n) of a matrix with K columns: code times scale in fp32, rounded once to the type. */
void clime_fp8_convert(const uint8_t *codes, const float *scales, int64_t K, int64_t first, int64_t n,
                       enum clime_dtype to, void *dst);

#endif
