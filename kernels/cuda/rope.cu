/* q/k norm, rotary embedding and the write of K and V, and back. Launched by the context's owner.
 *
 * Heads of 64 or 128 that rotate whole, (i, i + Dh/2), have their own kernels: a lane holds 8 values of each half of a
 * head in registers, Dh/16 lanes are a head, 16 bytes per access. Otherwise one warp is a (row, head), with its Dh
 * values in shared memory, so any head size and either pairing of dimensions uses one code path. The choice depends on
 * the model's shape alone. All arithmetic is in fp32, with one rounding at the end. */
#include <stdlib.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rope_head.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, MAX_DH = 256, BWD_ROWS = 8, BWD_TURNS = 8 };

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

__global__ void qkv_rope_kernel(const clime_rope_args a) {
    const qkv_shape &s = a.s;
    __shared__ float values[WARPS][MAX_DH];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = blockIdx.x;
    start_next();
    wait_for_last();
    int n_heads = s.H + 2 * s.HK;
    float *x = values[warp];
    for (int h = warp; h < n_heads; h += WARPS) {
        const bf16 *from = a.qkv + ((size_t)t * n_heads + h) * s.Dh;
        bool is_q = h < s.H, is_v = h >= s.H + s.HK;
        int kv = is_q ? 0 : (h - s.H) % s.HK;
        bf16 *out = is_q ? a.q + ((size_t)t * s.H + h) * s.Dh : (is_v ? a.v : a.k) + kv_at(a, t, kv);
        if (is_v) {
            for (int i = lane; i < s.Dh; i += 32) out[i] = from[i];
            continue;
        }
        for (int i = lane; i < s.Dh; i += 32) x[i] = f_of(from[i]);
        __syncwarp();
        const bf16 *w = is_q ? a.q_norm : a.k_norm;
        if (w) {
            float r = head_rstd(x, s.Dh, s.eps, lane);
            __syncwarp();
            for (int i = lane; i < s.Dh; i += 32) x[i] = x[i] * r * f_of(w[i]);
            __syncwarp();
        }
        for (int p = lane; p < s.rot / 2; p += 32) {
            int left, right;
            pair_of(s, p, &left, &right);
            size_t at = (size_t)a.pos[t] * (s.rot / 2) + p;
            out[left] = b_of(x[left] * s.cos[at] - x[right] * s.sin[at]);
            out[right] = b_of(x[right] * s.cos[at] + x[left] * s.sin[at]);
        }
        for (int i = s.rot + lane; i < s.Dh; i += 32) out[i] = b_of(x[i]);
        __syncwarp();
    }
}

/* ---- whole heads of 64 or 128 ---- */

template <int DH> __global__ void qkv_rope_whole_kernel(const clime_rope_args a) {
    constexpr int LANES = DH / 16;
    int n_heads = a.s.H + 2 * a.s.HK, item = (blockIdx.x * THREADS + threadIdx.x) / LANES;
    int at = threadIdx.x % LANES * 8;
    start_next();
    bool in = item < a.T * n_heads; /* the others run along, for the sums */
    if (!in) item = 0;
    int t = item / n_heads, h = item % n_heads;
    head_turn turn = turn_of<DH>(a, t, h, at);
    wait_for_last();
    halves x = turned_head<DH>(a, turn, t, h, at);
    if (!in) return;
    bool is_q = h < a.s.H, is_v = h >= a.s.H + a.s.HK;
    bf16 *to = is_q ? a.q + ((size_t)t * a.s.H + h) * DH : (is_v ? a.v : a.k) + kv_at(a, t, (h - a.s.H) % a.s.HK);
    store_halves<DH>(to, at, x);
}

/* The head size that has its own kernels, or 0. The alignment of the norms' weights also follows from the shape. */
static int whole_head(const struct clime_heads *h, const struct clime_rope *r, const void *q_norm, const void *k_norm) {
    bool aligned = ((uintptr_t)q_norm | (uintptr_t)k_norm) % 16 == 0;
    return (h->Dh == 64 || h->Dh == 128) && r->rot == h->Dh && !r->interleaved && aligned ? h->Dh : 0;
}

static void rotate(struct clime_dev *d, const clime_rope_args &a) {
    int whole = a.s.whole, lanes = a.T * (a.s.H + 2 * a.s.HK) * (whole / 16);
    auto kernel = whole == 64 ? qkv_rope_whole_kernel<64> : whole == 128 ? qkv_rope_whole_kernel<128> : qkv_rope_kernel;
    launch(d, kernel, whole ? (lanes + THREADS - 1) / THREADS : a.T, THREADS, 0, a);
}

