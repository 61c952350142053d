/* dQ of causal attention: one block per tile of 128 rows of one query head. Launched by backward.cu. The same kernel
 * without its last product computes delta = sum of P dP over the keys (struct clime_heads, common_keys).
 *
 * One warp copies, two warpgroups multiply, 64 rows each. Steps of 128 keys, ascending: S = Q K^T and dP = dO V^T; dS
 * is the A fragments, in registers, of dQ += dS K. The tensor cores run dP during the exponentials, and dQ and the next
 * step's S while a warpgroup waits.
 *
 * k_full, v_full: the copies of a stage have arrived; k_empty, v_empty: the products of all consumer warps are done
 * with it. Only the last step's keys are accessed by threads themselves. */
#include "kernels/cuda/attention/backward.cuh"

enum { STAGES = 2, ROWS = BWD_CONSUMERS / 2, ARRIVALS = BWD_CONSUMERS / 32 };

template <int DH> struct dq_smem {
    static constexpr int PANELS = DH / 64;
    bf16 q[PANELS][ROWS][64], dout[PANELS][ROWS][64];
    bf16 k[STAGES][PANELS][BWD_KEYS][64], v[STAGES][PANELS][BWD_KEYS][64];
    uint64_t rows_full, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

/* A block's position: the same in every thread. */
struct dq_place {
    int head, kv_head, row0, len, tile, n_blocks, stats_at;
};

template <int DH>
static __device__ __forceinline__ void copy_keys(bf16 (&tile)[DH / 64][BWD_KEYS][64], const CUtensorMap *map,
                                                 const dq_place &w, int i, uint64_t *full, uint64_t *empty) {
    if (i >= STAGES) barrier_wait(empty, (i / STAGES - 1) & 1);
    barrier_expect(full, sizeof tile);
    for (int p = 0; p < DH / 64; p++) tensor_copy(tile[p], map, w.kv_head * DH + p * 64, w.row0 + i * BWD_KEYS, full);
}

template <int DH>
static __device__ __forceinline__ void copy_all(const bwd_maps &m, const dq_place &w, dq_smem<DH> &s) {
    barrier_expect(&s.rows_full, sizeof s.q + sizeof s.dout);
    for (int p = 0; p < DH / 64; p++)
        for (int r = 0; r < ROWS; r += BWD_ROWS) {
            int column = w.head * DH + p * 64, row = w.row0 + w.tile * ROWS + r;
            tensor_copy(s.q[p][r], &m.q, column, row, &s.rows_full);
            tensor_copy(s.dout[p][r], &m.dout, column, row, &s.rows_full);
        }
    for (int i = 0; i < w.n_blocks; i++) {
        int st = i % STAGES;
        copy_keys<DH>(s.k[st], &m.k, w, i, &s.k_full[st], &s.k_empty[st]);
        copy_keys<DH>(s.v[st], &m.v, w, i, &s.v_full[st], &s.v_empty[st]);
    }
}

/* s = P of 64 rows and 128 keys; MASKED: 0 for keys after the row. pos: of the thread's first row. */
template <bool MASKED>
static __device__ __forceinline__ void weights(float (&s)[16][4], const float (&lse2)[2], float scale2, int pos,
                                               int first) {
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float p = attn_exp2(__fmaf_rn(s[n][e], scale2, -lse2[e / 2]));
            int key = first + n * 8 + threadIdx.x % 4 * 2 + e % 2;
            s[n][e] = MASKED && key > pos + e / 2 * 8 ? 0.0f : p;
        }
}

/* sum += P dP over the keys of a step, for the thread's two rows. */
template <bool MASKED>
static __device__ __forceinline__ void add_delta(float (&sum)[2], const float (&dp)[16][4], const float (&p)[16][4]) {
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (!MASKED || p[n][e] != 0.0f) sum[e / 2] = __fmaf_rn(p[n][e], dp[n][e], sum[e / 2]);
}

