/* Host side of the rotary table (struct clime_rope). Internal to model/. */
#ifndef CLIME_MODEL_ROPE_H
#define CLIME_MODEL_ROPE_H

#include "model/config/config.h"

/* CLIME_ERR_INPUT: at some position an angle, or what it or the scores are multiplied by, is no finite number. */
enum clime_err clime_rope_check(const struct clime_config *c, struct clime_error *e);

/* Fills cos_out, sin_out [n, rope_rot / 2] for positions first .. first + n - 1. */
void clime_rope_table(const struct clime_config *c, int first, int n, float *cos_out, float *sin_out);

/* What scores are multiplied by: 1/sqrt(Dh), and with YaRN's mscale_all_dim the square of that in latent attention. */
float clime_rope_attention_scale(const struct clime_config *c);

/* Of the table's bits at positions near and far, and of how heads are turned by it: whoever has another rotates keys
 * otherwise, be it by the configuration or by the host's cos and sin. */
uint64_t clime_rope_checksum(const struct clime_config *c);

#endif
