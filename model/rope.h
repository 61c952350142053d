/* Host side of the rotary table (struct clime_rope). Internal to model/. */
#ifndef CLIME_MODEL_ROPE_H
#define CLIME_MODEL_ROPE_H

#include "model/config/config.h"

/* CLIME_ERR_INPUT: at some position an angle, or a factor on it or on the scores, is not finite. */
enum clime_err clime_rope_check(const struct clime_config *c, struct clime_error *e);

/* Fills cos_out, sin_out [n, rope_rot / 2] for positions first .. first + n - 1. */
void clime_rope_table(const struct clime_config *c, int first, int n, float *cos_out, float *sin_out);

/* The factor on scores: 1/sqrt(Dh), and with YaRN's mscale_all_dim its square in latent attention. */
float clime_rope_attention_scale(const struct clime_config *c);

/* Hash of the table's bits at near and far positions and of the rotation layout. It differs when the configuration, or
 * the host's cos and sin, would rotate keys differently. */
uint64_t clime_rope_checksum(const struct clime_config *c);

#endif
