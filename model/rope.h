/* Host side of the rotary table (struct clime_rope). Internal to model/. */
#ifndef CLIME_MODEL_ROPE_H
#define CLIME_MODEL_ROPE_H

#include "model/config.h"

/* Fills cos_out, sin_out [n, rope_rot / 2] for positions first .. first + n - 1. */
void clime_rope_table(const struct clime_config *c, int first, int n, float *cos_out, float *sin_out);

#endif
