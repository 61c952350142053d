/* dK and dV of causal attention: one block per tile of 128 keys of one KV head. Launched by backward.cu.
 *
 * One warp copies, two warpgroups multiply, 64 keys each. Steps of 64 rows, the group's query heads in order and rows
 * ascending: S^T = K Q^T and dP^T = V dO^T, so that P^T and dS^T are the A fragments, in registers, of dV += P^T dO and
 * dK += dS^T Q. The products of a step are queued so that the tensor cores always have one while the threads do their
 * arithmetic: dP overlaps the exponentials, dV overlaps dS, dK and the next step's S overlap the waits.
 *
 * full[i]: the copies of stage i have arrived; empty[i]: every multiplying thread is done with it. (One arrival per
 * warp, after __syncwarp, is 1 % faster; racecheck does not follow it and would report each read of the stats.) */
#include "kernels/cuda/attention/backward.cuh"

enum { STAGES = 4 };

template <int DH> struct dkv_smem {
    static constexpr int PANELS = DH / 64;
    bf16 k[PANELS][BWD_KEYS][64], v[PANELS][BWD_KEYS][64];
    struct {
        bf16 q[PANELS][BWD_ROWS][64], dout[PANELS][BWD_ROWS][64];
    } rows[STAGES];
    bwd_stats stats[STAGES];
    uint64_t kv_full, full[STAGES], empty[STAGES];
};

/* A block's position: the same in every thread. */
struct dkv_place {
    int head, row0, len, block, n_tiles, group, stats_at; /* steps: tiles 0 .. n_tiles - 1 of each head of the group */
};

template <int DH>
static __device__ __forceinline__ void copy_all(const bwd_args &g, const bwd_maps &m, const dkv_place &w,
                                                dkv_smem<DH> &s) {
    barrier_expect(&s.kv_full, sizeof s.k + sizeof s.v);
    for (int p = 0; p < DH / 64; p++) {
        tensor_copy(s.k[p], &m.k, w.head * DH + p * 64, w.row0 + w.block * BWD_KEYS, &s.kv_full);
        tensor_copy(s.v[p], &m.v, w.head * DH + p * 64, w.row0 + w.block * BWD_KEYS, &s.kv_full);
    }
    for (int i = 0; i < w.group * w.n_tiles; i++) {
        int st = i % STAGES, query_head = w.head * w.group + i / w.n_tiles;
        int tile = w.block * (BWD_KEYS / BWD_ROWS) + i % w.n_tiles;
        if (i >= STAGES) barrier_wait(&s.empty[st], (i / STAGES - 1) & 1);
        barrier_expect(&s.full[st], sizeof s.rows[st] + sizeof s.stats[st]);
        for (int p = 0; p < DH / 64; p++) {
            int column = query_head * DH + p * 64, row = w.row0 + tile * BWD_ROWS;
            tensor_copy(s.rows[st].q[p], &m.q, column, row, &s.full[st]);
            tensor_copy(s.rows[st].dout[p], &m.dout, column, row, &s.full[st]);
        }
        bulk_copy(&s.stats[st], &g.stats[(size_t)query_head * g.n_blocks + w.stats_at + tile], sizeof s.stats[st],
                  &s.full[st]);
    }
}

/* s = P^T of 64 keys and 64 rows; MASKED: 0 for rows before the key or past the end. */
template <bool MASKED>
static __device__ __forceinline__ void weights(float (&s)[8][4], const bwd_stats &stats, float scale2, int key,
                                               int first, int len) {
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 lse2 = *(const float2 *)&stats.lse2[n * 8 + column];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float p = attn_exp2(__fmaf_rn(s[n][e], scale2, e % 2 ? -lse2.y : -lse2.x));
            int row = first + n * 8 + column + e % 2;
            s[n][e] = MASKED && (row < key + e / 2 * 8 || row >= len) ? 0.0f : p;
        }
    }
}

/* dp = dS^T without its factor scale, which is applied to dK at the end. */
template <bool MASKED>
static __device__ __forceinline__ void score_grads(float (&dp)[8][4], const float (&p)[8][4], const bwd_stats &stats) {
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 delta = *(const float2 *)&stats.delta[n * 8 + column];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float ds = p[n][e] * (dp[n][e] - (e % 2 ? delta.y : delta.x));
            dp[n][e] = MASKED && p[n][e] == 0.0f ? 0.0f : ds; /* delta past the end is undefined */
        }
    }
}

