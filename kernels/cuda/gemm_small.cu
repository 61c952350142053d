/* y[T,N] = x[T,K] w[N,K]^T for 2 to 64 rows: streams the weights once, near memory bandwidth. Launched by gemm.cu.
 *
 * The canonical chain (docs/numerics.md) forbids splitting K, so at narrow N there are few chains, each of K/16
 * dependent steps: 25 cycles a step with mma.sync, 71 with wgmma, which rules wgmma out. A block has as few rows of w
 * (the B operand, 8 a chain) as give each multiprocessor one block, and keeps many bytes in flight: four producer
 * threads fill a ring of stages with tensor copies (one alone takes up to 800 cycles a stage), the other warps run the
 * chains. Weights do not depend on the previous kernel, so inside a recording the ring is full of them when that ends
 * (launch() in cuda_int.cuh). From 17 rows on x is as large as the weights of a block: four blocks of a cluster fetch a
 * quarter each and send it to all. A product of gate and up also does the SwiGLU after it. Bytes: (N K + T K) 2 read, T
 * N 2 or 4 written. A single row has its own kernel (row/program.cu). */
#include "kernels/cuda/wgmma.cuh"

enum { PANEL = 64, ROWS = 64, MAX_STAGES = 24, CLUSTER = 4, PRODUCERS = 4 };
enum { SMEM = 227 << 10, STATIC = 1024, ALIGN = 1024, RING = SMEM - STATIC - ALIGN };
enum { HALF_RING = 104 << 10 }; /* leaves shared memory for a block of the next kernel */

/* ---- the kernel ---- */

/* A warp's operands for one panel (64 of K): 16 rows of x, 8 NT rows of w. */
template <int NT> struct panel_fragments { uint32_t x[PANEL / 16][4], w[NT][PANEL / 32][4]; };

struct small_args {
    int T, N, n_chunks, n_stages;
    void *y;
    bf16 *h; /* gated products */
    bool f32;
};

/* A block: WARPS times 8 NT rows of w; MT times 16 rows of x; one warp per pair of them, and the producers. Without
 * clusters just T rows of x are copied (zeros for missing rows cost more than rows); the stale contents of the others
 * affect only results that are not stored. GATED: y is gate|up; the block has as many rows of up as of gate, and also
 * writes h. */
