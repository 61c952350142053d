/* Host side of the rotary table (struct clime_rope). Internal to model/. */
#ifndef CLIME_MODEL_ROPE_H
#define CLIME_MODEL_ROPE_H

#include "model/config.h"

/* Fills cos_out, sin_out [max_pos, rope_rot / 2]. */
void clime_rope_table(const struct clime_config *c, int max_pos, float *cos_out, float *sin_out);

#endif
