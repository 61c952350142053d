/* Products of experts on wgmma: forward, dX and dW. Launched by grouped.cu.
 *
 * Persistent blocks take every gridDim.x-th tile. The tiles follow from the experts' row counts: each block sums them
 * in shared memory, so the host need not know them. A tile begins at an expert's first row or a multiple of ROWS after
 * it, so it does not depend on other experts' load; it may read rows of the next expert past its end, whose results are
 * not stored. Two warps load the operands into a ring, two warpgroups multiply 64 rows each, or half of the columns
 * each where rows are few. dW sums over an expert's rows, so rows past its end are zeroed before use: one expert's NaN
 * cannot reach another. When dW adds to old values, its fp32 sums cost as much as its products, so each warpgroup has
 * its own tiles, ring and two warps: one adds while the other multiplies.
 *
 * Inside a recording, where rows are few, a block starts during the previous kernel and fills its ring with weights. It
 * must then know the experts' row counts, which is guaranteed if the previous kernel lets it start only after its own
 * wait, or was itself started by such a kernel (struct clime_grouped).
 */
#include "kernels/cuda/wgmma.cuh"

enum { PANEL = 64, CONSUMERS = 2, WARPS = CONSUMERS * 4, THREADS = (CONSUMERS + 1) * 128 };
enum { SQUARE = PANEL * 64 * 2 }; /* bytes of a panel of 64 rows */
enum { FEW_REGISTERS = 96 };      /* per thread initially, where rows are few */
enum { SMEM = 227 << 10, COUNTS = CLIME_MAX_EXPERTS + 1 };

/* A tile has the rows of WM and the columns of WN warpgroups, NB columns each; or, with ALONE, which adds dW, 128 x 128
 * of one. A stage of the ring has PANEL of the summed dimension. */
template <enum clime_lt_kind KIND_, int WM_, int WN, int NB_, bool ALONE_ = false> struct tile_shape {
    static constexpr enum clime_lt_kind KIND = KIND_;
    static constexpr bool DW = KIND == CLIME_LT_DW, FORWARD = KIND == CLIME_LT_FORWARD, ALONE = ALONE_;
    static constexpr int WM = WM_, NB = NB_, ROWS = ALONE ? 128 : 64 * WM, COLUMNS = ALONE ? 128 : NB * WN;
    /* few rows: leaves room on a multiprocessor for blocks of the kernels before and after */
    static constexpr bool FEW = FORWARD && WM == 1;
    static constexpr int REGISTERS = FEW ? 128 : 240; /* of the multiplying warps */
    static constexpr int ROOM = FEW ? SMEM - (6 << 10) : SMEM;
    static constexpr int RINGS = ALONE ? CONSUMERS : 1;
    static constexpr int A = ROWS * PANEL * 2, B = COLUMNS * PANEL * 2, STAGE = A + B;
    static constexpr int N = NB < 128 ? NB : 128, PARTS = ALONE ? 2 : NB / N; /* columns per wgmma; number of them */
    static constexpr int LD = PANEL + 8, OUT = DW ? 1 : WARPS * 16 * LD;      /* 16 bytes of padding */
    static constexpr int STAGES = (ROOM - OUT * 2 - 2 * COUNTS * 4 - 512) / (STAGE * RINGS);
};

template <class S> struct tiles_shared {
    struct {
        char stage[S::STAGES][S::STAGE];
    } ring[S::RINGS];
    bf16 out[S::OUT];
    int start[COUNTS], upto[COUNTS]; /* as passed; cumulative units of work: tiles of rows, or, for dW, experts */
    struct {
        uint64_t full[S::STAGES], empty[S::STAGES], tail[2];
    } barrier[S::RINGS];
};

struct tiles_args {
    int E, N, K, kept_from, kept_to; /* experts whose weights have a separate map */
    const int32_t *start;
    void *y;
    bool early; /* start is ready before the previous work ends */
};

/* ---- which tiles there are ---- */

struct tile {
    int expert, first, end; /* its valid rows */
    int row, column;        /* of y; of dW's [N, K] */
    int n_chunks;           /* stages of the ring */
};

