/* Latent attention of few decoding sequences. Launched by attention.cu.
 *
 * A single block processes the eight blocks of keys of a split in sequence (forward.cu). Here a cluster of eight shares
 * a split: each multiplies the queries with one block of keys and sends the scores to all; each then computes the
 * weights of the whole split, one warp per block of keys, and adds a panel of 64 columns of the weighted values. The
 * last of a panel's thread blocks to finish merges its splits, in order. At most 16 rows of (position, head) per
 * sequence: one tile of mma.sync. The bits are forward.cu's. */
#include "kernels/cuda/latent/latent.cuh"

enum {
    CLUSTER = LATENT_SPLIT_BLOCKS,
    WARPS = CLIME_PAGE / 8,
    FEW_THREADS = WARPS * 32,
    Q_PANEL = LATENT_FEW_ROWS * 128
};
enum { CLUSTERS = 32 }; /* about the most per launch, if it has more splits than that */
static_assert((int)VALUE_PANELS == (int)CLUSTER && (int)WARPS == (int)CLUSTER,
              "a panel of the values each, a warp a block of keys");

struct few_shared {
    char k[PANELS][PANEL], v[CLUSTER][PANEL]; /* one block of keys; one panel of all blocks' values */
    char q[PANELS][Q_PANEL];
    float4 score[CLUSTER][CLIME_PAGE / 8][32]; /* of each block, as accumulators by lane; written by the cluster */
    attn_split_weights<CLUSTER> w;
    uint64_t k_full, v_full;
    bool last; /* of the panel's thread blocks to finish */
};

struct few_maps {
    CUtensorMap q, k, v;
};

struct few_place {
    attn_span rows;
    int seq, rank, split, n_keys, first, n_blocks; /* blocks of keys of the split: the first, how many */
};

/* To the same place in block `rank` of the cluster. */
static __device__ __forceinline__ void store_at(float4 *to, int rank, const float (&v)[4]) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n}\n" ::"r"(shared_address(to)),
                 "r"(rank), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}

static __device__ __forceinline__ few_place place_of(const attn_span &rows, int seq, int rank, int split) {
    int n_keys = rows.pos0 + rows.n / rows.group, first = split * LATENT_SPLIT_BLOCKS;
    int n_blocks = min(LATENT_SPLIT_BLOCKS, (n_keys + CLIME_PAGE - 1) / CLIME_PAGE - first);
    return {rows, seq, rank, split, n_keys, first, n_blocks};
}

/* By one thread: counts arrived and pending bytes at k_full and v_full. */
static __device__ __forceinline__ void expect(const few_place &t, few_shared &s) {
    barrier_expect(&s.k_full, t.rank < t.n_blocks ? PANELS * (PANEL + Q_PANEL) : 0);
    barrier_expect(&s.v_full, t.n_blocks * PANEL);
}

/* Keys and values of the blocks without a row of this step (older), or of the others. */
static __device__ void fetch(const attn_args &a, const few_maps &m, const few_place &t, few_shared &s, bool older) {
    auto row_of = [&](int b) {
        return a.page_table ? a.page_table[(size_t)t.seq * a.max_pages + t.first + b] * CLIME_PAGE
                            : t.rows.row0 + (t.first + b) * CLIME_PAGE;
    };
    auto is_older = [&](int b) { return a.page_table && (t.first + b + 1) * CLIME_PAGE <= t.rows.pos0; };
    if (t.rank < t.n_blocks && is_older(t.rank) == older) tensor_copy_3d(s.k, &m.k, 0, row_of(t.rank), 0, &s.k_full);
    for (int b = 0; b < t.n_blocks; b++)
        if (is_older(b) == older) tensor_copy(s.v[b], &m.v, t.rank * 64, row_of(b), &s.v_full);
}

/* Of eight keys. */
static __device__ __forceinline__ void scores(float (&z)[4], const few_shared &s) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int p = 0; p < PANELS; p++)
#pragma unroll
        for (int chunk = 0; chunk < 8; chunk += 4) {
            uint32_t k[4];
            ldmatrix_x4(k, s.k[p] + swizzled(warp * 8 + lane % 8, chunk + lane / 8));
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t q[4];
                ldmatrix_x4(q, s.q[p] + swizzled(lane % 16, chunk + j * 2 + lane / 16));
                mma_16816(z, q, &k[j * 2]);
            }
        }
}

