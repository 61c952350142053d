/* Products of experts for a handful of rows, as decoding one sequence has them: the weights of the experts that are hit
 * are read once, near the memory's speed. Launched by grouped.cu.
 *
 * A block has COLUMNS outputs of one row, a warp 8 of them as one chain of mma.sync (all 16 rows of the fragment are
 * the one); a thread fills a ring with tensor copies of the weights. Three blocks of a multiprocessor run beside each
 * other, so that some read while others begin or end. Rows of the same expert each read its weights, which the second
 * finds in the L2. Bytes: R N K 2. */
#include "kernels/cuda/wgmma.cuh"

enum { PANEL = 64, PANELS = 4, CHUNK = PANEL * PANELS, COLUMNS = 32, WARPS = COLUMNS / 8, STAGES = 4 };
enum { W_PANEL = COLUMNS * PANEL * 2, STAGE = PANELS * W_PANEL, ALIGN = 1024, THREADS = (WARPS + 1) * 32 };
enum { MOST_ROWS = 32, MOST_K = 8192 };

struct rows_args {
    int E, N, K;
    const int32_t *start;
    const bf16 *x;
    bf16 *y;
};

__global__ void __launch_bounds__(THREADS) rows_kernel(const __grid_constant__ CUtensorMap w_map, const rows_args a) {
    extern __shared__ char smem[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ int expert;
    char *ring = (char *)(((uintptr_t)smem + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    int n_chunks = (a.K + CHUNK - 1) / CHUNK, row = blockIdx.y, n0 = blockIdx.x * COLUMNS;
    bf16 *x = (bf16 *)(ring + min(STAGES, n_chunks) * STAGE);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    start_next();
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&w_map);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], WARPS);
        }
        barrier_init_done();
    }
    wait_for_last();
    for (int e = threadIdx.x; e < a.E; e += THREADS)
        if (a.start[e] <= row && row < a.start[e + 1]) expert = e;
    for (int k = threadIdx.x * 8; k < n_chunks * CHUNK; k += THREADS * 8)
        *(uint4 *)(x + k) = k < a.K ? *(const uint4 *)(a.x + (size_t)row * a.K + k) : make_uint4(0, 0, 0, 0);
    __syncthreads();

    if (warp == WARPS) {
        ring_at<STAGES> at = {0, 1}; /* parity: of the phase that empties a stage */
        for (int c = 0; c < n_chunks && lane == 0; c++, at.next()) {
            barrier_wait(&empty[at.stage], at.parity);
            barrier_expect(&full[at.stage], STAGE);
#pragma unroll
            for (int p = 0; p < PANELS; p++)
                tensor_copy(ring + at.stage * STAGE + p * W_PANEL, &w_map, c * CHUNK + p * PANEL, expert * a.N + n0,
                            &full[at.stage]);
        }
        return;
    }
    float d[4] = {};
    ring_at<STAGES> at = {0, 0};
    for (int c = 0; c < n_chunks; c++, at.next()) {
        const char *stage = ring + at.stage * STAGE;
        const bf16 *from = x + c * CHUNK + lane % 4 * 2;
        barrier_wait(&full[at.stage], at.parity);
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            uint32_t w[PANEL / 32][4];
#pragma unroll
            for (int k = 0; k < PANEL / 32; k++)
                ldmatrix_x4(w[k], stage + p * W_PANEL + swizzled(warp * 8 + lane % 8, k * 4 + lane / 8));
#pragma unroll
            for (int k = 0; k < PANEL / 16; k++) {
                uint32_t low = *(const uint32_t *)(from + p * PANEL + k * 16),
                         high = *(const uint32_t *)(from + p * PANEL + k * 16 + 8);
                const uint32_t rows[4] = {low, low, high, high};
                mma_16816(d, rows, &w[k / 2][k % 2 * 2]);
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&empty[at.stage]);
    }
    int column = n0 + warp * 8 + lane * 2;
    if (lane < 4 && column < a.N) *(uint32_t *)(a.y + (size_t)row * a.N + column) = pack2(d[0], d[1]);
}

static int bytes_of(int K) {
    int n_chunks = (K + CHUNK - 1) / CHUNK;
    return (n_chunks < STAGES ? n_chunks : STAGES) * STAGE + n_chunks * CHUNK * 2 + ALIGN;
}

void clime_cuda_grouped_rows_open(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(rows_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes_of(MOST_K)));
}

bool clime_cuda_grouped_rows(struct clime_dev *d, const struct clime_grouped *g) {
    if (g->kind != CLIME_LT_FORWARD || g->R > MOST_ROWS || g->K > MOST_K) return false;
    CUtensorMap w_map;
    if (!clime_cuda_tensor_map(d, &w_map, g->b, (uint64_t)g->E * g->N, g->K, g->K, COLUMNS)) return true; /* kept */
    rows_args a = {g->E, g->N, g->K, g->start, g->a, (bf16 *)g->y};
    launch(d, rows_kernel, dim3((g->N + COLUMNS - 1) / COLUMNS, g->R), THREADS, bytes_of(g->K), w_map, a);
    return true;
}
