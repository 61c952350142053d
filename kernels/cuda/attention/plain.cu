/* Causal attention of any head size up to 2048, forward and backward. Launched by forward.cu and backward.cu.
 *
 * For head sizes that the tensor-core kernels do not cover: one warp per row, plain fp32. A row's sums depend on its
 * own keys alone (blocks of 64 in order, fixed trees), in packed and paged batches alike, so there are no splits to
 * merge. Backward has a pass over rows (dq, delta) and a pass over keys (dk, dv): every output has one writer. */
#include "kernels/cuda/attention/attention.cuh"

enum { WARPS = 4, MANY = 64 }; /* LANE_DIMS: a lane's numbers of a row; up to MANY */

/* The sequence of row t. */
static __device__ __forceinline__ int seq_of(const attn_args &a, int t) {
    int low = 0, high = a.n_seq - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (a.q_start[mid] <= t)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

template <int LANE_DIMS> __global__ void plain_fwd_kernel(attn_args a, int T) {
    __shared__ float q_rows[WARPS][LANE_DIMS * 32], p_rows[WARPS][CLIME_PAGE];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int row = blockIdx.x * WARPS + warp; /* of [T, H] */
    if (row >= T * a.H) return;
    int t = row / a.H, head = row % a.H / (a.H / a.HK), seq = seq_of(a, t);
    int pos = (a.pos0 ? a.pos0[seq] : 0) + t - a.q_start[seq];
    float *q = q_rows[warp], *p = p_rows[warp];
    for (int i = lane; i < a.Dh; i += 32) q[i] = f_of(a.q[(size_t)row * a.Dh + i]);
    __syncwarp();
    float o[LANE_DIMS] = {}, m = -INFINITY, l = 0;
    for (int b = 0; b * CLIME_PAGE <= pos; b++) {
        size_t ld, at = attn_block_at(a, seq, head, b, &ld);
        float z[2], top = -INFINITY;
        for (int h = 0; h < 2; h++) {
            int key = h * 32 + lane;
            z[h] = -INFINITY;
            if (b * CLIME_PAGE + key <= pos) {
                const bf16 *k = a.k + at + key * ld;
                float dot = 0;
                for (int i = 0; i < a.Dh; i++) dot = __fmaf_rn(q[i], f_of(k[i]), dot);
                z[h] = dot * a.scale2;
            }
            top = fmaxf(top, z[h]);
        }
        float m_new = fmaxf(m, warp_max(top)), keep = exp2f(m - m_new);
        m = m_new;
        for (int h = 0; h < 2; h++) p[h * 32 + lane] = z[h] = exp2f(z[h] - m);
        l = __fmaf_rn(l, keep, warp_sum(z[0] + z[1]));
        __syncwarp();
        int n = min(CLIME_PAGE, pos + 1 - b * CLIME_PAGE);
#pragma unroll
        for (int c = 0; c < LANE_DIMS; c++) {
            int i = c * 32 + lane;
            if (i >= a.Dv) break;
            o[c] *= keep;
            for (int key = 0; key < n; key++) o[c] = __fmaf_rn(p[key], f_of(a.v[at + key * ld + i]), o[c]);
        }
        __syncwarp();
    }
#pragma unroll
    for (int c = 0; c < LANE_DIMS; c++)
        if (c * 32 + lane < a.Dv) a.out[(size_t)row * a.Dv + c * 32 + lane] = b_of(attn_value(o[c], 1.0f / l));
    if (a.lse && lane == 0) a.lse[row] = attn_lse(m, l);
}

void clime_cuda_attn_plain(struct clime_dev *d, const attn_args &a, int T) {
    CHECK(a.Dh <= MANY * 32);
    auto kernel = a.Dh <= 256 ? plain_fwd_kernel<8> : plain_fwd_kernel<MANY>;
    launch_after(d, kernel, (T * a.H + WARPS - 1) / WARPS, WARPS * 32, 0, a, T);
}

/* ---- backward ---- */

template <int LANE_DIMS> struct lane_row { float x[LANE_DIMS]; };

template <int LANE_DIMS> static __device__ __forceinline__ lane_row<LANE_DIMS> load_row(const bf16 *x, int Dh) {
    lane_row<LANE_DIMS> r;
#pragma unroll
    for (int c = 0; c < LANE_DIMS; c++) {
        int i = c * 32 + (threadIdx.x & 31);
        r.x[c] = i < Dh ? f_of(x[i]) : 0.0f;
    }
    return r;
}

template <int LANE_DIMS>
static __device__ __forceinline__ float dot_of(const lane_row<LANE_DIMS> &a, const lane_row<LANE_DIMS> &b) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < LANE_DIMS; c++) sum = __fmaf_rn(a.x[c], b.x[c], sum);
    return warp_sum(sum);
}

template <int LANE_DIMS>
static __device__ __forceinline__ void add_scaled(lane_row<LANE_DIMS> &to, float f, const lane_row<LANE_DIMS> &x) {
#pragma unroll
    for (int c = 0; c < LANE_DIMS; c++) to.x[c] = __fmaf_rn(f, x.x[c], to.x[c]);
}