template <int NT, int WARPS, int MT, int PANELS, int C, bool GATED>
__global__ void __launch_bounds__((WARPS * MT + PRODUCERS) * 32)
    small_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                 const small_args a) {
    constexpr int NB = 8 * NT * WARPS, X_PANEL = 16 * MT * PANEL * 2, W_PANEL = NB * PANEL * 2;
    constexpr int CONSUMERS = WARPS * MT, STAGE = PANELS * (X_PANEL + W_PANEL);
    constexpr int TILES = GATED ? NT / 2 : NT, COLUMNS = 8 * TILES * WARPS; /* of h if gated: per warp, per block */
    int bytes = C > 1 ? STAGE : STAGE - (16 - a.T) * PANEL * 2 * PANELS;    /* that arrive */
    extern __shared__ char smem[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    char *ring = (char *)(((uintptr_t)smem + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n0 = blockIdx.x * COLUMNS;
    int n_chunks = a.n_chunks, n_stages = a.n_stages;
    start_next();
    if (threadIdx.x == CONSUMERS * 32) {
        tensor_map_prefetch(&w_map);
        tensor_map_prefetch(&x_map);
    }
    if (threadIdx.x == 0) {
        for (int s = 0; s < n_stages; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], C * CONSUMERS);
        }
        barrier_init_done();
    }
    if (C > 1)
        cluster_sync();
    else
        __syncthreads();

    if (warp >= CONSUMERS) {
        if (lane == 0) {
            constexpr int SLICE = 16 * MT / C;
            int first = C > 1 ? cluster_rank() * SLICE : 0;
            auto fetch_w = [&](int chunk, int s) {
                char *to = ring + s * STAGE + PANELS * X_PANEL;
                barrier_expect(&full[s], bytes);
#pragma unroll
                for (int p = 0; p < PANELS; p++) {
                    int k = (chunk * PANELS + p) * PANEL;
                    tensor_copy(to + p * W_PANEL, &w_map, k, n0, &full[s]);
                    if (GATED) tensor_copy(to + p * W_PANEL + W_PANEL / 2, &w_map, k, a.N / 2 + n0, &full[s]);
                }
            };
            auto fetch_x = [&](int chunk, int s) {
                char *to = ring + s * STAGE + first * PANEL * 2;
#pragma unroll
                for (int p = 0; p < PANELS; p++)
                    if (C > 1)
                        tensor_copy_to_all<CLUSTER>(to + p * X_PANEL, &x_map, (chunk * PANELS + p) * PANEL, first,
                                                    &full[s]);
                    else
                        tensor_copy(to + p * X_PANEL, &x_map, (chunk * PANELS + p) * PANEL, first, &full[s]);
            };
            /* every producers-th chunk, starting at `own`; not more producers than stages, or one could reach a stage
             * two turns ahead of its readers, where a barrier's parity is ambiguous */
            int producers = min(PRODUCERS, n_stages), own = warp - CONSUMERS, ahead = min(n_stages, n_chunks);
            if (own >= producers) ahead = n_chunks = 0;
            for (int i = own; i < ahead; i += producers) fetch_w(i, i);
            wait_for_last();
            int i = own;
            for (; i < ahead; i += producers) fetch_x(i, i);
            for (int s = i, turn = 0; i < n_chunks; i += producers, s += producers) {
                for (; s >= n_stages; turn++) s -= n_stages;
                barrier_wait(&empty[s], (turn - 1) & 1);
                fetch_w(i, s);
                fetch_x(i, s);
            }
        }
    } else {
        int part = warp % WARPS, tile = warp / WARPS;
        uint32_t x_at[PANEL / 16], w_at[PANEL / 32];
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) x_at[k] = swizzled(tile * 16 + lane % 16, k * 2 + lane / 16);
#pragma unroll
        for (int k = 0; k < PANEL / 32; k++)
            w_at[k] = PANELS * X_PANEL + swizzled(part * 8 * TILES + lane % 8, k * 4 + lane / 8);
        float c[NT][4] = {};
        panel_fragments<NT> f[2]; /* double buffer: one loads while the other is multiplied */
        /* Loads step k of panel p of the stage at this address. */
        auto load = [&](panel_fragments<NT> &to, uint32_t stage, int p, int k) {
            ldmatrix_x4(to.x[k], stage + x_at[k] + p * X_PANEL);
#pragma unroll
            for (int n = 0; n < NT && k % 2 == 0; n++)
                ldmatrix_x4(to.w[n][k / 2],
                            stage + w_at[k / 2] + p * W_PANEL + n % TILES * 8 * 128 + n / TILES * (W_PANEL / 2));
        };
        uint32_t at = shared_address(ring), stage = at;
        barrier_wait(&full[0], 0);
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) load(f[0], stage, 0, k);
        for (int i = 0, s = 0, turn = 0; i < n_chunks; i++) {
            uint64_t *done = &empty[s];
            if (++s == n_stages) s = 0, turn++;
            bool more = i + 1 < n_chunks;
#pragma unroll
            for (int p = 0; p < PANELS; p++) {
                if (p == PANELS - 1) { /* next stage */
                    stage = at + s * STAGE;
                    if (more) barrier_wait(&full[s], turn & 1);
                }
#pragma unroll
                for (int k = 0; k < PANEL / 16; k++) { /* a chain's step waits for its last: time to load in between */
#pragma unroll
                    for (int n = 0; n < NT; n++) mma_16816(c[n], f[p % 2].x[k], &f[p % 2].w[n][k / 2][k % 2 * 2]);
                    if (p + 1 < PANELS)
                        load(f[(p + 1) % 2], stage, p + 1, k);
                    else if (more)
                        load(f[0], stage, 0, k);
                }
            }
            __syncwarp();
            if (lane == 0) {
                if (C > 1)
                    for (int r = 0; r < C; r++) barrier_arrive_at(done, r);
                else
                    barrier_arrive(done);
            }
        }
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int t = tile * 16 + lane / 4 + h * 8, column = n0 + (part * TILES + n) * 8 + lane % 4 * 2;
                if (t >= a.T || column >= (GATED ? a.N / 2 : a.N)) continue;
                size_t to = (size_t)t * a.N + column;
                if (a.f32)
                    *(float2 *)((float *)a.y + to) = make_float2(c[n][h * 2], c[n][h * 2 + 1]);
                else
                    *(uint32_t *)((bf16 *)a.y + to) = pack2(c[n][h * 2], c[n][h * 2 + 1]);
                if (GATED) {
                    float *gate = &c[n][h * 2], *up = &c[NT / 2 + n][h * 2];
                    *(uint32_t *)((bf16 *)a.y + to + a.N / 2) = pack2(up[0], up[1]);
                    *(uint32_t *)(a.h + (size_t)t * (a.N / 2) + column) =
                        pack2(swiglu_of(b_of(gate[0]), b_of(up[0])), swiglu_of(b_of(gate[1]), b_of(up[1])));
                }
            }
    }
    if (C > 1) cluster_sync(); /* others may still write here */
}

/* ---- the choice ---- */

typedef void (*small_function)(const CUtensorMap, const CUtensorMap, const small_args);

/* Rows of w per block, ascending, and the kernels: for up to 16 rows of x, 32 and 64; gated for up to 16. */
enum { FEW, SOME, MANY, FEW_GATED, KINDS };
struct small_size {
    int rows;
    struct {
        small_function kernel;
        int threads, panels;
    } of[KINDS];
};