/* f = the fragments of dS without its factor scale, which is applied to dQ at the end. */
template <bool MASKED>
static __device__ __forceinline__ void score_grads(uint32_t (&f)[8][4], float (&dp)[16][4], const float (&p)[16][4],
                                                   const float (&delta)[2]) {
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float ds = p[n][e] * (dp[n][e] - delta[e / 2]);
            dp[n][e] = MASKED && p[n][e] == 0.0f ? 0.0f : ds; /* values past the end are undefined */
        }
#pragma unroll
    for (int kk = 0; kk < 8; kk++) bwd_fragment(f[kk], dp[2 * kk], dp[2 * kk + 1]);
}

template <int DH, bool DELTA>
static __device__ __forceinline__ void multiply_all(const attn_args &a, const bwd_args &g, const dq_place &w,
                                                    dq_smem<DH> &s) {
    constexpr int ROW_PANEL = sizeof s.q[0], KV_PANEL = sizeof s.k[0][0];
    int lane = threadIdx.x & 31, half = threadIdx.x / 128 - 1;
    int row = half * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4, pos = w.tile * ROWS + row;
    bwd_stats &stats = g.stats[(size_t)w.head * g.n_blocks + w.stats_at + w.tile * (ROWS / BWD_ROWS) + half];
    float lse2[2], delta[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        lse2[h] = stats.lse2[row % BWD_ROWS + h * 8];
        delta[h] = stats.delta[row % BWD_ROWS + h * 8];
    }
    uint64_t q = wgmma_tile(s.q[0][half * 64], ROW_PANEL), dout = wgmma_tile(s.dout[0][half * 64], ROW_PANEL);
    float dq[DH / 8][4] = {}, sum[2] = {};
    barrier_wait(&s.rows_full, 0);
    int i = 0;
    do { /* at least once: after a loop that may not run, ptxas would wait for every product immediately */
        int st = i % STAGES, phase = i / STAGES & 1, first = i * BWD_KEYS;
        bool last = i + 1 == w.n_blocks; /* the one with keys after a row, and keys past the end */
        uint64_t k = wgmma_tile(s.k[st], KV_PANEL), v = wgmma_tile(s.v[st], KV_PANEL);
        barrier_wait(&s.k_full[st], phase);
        if (first + BWD_KEYS > w.len) {
            bwd_zero_rows(s.k[st], w.len - first);
            fence_async();
            named_barrier(1, BWD_CONSUMERS);
        }
        float p[16][4], dp[16][4];
        wgmma_fence();
        wgmma_ss_first<0, 0>(p, q, k);
#pragma unroll
        for (int kk = 1; kk < DH / 16; kk++)
            wgmma_ss<0, 0>(p, wgmma_columns(q, kk, ROW_PANEL), wgmma_columns(k, kk, KV_PANEL), 1);
        wgmma_commit();
        wgmma_wait<1>(); /* the previous step's dQ: its fragments are free */
        if (!DELTA && i > 0 && lane == 0) barrier_arrive(&s.k_empty[st ^ 1]);
        barrier_wait(&s.v_full[st], phase);
        wgmma_fence();
        wgmma_ss_first<0, 0>(dp, dout, v);
#pragma unroll
        for (int kk = 1; kk < DH / 16; kk++)
            wgmma_ss<0, 0>(dp, wgmma_columns(dout, kk, ROW_PANEL), wgmma_columns(v, kk, KV_PANEL), 1);
        wgmma_commit();
        wgmma_wait<1>(); /* S */
        wgmma_hold(p);
        if (DELTA && lane == 0) barrier_arrive(&s.k_empty[st]);
        if (last)
            weights<true>(p, lse2, a.scale2, pos, first);
        else
            weights<false>(p, lse2, a.scale2, pos, first);
        wgmma_wait<0>(); /* dP */
        wgmma_hold(dp);
        if (lane == 0) barrier_arrive(&s.v_empty[st]);
        if constexpr (DELTA) {
            if (last)
                add_delta<true>(sum, dp, p);
            else
                add_delta<false>(sum, dp, p);
        } else {
            uint32_t f[8][4];
            if (last)
                score_grads<true>(f, dp, p, delta);
            else
                score_grads<false>(f, dp, p, delta);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < 8; kk++) wgmma_rs<1>(dq, f[kk], wgmma_rows(k, kk), 1);
            wgmma_commit();
        }
    } while (++i < w.n_blocks);
    if constexpr (DELTA) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float d = sum[h];
            d += __shfl_xor_sync(0xffffffffu, d, 1);
            d += __shfl_xor_sync(0xffffffffu, d, 2);
            if (lane % 4 == 0 && pos + h * 8 < w.len) stats.delta[row % BWD_ROWS + h * 8] = d; /* past the end: 0 */
        }
        return;
    }
    wgmma_wait<0>();
    wgmma_hold(dq);
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
        if (pos + e * 4 >= w.len) continue;
        size_t at = ((size_t)(w.row0 + pos + e * 4) * a.H + w.head) * DH + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < DH / 8; n++)
            *(uint32_t *)(g.dq + at + n * 8) = pack2(dq[n][e] * a.scale, dq[n][e + 1] * a.scale);
    }
}

