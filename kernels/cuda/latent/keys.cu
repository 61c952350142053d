/* The gradient of latent attention's cached rows: one thread block per tile of 64 keys and part of the rows that see
 * them. Launched by backward.cu.
 *
 * Processes a part's tiles of 64 rows, the last first, so that blocks of other keys read the same ones at about the
 * same time and the L2 serves them: S^T = K Q^T and dP^T = V dO^T, half of the rows per warpgroup; P^T and dS^T go to
 * shared memory; then both add P^T dO + dS^T Q, half of the columns each. There is room for one tile of q and dout:
 * dout's is reloaded during the products with q, q's during those with dout. */
#include "kernels/cuda/latent/products.cuh"

struct keys_shared {
    char k[PANELS][PANEL], q[PANELS][PANEL], dout[VALUE_PANELS][PANEL], p[PANEL], ds[PANEL];
    uint64_t k_full, q_full, q_empty, dout_full, dout_empty;
};

/* A thread block's position. */
struct keys_place {
    int row0, len, key0;        /* the sequence's first row of the batch, its length; the tile's first key */
    int first, n_tiles, n_rows; /* tiles first, first - LATENT_PARTS, ... of the sequence's H len rows */
};

static __device__ void fetch(const attn_args &a, const latent_maps &m, const keys_place &w, keys_shared &s) {
    fetch_panels(s.k, PANELS, &m.k, w.row0 + w.key0, &s.k_full);
    for (int i = 0; i < w.n_tiles; i++) {
        int row = w.row0 * a.H + (w.first - i * LATENT_PARTS) * LATENT_ROWS, parity = (i & 1) ^ 1;
        barrier_wait(&s.dout_empty, parity);
        fetch_panels(s.dout, VALUE_PANELS, &m.dout, row, &s.dout_full);
        barrier_wait(&s.q_empty, parity);
        fetch_panels(s.q, PANELS, &m.q, row, &s.q_full);
    }
}

/* p = P^T, dp = dS^T. row: the tile's first. */
template <int GROUP>
static __device__ __forceinline__ void gradients(const attn_args &a, const keys_place &w, int row, int key,
                                                 const float (&lse2)[8], const float (&delta)[8], float (&p)[4][4],
                                                 float (&dp)[4][4]) {
    bool masked = row / a.H < w.key0 + CLIME_PAGE - 1 || row + LATENT_ROWS > w.n_rows;
    int column = row + GROUP * 32 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = n * 2 + e % 2, at = column + n * 8 + e % 2;
            float weight = attn_exp2(__fmaf_rn(p[n][e], a.scale2, -lse2[i]));
            float ds = weight * (dp[n][e] - delta[i]) * a.scale;
            bool out = masked && (at >= w.n_rows || at / a.H < key + e / 2 * 8);
            p[n][e] = out ? 0.0f : weight;
            dp[n][e] = out ? 0.0f : ds;
        }
}

template <int GROUP>
static __device__ __forceinline__ void multiply(const attn_args &a, const latent_bwd &g, const keys_place &w, int part,
                                                keys_shared &s) {
    int lane = threadIdx.x & 31, key = w.key0 + threadIdx.x / 32 % 4 * 16 + lane / 4;
    latent_sums<GROUP> sum = {};
    barrier_wait(&s.k_full, 0);
    for (int i = 0, n = uniform(w.n_tiles); i < n; i++) {
        int row = (w.first - i * LATENT_PARTS) * LATENT_ROWS;
        size_t stats = (size_t)w.row0 * a.H + row + GROUP * 32 + lane % 4 * 2;
        float lse2[8], delta[8], p[4][4], dp[4][4];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            lse2[n] = g.lse2[stats + n / 2 * 8 + n % 2];
            delta[n] = g.delta[stats + n / 2 * 8 + n % 2];
        }
        barrier_wait(&s.dout_full, i & 1);
        if (row + LATENT_ROWS > w.n_rows) {
            barrier_wait(&s.q_full, i & 1);
            zero_rows(s.dout, VALUE_PANELS, w.n_rows - row);
            zero_rows(s.q, PANELS, w.n_rows - row);
            fence_async();
            named_barrier(1, CONSUMERS);
        }
        hold(sum);
        wgmma_fence();
        half_product<VALUE_PANELS>(dp, s.k, s.dout[0] + GROUP * (PANEL / 2));
        wgmma_commit();
        barrier_wait(&s.q_full, i & 1);
        wgmma_fence();
        half_product<PANELS>(p, s.k, s.q[0] + GROUP * (PANEL / 2));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(dp);
        wgmma_hold(p);
        gradients<GROUP>(a, w, row, key, lse2, delta, p, dp);
        named_barrier(1, CONSUMERS); /* the last tile's weights have been read */
        store_half<GROUP>(s.p, p);
        store_half<GROUP>(s.ds, dp);
        fence_async();
        named_barrier(2, CONSUMERS);
        wgmma_fence();
        add_product<GROUP, false>(sum, s.p, s.dout);
        wgmma_commit();
        add_product<GROUP, true>(sum, s.ds, s.q);
        wgmma_commit();
        wgmma_wait<1>();
        release(&s.dout_empty);
        wgmma_wait<0>();
        hold(sum);
        release(&s.q_empty);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (key + h * 8 >= w.len) continue;
        float *to = g.partial + ((size_t)part * g.T + w.row0 + key + h * 8) * LATENT_WIDTH;
        each_pair(sum, h, [&](int column, float x, float y) { *(float2 *)(to + column) = make_float2(x, y); });
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    latent_keys_kernel(const attn_args a, const latent_bwd g, const __grid_constant__ latent_maps m) {
    extern __shared__ __align__(1024) char smem[];
    keys_shared &s = *(keys_shared *)smem;
    int seq, tile, part = blockIdx.x;
    attn_find_tile(a, blockIdx.y, CLIME_PAGE, 1, &seq, &tile);
    keys_place w = {a.q_start[seq], a.q_start[seq + 1] - a.q_start[seq], tile * CLIME_PAGE};
    w.n_rows = w.len * a.H;
    int all = (w.n_rows + LATENT_ROWS - 1) / LATENT_ROWS - tile * a.H; /* tiles of rows from the first key's on */
    w.n_tiles = all > part ? (all - part + LATENT_PARTS - 1) / LATENT_PARTS : 0;
    w.first = tile * a.H + part + (w.n_tiles - 1) * LATENT_PARTS;
    if (threadIdx.x == 0) {
        for (uint64_t *b : {&s.k_full, &s.q_full, &s.dout_full}) barrier_init(b, 1);
        barrier_init(&s.q_empty, CONSUMERS / 32);
        barrier_init(&s.dout_empty, CONSUMERS / 32);
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_down<40>();
        if (threadIdx.x == 0) fetch(a, m, w, s);
    } else {
        registers_up<REGISTERS>();
        if (consumer_group() == 0)
            multiply<0>(a, g, w, part, s);
        else
            multiply<1>(a, g, w, part, s);
    }
}

void clime_cuda_latent_keys_open(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(latent_keys_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(keys_shared)));
}

void clime_cuda_latent_keys(struct clime_dev *d, const attn_args &a, const bf16 *dout, const latent_bwd &g,
                            int n_tiles) {
    latent_maps m;
    if (!maps_of(d, a, dout, g.T, &m)) return;
    launch_after(d, latent_keys_kernel, dim3(LATENT_PARTS, n_tiles), THREADS, sizeof(keys_shared), a, g, m);
}