template <class S> static __device__ void count_units(const tiles_args &a, tiles_shared<S> &s) {
    for (int e = threadIdx.x; e <= a.E; e += THREADS)
        s.start[e] = __ldcg(a.start + e); /* bypasses the L1, which may hold an older list */
    if (threadIdx.x == 0) s.upto[0] = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        int lane = threadIdx.x, before = 0;
        for (int base = 0; base < a.E; base += 32) {
            int e = base + lane, rows = e < a.E ? s.start[e + 1] - s.start[e] : 0;
            int n = S::DW ? rows > 0 || !S::ALONE : (rows + S::ROWS - 1) / S::ROWS;
#pragma unroll
            for (int m = 1; m < 32; m *= 2) {
                int other = __shfl_up_sync(0xffffffffu, n, m);
                if (lane >= m) n += other;
            }
            if (e < a.E) s.upto[e + 1] = before + n;
            before += __shfl_sync(0xffffffffu, n, 31);
        }
    }
    __syncthreads();
}

/* Tiles per unit. */
template <class S> static __device__ __forceinline__ int tiles_of(const tiles_args &a) {
    int across = ((S::FORWARD ? a.N : a.K) + S::COLUMNS - 1) / S::COLUMNS;
    return S::DW ? across * ((a.N + S::ROWS - 1) / S::ROWS) : across;
}

/* An expert's tiles are neighbours, also those of one column: shared operands are read about once. */
template <class S>
static __device__ __forceinline__ tile find_tile(const tiles_args &a, const tiles_shared<S> &s, int index) {
    int each = tiles_of<S>(a), unit = index / each, low = 0, high = a.E;
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (s.upto[mid] <= unit)
            low = mid;
        else
            high = mid;
    }
    int first = s.start[low], end = s.start[low + 1], at = index - s.upto[low] * each;
    if (S::DW) {
        int down = (a.N + S::ROWS - 1) / S::ROWS;
        return {low, first, end, at % down * S::ROWS, at / down * S::COLUMNS, (end - first + PANEL - 1) / PANEL};
    }
    int down = s.upto[low + 1] - s.upto[low], depth = S::FORWARD ? a.K : a.N;
    return {low, first, end, first + at % down * S::ROWS, at / down * S::COLUMNS, (depth + PANEL - 1) / PANEL};
}

/* ---- the loading warps ---- */

/* Chunk c of A or of B, in wgmma's layout: panels of rows along the summed dimension, or squares of it as rows. map: of
 * A, or of the weights, in which the tile's expert has this number; or of x. */
template <class S, bool OF_A>
static __device__ __forceinline__ void fetch_chunk(const tiles_args &a, const tile &t, const CUtensorMap *map,
                                                   int expert, int c, char *to, uint64_t *full) {
    if (OF_A && !S::DW) {
        tensor_copy(to, map, c * PANEL, t.row, full);
    } else if (S::FORWARD) {
        tensor_copy(to, map, c * PANEL, expert * a.N + t.column, full);
    } else {
        int row = c * PANEL + (S::DW ? t.first : expert * a.N), column = OF_A ? t.row : t.column;
#pragma unroll
        for (int i = 0; i < (OF_A ? S::A : S::B) / SQUARE; i++)
            tensor_copy(to + i * SQUARE, map, column + i * 64, row, full);
    }
}

