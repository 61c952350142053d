/* A model over the ranks of a group: which columns of an activation a rank computes, and how all get all of them.
 * Internal to model/; model.h has what others call.
 *
 * A row of an activation is cut evenly over the ranks, a row of logits at CLIME_VOCAB_UNIT. What is gathered comes into
 * `parts`, T rows of each rank's columns behind each other, and is joined to whole rows. Alone, a rank computes into
 * the rows themselves and gathers nothing. Owner: whoever owns the model.
 */
#ifndef CLIME_MODEL_RANKS_H
#define CLIME_MODEL_RANKS_H

#include "model/model.h"

/* Where this rank writes its columns of y[T] rows of row_bytes; then all ranks get the whole of y. each: of a row of
 * the step there are so many in y, T * each in all. */
void *clime_ranks_mine(const struct clime_model *m, int T, size_t row_bytes, void *parts, void *y);
void clime_ranks_gather(struct clime_model *m, int T, int each, size_t row_bytes, void *parts, void *y);

/* y[T, N] = x w^T + bias, of which this rank computes its columns. w, bias: rows of the layout; bias -1 = none. */
void clime_ranks_product(struct clime_model *m, int T, const void *x, int w, int bias, int N, void *parts, void *y);

/* The same of logits[R, V]; rank 0 alone gets them, for it alone draws. */
float *clime_ranks_my_logits(const struct clime_model *m, int R, float *parts, float *logits);
void clime_ranks_gather_logits(struct clime_model *m, int R, float *parts, float *logits);

#endif