template <int DH, bool DELTA>
__global__ void __launch_bounds__(BWD_THREADS, 1)
    dq_kernel(attn_args a, bwd_args g, const __grid_constant__ bwd_maps m) {
    extern __shared__ __align__(1024) char smem[];
    dq_smem<DH> &s = *(dq_smem<DH> *)smem;
    int seq;
    dq_place w;
    attn_find_tile(a, gridDim.y - 1 - blockIdx.y, ROWS, 1, &seq, &w.tile); /* a sequence's last rows see most keys */
    w.head = blockIdx.x;
    w.kv_head = blockIdx.x / (a.H / a.HK);
    w.row0 = a.q_start[seq];
    w.len = a.q_start[seq + 1] - w.row0;
    w.n_blocks = w.tile + 1; /* tiles of rows and of keys have equal length */
    w.stats_at = bwd_stats_at(w.row0, seq);
    if (threadIdx.x == 0) {
        barrier_init(&s.rows_full, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.k_full[i], 1);
            barrier_init(&s.v_full[i], 1);
            barrier_init(&s.k_empty[i], ARRIVALS);
            barrier_init(&s.v_empty[i], ARRIVALS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_down<24>();
        if (threadIdx.x == 0) copy_all<DH>(m, w, s);
    } else {
        registers_up<240>();
        multiply_all<DH, DELTA>(a, g, w, s);
    }
}

template <int DH> static void set_attributes(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(dq_kernel<DH, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(dq_smem<DH>)));
    CU(d, cudaFuncSetAttribute(dq_kernel<DH, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(dq_smem<DH>)));
}

void clime_cuda_attn_dq_open(struct clime_dev *d) {
    set_attributes<64>(d);
    set_attributes<128>(d);
}

template <bool DELTA>
static void launch(struct clime_dev *d, const attn_args &a, const bwd_args &g, const bwd_maps &m, int n_tiles) {
    dim3 grid(a.H, n_tiles);
    if (a.Dh == 64)
        launch_after(d, dq_kernel<64, DELTA>, grid, BWD_THREADS, sizeof(dq_smem<64>), a, g, m);
    else
        launch_after(d, dq_kernel<128, DELTA>, grid, BWD_THREADS, sizeof(dq_smem<128>), a, g, m);
}

void clime_cuda_attn_dq(struct clime_dev *d, const attn_args &a, const bwd_args &g, const bwd_maps &m, int n_tiles) {
    launch<false>(d, a, g, m, n_tiles);
}

void clime_cuda_attn_delta(struct clime_dev *d, const attn_args &a, const bwd_args &g, const bwd_maps &m, int n_tiles) {
    launch<true>(d, a, g, m, n_tiles);
}
