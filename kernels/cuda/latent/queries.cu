/* The gradient of latent attention's queries: one thread block per tile of 64 rows of (position, head), which processes
 * the keys that it sees in order. Launched by backward.cu.
 *
 * S = Q K^T and dP = dO V^T, half of the keys per warpgroup; dS goes to shared memory; then both add dS K, half of the
 * columns each. */
#include "kernels/cuda/latent/products.cuh"

struct queries_shared {
    char q[PANELS][PANEL], dout[VALUE_PANELS][PANEL], k[PANELS][PANEL], ds[PANEL];
    uint64_t rows_full, k_full, k_empty;
};

/* A thread block's position: its sequence, its first row of the sequence's H len, blocks of keys. */
struct queries_place {
    int row0, len, first, n_rows, n_blocks;
};

static __device__ void fetch(const attn_args &a, const latent_maps &m, const queries_place &w, queries_shared &s) {
    barrier_expect(&s.rows_full, sizeof s.q + sizeof s.dout);
    for (int p = 0; p < PANELS; p++) tensor_copy(s.q[p], &m.q, p * 64, w.row0 * a.H + w.first, &s.rows_full);
    for (int p = 0; p < VALUE_PANELS; p++)
        tensor_copy(s.dout[p], &m.dout, p * 64, w.row0 * a.H + w.first, &s.rows_full);
    for (int b = 0; b < w.n_blocks; b++) {
        barrier_wait(&s.k_empty, (b & 1) ^ 1);
        fetch_panels(s.k, PANELS, &m.k, w.row0 + b * CLIME_PAGE, &s.k_full);
    }
}

template <int GROUP>
static __device__ __forceinline__ void multiply(const attn_args &a, const latent_bwd &g, const queries_place &w,
                                                queries_shared &s) {
    int lane = threadIdx.x & 31, row = w.first + threadIdx.x / 32 % 4 * 16 + lane / 4, pos[2];
    float lse2[2], delta[2];
    latent_sums<GROUP> sum = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        pos[h] = (row + h * 8) / a.H;
        lse2[h] = g.lse2[(size_t)w.row0 * a.H + row + h * 8];
        delta[h] = g.delta[(size_t)w.row0 * a.H + row + h * 8];
    }
    int min_pos = w.first / a.H;
    barrier_wait(&s.rows_full, 0);
    for (int b = 0, n = uniform(w.n_blocks); b < n; b++) {
        int left = w.len - b * CLIME_PAGE, column = b * CLIME_PAGE + GROUP * 32 + lane % 4 * 2;
        bool masked = (b + 1) * CLIME_PAGE > min_pos + 1;
        float p[4][4], dp[4][4];
        barrier_wait(&s.k_full, b & 1);
        if (left < CLIME_PAGE) {
            zero_rows(s.k, PANELS, left);
            fence_async();
            named_barrier(1, CONSUMERS);
        }
        hold(sum);
        wgmma_fence();
        half_product<PANELS>(p, s.q, s.k[0] + GROUP * (PANEL / 2));
        half_product<VALUE_PANELS>(dp, s.dout, s.k[0] + GROUP * (PANEL / 2));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(p);
        wgmma_hold(dp);
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float weight = attn_exp2(__fmaf_rn(p[n][e], a.scale2, -lse2[e / 2]));
                bool out = masked && column + n * 8 + e % 2 > pos[e / 2];
                dp[n][e] = out ? 0.0f : weight * (dp[n][e] - delta[e / 2]) * a.scale;
            }
        named_barrier(1, CONSUMERS); /* the last block's have been read */
        store_half<GROUP>(s.ds, dp);
        fence_async();
        named_barrier(2, CONSUMERS);
        wgmma_fence();
        add_product<GROUP, true>(sum, s.ds, s.k);
        wgmma_commit();
        wgmma_wait<0>();
        hold(sum);
        release(&s.k_empty);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row + h * 8 >= w.n_rows) continue;
        bf16 *to = g.dq + ((size_t)w.row0 * a.H + row + h * 8) * LATENT_WIDTH;
        each_pair(sum, h, [&](int column, float x, float y) { *(uint32_t *)(to + column) = pack2(x, y); });
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    latent_queries_kernel(const attn_args a, const latent_bwd g, const __grid_constant__ latent_maps m) {
    extern __shared__ __align__(1024) char smem[];
    queries_shared &s = *(queries_shared *)smem;
    int seq, tile;
    attn_find_tile(a, gridDim.x - 1 - blockIdx.x, LATENT_ROWS, a.H, &seq, &tile); /* of a sequence, the longest first */
    queries_place w = {a.q_start[seq], a.q_start[seq + 1] - a.q_start[seq], tile * LATENT_ROWS};
    w.n_rows = w.len * a.H;
    w.n_blocks = (min(w.first + LATENT_ROWS, w.n_rows) - 1) / a.H / CLIME_PAGE + 1;
    if (threadIdx.x == 0) {
        barrier_init(&s.rows_full, 1);
        barrier_init(&s.k_full, 1);
        barrier_init(&s.k_empty, CONSUMERS / 32);
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_down<40>();
        if (threadIdx.x == 0) fetch(a, m, w, s);
    } else {
        registers_up<REGISTERS>();
        if (consumer_group() == 0)
            multiply<0>(a, g, w, s);
        else
            multiply<1>(a, g, w, s);
    }
}

void clime_cuda_latent_queries_open(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(latent_queries_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(queries_shared)));
}

void clime_cuda_latent_queries(struct clime_dev *d, const attn_args &a, const bf16 *dout, const latent_bwd &g,
                               int n_tiles) {
    latent_maps m;
    if (!maps_of(d, a, dout, g.T, &m)) return;
    launch_after(d, latent_queries_kernel, n_tiles, THREADS, sizeof(queries_shared), a, g, m);
}
