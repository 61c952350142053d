/* Host buffers of one micro-batch (rows and loss entries), reused for the next. Used by learner and critic. */
#ifndef CLIME_TRAINER_LEARN_MICRO_H
#define CLIME_TRAINER_LEARN_MICRO_H

#include "model/backward.h"
#include "trainer/algorithm/stream.h"
#include "trainer/sample/pack.h"

struct clime_micro {
    int32_t *ids, *start, *row, *target;
    float *inv_temp, *logp, *whole, *entropy, *g_logp, *g_entropy;
    uint32_t *routing;  /* [n_loss] (clime_train_routing) */
    int64_t *index;     /* stream entry of each loss row */
    int16_t *given;     /* clime_micro_give */
    int64_t *kept_from; /* [n_loss + 1] */
    int32_t *kept;
    struct clime_packed_batch b;
};

void clime_micro_alloc(struct clime_micro *mb, size_t rows); /* rows: tokens; also the most sequences */
void clime_micro_free(struct clime_micro *mb);

/* CLIME_ERR_LIMIT names the first micro-batch of the packing with more than `rows` tokens. */
enum clime_err clime_micro_check(const struct clime_sample *const *samples, const struct clime_packing *p, size_t rows,
                                 struct clime_error *e);

/* Concatenates the samples which[0..n); the loss rows are their entries of the stream. */
void clime_micro_fill(struct clime_micro *mb, const struct clime_sample *const *samples, const struct clime_stream *s,
                      const int32_t *which, int n);
/* Call after fill. Sets the replayed experts of samples that hold some, for a policy of this shape. */
void clime_micro_give(struct clime_micro *mb, const struct clime_config *c, const struct clime_sample *const *samples,
                      const int32_t *which, int n);

#endif
