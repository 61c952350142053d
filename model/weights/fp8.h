/* Checkpoint matrices in DeepSeek's FP8: e4m3 codes (no infinities), and one scale per block of 128 x 128, fp32
 * (DeepSeek) or bf16 (Qwen3), in a tensor of its own. Read, never written. Internal to model/.
 *
 * Nouns: `scales` are those of a whole folder, by row of the layout; they may be in other files than their codes, so
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
    float **of; /* [l->n_slices]: [ceil(rows / block), ceil(columns / block)]; NULL: no scales */
};

/* Reads all files of DIR. CLIME_ERR_INPUT names a scale tensor that belongs to no matrix or has a wrong shape or type.
 */
enum clime_err clime_fp8_scales_read(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                     struct clime_fp8_scales *out, struct clime_error *e);
void clime_fp8_scales_free(struct clime_fp8_scales *s);

/* Whether a name is a scale tensor's. */
bool clime_fp8_is_scale(const char *name);

/* Elements [first, first + n) of a matrix with K columns: code times scale in fp32, rounded once to the type. */
void clime_fp8_convert(const uint8_t *codes, const float *scales, int64_t K, int64_t first, int64_t n,
                       enum clime_dtype to, void *dst);

#endif
