/* Products of each head with its own matrix: forward, dX and dW. Launched by the context's owner.
 *
 * A thread block is a tile of 128 rows and columns of one head's output: one warp loads operands into a ring, two
 * warpgroups multiply 64 rows each. For at most 64 rows, as in decode, it is 64 columns, one warpgroup, and a ring for
 * all of a head's weights, which are loaded before the previous kernel has ended; only the existing rows are copied
 * (zeros for missing ones cost more than rows). Every operand is a three-dimensional tensor with the heads as one
 * dimension, so a tile's elements beyond a head's own rows and columns are zeros. Shapes that are no multiple of 8 use
 * gemm_plain.cu, head by head. An output is the same chain as gemm.cu's products. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/wgmma.cuh"

enum { DEPTH = 64, SQUARE = 64 * DEPTH * 2, FEW = 64 };

/* Few rows: GROUPS 1, of 64 rows. */
template <int GROUPS> struct heads_shared {
    static constexpr int STAGES = GROUPS == 1 ? 8 : 3; /* with three, two blocks per multiprocessor */
    static constexpr int COLUMNS = GROUPS * 64, CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 32;
    uint64_t full[STAGES], empty[STAGES];
    struct __align__(1024) {
        char a[GROUPS][SQUARE], b[COLUMNS / 64][SQUARE];
    }
    stage[STAGES];
};

/* y: row i, head h, column j at i * row + h * head + j. */
struct heads_args {
    int rows, columns, n_chunks, stage_bytes; /* stage_bytes: that arrive */
    int64_t row, head;
    void *y;
};

/* Whether the sum is along an operand's columns (k-major), or along its rows. */
template <enum clime_lt_kind KIND> struct along {
    static constexpr bool A_ROWS = KIND == CLIME_LT_DW, B_ROWS = KIND != CLIME_LT_FORWARD;
};

/* A chunk of DEPTH of the summed dimension: `squares` of 64 by 64, side by side from `at` on. heads_last: the third
 * dimension of the map is the heads, else the second is. */
template <bool BY_ROWS, bool HEADS_LAST>
static __device__ __forceinline__ void fetch_operand(char (*to)[SQUARE], int squares, const CUtensorMap *map, int at,
                                                     int chunk, int head, uint64_t *full) {
#pragma unroll
    for (int i = 0; i < squares; i++) {
        int column = BY_ROWS ? at + i * 64 : chunk * DEPTH, row = BY_ROWS ? chunk * DEPTH : at + i * 64;
        if (HEADS_LAST)
            tensor_copy_3d(to[i], map, column, row, head, full);
        else
            tensor_copy_3d(to[i], map, column, head, row, full);
    }
}

