/* Routers, the sorting of rows by expert, and sums over experts. Launched by the context's owner.
 *
 * One warp per row of a router (route.cuh). For a single row, inside a recording, a product's program does everything
 * except the products of experts (row/program.cu): its router's choice follows the router's product, its sum precedes
 * the next norm.
 *
 * Counts stay on the device: an expert's block counts the slots of lower experts, which is where its places begin, then
 * walks over all slots in order. No block waits for another, nothing is stored in between, and the host sizes launches
 * by T*k alone, so all of it can be recorded. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/route.cuh"

enum { WARPS = 4, THREADS = 256 };

/* ---- routers ---- */

template <int N>
__global__ void __launch_bounds__(WARPS * 32)
    route_kernel(int T, const clime_router r, const float *logits, const float *bias, const int16_t *given,
                 float *scores, int32_t *ids, float *weights, uint32_t *fold) {
    __shared__ float shared[WARPS][32 * N];
    int warp = threadIdx.x >> 5, t = blockIdx.x * WARPS + warp;
    start_next();
    wait_for_last();
    if (t >= T) return;
    float x[N];
    int below[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        int e = (threadIdx.x & 31) + 32 * i;
        x[i] = e < r.E ? logits[(size_t)t * r.E + e] : -INFINITY;
    }
    if (given && given[(size_t)t * r.k] >= 0)
        given += (size_t)t * r.k;
    else
        given = NULL;
    route_row(r, x, bias, given, scores + (size_t)t * r.E, ids + (size_t)t * r.k, weights + (size_t)t * r.k,
              fold ? fold + t : NULL, shared[warp], below, true, [](int, int) {});
}

/* As in kernels/cpu/experts.c. */
__global__ void __launch_bounds__(WARPS * 32)
    route_bwd_kernel(int T, const clime_router r, const float *scores, const int32_t *ids, const float *dweights,
                     bf16 *dlogits) {
    int lane = threadIdx.x & 31, t = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (t >= T) return;
    const float *s = scores + (size_t)t * r.E, *dw = dweights + (size_t)t * r.k;
    float sum = 0, dot = 0, all = 0;
    ids += (size_t)t * r.k;
    dlogits += (size_t)t * r.E;
    for (int j = 0; j < r.k; j++) sum += s[ids[j]];
    sum += 1e-20f;
    for (int j = 0; j < r.k; j++) dot += dw[j] * (s[ids[j]] / sum);
    auto of_score = [&](int j) { return r.renormalize ? r.scale * (dw[j] - dot) / sum : r.scale * dw[j]; };
    for (int j = 0; j < r.k; j++) all += of_score(j) * s[ids[j]];
    for (int e = lane; e < r.E; e += 32) {
        float g = 0, v = s[e];
        for (int j = 0; j < r.k; j++)
            if (ids[j] == e) g = of_score(j);
        dlogits[e] = b_of(r.sigmoid ? g * (v * (1.0f - v)) : v * (g - all));
    }
}

static int n_blocks(int T) {
    return (T + WARPS - 1) / WARPS;
}

CUDA_OP void clime_cuda_route(struct clime_dev *d, int T, const struct clime_router *r, const float *logits,
                              const float *bias, const int16_t *given, float *scores, int32_t *ids, float *weights,
                              uint32_t *fold) {
    CHECK(r->E <= CLIME_MAX_EXPERTS && r->k <= r->E);
    if (T == 0 || (T == 1 && !given && clime_cuda_row_route(d, r, logits, bias, scores, ids, weights, fold))) return;
    int each = (r->E + 31) / 32;
    auto kernel = each <= 1   ? route_kernel<1>
                  : each <= 2 ? route_kernel<2>
                  : each <= 4 ? route_kernel<4>
                  : each <= 8 ? route_kernel<8>
                              : route_kernel<CLIME_MAX_EXPERTS / 32>;
    launch(d, kernel, n_blocks(T), WARPS * 32, 0, T, *r, logits, bias, given, scores, ids, weights, fold);
}

CUDA_OP void clime_cuda_route_bwd(struct clime_dev *d, int T, const struct clime_router *r, const float *scores,
                                  const int32_t *ids, const float *dweights, void *dlogits) {
    if (T == 0) return;
    launch_after(d, route_bwd_kernel, n_blocks(T), WARPS * 32, 0, T, *r, scores, ids, dweights, (bf16 *)dlogits);
}

/* ---- sorting ---- */

enum { SLOTS = 8, SORTERS = 1024 }; /* slots per thread, neighbours; threads, with many slots */

struct slots {
    int id[SLOTS];
};
static __device__ __forceinline__ slots slots_of(const int32_t *ids, int n, int first) {
    slots s;
    if (first + SLOTS <= n && (uintptr_t)(ids + first) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < SLOTS / 4; i++) {
            int4 v = ((const int4 *)(ids + first))[i];
            s.id[4 * i] = v.x, s.id[4 * i + 1] = v.y, s.id[4 * i + 2] = v.z, s.id[4 * i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < SLOTS; i++) s.id[i] = first + i < n ? ids[first + i] : INT_MAX;
    }
    return s;
}

/* Sum over the block, of integers, so in any order; every thread gets it. sums: one per warp. */
static __device__ __forceinline__ int block_count(int v, int *sums) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    v = __reduce_add_sync(0xffffffffu, v);
    if (lane == 0) sums[warp] = v;
    __syncthreads();
    v = __reduce_add_sync(0xffffffffu, lane < blockDim.x / 32 ? sums[lane] : 0);
    __syncthreads();
    return v;
}