template <int LANE_DIMS>
static __device__ __forceinline__ void store_row(const lane_row<LANE_DIMS> &r, int Dh, bf16 *x) {
#pragma unroll
    for (int c = 0; c < LANE_DIMS; c++) {
        int i = c * 32 + (threadIdx.x & 31);
        if (i < Dh) x[i] = b_of(r.x[c]);
    }
}

/* A value's row: its key's where values are the first part of their keys. */
static __device__ __forceinline__ const bf16 *value_at(const attn_args &a, int key, int head) {
    return a.v + ((size_t)key * a.HK + head) * a.Dh;
}

template <int LANE_DIMS>
__global__ void plain_dq_kernel(attn_args a, int T, bool common_keys, const bf16 *dout, float *delta, bf16 *dq) {
    typedef lane_row<LANE_DIMS> row_t;
    int row = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= T * a.H) return;
    int t = row / a.H, head = row % a.H / (a.H / a.HK), seq = seq_of(a, t);
    row_t q = load_row<LANE_DIMS>(a.q + (size_t)row * a.Dh, a.Dh),
          g = load_row<LANE_DIMS>(dout + (size_t)row * a.Dv, a.Dv), sum = {};
    float dl = dot_of(g, load_row<LANE_DIMS>(a.out + (size_t)row * a.Dv, a.Dv)), lse = a.lse[row];
    auto key_at = [&](int key) { return load_row<LANE_DIMS>(a.k + ((size_t)key * a.HK + head) * a.Dh, a.Dh); };
    auto dp_of = [&](int key) { return dot_of(g, load_row<LANE_DIMS>(value_at(a, key, head), a.Dv)); };
    if (common_keys) {
        dl = 0;
        for (int key = a.q_start[seq]; key <= t; key++) {
            float p = expf(dot_of(q, key_at(key)) * a.scale - lse);
            dl = __fmaf_rn(p, dp_of(key), dl);
        }
    }
    for (int key = a.q_start[seq]; key <= t; key++) {
        row_t k = key_at(key);
        float p = expf(dot_of(q, k) * a.scale - lse), dp = dp_of(key);
        add_scaled(sum, p * (dp - dl) * a.scale, k);
    }
    store_row(sum, a.Dh, dq + (size_t)row * a.Dh);
    if ((threadIdx.x & 31) == 0) delta[row] = dl;
}

/* dv NULL: a value is part of its key, and its gradient is added to the key's. */
template <int LANE_DIMS>
__global__ void plain_dkv_kernel(attn_args a, int T, const bf16 *dout, const float *delta, bf16 *dk, bf16 *dv) {
    typedef lane_row<LANE_DIMS> row_t;
    int item = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (item >= T * a.HK) return;
    int key = item / a.HK, head = item % a.HK, group = a.H / a.HK, end = a.q_start[seq_of(a, key) + 1];
    row_t k = load_row<LANE_DIMS>(a.k + (size_t)item * a.Dh, a.Dh),
          v = load_row<LANE_DIMS>(value_at(a, key, head), a.Dv), sum_k = {}, sum_v = {};
    for (int h = head * group; h < (head + 1) * group; h++) {
        for (int t = key; t < end; t++) {
            size_t row = (size_t)t * a.H + h;
            row_t q = load_row<LANE_DIMS>(a.q + row * a.Dh, a.Dh), g = load_row<LANE_DIMS>(dout + row * a.Dv, a.Dv);
            float p = expf(dot_of(q, k) * a.scale - a.lse[row]), dp = dot_of(g, v);
            add_scaled(sum_v, p, g);
            add_scaled(sum_k, p * (dp - delta[row]) * a.scale, q);
        }
    }
    if (!dv) add_scaled(sum_k, 1, sum_v);
    store_row(sum_k, a.Dh, dk + (size_t)item * a.Dh);
    if (dv) store_row(sum_v, a.Dv, dv + (size_t)item * a.Dv);
}

template <int LANE_DIMS>
static void backward(struct clime_dev *d, const attn_args &a, int T, bool common_keys, const bf16 *dout, float *delta,
                     bf16 *dq, bf16 *dk, bf16 *dv) {
    launch_after(d, plain_dq_kernel<LANE_DIMS>, (T * a.H + WARPS - 1) / WARPS, WARPS * 32, 0, a, T, common_keys, dout,
                 delta, dq);
    launch_after(d, plain_dkv_kernel<LANE_DIMS>, (T * a.HK + WARPS - 1) / WARPS, WARPS * 32, 0, a, T, dout,
                 (const float *)delta, dk, dv);
}

void clime_cuda_attn_bwd_plain(struct clime_dev *d, const attn_args &a, int T, bool common_keys, const bf16 *dout,
                               bf16 *dq, bf16 *dk, bf16 *dv) {
    CHECK(a.Dh <= MANY * 32);
    float *delta = (float *)clime_cuda_scratch(d, (size_t)T * a.H * sizeof(float));
    if (!delta) return;
    auto run = a.Dh <= 256 ? backward<8> : backward<MANY>;
    run(d, a, T, common_keys, dout, delta, dq, dk, dv);
}