/* While recording, the rotation before a decode's attention is deferred, so that attention may do it. */
CUDA_OP void clime_cuda_qkv_rope(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope,
                                 float eps, const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos,
                                 const int32_t *slot, void *q, void *k, void *v) {
    CHECK(h->Dh <= MAX_DH);
    if (T == 0) return;
    clime_rope_args a = {T,
                         shape_of(h, rope, eps),
                         (const bf16 *)qkv,
                         (const bf16 *)q_norm,
                         (const bf16 *)k_norm,
                         pos,
                         slot,
                         (bf16 *)q,
                         (bf16 *)k,
                         (bf16 *)v};
    a.s.whole = whole_head(h, rope, q_norm, k_norm);
    if (clime_cuda_rope_waits(d)) clime_cuda_flush(d);
    if (d->recording && a.s.whole && slot)
        *d->rope = a;
    else
        rotate(d, a);
}

void clime_cuda_rope_open(struct clime_dev *d) {
    d->rope = (struct clime_rope_args *)xcalloc(1, sizeof *d->rope);
}

void clime_cuda_rope_close(struct clime_dev *d) {
    free(d->rope);
}

bool clime_cuda_rope_waits(const struct clime_dev *d) {
    return d->rope->T > 0;
}

void clime_cuda_rope_end(struct clime_dev *d) {
    clime_rope_args a = *d->rope;
    d->rope->T = 0;
    if (a.T > 0) rotate(d, a);
}

bool clime_cuda_rope_take(struct clime_dev *d, const void *q, const void *k, const void *v, clime_rope_args *out) {
    *out = *d->rope;
    bool ours = out->T > 0 && out->q == q && out->k == k && out->v == v;
    if (ours) d->rope->T = 0;
    return ours;
}

/* One block per BWD_ROWS rows; each warp has its heads of all of them, so its sums of the norms' gradients stay in
 * registers; the block adds its warps in order into partial[2][block][Dh]. */
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
        partial[((size_t)which * gridDim.x + blockIdx.x) * s.Dh + c] = sum;
    }
}

/* The same for whole heads. Blocks of q's heads come first, then k's, then v's, so a lane has the weights and the sums
 * of one of them, which leaves registers for three blocks per multiprocessor; the lanes of a head take BWD_TURNS (row,
 * head) of it in sequence. All loads of a turn are in flight before the first is used. The sums are added in
 * partial[block][DH], warps in order. */
template <int DH>
__global__ void __launch_bounds__(THREADS, 3)
    qkv_rope_bwd_whole_kernel(int T, qkv_shape s, int q_blocks, int k_blocks, const bf16 *qkv, const bf16 *q_norm,
                              const bf16 *k_norm, const int32_t *pos, const bf16 *dq, const bf16 *dk, const bf16 *dv,
                              bf16 *dqkv, float *partial) {
    constexpr int LANES = DH / 16, GROUPS = THREADS / LANES;
    __shared__ float sums[WARPS][DH];
    int group = threadIdx.x / LANES, at = threadIdx.x % LANES * 8, block = blockIdx.x;
    bool is_q = block < q_blocks, is_v = block >= q_blocks + k_blocks;
    if (!is_q) block -= is_v ? q_blocks + k_blocks : q_blocks;
    int n = is_q ? s.H : s.HK, first_head = is_q ? 0 : is_v ? s.H + s.HK : s.H;
    const bf16 *from = is_q ? dq : dk, *w = is_q ? q_norm : k_norm;
    if (is_v) { /* unchanged */
        for (int turn = 0; turn < BWD_TURNS; turn++) {
            int item = (block * GROUPS + group) * BWD_TURNS + turn;
            if (item >= T * n) return;
            bf16 *to = dqkv + ((size_t)(item / n) * (s.H + 2 * s.HK) + first_head + item % n) * DH;
            lanes<8> low = load<8>(dv + (size_t)item * DH + at), high = load<8>(dv + (size_t)item * DH + DH / 2 + at);
            store<8>(to + at, low), store<8>(to + DH / 2 + at, high);
        }
        return;
    }
    halves sum = {};
    for (int turn = 0; turn < BWD_TURNS; turn++) {
        int item = (block * GROUPS + group) * BWD_TURNS + turn;
        bool in = item < T * n; /* whole warps run together, for the sums */
        if (!in) item = 0;
        int t = item / n, angle = pos[t];
        size_t row = ((size_t)t * (s.H + 2 * s.HK) + first_head + item % n) * DH;
        lanes<8> low = load<8>(from + (size_t)item * DH + at), high = load<8>(from + (size_t)item * DH + DH / 2 + at);
        lanes<8> x_low = {}, x_high = {};
        if (w) x_low = load<8>(qkv + row + at), x_high = load<8>(qkv + row + DH / 2 + at);
        float c[8], m[8];
        load8(s.cos + (size_t)angle * (DH / 2) + at, c);
        load8(s.sin + (size_t)angle * (DH / 2) + at, m);
        halves g, x;
        unpack(low, g.a), unpack(high, g.b);
#pragma unroll
        for (int i = 0; i < 8; i++) { /* the transposed rotation */
            float a = g.a[i], b = g.b[i];
            g.a[i] = a * c[i] + b * m[i];
            g.b[i] = b * c[i] - a * m[i];
        }
        if (w) {
            halves scale = load_halves<DH>(w, at);
            unpack(x_low, x.a), unpack(x_high, x.b);
            float r = halves_rstd<DH>(x, s.eps), dot = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) dot += g.a[i] * scale.a[i] * x.a[i] * r + g.b[i] * scale.b[i] * x.b[i] * r;
            float mean = head_sum<DH>(dot) / DH;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float xa = x.a[i] * r, xb = x.b[i] * r;
                sum.a[i] += in ? g.a[i] * xa : 0;
                sum.b[i] += in ? g.b[i] * xb : 0;
                g.a[i] = r * (g.a[i] * scale.a[i] - xa * mean);
                g.b[i] = r * (g.b[i] * scale.b[i] - xb * mean);
            }
        }
        if (in) store_halves<DH>(dqkv + row, at, g);
    }
    if (!partial) return;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float v[2] = {sum.a[i], sum.b[i]};
