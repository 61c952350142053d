/* q/k norm, rotary embedding and the write of K and V, and back. Launched by the context's owner.
 *
 * One warp a (row, head): its Dh values lie in shared memory, so any head size and either pairing of dimensions is one
 * code path. All arithmetic in fp32, one rounding at the end. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

enum { WARPS = 8, MAX_DH = 256, BWD_ROWS = 8 };

struct qkv_shape {
    int H, HK, Dh;
    float eps;
    const float *cos, *sin;
    int rot, interleaved;
};

static qkv_shape shape_of(const struct clime_heads *h, const struct clime_rope *r, float eps) {
    return qkv_shape{h->H, h->HK, h->Dh, eps, r->cos, r->sin, r->rot, r->interleaved ? 1 : 0};
}

/* Dimension pair p of a head. */
static __device__ __forceinline__ void pair_of(const qkv_shape &s, int p, int *a, int *b) {
    *a = s.interleaved ? 2 * p : p;
    *b = s.interleaved ? 2 * p + 1 : p + s.rot / 2;
}

/* 1/rms of the head's values x[Dh] (one warp). */
static __device__ __forceinline__ float head_rstd(const float *x, int Dh, float eps, int lane) {
    float square = 0;
    for (int i = lane; i < Dh; i += 32) square += x[i] * x[i];
    return rsqrtf(warp_sum(square) / Dh + eps);
}

__global__ void qkv_rope_kernel(int T, qkv_shape s, const bf16 *qkv, const bf16 *q_norm, const bf16 *k_norm,
                                const int32_t *pos, const int32_t *slot, bf16 *q, bf16 *k, bf16 *v) {
    __shared__ float values[WARPS][MAX_DH];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = blockIdx.x;
    int n_heads = s.H + 2 * s.HK;
    float *x = values[warp];
    for (int h = warp; h < n_heads; h += WARPS) {
        const bf16 *from = qkv + ((size_t)t * n_heads + h) * s.Dh;
        bool is_q = h < s.H, is_v = h >= s.H + s.HK;
        int kv = is_q ? 0 : (h - s.H) % s.HK;
        size_t to = slot ? (((size_t)(slot[t] / CLIME_PAGE) * s.HK + kv) * CLIME_PAGE + slot[t] % CLIME_PAGE) * s.Dh
                         : ((size_t)t * s.HK + kv) * s.Dh;
        bf16 *out = is_q ? q + ((size_t)t * s.H + h) * s.Dh : (is_v ? v : k) + to;
        if (is_v) {
            for (int i = lane; i < s.Dh; i += 32) out[i] = from[i];
            continue;
        }
        for (int i = lane; i < s.Dh; i += 32) x[i] = f_of(from[i]);
        __syncwarp();
        const bf16 *w = is_q ? q_norm : k_norm;
        if (w) {
            float r = head_rstd(x, s.Dh, s.eps, lane);
            __syncwarp();
            for (int i = lane; i < s.Dh; i += 32) x[i] = x[i] * r * f_of(w[i]);
            __syncwarp();
        }
        for (int p = lane; p < s.rot / 2; p += 32) {
            int a, b;
            pair_of(s, p, &a, &b);
            float c = s.cos[(size_t)pos[t] * (s.rot / 2) + p], n = s.sin[(size_t)pos[t] * (s.rot / 2) + p];
            out[a] = b_of(x[a] * c - x[b] * n);
            out[b] = b_of(x[b] * c + x[a] * n);
        }
        for (int i = s.rot + lane; i < s.Dh; i += 32) out[i] = b_of(x[i]);
        __syncwarp();
    }
}

CUDA_OP void clime_cuda_qkv_rope(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope,
                                 float eps, const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos,
                                 const int32_t *slot, void *q, void *k, void *v) {
    CHECK(h->Dh <= MAX_DH);
    if (T == 0) return;
    qkv_rope_kernel<<<T, WARPS * 32, 0, d->stream>>>(T, shape_of(h, rope, eps), (const bf16 *)qkv, (const bf16 *)q_norm,
                                                     (const bf16 *)k_norm, pos, slot, (bf16 *)q, (bf16 *)k, (bf16 *)v);
    LAUNCHED(d);
}

/* A block takes BWD_ROWS rows; each warp its heads of all of them, so its sums of the norms' gradients stay in
 * registers; the block adds its warps in order into partial[block][2][Dh]. */