/* kept: map of the kept experts, if any and these are weights. */
template <class S, bool OF_A>
static __device__ void fetch(const tiles_args &a, const CUtensorMap *all, const CUtensorMap *kept, int ring,
                             tiles_shared<S> &s) {
    constexpr int BYTES = OF_A ? S::A : S::B;
    auto &barrier = s.barrier[ring];
    int lane = threadIdx.x & 31, n_tiles = s.upto[a.E] * tiles_of<S>(a), tail_parity = 0;
    ring_at<S::STAGES> at = {0, 1}; /* parity: of the phase that empties a stage */
    for (int index = blockIdx.x * S::RINGS + ring; index < n_tiles; index += gridDim.x * S::RINGS) {
        tile t = find_tile(a, s, index);
        bool is_kept = !OF_A && !S::DW && t.expert >= a.kept_from && t.expert < a.kept_to;
        const CUtensorMap *map = is_kept ? kept : all;
        int expert = t.expert - (is_kept ? a.kept_from : 0);
        for (int c = 0; c < t.n_chunks; c++, at.next()) {
            char *to = s.ring[ring].stage[at.stage] + (OF_A ? 0 : S::A);
            int left = t.end - t.first - c * PANEL; /* dW: remaining rows of the expert */
            bool tail = S::DW && left < PANEL;
            uint64_t *full = tail ? &barrier.tail[OF_A] : &barrier.full[at.stage];
            barrier_wait(&barrier.empty[at.stage], at.parity);
            if (lane == 0) {
                barrier_expect(full, BYTES);
                fetch_chunk<S, OF_A>(a, t, map, expert, c, to, full);
            }
            if (!tail) continue;
            barrier_wait(full, tail_parity);
            tail_parity ^= 1;
            for (int e = left * 8 + lane; e < PANEL * 8; e += 32)
#pragma unroll
                for (int i = 0; i < BYTES / SQUARE; i++) *(uint4 *)(to + i * SQUARE + e * 16) = make_uint4(0, 0, 0, 0);
            fence_async();
            __syncwarp();
            if (lane == 0) barrier_arrive(&barrier.full[at.stage]);
        }
    }
}

/* ---- the multiplying warpgroups ---- */

/* bf16, through shared memory, to write rows 128 bytes at a time. row, column: of the warp's 16 rows and of d. */
template <class S>
static __device__ __forceinline__ void store_rows(const tiles_args &a, const tile &t, int row, int column,
                                                  float (&d)[S::N / 8][4], bf16 *out) {
    int lane = threadIdx.x & 31, width = S::FORWARD ? a.N : a.K;
#pragma unroll
    for (int q = 0; q < S::N / PANEL; q++) {
#pragma unroll
        for (int n = 0; n < PANEL / 8; n += 2) {
            uint32_t r[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *v = &d[q * (PANEL / 8) + n + e / 2][e % 2 * 2];
                r[e] = pack2(v[0], v[1]);
            }
            stmatrix_x4(out + lane % 16 * S::LD + n * 8 + lane / 16 * 8, r);
        }
        __syncwarp();
#pragma unroll
        for (int e = lane; e < 16 * PANEL / 8; e += 32) {
            int r = e / (PANEL / 8), c = e % (PANEL / 8) * 8, to = column + q * PANEL + c;
            uint4 v = *(const uint4 *)(out + r * S::LD + c);
            if (row + r < t.end && to < width) *(uint4 *)((bf16 *)a.y + (size_t)(row + r) * width + to) = v;
        }
        __syncwarp();
    }
}

/* fp32, added to the old values or overwriting them, as a chain that begins with zeros would. */
template <class S>
static __device__ __forceinline__ void store_sums(const tiles_args &a, const tile &t, int row, int column,
                                                  float (&d)[S::N / 8][4]) {
    constexpr int BATCH = 8; /* loads in flight */
    constexpr bool ADD = S::ALONE;
    int lane = threadIdx.x & 31;
    float *y = (float *)a.y + (size_t)t.expert * a.N * a.K;
#pragma unroll
    for (int n0 = 0; n0 < S::N / 8; n0 += BATCH) {
        float2 old[BATCH][2];
#pragma unroll
        for (int i = 0; ADD && i < BATCH * 2; i++) {
            int r = row + lane / 4 + i % 2 * 8, c = column + (n0 + i / 2) * 8 + lane % 4 * 2;
            if (r < a.N && c < a.K) old[i / 2][i % 2] = *(const float2 *)(y + (size_t)r * a.K + c);
        }
#pragma unroll
        for (int i = 0; i < BATCH * 2; i++) {
            int r = row + lane / 4 + i % 2 * 8, c = column + (n0 + i / 2) * 8 + lane % 4 * 2;
            const float *v = &d[n0 + i / 2][i % 2 * 2];
            float2 sum =
                ADD ? make_float2(old[i / 2][i % 2].x + v[0], old[i / 2][i % 2].y + v[1]) : make_float2(v[0], v[1]);
            if (r < a.N && c < a.K) *(float2 *)(y + (size_t)r * a.K + c) = sum;
        }
    }
}

