/* The fixed splits of the vocabulary and the only formula of a log-probability, for head.c and sample.c. */
#ifndef CLIME_KERNELS_CPU_HEAD_H
#define CLIME_KERNELS_CPU_HEAD_H

#include "kernels/kernels.h"

#define HEAD_SPLIT 1024 /* logits of a split: 4 KiB, summed before splits are merged in order */

static inline int head_splits(int V) {
    return (V + HEAD_SPLIT - 1) / HEAD_SPLIT;
}

/* docs/numerics.md, "the number". */
static inline float head_logp(float logit, float inv_temp, float lse) {
    return logit * inv_temp - lse;
}

#endif