__global__ void qkv_rope_bwd_kernel(int T, qkv_shape s, const bf16 *qkv, const bf16 *q_norm, const bf16 *k_norm,
                                    const int32_t *pos, const bf16 *dq, const bf16 *dk, const bf16 *dv, bf16 *dqkv,
                                    float *partial) {
    __shared__ float values[WARPS][2][MAX_DH];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int n_heads = s.H + 2 * s.HK;
    float *x = values[warp][0], *g = values[warp][1];
    float sum_q[MAX_DH / 32] = {0}, sum_k[MAX_DH / 32] = {0};
    for (int t = blockIdx.x * BWD_ROWS; t < T && t < (blockIdx.x + 1) * BWD_ROWS; t++) {
        for (int h = warp; h < n_heads; h += WARPS) {
            size_t at = ((size_t)t * n_heads + h) * s.Dh;
            bool is_q = h < s.H, is_v = h >= s.H + s.HK;
            int kv = is_q ? 0 : (h - s.H) % s.HK;
            const bf16 *from =
                is_q ? dq + ((size_t)t * s.H + h) * s.Dh : (is_v ? dv : dk) + ((size_t)t * s.HK + kv) * s.Dh;
            if (is_v) {
                for (int i = lane; i < s.Dh; i += 32) dqkv[at + i] = from[i];
                continue;
            }
            for (int i = lane; i < s.Dh; i += 32) {
                x[i] = f_of(qkv[at + i]);
                if (i >= s.rot) g[i] = f_of(from[i]);
            }
            for (int p = lane; p < s.rot / 2; p += 32) { /* the transposed rotation */
                int a, b;
                pair_of(s, p, &a, &b);
                float c = s.cos[(size_t)pos[t] * (s.rot / 2) + p], n = s.sin[(size_t)pos[t] * (s.rot / 2) + p];
                float ga = f_of(from[a]), gb = f_of(from[b]);
                g[a] = ga * c + gb * n;
                g[b] = gb * c - ga * n;
            }
            __syncwarp();
            const bf16 *w = is_q ? q_norm : k_norm;
            float r = 1, mean = 0;
            if (w) {
                r = head_rstd(x, s.Dh, s.eps, lane);
                float dot = 0;
                for (int i = lane; i < s.Dh; i += 32) dot += g[i] * f_of(w[i]) * x[i] * r;
                mean = warp_sum(dot) / s.Dh;
            }
#pragma unroll
            for (int k = 0; k < MAX_DH / 32; k++) {
                int i = k * 32 + lane;
                if (i >= s.Dh) break;
                float v = g[i];
                if (w) {
                    float xhat = x[i] * r, add = v * xhat;
                    if (is_q)
                        sum_q[k] += add;
                    else
                        sum_k[k] += add;
                    v = r * (v * f_of(w[i]) - xhat * mean);
                }
                dqkv[at + i] = b_of(v);
            }
            __syncwarp();
        }
    }
    if (!partial) return;
    for (int i = 0; i < MAX_DH / 32; i++) {
        x[i * 32 + lane] = sum_q[i];
        g[i * 32 + lane] = sum_k[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * s.Dh; i += WARPS * 32) {
        int which = i / s.Dh, c = i % s.Dh;
        float sum = 0;
        for (int k = 0; k < WARPS; k++) sum += values[k][which][c];
        partial[(size_t)blockIdx.x * 2 * s.Dh + i] = sum;
    }
}

/* out[Dh] += column `which` of partial[blocks][2][Dh], blocks in order. */
__global__ void norm_partials_kernel(int n_blocks, int Dh, int which, const float *partial, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= Dh) return;
    float sum = 0;
    for (int b = 0; b < n_blocks; b++) sum += partial[((size_t)b * 2 + which) * Dh + i];
    out[i] += sum;
}

CUDA_OP void clime_cuda_qkv_rope_bwd(struct clime_dev *d, int T, const struct clime_heads *h,
                                     const struct clime_rope *rope, float eps, const void *qkv, const void *q_norm,
                                     const void *k_norm, const int32_t *pos, const void *dq, const void *dk,
                                     const void *dv, void *dqkv, float *dq_norm, float *dk_norm) {
    CHECK(h->Dh <= MAX_DH);
    if (T == 0) return;
    int n_blocks = (T + BWD_ROWS - 1) / BWD_ROWS;
    float *partial = NULL;
    if (dq_norm || dk_norm) {
        partial = (float *)clime_cuda_scratch(d, (size_t)n_blocks * 2 * h->Dh * sizeof(float));
        if (!partial) return;
    }
    qkv_rope_bwd_kernel<<<n_blocks, WARPS * 32, 0, d->stream>>>(
        T, shape_of(h, rope, eps), (const bf16 *)qkv, (const bf16 *)q_norm, (const bf16 *)k_norm, pos, (const bf16 *)dq,
        (const bf16 *)dk, (const bf16 *)dv, (bf16 *)dqkv, partial);
    LAUNCHED(d);
    float *outs[2] = {dq_norm, dk_norm};
    for (int which = 0; which < 2; which++) {
        if (!outs[which]) continue;
        norm_partials_kernel<<<(h->Dh + 31) / 32, 32, 0, d->stream>>>(n_blocks, h->Dh, which, partial, outs[which]);
        LAUNCHED(d);
    }
}