template <class S> static __device__ void multiply(const tiles_args &a, tiles_shared<S> &s) {
    constexpr int TRANS_A = S::DW, TRANS_B = !S::FORWARD;
    int warp = uniform(threadIdx.x / 32 - 4), group = warp / 4;
    int ring = S::ALONE ? group : 0;
    int down = !S::ALONE && S::WM == 2 ? group : 0, across = !S::ALONE && S::WM == 1 ? group * S::NB : 0; /* its part */
    auto &barrier = s.barrier[ring];
    int n_tiles = uniform(s.upto[a.E] * tiles_of<S>(a));
    ring_at<S::STAGES> at = {0, 0};
    for (int index = blockIdx.x * S::RINGS + ring; index < n_tiles; index += gridDim.x * S::RINGS) {
        tile t = find_tile(a, s, index);
        int n_chunks = uniform(t.n_chunks);
        float d[S::PARTS][S::N / 8][4] = {};
        uint64_t *read = NULL; /* the stage whose products may be in flight */
#pragma unroll
        for (int p = 0; p < S::PARTS; p++) wgmma_hold(d[p]);
        for (int c = 0; c < n_chunks; c++, at.next()) {
            const char *stage = s.ring[ring].stage[at.stage];
            uint64_t x = wgmma_tile(stage + down * SQUARE, SQUARE),
                     w = wgmma_tile(stage + S::A + across * PANEL * 2, SQUARE);
            barrier_wait(&barrier.full[at.stage], at.parity);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < PANEL / 16; kk++)
#pragma unroll
                for (int p = 0; p < S::PARTS; p++) {
                    uint64_t a_at = x + (S::ALONE ? p * SQUARE >> 4 : 0),
                             b_at = w + (S::ALONE ? 0 : p * S::N * PANEL * 2 >> 4);
                    wgmma_ss<TRANS_A, TRANS_B>(d[p], TRANS_A ? wgmma_rows(a_at, kk) : wgmma_columns(a_at, kk, 0),
                                               TRANS_B ? wgmma_rows(b_at, kk) : wgmma_columns(b_at, kk, 0), 1);
                }
            wgmma_commit();
            wgmma_wait<1>();
            if (read) release(read);
            read = &barrier.empty[at.stage];
        }
        wgmma_wait<0>();
#pragma unroll
        for (int p = 0; p < S::PARTS; p++) wgmma_hold(d[p]);
        if (read) release(read); /* else no rows: zeros */
#pragma unroll
        for (int p = 0; p < S::PARTS; p++) {
            int row = t.row + (S::ALONE ? p : down) * 64 + warp % 4 * 16;
            int column = t.column + across + (S::ALONE ? 0 : p * S::N);
            if constexpr (S::DW)
                store_sums<S>(a, t, row, column, d[p]);
            else
                store_rows<S>(a, t, row, column, d[p], s.out + warp * 16 * S::LD);
        }
    }
}

template <class S>
static __device__ __forceinline__ void tiles(const tiles_args &a, const CUtensorMap *a_map, const CUtensorMap *b_map,
                                             const CUtensorMap *kept_map) {
    extern __shared__ __align__(1024) char smem[];
    tiles_shared<S> &s = *(tiles_shared<S> *)smem;
    start_next();
    if (threadIdx.x == 0) {
        tensor_map_prefetch(a_map);
        tensor_map_prefetch(b_map);
        if (a.kept_from < a.kept_to) tensor_map_prefetch(kept_map);
        for (auto &barrier : s.barrier) {
            for (int i = 0; i < S::STAGES; i++) {
                barrier_init(&barrier.full[i], 2);
                barrier_init(&barrier.empty[i], WARPS / S::RINGS);
            }
            for (uint64_t &b : barrier.tail) barrier_init(&b, 1);
        }
        barrier_init_done();
    }
    if (!a.early) wait_for_last();
    count_units(a, s);
    if (threadIdx.x < 128) {
        registers_down<24>();
        int warp = threadIdx.x / 32;
        if (warp / 2 < S::RINGS) {
            if (warp % 2 == 0) {
                if (a.early) wait_for_last(); /* nothing is multiplied or written before rows arrive */
                fetch<S, true>(a, a_map, NULL, warp / 2, s);
            } else {
                fetch<S, false>(a, b_map, kept_map, warp / 2, s);
            }
        }
    } else {
        registers_up<S::REGISTERS>();
        multiply<S>(a, s);
    }
}

