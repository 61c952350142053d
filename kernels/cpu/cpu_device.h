/* Context and memory entries of the CPU table, documented in kernels.h. For cpu_table.c. */
#ifndef CLIME_KERNELS_CPU_CPU_DEVICE_H
#define CLIME_KERNELS_CPU_CPU_DEVICE_H

#include "kernels/kernels.h"

void clime_cpu_close(struct clime_dev *d);
enum clime_err clime_cpu_alloc(struct clime_dev *d, size_t bytes, const char *what, void **out, struct clime_error *e);
void clime_cpu_copy(struct clime_dev *d, void *dst, const void *src, size_t bytes);
void clime_cpu_copy_rows(struct clime_dev *d, int n, size_t bytes, void *dst, size_t dst_step, const void *src,
                         size_t src_step);
void clime_cpu_zero(struct clime_dev *d, void *p, size_t bytes);
void clime_cpu_copy_start(struct clime_dev *d, void *dst, const void *src, size_t bytes, int mark);
enum clime_err clime_cpu_copy_wait(struct clime_dev *d, int mark, struct clime_error *e);
enum clime_err clime_cpu_sync(struct clime_dev *d, struct clime_error *e);
void clime_cpu_memory(struct clime_dev *d, size_t *free_bytes, size_t *total_bytes);
size_t clime_cpu_scratch_bytes(const struct clime_scratch_shape *s);
size_t clime_cpu_trial_bytes(struct clime_dev *d, enum clime_trial kind, int T, int N, int K);
void clime_cpu_choose(struct clime_dev *d, enum clime_trial kind, int T, int N, int K);
enum clime_err clime_cpu_reserve_scratch(struct clime_dev *d, size_t bytes, struct clime_error *e);

/* cpu_share.c */
void clime_cpu_free(struct clime_dev *d, void *p); /* from any of the allocators */
enum clime_err clime_cpu_alloc_shared(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                      struct clime_error *e);
enum clime_err clime_cpu_share_export(struct clime_dev *d, const void *p, uint8_t handle[CLIME_SHARE_BYTES],
                                      struct clime_error *e);
enum clime_err clime_cpu_share_open(struct clime_dev *d, const uint8_t handle[CLIME_SHARE_BYTES], size_t bytes,
                                    bool *same_unit, void **out, struct clime_error *e);
void clime_cpu_share_close(struct clime_dev *d, void *p);
uint64_t clime_cpu_checksum(struct clime_dev *d, uint64_t first, size_t bytes, const void *p);
bool clime_cpu_finite(struct clime_dev *d, enum clime_dtype type, size_t n, const void *x);
void clime_cpu_bind(struct clime_dev *d);
enum clime_err clime_cpu_alloc_fixed(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                     struct clime_error *e);
void clime_cpu_give_back(struct clime_dev *d, void *p);
enum clime_err clime_cpu_take_back(struct clime_dev *d, void *p, struct clime_error *e);
enum clime_err clime_cpu_comm_id(struct clime_dev *d, uint8_t id[CLIME_COMM_ID_BYTES], struct clime_error *e);
enum clime_err clime_cpu_comm_open(struct clime_dev *d, const uint8_t id[CLIME_COMM_ID_BYTES], int rank, int world,
                                   const struct clime_comm_wait *wait, struct clime_comm **out, struct clime_error *e);
enum clime_err clime_cpu_comm_broadcast(struct clime_comm *c, const struct clime_comm_part *parts, int n,
                                        const struct clime_comm_wait *wait, struct clime_error *e);
enum clime_err clime_cpu_comm_greet(struct clime_comm *c, const struct clime_comm_wait *wait, struct clime_error *e);
void clime_cpu_comm_close(struct clime_comm *c);

/* cpu_links.c */
size_t clime_cpu_links_bytes(int world);
enum clime_err clime_cpu_links_open(struct clime_dev *d, struct clime_group *g, struct clime_links **out,
                                    struct clime_error *e);
enum clime_err clime_cpu_links_begin(struct clime_links *l, const char *what, bool put, const struct clime_move *sends,
                                     int n_sends, const struct clime_move *receives, int n_receives, uint32_t *number,
                                     struct clime_error *e);
void clime_cpu_links_end(struct clime_links *l, uint32_t number);
void clime_cpu_links_close(struct clime_links *l);

/* columns.c */
void clime_cpu_head_keep(struct clime_dev *d, int R, int V, float *logits, const int64_t *from, const int32_t *ids);
void clime_cpu_join_columns(struct clime_dev *d, int T, int n, const size_t *at, const void *parts, void *y);

#endif
