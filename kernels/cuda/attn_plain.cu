/* Causal attention of any head size up to 256, forward and backward. Launched by attn_fwd.cu and attn_bwd.cu.
 *
 * For head sizes that the tensor-core kernels do not cover: one warp a row, plain fp32. A row's sums depend on its own
 * keys alone (blocks of 64 in order, fixed trees), in packed and paged batches alike, so there are no splits to merge.
 * Backward runs a pass over rows (dq, delta) and a pass over keys (dk, dv): every output has one writer. */
#include "kernels/cuda/attn.cuh"

enum { WARPS = 4, MAX_DH = 256, LANE_DIMS = MAX_DH / 32 };

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

__global__ void plain_fwd_kernel(attn_args a, int T) {
    __shared__ float q_rows[WARPS][MAX_DH], p_rows[WARPS][CLIME_PAGE];
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
            if (i >= a.Dh) break;
            o[c] *= keep;
            for (int key = 0; key < n; key++) o[c] = __fmaf_rn(p[key], f_of(a.v[at + key * ld + i]), o[c]);
        }
        __syncwarp();
    }
#pragma unroll
    for (int c = 0; c < LANE_DIMS; c++)
        if (c * 32 + lane < a.Dh) a.out[(size_t)row * a.Dh + c * 32 + lane] = b_of(attn_value(o[c], 1.0f / l));
    if (a.lse && lane == 0) a.lse[row] = attn_lse(m, l);
}

void clime_cuda_attn_plain(struct clime_dev *d, const attn_args &a, int T) {
    CHECK(a.Dh <= MAX_DH);
    clime_cuda_flush(d);
    launch_after(d, plain_fwd_kernel, (T * a.H + WARPS - 1) / WARPS, WARPS * 32, 0, a, T);
}

/* ---- backward ---- */

struct lane_row {
    float x[LANE_DIMS];
};

static __device__ __forceinline__ lane_row load_row(const bf16 *x, int Dh) {
    lane_row r;
#pragma unroll
    for (int c = 0; c < LANE_DIMS; c++) {
        int i = c * 32 + (threadIdx.x & 31);
        r.x[c] = i < Dh ? f_of(x[i]) : 0.0f;
    }
    return r;
}

static __device__ __forceinline__ float dot_of(const lane_row &a, const lane_row &b) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < LANE_DIMS; c++) sum = __fmaf_rn(a.x[c], b.x[c], sum);
    return warp_sum(sum);
}

static __device__ __forceinline__ void add_scaled(lane_row &to, float f, const lane_row &x) {
#pragma unroll
    for (int c = 0; c < LANE_DIMS; c++) to.x[c] = __fmaf_rn(f, x.x[c], to.x[c]);
}

static __device__ __forceinline__ void store_row(const lane_row &r, int Dh, bf16 *x) {
#pragma unroll
    for (int c = 0; c < LANE_DIMS; c++) {
        int i = c * 32 + (threadIdx.x & 31);
        if (i < Dh) x[i] = b_of(r.x[c]);
    }
}

__global__ void plain_dq_kernel(attn_args a, int T, bool common_keys, const bf16 *dout, float *delta, bf16 *dq) {
    int row = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= T * a.H) return;
    int t = row / a.H, head = row % a.H / (a.H / a.HK), seq = seq_of(a, t);
    lane_row q = load_row(a.q + (size_t)row * a.Dh, a.Dh), g = load_row(dout + (size_t)row * a.Dh, a.Dh), sum = {};
    float dl = dot_of(g, load_row(a.out + (size_t)row * a.Dh, a.Dh)), lse = a.lse[row];
    if (common_keys) {
        dl = 0;
        for (int key = a.q_start[seq]; key <= t; key++) {
            size_t at = ((size_t)key * a.HK + head) * a.Dh;
            float p = expf(dot_of(q, load_row(a.k + at, a.Dh)) * a.scale - lse);
            dl = __fmaf_rn(p, dot_of(g, load_row(a.v + at, a.Dh)), dl);
        }
    }
    for (int key = a.q_start[seq]; key <= t; key++) {
        size_t at = ((size_t)key * a.HK + head) * a.Dh;
        lane_row k = load_row(a.k + at, a.Dh);
        float p = expf(dot_of(q, k) * a.scale - lse), dp = dot_of(g, load_row(a.v + at, a.Dh));
        add_scaled(sum, p * (dp - dl) * a.scale, k);
    }
    store_row(sum, a.Dh, dq + (size_t)row * a.Dh);
    if ((threadIdx.x & 31) == 0) delta[row] = dl;
}

__global__ void plain_dkv_kernel(attn_args a, int T, const bf16 *dout, const float *delta, bf16 *dk, bf16 *dv) {
    int item = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (item >= T * a.HK) return;
    int key = item / a.HK, head = item % a.HK, group = a.H / a.HK, end = a.q_start[seq_of(a, key) + 1];
    lane_row k = load_row(a.k + (size_t)item * a.Dh, a.Dh), v = load_row(a.v + (size_t)item * a.Dh, a.Dh);
    lane_row sum_k = {}, sum_v = {};
    for (int h = head * group; h < (head + 1) * group; h++) {
        for (int t = key; t < end; t++) {
            size_t row = (size_t)t * a.H + h;
            lane_row q = load_row(a.q + row * a.Dh, a.Dh), g = load_row(dout + row * a.Dh, a.Dh);
            float p = expf(dot_of(q, k) * a.scale - a.lse[row]), dp = dot_of(g, v);
            add_scaled(sum_v, p, g);
            add_scaled(sum_k, p * (dp - delta[row]) * a.scale, q);
        }
    }
    store_row(sum_k, a.Dh, dk + (size_t)item * a.Dh);
    store_row(sum_v, a.Dh, dv + (size_t)item * a.Dh);
}

void clime_cuda_attn_bwd_plain(struct clime_dev *d, const attn_args &a, int T, bool common_keys, const bf16 *dout,
                               bf16 *dq, bf16 *dk, bf16 *dv) {
    CHECK(a.Dh <= MAX_DH);
    float *delta = (float *)clime_cuda_scratch(d, (size_t)T * a.H * sizeof(float));
    if (!delta) return;
    launch_after(d, plain_dq_kernel, (T * a.H + WARPS - 1) / WARPS, WARPS * 32, 0, a, T, common_keys, dout, delta, dq);
    launch_after(d, plain_dkv_kernel, (T * a.HK + WARPS - 1) / WARPS, WARPS * 32, 0, a, T, dout, delta, dk, dv);
}
