/* Any matrix product as one chain of mma.sync m16n8k16 over K ascending. Launched by gemm.cu, lt.cu, grouped.cu and
 * latent/heads.cu.
 *
 * Takes every shape, stride and alignment, so it covers what the fast paths cannot, also experts' products, and it
 * defines the canonical bits: lt.cu accepts a library algorithm only when its bits are equal. A tile is 64 x 64; K
 * passes through shared memory KC at a time; K's tail is filled with zeros, which add nothing to a chain. */
#include "kernels/cuda/cuda_int.cuh"

enum { TILE = 64, KC = 32, LD = KC + 8, THREADS = 128 };

/* tile[i][k] = m(first + i, k0 + k); consecutive threads read along the stride that is 1. */
static __device__ __forceinline__ void load_tile(const struct clime_strided m, int first, int n, int k0, int K,
                                                 bf16 tile[TILE][LD]) {
    for (int e = threadIdx.x; e < TILE * KC; e += THREADS) {
        int i = m.k == 1 ? e / KC : e % TILE, k = m.k == 1 ? e % KC : e / TILE;
        bool in = first + i < n && k0 + k < K;
        tile[i][k] = in ? m.at[(first + i) * m.i + (k0 + k) * m.k] : b_of(0);
    }
}

/* The tile of y from (i0, j0) on. */
static __device__ __forceinline__ void multiply_tile(const struct clime_product &p, int i0, int j0) {
    __shared__ __align__(16) bf16 a_tile[TILE][LD], b_tile[TILE][LD];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int wi = warp / 2 * 32, wj = warp % 2 * 32;
    float c[2][4][4] = {};
    for (int k0 = 0; k0 < p.K; k0 += KC) {
        load_tile(p.a, i0, p.M, k0, p.K, a_tile);
        load_tile(p.b, j0, p.N, k0, p.K, b_tile);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < KC; k += 16) {
            uint32_t a[2][4], b[2][4];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                ldmatrix_x4(a[h], &a_tile[wi + h * 16 + lane % 16][k + lane / 16 * 8]);
                ldmatrix_x4(b[h], &b_tile[wj + h * 16 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
            }
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int n = 0; n < 4; n++) mma_16816(c[m][n], a[m], &b[n / 2][n % 2 * 2]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < 32; e++) {
        int m = e / 16, n = e / 4 % 4, r = e % 4;
        int i = i0 + wi + m * 16 + lane / 4 + r / 2 * 8, j = j0 + wj + n * 8 + lane % 4 * 2 + r % 2;
        if (i >= p.M || j >= p.N) continue;
        size_t at = (size_t)i * p.ld + j;
        float v = c[m][n][r];
        if (p.out == CLIME_OUT_BF16)
            ((bf16 *)p.y)[at] = b_of(v);
        else if (p.out == CLIME_OUT_F32)
            ((float *)p.y)[at] = v;
        else
            ((float *)p.y)[at] += v;
    }
}

__global__ void plain_kernel(struct clime_product p) {
    multiply_tile(p, blockIdx.y * TILE, blockIdx.x * TILE);
}

void clime_cuda_product_plain(struct clime_dev *d, const struct clime_product *p) {
    clime_cuda_flush(d);
    dim3 grid((p->N + TILE - 1) / TILE, (p->M + TILE - 1) / TILE);
    launch_after(d, plain_kernel, grid, THREADS, 0, *p);
}

/* A block finds its expert by counting tiles of rows; for dW, blockIdx.z is the expert. */
__global__ void grouped_plain_kernel(struct clime_grouped g) {
    int e = blockIdx.z, tile = blockIdx.y;
    bool dw = g.kind == CLIME_LT_DW;
    for (; !dw && e < g.E; e++) {
        int n = (g.start[e + 1] - g.start[e] + TILE - 1) / TILE;
        if (tile < n) break;
        tile -= n;
    }
    if (e == g.E || (g.start[e] == g.start[e + 1] && (!dw || g.add))) return;
    multiply_tile(clime_product_of_expert(&g, e), tile * TILE, blockIdx.x * TILE);
}

void clime_cuda_grouped_plain(struct clime_dev *d, const struct clime_grouped *g) {
    bool dw = g->kind == CLIME_LT_DW;
    int columns = g->kind == CLIME_LT_FORWARD ? g->N : g->K, most = g->R / TILE + g->E; /* tiles of rows, at most */
    dim3 grid((columns + TILE - 1) / TILE, dw ? (g->N + TILE - 1) / TILE : most < g->R ? most : g->R, dw ? g->E : 1);
    launch_after(d, grouped_plain_kernel, grid, THREADS, 0, *g);
}