#define KERNEL(nt, warps, mt, panels, c, gated)                                                                        \
    { small_kernel<nt, warps, mt, panels, c, gated>, (warps * mt + PRODUCERS) * 32, panels }
#define NONE                                                                                                           \
    { NULL, 0, 0 }
#define UP_TO_16(nt, warps, panels) KERNEL(nt, warps, 1, panels, 1, false)
#define GATED_UP_TO_16(nt, warps) KERNEL(nt, warps, 1, 2, 1, true)
#define UP_TO_64(nt, warps) KERNEL(nt, warps, 2, 4, CLUSTER, false), KERNEL(nt, warps, 4, 4, CLUSTER, false)
static const small_size SIZES[] = {
    {8, {UP_TO_16(1, 1, 4), UP_TO_64(1, 1), NONE}},
    {16, {UP_TO_16(1, 2, 4), UP_TO_64(2, 1), GATED_UP_TO_16(2, 1)}},
    {24, {UP_TO_16(1, 3, 4), UP_TO_64(3, 1), NONE}},
    {32, {UP_TO_16(1, 4, 4), UP_TO_64(4, 1), GATED_UP_TO_16(2, 2)}},
    {48, {UP_TO_16(2, 3, 2), UP_TO_64(3, 2), GATED_UP_TO_16(2, 3)}},
    {64, {UP_TO_16(2, 4, 2), UP_TO_64(4, 2), GATED_UP_TO_16(2, 4)}},
    {96, {UP_TO_16(3, 4, 2), NONE, NONE, GATED_UP_TO_16(2, 6)}},
    {128, {UP_TO_16(4, 4, 2), NONE, NONE, GATED_UP_TO_16(4, 4)}},
    {160, {UP_TO_16(4, 5, 2), NONE, NONE, GATED_UP_TO_16(4, 5)}},
    {192, {UP_TO_16(4, 6, 2), NONE, NONE, GATED_UP_TO_16(4, 6)}},
    {256, {UP_TO_16(4, 8, 2), NONE, NONE, GATED_UP_TO_16(4, 8)}},
};

void clime_cuda_gemm_small_open(struct clime_dev *d) {
    for (const small_size &size : SIZES)
        for (auto &of : size.of)
            if (of.kernel)
                CU(d, cudaFuncSetAttribute(of.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM - STATIC));
}

/* h: gated products; else NULL. */
static bool product(struct clime_dev *d, int T, int N, int K, const void *x, const void *w, void *y, void *h,
                    bool f32) {
    if (T > ROWS || K % PANEL != 0) return false;
    if (T > 16 && (h || K <= N)) return false; /* the library is faster there (docs/lab/cuda.md) */
    static const int X_ROWS[] = {16, 32, 64};  /* per stage */
    int kind = (T > 16) + (T > 32), x_rows = X_ROWS[kind];
    bool few = T <= 16;
    int slots = few ? d->n_sm : d->n_sm / 8 * 8; /* clusters leave some multiprocessors unused */
    if (h) kind = FEW_GATED;
    const small_size *size = SIZES, *end = SIZES + CLIME_COUNT(SIZES);
    while (size < end && (!size->of[kind].kernel || (N + size->rows - 1) / size->rows > slots))
        size++; /* all blocks run together */
    if (size == end) return false;

    int cluster = few ? 1 : CLUSTER, panels = size->of[kind].panels;
    int stage = panels * (x_rows + size->rows) * PANEL * 2;
    int n_chunks = (K + PANEL * panels - 1) / (PANEL * panels);
    int ring = RING;
    if (few && stage <= HALF_RING / 4) ring = HALF_RING;
    int n_stages = ring / stage;
    if (n_stages < 2) return false;
    if (n_stages > MAX_STAGES) n_stages = MAX_STAGES;
    if (n_stages > n_chunks) n_stages = n_chunks;
    CUtensorMap x_map, w_map;
    if (!clime_cuda_tensor_map(d, &x_map, (const bf16 *)x, T, K, K, few ? T : x_rows / CLUSTER) ||
        !clime_cuda_tensor_map(d, &w_map, (const bf16 *)w, N, K, K, h ? size->rows / 2 : size->rows))
        return true; /* the failure is recorded */
    int n_blocks = ((N + size->rows - 1) / size->rows + cluster - 1) / cluster * cluster;
    small_args a = {T, N, n_chunks, n_stages, y, (bf16 *)h, f32};
    launch_cluster(d, size->of[kind].kernel, n_blocks, size->of[kind].threads, n_stages * stage + ALIGN, cluster, x_map,
                   w_map, a);
    return true;
}

bool clime_cuda_gemm_small(struct clime_dev *d, int T, int N, int K, const void *x, const void *w, void *y, bool f32) {
    return product(d, T, N, K, x, w, y, NULL, f32);
}

bool clime_cuda_gemm_small_swiglu(struct clime_dev *d, int T, int F, int K, const void *x, const void *w, void *gu,
                                  void *h) {
    return product(d, T, 2 * F, K, x, w, gu, h, false);
}
