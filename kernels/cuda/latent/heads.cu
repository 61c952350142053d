/* Products of each head with a matrix of its own: forward, dX and dW. Launched by the context's owner.
 *
 * A block of threads is a tile of 128 rows and 64 or 128 columns of one head's output: one warp brings operands into a
 * ring, two warpgroups multiply 64 rows each. Every operand is a tensor of three dimensions, one of them the heads, so
 * what a tile has beyond a head's own rows and columns comes as zeros. Shapes that are no multiple of 8 go to
 * gemm_plain.cu, head by head. An output is the chain that gemm.cu's products are. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/wgmma.cuh"

enum { DEPTH = 64, ROWS = 128, CONSUMERS = 256, THREADS = CONSUMERS + 32, SQUARE = 64 * DEPTH * 2, FEW = 64 };

template <int COLUMNS> struct heads_shared {
    static constexpr int STAGES = 3; /* two blocks a multiprocessor */
    struct {
        char a[ROWS / 64][SQUARE], b[COLUMNS / 64][SQUARE];
    } stage[STAGES];
    uint64_t full[STAGES], empty[STAGES];
};

/* y: row i, head h, column j lie at i * row + h * head + j. */
struct heads_args {
    int rows, columns, n_chunks;
    int64_t row, head;
    void *y;
};

/* In both operands what is summed over comes along the columns (k-major), or along the rows. */
template <enum clime_lt_kind KIND> struct along {
    static constexpr bool A_ROWS = KIND == CLIME_LT_DW, B_ROWS = KIND != CLIME_LT_FORWARD;
};

/* A chunk of DEPTH of what is summed over: `squares` of 64 by 64, side by side from `at` on. heads_last: the third
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

template <enum clime_lt_kind KIND, int COLUMNS>
__global__ void __launch_bounds__(THREADS, 2)
    heads_kernel(const heads_args p, const __grid_constant__ CUtensorMap a_map,
                 const __grid_constant__ CUtensorMap b_map) {
    constexpr bool A_ROWS = along<KIND>::A_ROWS, B_ROWS = along<KIND>::B_ROWS;
    typedef heads_shared<COLUMNS> shared;
    extern __shared__ __align__(1024) char smem[];
    shared &s = *(shared *)smem;
    int row0 = blockIdx.y * ROWS, column0 = blockIdx.x * COLUMNS, head = blockIdx.z;
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&a_map);
        tensor_map_prefetch(&b_map);
        for (int i = 0; i < shared::STAGES; i++) {
            barrier_init(&s.full[i], 1);
            barrier_init(&s.empty[i], CONSUMERS / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    wait_for_last();
    start_next();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x > CONSUMERS) return;
        ring_at<shared::STAGES> at = {0, 1}; /* parity: of the phase that empties a stage */
        for (int c = 0; c < p.n_chunks; c++, at.next()) {
            auto &to = s.stage[at.stage];
            barrier_wait(&s.empty[at.stage], at.parity);
            barrier_expect(&s.full[at.stage], sizeof to);
            fetch_operand<A_ROWS, false>(to.a, ROWS / 64, &a_map, row0, c, head, &s.full[at.stage]);
            fetch_operand<B_ROWS, KIND != CLIME_LT_DW>(to.b, COLUMNS / 64, &b_map, column0, c, head, &s.full[at.stage]);
        }
        return;
    }
    int group = uniform(threadIdx.x / 128), lane = threadIdx.x & 31;
    float d[COLUMNS / 8][4] = {};
    ring_at<shared::STAGES> at = {0, 0};
    uint64_t *read = NULL; /* the stage whose products may be under way */
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

template <enum clime_lt_kind KIND> static void open_kind(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(heads_kernel<KIND, 128>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(heads_shared<128>)));
    CU(d, cudaFuncSetAttribute(heads_kernel<KIND, 64>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(heads_shared<64>)));
}

void clime_cuda_heads_open(struct clime_dev *d) {
    open_kind<CLIME_LT_FORWARD>(d);
    open_kind<CLIME_LT_DX>(d);
    open_kind<CLIME_LT_DW>(d);
}

/* Rows of all heads as a tensor: columns, heads, rows. A product's weights: columns, rows, heads. box_rows 64. */
static bool rows_map(struct clime_dev *d, CUtensorMap *map, const void *at, int T, int H, int columns, int row,
                     int head) {
    const uint64_t size[] = {(uint64_t)columns, (uint64_t)H, (uint64_t)T}, step[] = {head * 2ull, row * 2ull};
    const uint32_t box[] = {64, 1, 64};
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
template <enum clime_lt_kind KIND>
static void tiles(struct clime_dev *d, int T, const struct clime_head_product *p, const void *a, const void *b,
                  void *y) {
    constexpr bool DW = KIND == CLIME_LT_DW, FORWARD = KIND == CLIME_LT_FORWARD;
    CUtensorMap a_map, b_map;
    bool made = FORWARD ? rows_map(d, &a_map, a, T, p->H, p->K, p->x_row, p->x_head)
                        : rows_map(d, &a_map, a, T, p->H, p->N, p->y_row, p->y_head);
    made = made && (DW ? rows_map(d, &b_map, b, T, p->H, p->K, p->x_row, p->x_head) : weights_map(d, &b_map, b, p));
    if (!made) return;
    heads_args r = {DW ? p->N : T, FORWARD ? p->N : p->K, 0, 0, 0, y};
    r.n_chunks = ((DW ? T : FORWARD ? p->K : p->N) + DEPTH - 1) / DEPTH;
    r.row = DW ? p->K : FORWARD ? p->y_row : p->x_row;
    r.head = DW ? p->w_head : FORWARD ? p->y_head : p->x_head;
    bool few = T <= FEW; /* then there are few tiles, and smaller ones are more */
    int columns = few ? 64 : 128;
    dim3 grid((r.columns + columns - 1) / columns, (r.rows + ROWS - 1) / ROWS, p->H);
    launch(d, few ? heads_kernel<KIND, 64> : heads_kernel<KIND, 128>, grid, THREADS,
           few ? sizeof(heads_shared<64>) : sizeof(heads_shared<128>), r, a_map, b_map);
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
    if (aligned(p, a, b, y))
        tiles<KIND>(d, T, p, a, b, y);
    else
        plain(d, KIND, T, p, a, b, y);
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
