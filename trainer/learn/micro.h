/* Rows and loss entries of one micro-batch in host memory, reused from one to the next. For the learner and its critic.
 */
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

void clime_micro_alloc(struct clime_micro *mb, size_t rows); /* of tokens; as many sequences at most */
void clime_micro_free(struct clime_micro *mb);

/* Whether every micro-batch of the packing has at most `rows` tokens: CLIME_ERR_LIMIT names the first that has more. */
enum clime_err clime_micro_check(const struct clime_sample *const *samples, const struct clime_packing *p, size_t rows,
                                 struct clime_error *e);

/* The samples which[0..n) one after another; the loss rows are their entries of the stream. */
void clime_micro_fill(struct clime_micro *mb, const struct clime_sample *const *samples, const struct clime_stream *s,
                      const int32_t *which, int n);
/* Behind fill: the rows of those that hold experts are given them, for the policy of this shape. */
void clime_micro_give(struct clime_micro *mb, const struct clime_config *c, const struct clime_sample *const *samples,
                      const int32_t *which, int n);

#endif
