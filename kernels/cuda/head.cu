/* Log-softmax of the head: statistics and gradient. Launched by the context's owner.
 *
 * A row is cut into splits of SPLIT logits, one block each with a fixed tree; one warp per row merges the splits in
 * order (Milakov & Gimelshein 2018). The only routine for every log-probability of server and trainer on this device.
 */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, SPLIT = 4096, EACH = SPLIT / THREADS };
#define LOGP_FLOOR -200.0f /* e^LOGP_FLOOR is 0: keeps 0 * -inf out of sums of p log p */

struct partial {
    float max, sum, tilt; /* of z; of e^(z - max); of e^(z - max) (z - max) */
};

__global__ void head_split_kernel(int V, int n_splits, const float *logits, const float *inv_temp, partial *out) {
    __shared__ float shared[32];
    start_next();
    wait_for_last();
    const float *x = logits + (size_t)blockIdx.y * V;
    int first = blockIdx.x * SPLIT + threadIdx.x;
    float scale = inv_temp[blockIdx.y], top = -INFINITY, sum = 0, tilt = 0, z[EACH]; /* a split is read once */
    bool whole = blockIdx.x * SPLIT + SPLIT <= V; /* the rest of a row needs comparisons */
#pragma unroll
    for (int k = 0; k < EACH && whole; k++) z[k] = x[first + k * THREADS];
#pragma unroll
    for (int k = 0; k < EACH && !whole; k++) z[k] = first + k * THREADS < V ? x[first + k * THREADS] : -INFINITY;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        z[k] *= scale; /* -inf stays: e^-inf adds nothing to any sum */
        top = fmaxf(top, z[k]);
    }
    top = block_max(top, shared);
    float zero = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        float p = expf(z[k] - zero);
        sum += p;
        tilt += p * fmaxf(z[k] - zero, LOGP_FLOOR);
    }
    sum = block_sum(sum, shared);
    tilt = block_sum(tilt, shared);
    if (threadIdx.x == 0) out[(size_t)blockIdx.y * n_splits + blockIdx.x] = partial{top, sum, tilt};
}

/* One warp per row: a lane computes a split's terms, the sums run over the splits in order. */
__global__ void __launch_bounds__(32)
    head_merge_kernel(int V, int n_splits, const float *logits, const float *inv_temp, const int32_t *targets,
                      const partial *in, float *lse, float *logp, float *entropy) {
    int r = blockIdx.x, lane = threadIdx.x;
    const partial *p = in + (size_t)r * n_splits;
    float top = -INFINITY, sum = 0, tilt = 0;
    start_next();
    wait_for_last();
    for (int s = lane; s < n_splits; s += 32) top = fmaxf(top, p[s].max);
    top = warp_max(top);
    float zero = top == -INFINITY ? 0.0f : top;
    for (int first = 0; first < n_splits; first += 32) {
        float more = 0, more_tilt = 0;
        if (first + lane < n_splits) {
            partial x = p[first + lane];
            float shift = x.max == -INFINITY ? LOGP_FLOOR : x.max - zero, w = expf(shift);
            more = x.sum * w;
            more_tilt = w * (x.tilt + shift * x.sum);
        }
        for (int k = 0; k < min(32, n_splits - first); k++) {
            sum += __shfl_sync(0xffffffffu, more, k);
            tilt += __shfl_sync(0xffffffffu, more_tilt, k);
        }
    }
    if (lane > 0) return;
    float total = zero + logf(sum);
    lse[r] = total;
    if (logp) logp[r] = logits[(size_t)r * V + targets[r]] * inv_temp[r] - total;
    if (entropy) entropy[r] = logf(sum) - tilt / sum; /* lse - sum p z, both against the maximum */
}

enum { MOST_ROWS = 65535 }; /* per launch: the grid's second dimension */

CUDA_OP void clime_cuda_head_stats(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                                   const int32_t *targets, float *lse, float *logp, float *entropy) {
    for (; R > MOST_ROWS; R -= MOST_ROWS) {
        clime_cuda_head_stats(d, MOST_ROWS, V, logits, inv_temp, targets, lse, logp, entropy);
        logits += (size_t)MOST_ROWS * V;
        inv_temp += MOST_ROWS;
        lse += MOST_ROWS;
        if (targets) targets += MOST_ROWS;
        if (logp) logp += MOST_ROWS;
        if (entropy) entropy += MOST_ROWS;
    }
    if (R == 0) return;
    int n_splits = (V + SPLIT - 1) / SPLIT;
    partial *p = (partial *)clime_cuda_scratch(d, (size_t)R * n_splits * sizeof(partial));
    if (!p) return;
    dim3 grid(n_splits, R);
    launch(d, head_split_kernel, grid, THREADS, 0, V, n_splits, logits, inv_temp, p);
    launch(d, head_merge_kernel, R, 32, 0, V, n_splits, logits, inv_temp, targets, p, lse, logp, entropy);
}

