/* Rows sorted by expert, and products of each expert's rows with its weights; documented in kernels.h. Compiled once,
 * on top of each instruction set's products. */
#ifndef CLIME_KERNELS_CPU_GROUPED_H
#define CLIME_KERNELS_CPU_GROUPED_H

#include "kernels/cpu/cpu.h"

void clime_cpu_permute(struct clime_dev *d, int T, const struct clime_router *r, const int32_t *ids, int32_t *start,
                       int32_t *from, int32_t *at);
void clime_cpu_grouped_gemm(struct clime_dev *d, int R, const int32_t *start, const void *x,
                            const struct clime_matrix *w, void *y);
void clime_cpu_grouped_swiglu(struct clime_dev *d, int R, const int32_t *start, const int32_t *from, const void *x,
                              const struct clime_matrix *w, void *in, void *gu, void *h);
void clime_cpu_grouped_dx(struct clime_dev *d, int R, const int32_t *start, const void *dy,
                          const struct clime_matrix *w, void *dx);
void clime_cpu_grouped_dw(struct clime_dev *d, int R, const int32_t *start, const struct clime_matrix *w,
                          const void *dy, const void *x, bool add, float *dw);

#endif
