/* Tensor parallelism: which columns of an activation a rank computes, and how all ranks get all of them. Internal to
 * model/; the public part is in model.h.
 *
 * A row of an activation is cut evenly over the ranks, a row of logits at CLIME_VOCAB_UNIT. Gathered columns arrive in
 * `parts`, T rows of each rank's columns in turn, and are joined to whole rows. Alone, a rank computes into the rows
 * themselves and gathers nothing. Owner: the model's owner.
 *
 * Whole experts: each is on one rank, neighbours together. All ranks have all rows and make the same choice, so a rank
 * computes its experts' outputs without receiving anything; results are sent back by columns: each rank gets, for every
 * chosen expert, the columns that it adds.
 */
#ifndef CLIME_MODEL_RANKS_H
#define CLIME_MODEL_RANKS_H

#include "model/model.h"

/* Where this rank writes its columns of y[T] rows of row_bytes; gather then gives all ranks the whole of y. each: rows
 * of y per row of the step, T * each in all. */
void *clime_ranks_mine(const struct clime_model *m, int T, size_t row_bytes, void *parts, void *y);
void clime_ranks_gather(struct clime_model *m, int T, int each, size_t row_bytes, void *parts, void *y);

/* y[T, N] = x w^T + bias; this rank computes its columns. w, bias: rows of the layout; bias -1 = none. */
void clime_ranks_product(struct clime_model *m, int T, const void *x, int w, int bias, int N, void *parts, void *y);

/* Where this rank's own of T*k places sorted by expert begin (start from ops->permute): it has E / n of E experts. The
 * `start` argument of the grouped operations on its matrices alone (kernels/kernels.h). */
const int32_t *clime_ranks_own(const struct clime_model *m, const int32_t *start);
/* rows: whole rows [D] of this rank's own places of R, in place. y becomes this rank's columns of all places. Where
 * links do not record, it waits for the device, which alone has the row counts of the experts; then cuts is
 * CLIME_ACT_CUTS, and parts has as much room as rows. */
void clime_ranks_home(struct clime_model *m, int R, const int32_t *start, const int32_t *cuts, const void *rows,
                      void *parts, void *y);

/* The same for logits[R, V]; only rank 0, which samples, gets them. */
float *clime_ranks_my_logits(const struct clime_model *m, int R, float *parts, float *logits);
void clime_ranks_gather_logits(struct clime_model *m, int R, float *parts, float *logits);

#endif
