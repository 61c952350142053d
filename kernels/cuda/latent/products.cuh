/* Shared by both backward passes of latent attention: scores and their gradients of 64 rows and, per warpgroup, half of
 * 64 columns; and 576 columns of sums, eight panels divided between the warpgroups and the ninth in the first. Included
 * by keys.cu and queries.cu. */
#ifndef CLIME_KERNELS_CUDA_LATENT_PRODUCTS_CUH
#define CLIME_KERNELS_CUDA_LATENT_PRODUCTS_CUH

#include "kernels/cuda/latent/latent.cuh"

/* Boxes of 64 rows. */
struct latent_maps {
    CUtensorMap q, k, dout;
};

static inline bool maps_of(struct clime_dev *d, const attn_args &a, const bf16 *dout, int T, latent_maps *m) {
    uint64_t rows = (uint64_t)T * a.H;
    return clime_cuda_tensor_map(d, &m->q, a.q, rows, LATENT_WIDTH, LATENT_WIDTH, LATENT_ROWS) &&
           clime_cuda_tensor_map(d, &m->k, a.k, T, LATENT_WIDTH, LATENT_WIDTH, CLIME_PAGE) &&
           clime_cuda_tensor_map(d, &m->dout, dout, rows, LATENT_VALUE, LATENT_VALUE, LATENT_ROWS);
}

/* The warpgroup's panels are 4 group .. 4 group + 3, in pairs; and 8. */
template <int GROUP> struct latent_sums { float pair[2][16][4], ninth[GROUP == 0 ? 8 : 1][4]; };

template <int GROUP> static __device__ __forceinline__ void hold(latent_sums<GROUP> &sum) {
    wgmma_hold(sum.pair[0]);
    wgmma_hold(sum.pair[1]);
    wgmma_hold(sum.ninth);
}

/* d = x y^T over N panels, y: half of its rows. */
template <int N>
static __device__ __forceinline__ void half_product(float (&d)[4][4], const char (*x)[PANEL], const char *y_half) {
    uint64_t a = wgmma_tile(x, PANEL), b = wgmma_tile(y_half, PANEL);
    wgmma_ss_first<0, 0>(d, a, b);
#pragma unroll
    for (int kk = 1; kk < N * 4; kk++) wgmma_ss<0, 0>(d, wgmma_columns(a, kk, PANEL), wgmma_columns(b, kk, PANEL), 1);
}

/* sum += p x, for the warpgroup's panels of x; the ninth where x has one. */
template <int GROUP, bool NINTH>
static __device__ __forceinline__ void add_product(latent_sums<GROUP> &sum, const char *p, const char (*x)[PANEL]) {
    uint64_t a = wgmma_tile(p, PANEL), b = wgmma_tile(x[GROUP * 4], PANEL), ninth = wgmma_tile(x[8], PANEL);
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            wgmma_ss<0, 1>(sum.pair[i], wgmma_columns(a, kk, PANEL), wgmma_rows(b + (i * 2 * PANEL >> 4), kk), 1);
        if constexpr (NINTH && GROUP == 0)
            wgmma_ss<0, 1>(sum.ninth, wgmma_columns(a, kk, PANEL), wgmma_rows(ninth, kk), 1);
    }
}

/* The warpgroup's half of a panel, from accumulators. */
template <int GROUP> static __device__ __forceinline__ void store_half(char *panel, const float (&d)[4][4]) {
#pragma unroll
    for (int kk = 0; kk < 2; kk++) {
        uint32_t f[4];
        fragment_of(f, d[2 * kk], d[2 * kk + 1]);
        store_fragment(panel, f, GROUP * 4 + kk * 2);
    }
}

/* f(column, the sum there, and the next one's) for row h (0: lane / 4, 1: that + 8) of the warp's 16. */
template <int GROUP, class F>
static __device__ __forceinline__ void each_pair(const latent_sums<GROUP> &sum, int h, F f) {
    int column = GROUP * 256 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 32; n++)
        f(column + n * 8, sum.pair[n / 16][n % 16][h * 2], sum.pair[n / 16][n % 16][h * 2 + 1]);
    if constexpr (GROUP == 0) {
#pragma unroll
        for (int n = 0; n < 8; n++)
            f(LATENT_VALUE + threadIdx.x % 4 * 2 + n * 8, sum.ninth[n][h * 2], sum.ninth[n][h * 2 + 1]);
    }
}

#endif
