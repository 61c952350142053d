/* Joins other ranks' columns to rows: bytes only. Launched by the context's owner. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

extern "C" {
#include "common/group/place.h"
}

enum { THREADS = 256 };

struct cuts {
    size_t at[CLIME_GROUP_MAX + 1]; /* in values */
};

/* One block per row and rank. */
template <class V> __global__ void join_kernel(int T, int n, struct cuts c, const V *parts, V *y) {
    start_next();
    wait_for_last();
    size_t t = blockIdx.x, r = blockIdx.y, width = c.at[r + 1] - c.at[r];
    const V *from = parts + (size_t)T * c.at[r] + t * width;
    V *to = y + t * c.at[n] + c.at[r];
    for (size_t i = threadIdx.x; i < width; i += THREADS) to[i] = from[i];
}

template <class V> static void join(struct clime_dev *d, int T, int n, const size_t *at, const void *parts, void *y) {
    struct cuts c;
    for (int r = 0; r <= n; r++) c.at[r] = at[r] / sizeof(V);
    launch(d, join_kernel<V>, dim3((unsigned)T, (unsigned)n), THREADS, 0, T, n, c, (const V *)parts, (V *)y);
}

CUDA_OP void clime_cuda_join_columns(struct clime_dev *d, int T, int n, const size_t *at, const void *parts, void *y) {
    bool wide = true;
    if (T == 0) return;
    for (int r = 0; r <= n; r++) wide = wide && at[r] % sizeof(uint4) == 0;
    if (wide)
        join<uint4>(d, T, n, at, parts, y);
    else
        join<bf16>(d, T, n, at, parts, y);
}