#define TILES_ARGS                                                                                                     \
    const tiles_args a, const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,          \
        const __grid_constant__ CUtensorMap kept_map
template <class S> __global__ void __launch_bounds__(THREADS, 1) tiles_kernel(TILES_ARGS) {
    tiles<S>(a, &a_map, &b_map, &kept_map);
}
template <class S> __global__ void __maxnreg__(FEW_REGISTERS) few_tiles_kernel(TILES_ARGS) {
    tiles<S>(a, &a_map, &b_map, &kept_map);
}
template <class S> static constexpr auto kernel_of = S::FEW ? few_tiles_kernel<S> : tiles_kernel<S>;

/* ---- the choice ---- */

/* With many rows per expert on average, 128 x 256 needs few reads per product; below, as few rows as there are. */
template <enum clime_lt_kind KIND> using tall = tile_shape<KIND, 2, 1, 256>;
using alone = tile_shape<CLIME_LT_DW, 1, 1, 128, true>;
template <enum clime_lt_kind KIND> using flat = tile_shape<KIND, 1, 2, 128>;
template <enum clime_lt_kind KIND> using narrow = tile_shape<KIND, 1, 2, 64>;
enum { TALL_ROWS = 32 }; /* of an expert, mean: docs/lab/cuda.md */

template <class S> static void open_one(struct clime_dev *d) {
    static_assert(sizeof(tiles_shared<S>) <= SMEM && S::STAGES >= 3, "room");
    CU(d, cudaFuncSetAttribute(kernel_of<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(tiles_shared<S>)));
}

void clime_cuda_grouped_tiles_open(struct clime_dev *d) {
    open_one<tall<CLIME_LT_FORWARD>>(d);
    open_one<flat<CLIME_LT_FORWARD>>(d);
    open_one<narrow<CLIME_LT_FORWARD>>(d);
    open_one<tall<CLIME_LT_DX>>(d);
    open_one<alone>(d);
    open_one<tall<CLIME_LT_DW>>(d);
}

template <class S> static void run(struct clime_dev *d, const struct clime_grouped *g) {
    int a_columns = S::FORWARD ? g->K : g->N, b_rows = S::FORWARD ? S::COLUMNS : 64;
    uint64_t n_kept = (uint64_t)(g->kept.to - g->kept.from) * g->N;
    CUtensorMap a_map, b_map, kept_map = {};
    if (!clime_cuda_tensor_map(d, &a_map, g->a, g->R, a_columns, a_columns, S::DW ? 64 : S::ROWS) ||
        !clime_cuda_tensor_map(d, &b_map, g->b, S::DW ? (uint64_t)g->R : (uint64_t)g->E * g->N, g->K, g->K, b_rows) ||
        (n_kept && !clime_cuda_tensor_map(d, &kept_map, g->kept.b, n_kept, g->K, g->K, b_rows)))
        return;
    tiles_args a = {g->E, g->N, g->K, g->kept.from, g->kept.to, g->start, g->y, g->early};
    launch(d, kernel_of<S>, d->n_sm, THREADS, sizeof(tiles_shared<S>), a, a_map, b_map, kept_map);
}

bool clime_cuda_grouped_tiles(struct clime_dev *d, const struct clime_grouped *g) {
    if (g->kind == CLIME_LT_DW) {
        g->add ? run<alone>(d, g) : run<tall<CLIME_LT_DW>>(d, g);
    } else if (g->kind == CLIME_LT_DX) {
        if (g->N % PANEL != 0) return false; /* the next expert's weights would be summed too */
        run<tall<CLIME_LT_DX>>(d, g);
    } else if (g->R > TALL_ROWS * g->E) {
        run<tall<CLIME_LT_FORWARD>>(d, g);
    } else if ((g->R < g->E ? g->R : g->E) * (g->N / flat<CLIME_LT_FORWARD>::COLUMNS) > 4 * d->n_sm) {
        run<flat<CLIME_LT_FORWARD>>(d, g);
    } else {
        run<narrow<CLIME_LT_FORWARD>>(d, g);
    }
    return true;
}
