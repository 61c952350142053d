/* A model over the ranks of a group: which columns of an activation a rank computes, and how all get all of them.
 * Internal to model/; model.h has what others call.
 *
 * A row of an activation is cut evenly over the ranks, a row of logits at CLIME_VOCAB_UNIT. What is gathered comes into
 * `parts`, T rows of each rank's columns behind each other, and is joined to whole rows. Alone, a rank computes into
 * the rows themselves and gathers nothing. Owner: whoever owns the model.
 *
 * Experts may lie whole on one rank each, neighbours together. All ranks have all rows and choose alike, so a rank
 * computes what its experts make of them without anything coming to it; what comes of them goes home by columns: to
 * each rank, for every chosen expert, those that it adds.
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

/* Of T*k places sorted by expert (start, as ops->permute leaves it), where this rank's own ones begin: of E experts it
 * has E / n. What the grouped operations take beside the matrices of these alone (kernels/kernels.h). */
const int32_t *clime_ranks_own(const struct clime_model *m, const int32_t *start);
/* rows: whole rows [D] of its own places of R, where they belong. y becomes this rank's columns of all places. Where
 * links do not record, it waits for the device, which alone knows how many rows an expert has; then cuts are as
 * CLIME_ACT_CUTS, and parts has room for as much as rows. */
void clime_ranks_home(struct clime_model *m, int R, const int32_t *start, const int32_t *cuts, const void *rows,
                      void *parts, void *y);

/* The same of logits[R, V]; rank 0 alone gets them, for it alone draws. */
float *clime_ranks_my_logits(const struct clime_model *m, int R, float *parts, float *logits);
void clime_ranks_gather_logits(struct clime_model *m, int R, float *parts, float *logits);

#endif