/* The split's weighted values, for the warp's eight columns; m and l: of its rows. */
static __device__ __forceinline__ void weighted(float (&o)[4], float (&m)[2], float (&l)[2], const attn_args &a,
                                                const few_place &t, const few_shared &s) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int b = 0; b < t.n_blocks; b++) {
        float factor[2];
        s.w.step(b, a.scale2, m, l, factor);
#pragma unroll
        for (int e = 0; e < 4; e++) o[e] *= factor[e / 2];
#pragma unroll
        for (int kk = 0; kk < CLIME_PAGE / 16; kk += 2) {
            uint32_t v[4];
            ldmatrix_x4_trans(v, s.v[b] + swizzled(kk * 16 + lane, warp));
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint4 w = s.w.p[b][kk + j][lane];
                const uint32_t p[4] = {w.x, w.y, w.z, w.w};
                mma_16816(o, p, &v[j * 2]);
            }
        }
    }
}

/* One split of several is stored as it is; a single one is the output. */
static __device__ __forceinline__ void store(const attn_args &a, const few_place &t, const float (&o)[4],
                                             const float (&m)[2], const float (&l)[2], int live, int n_splits,
                                             float *splits, float2 *ml) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, column = t.rank * 64 + warp * 8 + lane % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = lane / 4 + h * 8;
        float sum = attn_quad_sum(l[h]);
        if (row >= t.rows.n) continue;
        size_t at = attn_row(a, t.rows, row), split = at * n_splits + t.split;
        if (live > 1) {
            *(float2 *)(splits + split * LATENT_VALUE + column) = make_float2(o[h * 2], o[h * 2 + 1]);
            if (warp == 0 && lane % 4 == 0) ml[split] = make_float2(m[h], sum); /* equal in each panel's block */
            continue;
        }
        float scale = 1.0f / sum;
        *(uint32_t *)(a.out + at * LATENT_VALUE + column) =
            pack2(attn_value(o[h * 2], scale), attn_value(o[h * 2 + 1], scale));
        if (a.lse && t.rank == 0 && warp == 0 && lane % 4 == 0) a.lse[at] = attn_lse(m[h], sum);
    }
}