template <enum clime_lt_kind KIND, int GROUPS>
__global__ void __launch_bounds__(heads_shared<GROUPS>::THREADS, 2)
    heads_kernel(const heads_args p, const __grid_constant__ CUtensorMap a_map,
                 const __grid_constant__ CUtensorMap b_map) {
    constexpr bool A_ROWS = along<KIND>::A_ROWS, B_ROWS = along<KIND>::B_ROWS;
    typedef heads_shared<GROUPS> shared;
    constexpr int COLUMNS = shared::COLUMNS, CONSUMERS = shared::CONSUMERS, STAGES = shared::STAGES;
    extern __shared__ __align__(1024) char smem[];
    shared &s = *(shared *)smem;
    int row0 = blockIdx.y * GROUPS * 64, column0 = blockIdx.x * COLUMNS, head = blockIdx.z;
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&a_map);
        tensor_map_prefetch(&b_map);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.full[i], 1);
            barrier_init(&s.empty[i], CONSUMERS / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    start_next();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x > CONSUMERS) return;
        auto expect = [&](int stage) { barrier_expect(&s.full[stage], p.stage_bytes); };
        auto fetch_a = [&](int stage, int c) {
            fetch_operand<A_ROWS, false>(s.stage[stage].a, GROUPS, &a_map, row0, c, head, &s.full[stage]);
        };
        auto fetch_b = [&](int stage, int c) {
            fetch_operand<B_ROWS, KIND != CLIME_LT_DW>(s.stage[stage].b, COLUMNS / 64, &b_map, column0, c, head,
                                                       &s.full[stage]);
        };
        int early = KIND == CLIME_LT_DW ? 0 : min(STAGES, p.n_chunks); /* b is weights */
        for (int c = 0; c < early; c++) {
            expect(c);
            fetch_b(c, c);
        }
        wait_for_last();
        for (int c = 0; c < early; c++) fetch_a(c, c);
        ring_at<STAGES> at = {early % STAGES, early == STAGES ? 0 : 1}; /* parity: of the phase that empties a stage */
        for (int c = early; c < p.n_chunks; c++, at.next()) {
            barrier_wait(&s.empty[at.stage], at.parity);
            expect(at.stage);
            fetch_a(at.stage, c);
            fetch_b(at.stage, c);
        }
        return;
    }
    wait_for_last();
    int group = uniform(threadIdx.x / 128), lane = threadIdx.x & 31;
    float d[COLUMNS / 8][4] = {};
    ring_at<STAGES> at = {0, 0};
    uint64_t *read = NULL; /* the stage whose products may be in flight */
    wgmma_hold(d);
    for (int c = 0; c < p.n_chunks; c++, at.next()) {
        barrier_wait(&s.full[at.stage], at.parity);
        uint64_t a = wgmma_tile(s.stage[at.stage].a[group], SQUARE), b = wgmma_tile(s.stage[at.stage].b, SQUARE);
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < DEPTH / 16; kk++)
            wgmma_ss<A_ROWS, B_ROWS>(d, A_ROWS ? wgmma_rows(a, kk) : wgmma_columns(a, kk, 0),
                                     B_ROWS ? wgmma_rows(b, kk) : wgmma_columns(b, kk, 0), 1);
        wgmma_commit();
        wgmma_wait<1>();
        if (read) release(read);
        read = &s.empty[at.stage];
    }
    wgmma_wait<0>();
    wgmma_hold(d);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = row0 + group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4 + h * 8;
        if (row >= p.rows) continue;
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
            int column = column0 + n * 8 + lane % 4 * 2;
            if (column >= p.columns) continue;
            size_t to = (size_t)(row * p.row + head * p.head + column);
            if constexpr (KIND == CLIME_LT_DW) {
                float2 *y = (float2 *)((float *)p.y + to), old = *y;
                *y = make_float2(old.x + d[n][h * 2], old.y + d[n][h * 2 + 1]);
            } else {
                *(uint32_t *)((bf16 *)p.y + to) = pack2(d[n][h * 2], d[n][h * 2 + 1]);
            }
        }
    }
}

template <enum clime_lt_kind KIND, int GROUPS> static void open_kernel(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(heads_kernel<KIND, GROUPS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(heads_shared<GROUPS>)));
}

void clime_cuda_heads_open(struct clime_dev *d) {
    open_kernel<CLIME_LT_FORWARD, 1>(d);
    open_kernel<CLIME_LT_FORWARD, 2>(d);
    open_kernel<CLIME_LT_DX, 1>(d);
    open_kernel<CLIME_LT_DX, 2>(d);
    open_kernel<CLIME_LT_DW, 2>(d);
}

/* Rows of all heads as a tensor: columns, heads, rows. A product's weights: columns, rows, heads. */
static bool rows_map(struct clime_dev *d, CUtensorMap *map, const void *at, int T, int H, int columns, int row,
                     int head, int box_rows) {
    const uint64_t size[] = {(uint64_t)columns, (uint64_t)H, (uint64_t)T}, step[] = {head * 2ull, row * 2ull};
    const uint32_t box[] = {64, 1, (uint32_t)box_rows};
    return clime_cuda_tensor_map_3d(d, map, (const bf16 *)at, size, step, box);
}
static bool weights_map(struct clime_dev *d, CUtensorMap *map, const void *at, const struct clime_head_product *p) {
    const uint64_t size[] = {(uint64_t)p->K, (uint64_t)p->N, (uint64_t)p->H}, step[] = {p->K * 2ull, p->w_head * 2ull};
    const uint32_t box[] = {64, 64, 1};
    return clime_cuda_tensor_map_3d(d, map, (const bf16 *)at, size, step, box);
}

static bool aligned(const struct clime_head_product *p, const void *a, const void *b, const void *y) {
    int all = p->N | p->K | p->x_row | p->x_head | p->y_row | p->y_head | p->w_head;
    return all % 8 == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)y) % 16 == 0;
}