/* One block per split of a row: a bit for each kept id, then a store for each other. */
__global__ void head_keep_kernel(int V, float *logits, const int64_t *from, const int32_t *ids) {
    __shared__ uint32_t stays[SPLIT / 32];
    const int64_t begin = from[blockIdx.y], end = from[blockIdx.y + 1];
    const int first = blockIdx.x * SPLIT, n = min(SPLIT, V - first);
    float *x = logits + (size_t)blockIdx.y * V + first;
    if (begin == end) return;
    for (int i = threadIdx.x; i < SPLIT / 32; i += THREADS) stays[i] = 0;
    __syncthreads();
    for (int64_t k = begin + threadIdx.x; k < end; k += THREADS) {
        const int at = ids[k - from[0]] - first;
        if (at >= 0 && at < n) atomicOr(&stays[at / 32], 1u << at % 32);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS)
        if (!(stays[i / 32] >> i % 32 & 1)) x[i] = -INFINITY;
}

size_t clime_cuda_keep_scratch(int R, int V) {
    const int most = V < CLIME_MAX_KEPT ? V : CLIME_MAX_KEPT;
    return ((size_t)R + 1) * sizeof(int64_t) + (size_t)R * most * sizeof(int32_t);
}

CUDA_OP void clime_cuda_head_keep(struct clime_dev *d, int R, int V, float *logits, const int64_t *from,
                                  const int32_t *ids) {
    const size_t from_bytes = ((size_t)R + 1) * sizeof *from, ids_bytes = (size_t)(from[R] - from[0]) * sizeof *ids;
    if (ids_bytes == 0) return;
    char *scratch = (char *)clime_cuda_scratch(d, from_bytes + ids_bytes);
    if (!scratch) return;
    const int64_t *d_from = (const int64_t *)scratch;
    const int32_t *d_ids = (const int32_t *)(scratch + from_bytes);
    clime_cuda_copy_in(d, scratch, from, from_bytes);
    clime_cuda_copy_in(d, scratch + from_bytes, ids + from[0], ids_bytes);
    for (int r = 0; r < R; r += MOST_ROWS) {
        dim3 grid((V + SPLIT - 1) / SPLIT, R - r < MOST_ROWS ? R - r : MOST_ROWS);
        launch_after(d, head_keep_kernel, grid, THREADS, 0, V, logits + (size_t)r * V, d_from + r,
                     d_ids + (from[r] - from[0]));
    }
}

/* One block per split of a row; when the gradient overwrites its own logits, one for all of a row's, in sequence. A
 * split's output (2 bytes per id) is then at or before what has been read (4 bytes per id). W logits per access. */
template <int W>
__global__ void head_grad_kernel(int V, bool in_place, const float *logits, const float *inv_temp,
                                 const int32_t *targets, const float *lse, const float *entropy, const float *g_logp,
                                 const float *g_ent, bf16 *dlogits, int64_t ld) {
    int r = blockIdx.y, target = targets[r];
    const float *x = logits + (size_t)r * V;
    bf16 *out = dlogits + (size_t)r * ld;
    float scale = inv_temp[r], total = lse[r], gl = g_logp[r], ge = g_ent ? g_ent[r] : 0, H = g_ent ? entropy[r] : 0;
    int first = blockIdx.x * SPLIT, end = in_place ? V : min(V, first + SPLIT);
    for (; first < end; first += SPLIT) {
        lanes<W, float> z[EACH / W];
#pragma unroll
        for (int n = 0; n < EACH / W; n++) {
            int i = first + (n * THREADS + threadIdx.x) * W;
            if (i < V) z[n] = load<W>(x + i);
        }
        if (in_place) __syncthreads();
#pragma unroll
        for (int n = 0; n < EACH / W; n++) {
            int i = first + (n * THREADS + threadIdx.x) * W;
            if (i >= V) break;
            lanes<W> grad;
#pragma unroll
            for (int k = 0; k < W; k++) {
                float logp = z[n].x[k] * scale - total, p = expf(logp), hit = i + k == target ? 1.0f : 0.0f;
                grad.x[k] = b_of(scale * (gl * (hit - p) - ge * p * (fmaxf(logp, LOGP_FLOOR) + H)));
            }
            store<W>(out + i, grad);
        }
    }
}

CUDA_OP void clime_cuda_head_grad(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                                  const int32_t *targets, const float *lse, const float *entropy, const float *g_logp,
                                  const float *g_ent, void *dlogits, int64_t ld) {
    bool in_place = dlogits == logits, wide = V % 4 == 0 && ld % 4 == 0;
    auto kernel = wide ? head_grad_kernel<4> : head_grad_kernel<1>;
    for (int r = 0; r < R; r += MOST_ROWS) {
        dim3 grid(in_place ? 1 : (V + SPLIT - 1) / SPLIT, R - r < MOST_ROWS ? R - r : MOST_ROWS);
        launch_after(d, kernel, grid, THREADS, 0, V, in_place, logits + (size_t)r * V, inv_temp + r, targets + r,
                     lse + r, entropy ? entropy + r : NULL, g_logp + r, g_ent ? g_ent + r : NULL,
                     (bf16 *)dlogits + (size_t)r * ld, ld);
    }
}