/* ended: finished splits of each sequence and panel, 0 between launches. */
__global__ void __launch_bounds__(FEW_THREADS, 1)
    latent_few_kernel(const attn_args a, const __grid_constant__ few_maps m, int n_splits, float *o, float2 *ml,
                      unsigned *ended) {
    extern __shared__ __align__(1024) char smem[];
    few_shared &s = *(few_shared *)smem;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, seq = blockIdx.y, rank = blockIdx.x % CLUSTER;
    int begin = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER, parity = 0, n_done = 0;
    attn_span rows = attn_rows_of(a, seq, 0); /* known before the step runs, like page_table */
    int live = rows.n > 0 ? (rows.pos0 + rows.n / rows.group + LATENT_SPLIT - 1) / LATENT_SPLIT : 0, pos[2];
    if (threadIdx.x == 0) {
        for (const CUtensorMap *map : {&m.k, &m.v, &m.q}) tensor_map_prefetch(map);
        barrier_init(&s.k_full, 1);
        barrier_init(&s.v_full, 1);
        barrier_init_done();
        if (begin < live) {
            few_place t = place_of(rows, seq, rank, begin);
            expect(t, s);
            fetch(a, m, t, s, true);
        }
    }
    cluster_sync(); /* all can be written to */
    start_next();
    wait_for_last();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = lane / 4 + h * 8;
        pos[h] = row < rows.n ? rows.pos0 + row / rows.group : -1;
    }
    for (int split = begin; split < live; split += stride, parity ^= 1, n_done++) {
        few_place t = place_of(rows, seq, rank, split);
        if (threadIdx.x == 0) {
            if (split > begin) {
                expect(t, s);
                fetch(a, m, t, s, true);
            }
            if (rank < t.n_blocks) tensor_copy_3d(s.q, &m.q, 0, rows.row0 * a.H, 0, &s.k_full);
            fetch(a, m, t, s, false);
        }
        __syncwarp();
        if (rank < t.n_blocks) {
            float z[4] = {};
            barrier_wait(&s.k_full, parity);
            scores(z, s);
            for (int r = 0; r < CLUSTER; r++) store_at(&s.score[rank][warp][lane], r, z);
        }
        barrier_wait(&s.v_full, parity);
        int n_left = t.n_keys - (t.first + t.n_blocks - 1) * CLIME_PAGE; /* keys of the last block; 0 x NaN is NaN */
        for (int e = threadIdx.x + n_left * 8; e < CLIME_PAGE * 8; e += FEW_THREADS)
            *(uint4 *)(s.v[t.n_blocks - 1] + e * 16) = make_uint4(0, 0, 0, 0);
        fence_async(); /* before the next split's values arrive */
        cluster_sync();
        float z[CLIME_PAGE / 8][4];
        if (warp < t.n_blocks) {
#pragma unroll
            for (int n = 0; n < CLIME_PAGE / 8; n++) *(float4 *)z[n] = s.score[warp][n][lane];
            attn_mask(z, (t.first + warp) * CLIME_PAGE, pos);
            s.w.put_top(warp, z);
        }
        __syncthreads();
        if (warp < t.n_blocks) s.w.weigh(warp, a.scale2, z);
        __syncthreads();
        float sum[4] = {}, top[2] = {ATTN_LOWEST, ATTN_LOWEST}, l[2] = {};
        weighted(sum, top, l, a, t, s);
        store(a, t, sum, top, l, live, n_splits, o, ml);
        if (split + stride < live) cluster_sync(); /* all have read what the next split overwrites */
    }
    if (live <= 1 || n_done == 0) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *of_panel = &ended[seq * CLUSTER + rank];
        s.last = (int)atomicAdd(of_panel, (unsigned)n_done) + n_done == live;
        if (s.last) *of_panel = 0;
        __threadfence();
    }
    __syncthreads();
    if (!s.last) return;
    for (int i = threadIdx.x; i < rows.n * 16; i += FEW_THREADS) /* four columns of the panel */
        latent_merge_row(a, rows, i / 16, rank * 64 + i % 16 * 4, n_splits, o, ml);
}

void clime_cuda_latent_few_open(struct clime_dev *d) {
    size_t bytes = (size_t)d->n_sm * sizeof *d->ended;
    CU(d, cudaFuncSetAttribute(latent_few_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(few_shared)));
    if (CU(d, cudaMalloc((void **)&d->ended, bytes))) CU(d, cudaMemset(d->ended, 0, bytes));
}

/* A map of tiles of box_rows whole rows: all panels by one copy, since each copy costs the issuing thread. */
static bool tile_map(struct clime_dev *d, CUtensorMap *map, const bf16 *at, uint64_t rows, int box_rows) {
    const uint64_t size[3] = {64, rows, PANELS}, stride[2] = {LATENT_WIDTH * sizeof(bf16), 64 * sizeof(bf16)};
    const uint32_t box[3] = {64, (uint32_t)box_rows, PANELS};
    return clime_cuda_tensor_map_3d(d, map, at, size, stride, box);
}

bool clime_cuda_latent_few(struct clime_dev *d, const attn_args &a, int T, int rows, const latent_splits &splits) {
    if (rows * a.H > LATENT_FEW_ROWS || a.n_seq * CLUSTER > d->n_sm) return false;
    few_maps m;
    uint64_t keys = a.page_table ? (uint64_t)1 << 31 : (uint64_t)T;
    if (!tile_map(d, &m.q, a.q, (uint64_t)T * a.H, LATENT_FEW_ROWS) || !tile_map(d, &m.k, a.k, keys, CLIME_PAGE) ||
        !clime_cuda_tensor_map(d, &m.v, a.k, keys, LATENT_WIDTH, LATENT_WIDTH, CLIME_PAGE))
        return true; /* the failure is recorded */
    int side_by_side = CLUSTERS / a.n_seq < splits.n_splits ? CLUSTERS / a.n_seq : splits.n_splits;
    launch_cluster(d, latent_few_kernel, dim3(side_by_side * CLUSTER, a.n_seq), FEW_THREADS, sizeof(few_shared),
                   CLUSTER, a, m, splits.n_splits, splits.o, splits.ml, d->ended);
    return true;
}