__global__ void __launch_bounds__(SORTERS)
    permute_kernel(int n, int k, int E, const int32_t *ids, int32_t *start, int32_t *from, int32_t *at) {
    __shared__ int sums[SORTERS / 32];
    int e = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, lower = 0;
    start_next();
    wait_for_last();
    for (int first = threadIdx.x * SLOTS; first < n; first += blockDim.x * SLOTS) {
        slots s = slots_of(ids, n, first);
#pragma unroll
        for (int i = 0; i < SLOTS; i++) lower += s.id[i] < e;
    }
    lower = block_count(lower, sums);
    if (threadIdx.x == 0) {
        start[e] = lower;
        if (e == E - 1) start[E] = n;
    }
    for (int base = 0; base < n; base += blockDim.x * SLOTS) {
        int first = base + threadIdx.x * SLOTS, count = 0;
        slots s = slots_of(ids, n, first);
#pragma unroll
        for (int i = 0; i < SLOTS; i++) count += s.id[i] == e;
        int upto = count;
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            int other = __shfl_up_sync(0xffffffffu, upto, m);
            if (lane >= m) upto += other;
        }
        if (lane == 31) sums[warp] = upto;
        __syncthreads();
        int mine = lane < blockDim.x / 32 ? sums[lane] : 0; /* of the warp that this lane represents */
        int before = __reduce_add_sync(0xffffffffu, lane < warp ? mine : 0), all = __reduce_add_sync(0xffffffffu, mine);
        int place = lower + before + upto - count;
#pragma unroll
        for (int i = 0; i < SLOTS; i++)
            if (s.id[i] == e) {
                at[first + i] = place;
                from[place++] = (first + i) / k;
            }
        lower += all;
        __syncthreads();
    }
}

CUDA_OP void clime_cuda_permute(struct clime_dev *d, int T, const struct clime_router *r, const int32_t *ids,
                                int32_t *start, int32_t *from, int32_t *at) {
    if (T == 1 && clime_cuda_row_permute(d, ids, start, from, at)) return;
    int n = T * r->k, threads = n > SLOTS * THREADS ? SORTERS : n > SLOTS * 32 ? THREADS : 32;
    launch(d, permute_kernel, r->E, threads, 0, n, r->k, r->E, ids, start, from, at);
}

/* ---- sums ---- */

/* A thread has V columns of row blockIdx.y. */
template <int V>
__global__ void __launch_bounds__(THREADS)
    combine_kernel(int D, int k, const int32_t *at, const float *weights, const bf16 *x, const bf16 *last,
                   const float *last_weight, bf16 *y) {
    int t = blockIdx.y, c = (blockIdx.x * THREADS + threadIdx.x) * V;
    float sum[V];
    start_next();
    wait_for_last();
    if (c >= D) return;
    experts_sum(sum, k, at + (size_t)t * k, weights ? weights + (size_t)t * k : NULL, x, D, c,
                last ? last + (size_t)t * D : NULL, last_weight ? last_weight[t] : 1.0f);
    store(y + (size_t)t * D + c, pack(sum));
}

CUDA_OP void clime_cuda_combine(struct clime_dev *d, int T, int D, int k, const int32_t *at, const float *weights,
                                const void *x, const void *last, const float *last_weight, void *y) {
    if (T == 0 || (T == 1 && clime_cuda_row_combine(d, D, k, at, weights, x, last, last_weight, y))) return;
    int V = D % 8 == 0 ? 8 : 1, most = 65535;
    for (int t = 0; t < T; t += most) { /* per grid */
        size_t row = (size_t)t * D;
        dim3 grid((D / V + THREADS - 1) / THREADS, T - t < most ? T - t : most);
        launch(d, V == 8 ? combine_kernel<8> : combine_kernel<1>, grid, THREADS, 0, D, k, at + (size_t)t * k,
               weights ? weights + (size_t)t * k : NULL, (const bf16 *)x, last ? (const bf16 *)last + row : NULL,
               last_weight ? last_weight + t : NULL, (bf16 *)y + row);
    }
}

/* One warp per slot. */
template <int V>
__global__ void __launch_bounds__(THREADS)
    combine_bwd_kernel(int n, int F, const int32_t *at, const float *weights, bf16 *dh, bf16 *h, float *dweights) {
    int lane = threadIdx.x & 31, slot = blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5);
    if (slot >= n) return;
    size_t row = (size_t)(at ? at[slot] : slot) * F;
    float w = weights[slot], dot = 0, a[V], b[V];
    for (int c = lane * V; c < F; c += 32 * V) {
        unpack(load<V>(dh + row + c), a);
        unpack(load<V>(h + row + c), b);
#pragma unroll
        for (int i = 0; i < V; i++) {
            dot = __fmaf_rn(a[i], b[i], dot);
            a[i] *= w;
            b[i] *= w;
        }
        store(dh + row + c, pack(a));
        store(h + row + c, pack(b));
    }
    dot = warp_sum(dot);
    if (lane == 0) dweights[slot] = dot;
}

CUDA_OP void clime_cuda_combine_bwd(struct clime_dev *d, int T, int F, int k, const int32_t *at, const float *weights,
                                    void *dh, void *h, float *dweights) {
    if (T == 0) return;
    int n = T * k, each = THREADS / 32;
    launch_after(d, F % 8 == 0 ? combine_bwd_kernel<8> : combine_bwd_kernel<1>, (n + each - 1) / each, THREADS, 0, n, F,
                 at, weights, (bf16 *)dh, (bf16 *)h, dweights);
}