template <int DH>
static __device__ __forceinline__ void multiply_all(const attn_args &a, const bwd_args &g, const dkv_place &w,
                                                    dkv_smem<DH> &s) {
    constexpr int KV_PANEL = sizeof s.k[0], ROW_PANEL = sizeof s.rows[0].q[0];
    int lane = threadIdx.x & 31, half = threadIdx.x / 128 - 1;
    int first_key = w.block * BWD_KEYS + half * 64, key = first_key + threadIdx.x / 32 % 4 * 16 + lane / 4;
    uint64_t k = wgmma_tile(s.k[0][half * 64], KV_PANEL), v = wgmma_tile(s.v[0][half * 64], KV_PANEL);
    float dk[DH / 8][4] = {}, dv[DH / 8][4] = {};
    int busy = -1; /* the stage still read by products in flight */
    barrier_wait(&s.kv_full, 0);
    int i = 0, head_tile = 0;
    do { /* at least once: after a loop that may not run, ptxas would wait for every product immediately */
        int st = i % STAGES, first = w.block * BWD_KEYS + head_tile * BWD_ROWS;
        head_tile = head_tile + 1 == w.n_tiles ? 0 : head_tile + 1;
        barrier_wait(&s.full[st], i / STAGES & 1);
        if (first + BWD_ROWS > w.len) {
            bwd_zero_rows(s.rows[st].q, w.len - first);
            bwd_zero_rows(s.rows[st].dout, w.len - first);
            fence_async();
            named_barrier(1, BWD_CONSUMERS);
        }
        if (first + BWD_ROWS <= first_key) { /* every row is before every key */
            barrier_arrive(&s.empty[st]);
            continue;
        }
        uint64_t q = wgmma_tile(s.rows[st].q, ROW_PANEL), dout = wgmma_tile(s.rows[st].dout, ROW_PANEL);
        float p[8][4], dp[8][4];
        wgmma_fence();
        wgmma_ss_first<0, 0>(p, k, q);
#pragma unroll
        for (int kk = 1; kk < DH / 16; kk++)
            wgmma_ss<0, 0>(p, wgmma_columns(k, kk, KV_PANEL), wgmma_columns(q, kk, ROW_PANEL), 1);
        wgmma_commit();
        wgmma_ss_first<0, 0>(dp, v, dout);
#pragma unroll
        for (int kk = 1; kk < DH / 16; kk++)
            wgmma_ss<0, 0>(dp, wgmma_columns(v, kk, KV_PANEL), wgmma_columns(dout, kk, ROW_PANEL), 1);
        wgmma_commit();
        wgmma_wait<2>(); /* the previous step's dK */
        if (busy >= 0) barrier_arrive(&s.empty[busy]);
        busy = st;
        wgmma_wait<1>(); /* S */
        wgmma_hold(p);
        bool masked = first < first_key + 64 || first + BWD_ROWS > w.len;
        if (masked)
            weights<true>(p, s.stats[st], a.scale2, key, first, w.len);
        else
            weights<false>(p, s.stats[st], a.scale2, key, first, w.len);
        uint32_t f[4][4];
#pragma unroll
        for (int kk = 0; kk < 4; kk++) bwd_fragment(f[kk], p[2 * kk], p[2 * kk + 1]);
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) wgmma_rs<1>(dv, f[kk], wgmma_rows(dout, kk), 1);
        wgmma_commit();
        wgmma_wait<1>(); /* dP */
        wgmma_hold(dp);
        if (masked)
            score_grads<true>(dp, p, s.stats[st]);
        else
            score_grads<false>(dp, p, s.stats[st]);
        uint32_t h[4][4];
#pragma unroll
        for (int kk = 0; kk < 4; kk++) bwd_fragment(h[kk], dp[2 * kk], dp[2 * kk + 1]);
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) wgmma_rs<1>(dk, h[kk], wgmma_rows(q, kk), 1);
        wgmma_commit();
        wgmma_wait<1>(); /* dV: its fragments are free */
    } while (++i < w.group * w.n_tiles);
    wgmma_wait<0>();
    wgmma_hold(dk);
    wgmma_hold(dv);
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
        if (key + e * 4 >= w.len) continue;
        size_t at = ((size_t)(w.row0 + key + e * 4) * a.HK + w.head) * DH + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < DH / 8; n++) {
            *(uint32_t *)(g.dk + at + n * 8) = pack2(dk[n][e] * a.scale, dk[n][e + 1] * a.scale);
            *(uint32_t *)(g.dv + at + n * 8) = pack2(dv[n][e], dv[n][e + 1]);
        }
    }
}

template <int DH>
__global__ void __launch_bounds__(BWD_THREADS, 1)
    dkv_kernel(attn_args a, bwd_args g, const __grid_constant__ bwd_maps m) {
    extern __shared__ __align__(1024) char smem[];
    dkv_smem<DH> &s = *(dkv_smem<DH> *)smem;
    int seq;
    dkv_place w;
    attn_find_tile(a, blockIdx.y, BWD_KEYS, 1, &seq, &w.block); /* a sequence's first keys have the most rows */
    w.head = blockIdx.x;
    w.group = a.H / a.HK;
    w.row0 = a.q_start[seq];
    w.len = a.q_start[seq + 1] - w.row0;
    w.n_tiles = (w.len - w.block * BWD_KEYS + BWD_ROWS - 1) / BWD_ROWS;
    w.stats_at = bwd_stats_at(w.row0, seq);
    if (threadIdx.x == 0) {
        barrier_init(&s.kv_full, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.full[i], 1);
            barrier_init(&s.empty[i], BWD_CONSUMERS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_down<24>();
        if (threadIdx.x == 0) copy_all<DH>(g, m, w, s);
    } else {
        registers_up<240>();
        multiply_all<DH>(a, g, w, s);
    }
}

template <int DH> static void set_attributes(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(dkv_kernel<DH>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(dkv_smem<DH>)));
}

void clime_cuda_attn_dkv_open(struct clime_dev *d) {
    set_attributes<64>(d);
    set_attributes<128>(d);
}

void clime_cuda_attn_dkv(struct clime_dev *d, const attn_args &a, const bwd_args &g, const bwd_maps &m, int n_tiles) {
    dim3 grid(a.HK, n_tiles);
    if (a.Dh == 64)
        launch_after(d, dkv_kernel<64>, grid, BWD_THREADS, sizeof(dkv_smem<64>), a, g, m);
    else
        launch_after(d, dkv_kernel<128>, grid, BWD_THREADS, sizeof(dkv_smem<128>), a, g, m);
}