#pragma unroll
        for (int e = 0; e < 2; e++) {
            for (int m = LANES; m < 32; m *= 2) v[e] += __shfl_xor_sync(0xffffffffu, v[e], m);
            if (lane < LANES) sums[warp][e * (DH / 2) + at + i] = v[e];
        }
    }
    __syncthreads();
    if (threadIdx.x >= DH) return;
    float total = 0;
    for (int k = 0; k < WARPS; k++) total += sums[k][threadIdx.x];
    partial[(size_t)blockIdx.x * DH + threadIdx.x] = total;
}

CUDA_OP void clime_cuda_qkv_rope_bwd(struct clime_dev *d, int T, const struct clime_heads *h,
                                     const struct clime_rope *rope, float eps, const void *qkv, const void *q_norm,
                                     const void *k_norm, const int32_t *pos, const void *dq, const void *dk,
                                     const void *dv, void *dqkv, float *dq_norm, float *dk_norm) {
    CHECK(h->Dh <= MAX_DH);
    if (T == 0) return;
    int whole = whole_head(h, rope, q_norm, k_norm);
    /* (row, head) per block, or rows; blocks, each with a row of partial, of q, and of k (and of v) */
    int each = whole ? THREADS / (whole / 16) * BWD_TURNS : BWD_ROWS;
    int q_blocks = ((whole ? T * h->H : T) + each - 1) / each, k_blocks = ((whole ? T * h->HK : T) + each - 1) / each;
    float *partial = NULL;
    if (dq_norm || dk_norm) {
        partial = (float *)clime_cuda_scratch(d, (size_t)(q_blocks + k_blocks) * h->Dh * sizeof(float));
        if (!partial) return;
    }
    qkv_shape s = shape_of(h, rope, eps);
    if (whole) {
        auto kernel = whole == 64 ? qkv_rope_bwd_whole_kernel<64> : qkv_rope_bwd_whole_kernel<128>;
        launch_after(d, kernel, q_blocks + 2 * k_blocks, THREADS, 0, T, s, q_blocks, k_blocks, (const bf16 *)qkv,
                     (const bf16 *)q_norm, (const bf16 *)k_norm, pos, (const bf16 *)dq, (const bf16 *)dk,
                     (const bf16 *)dv, (bf16 *)dqkv, partial);
    } else {
        launch_after(d, qkv_rope_bwd_kernel, q_blocks, THREADS, 0, T, s, (const bf16 *)qkv, (const bf16 *)q_norm,
                     (const bf16 *)k_norm, pos, (const bf16 *)dq, (const bf16 *)dk, (const bf16 *)dv, (bf16 *)dqkv,
                     partial);
    }
    if (partial) clime_cuda_add_chunks(d, h->Dh, partial, q_blocks, dq_norm, k_blocks, dk_norm);
}