/* a, b, y as in clime_product_of. */
template <enum clime_lt_kind KIND, int GROUPS>
static void tiles(struct clime_dev *d, int T, const struct clime_head_product *p, const void *a, const void *b,
                  void *y) {
    constexpr bool DW = KIND == CLIME_LT_DW, FORWARD = KIND == CLIME_LT_FORWARD;
    typedef heads_shared<GROUPS> shared;
    CUtensorMap a_map, b_map;
    int box_rows = GROUPS == 1 ? T : 64;
    bool made = FORWARD ? rows_map(d, &a_map, a, T, p->H, p->K, p->x_row, p->x_head, box_rows)
                        : rows_map(d, &a_map, a, T, p->H, p->N, p->y_row, p->y_head, box_rows);
    made = made && (DW ? rows_map(d, &b_map, b, T, p->H, p->K, p->x_row, p->x_head, 64) : weights_map(d, &b_map, b, p));
    if (!made) return;
    heads_args r = {DW ? p->N : T, FORWARD ? p->N : p->K, 0, 0, 0, 0, y};
    r.n_chunks = ((DW ? T : FORWARD ? p->K : p->N) + DEPTH - 1) / DEPTH;
    r.stage_bytes = GROUPS * box_rows * DEPTH * 2 + (int)sizeof(shared().stage[0].b);
    r.row = DW ? p->K : FORWARD ? p->y_row : p->x_row;
    r.head = DW ? p->w_head : FORWARD ? p->y_head : p->x_head;
    int n_stages = r.n_chunks < shared::STAGES ? r.n_chunks : shared::STAGES, rows = GROUPS * 64;
    dim3 grid((r.columns + shared::COLUMNS - 1) / shared::COLUMNS, (r.rows + rows - 1) / rows, p->H);
    launch(d, heads_kernel<KIND, GROUPS>, grid, shared::THREADS,
           sizeof(shared) - (shared::STAGES - n_stages) * sizeof(shared().stage[0]), r, a_map, b_map);
}

/* Head by head: any shape. */
static void plain(struct clime_dev *d, enum clime_lt_kind kind, int T, const struct clime_head_product *p,
                  const void *a, const void *b, void *y) {
    bool dw = kind == CLIME_LT_DW, forward = kind == CLIME_LT_FORWARD;
    for (int h = 0; h < p->H; h++) {
        const bf16 *x = (const bf16 *)(forward ? a : b) + (size_t)h * p->x_head,
                   *dy = (const bf16 *)a + (size_t)h * p->y_head, *w = (const bf16 *)b + (size_t)h * p->w_head;
        struct clime_product one = {
            T, p->N, p->K, {x, p->x_row, 1}, {w, p->K, 1}, (bf16 *)y + (size_t)h * p->y_head, CLIME_OUT_BF16, p->y_row};
        if (kind == CLIME_LT_DX)
            one = {
                T,       p->K, p->N, {dy, p->y_row, 1}, {w, 1, p->K}, (bf16 *)y + (size_t)h * p->x_head, CLIME_OUT_BF16,
                p->x_row};
        if (dw)
            one = {p->N,
                   p->K,
                   T,
                   {dy, 1, p->y_row},
                   {x, 1, p->x_row},
                   (float *)y + (size_t)h * p->w_head,
                   CLIME_OUT_F32_ADD,
                   p->K};
        clime_cuda_product_plain(d, &one);
    }
}

template <enum clime_lt_kind KIND>
static void multiply(struct clime_dev *d, int T, const struct clime_head_product *p, const void *a, const void *b,
                     void *y) {
    if (T == 0) return;
    if (!aligned(p, a, b, y))
        plain(d, KIND, T, p, a, b, y);
    else if constexpr (KIND != CLIME_LT_DW)
        T <= FEW ? tiles<KIND, 1>(d, T, p, a, b, y) : tiles<KIND, 2>(d, T, p, a, b, y);
    else
        tiles<KIND, 2>(d, T, p, a, b, y);
}

CUDA_OP void clime_cuda_heads_gemm(struct clime_dev *d, int T, const struct clime_head_product *p, const void *x,
                                   const void *w, void *y) {
    multiply<CLIME_LT_FORWARD>(d, T, p, x, w, y);
}

CUDA_OP void clime_cuda_heads_dx(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy,
                                 const void *w, void *dx) {
    multiply<CLIME_LT_DX>(d, T, p, dy, w, dx);
}

CUDA_OP void clime_cuda_heads_dw(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy,
                                 const void *x, float *dw) {
    multiply<CLIME_LT_DW>(d, T, p, dy, x, dw);
}
