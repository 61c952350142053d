/* Log-probabilities of the likeliest ids of a row, and of given ids. Launched by the context's owner; one block per
 * list. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/draw/radix.cuh"
#include "kernels/cuda/ops.h"

struct list_params {
    int32_t row, n_top, n_ids, first_id, at, rank_of; /* rank_of: -1 = no rank */
    float inv_temp;
};

/* Larger key first, lower id among equals. */
static __device__ __forceinline__ unsigned long long ranked(uint32_t key, int id) {
    return (unsigned long long)key << 32 | (0xffffffffu - (uint32_t)id);
}

/* The first n of the ids whose key is `limit`, in order, to best[]. */
static __device__ void take_equals(const float *x, int V, uint32_t limit, int n, unsigned long long *best,
                                   int *warp_count) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, taken = 0;
    for (int first = 0; first < V && taken < n; first += THREADS) {
        int i = first + threadIdx.x;
        bool equal = i < V && key_of(x[i]) == limit;
        unsigned mine = __ballot_sync(0xffffffffu, equal);
        if (lane == 0) warp_count[warp] = __popc(mine);
        int found = __syncthreads_count(equal), rank = taken + __popc(mine & ((1u << lane) - 1));
        for (int w = 0; w < warp; w++) rank += warp_count[w];
        if (equal && rank < n) best[rank] = ranked(limit, i);
        taken += found;
        __syncthreads();
    }
}

/* Descending; n: a power of two. */
static __device__ void sort_down(unsigned long long *v, int n) {
    for (int size = 2; size <= n; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            int i = threadIdx.x, k = i ^ step;
            __syncthreads();
            if (i < n && k > i && ((v[i] < v[k]) == !(i & size))) {
                unsigned long long swap = v[i];
                v[i] = v[k];
                v[k] = swap;
            }
        }
    }
    __syncthreads();
}

/* Writes the rank of an id and its log-probability. n_larger: of the block. */
static __device__ void write_rank(const float *x, int V, int id, float inv_temp, float base, int *n_larger,
                                  struct clime_id_logp *out) {
    const float own = x[id];
    int mine = 0;
    if (threadIdx.x == 0) *n_larger = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < V; i += THREADS) mine += x[i] > own || (x[i] == own && i < id);
    atomicAdd(n_larger, mine);
    __syncthreads();
    if (threadIdx.x == 0) *out = {*n_larger + 1, own * inv_temp - base};
}

/* One block per list: finds the n_top-th largest value by radix descent, gathers the larger ones and the first of its
 * equals, and sorts them. */
__global__ void __launch_bounds__(THREADS)
    list_kernel(int V, const float *logits, const float *lse, const list_params *lists, const int32_t *ids,
                struct clime_id_logp *out) {
    __shared__ radix_bins bins;
    __shared__ unsigned long long best[CLIME_LIST_TOP];
    __shared__ int warp_count[THREADS / 32], n_above, n_larger;
    const list_params l = lists[blockIdx.x];
    const float *x = logits + (size_t)l.row * V;
    float base = lse[l.row];
    out += l.at;
    for (int k = threadIdx.x; k < l.n_ids; k += THREADS) {
        int id = ids[l.first_id + k];
        out[l.n_top + k] = {id, x[id] * l.inv_temp - base};
    }
    if (l.rank_of >= 0) write_rank(x, V, l.rank_of, l.inv_temp, base, &n_larger, &out[l.n_top + l.n_ids]);
    if (l.n_top == 0) return;
    int size = 1;
    while (size < l.n_top) size *= 2;
    if (threadIdx.x < size) best[threadIdx.x] = 0;
    if (threadIdx.x == 0) n_above = 0;
    unsigned long long above;
    /* 0 is the key of NaN, and the result when there are too few numbers */
    uint32_t limit = count_threshold(x, V, 1, (unsigned long long)l.n_top, &above, bins);
    for (int i = threadIdx.x; i < V; i += THREADS)
        if (key_of(x[i]) > limit) best[atomicAdd(&n_above, 1)] = ranked(key_of(x[i]), i);
    __syncthreads();
    if (limit > 0) take_equals(x, V, limit, l.n_top - n_above, best + n_above, warp_count);
    sort_down(best, size);
    for (int k = threadIdx.x; k < l.n_top; k += THREADS) {
        int id = (int)(0xffffffffu - (uint32_t)best[k]);
        if (best[k])
            out[k] = {id, x[id] * l.inv_temp - base};
        else
            out[k] = {0, __int_as_float(0x7fc00000)};
    }
}

size_t clime_cuda_list_scratch(int R) { /* each with the most ids that a server allows */
    return (size_t)R * (sizeof(list_params) + 1024 * sizeof(int32_t)) + 64;
}

CUDA_OP void clime_cuda_list_logp(struct clime_dev *d, int n, int V, const float *logits, const float *lse,
                                  const struct clime_logp_list *lists, struct clime_id_logp *out) {
    if (n == 0) return;
    size_t n_ids = 0, at = 0;
    for (int i = 0; i < n; i++) n_ids += (size_t)lists[i].n_ids;
    size_t params_bytes = (size_t)n * sizeof(list_params), bytes = params_bytes + n_ids * sizeof(int32_t);
    list_params *scratch = (list_params *)clime_cuda_scratch(d, bytes);
    if (!scratch) return;
    char *host = (char *)xmalloc(bytes);
    list_params *hp = (list_params *)host;
    int32_t *hi = (int32_t *)(host + params_bytes);
    n_ids = 0;
    for (int i = 0; i < n; i++) {
        const struct clime_logp_list *l = &lists[i];
        CHECK(l->n_top >= 0 && l->n_top <= V && l->n_top <= CLIME_LIST_TOP);
        CHECK(!l->ranked || (l->rank_of >= 0 && l->rank_of < V));
        hp[i] = list_params{l->row,     l->n_top, l->n_ids, (int32_t)n_ids, (int32_t)at, l->ranked ? l->rank_of : -1,
                            l->inv_temp};
        if (l->n_ids > 0) memcpy(hi + n_ids, l->ids, (size_t)l->n_ids * sizeof *hi);
        n_ids += (size_t)l->n_ids;
        at += clime_logp_list_entries(l);
    }
    clime_cuda_copy_in(d, scratch, host, bytes);
    free(host);
    launch_after(d, list_kernel, n, THREADS, 0, V, logits, lse, (const list_params *)scratch,
                 (const int32_t *)(scratch + n), out);
}
