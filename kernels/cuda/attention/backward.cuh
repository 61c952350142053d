/* Shared by the passes of the tensor-core attention backward. Included by backward.cu, dkv.cu and dq.cu. */
#ifndef CLIME_KERNELS_CUDA_ATTENTION_BACKWARD_CUH
#define CLIME_KERNELS_CUDA_ATTENTION_BACKWARD_CUH

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    BWD_KEYS = 128,     /* keys per tile: two warpgroups' rows in the dK/dV pass, one step of the dQ pass */
    BWD_ROWS = 64,      /* rows per step of the dK/dV pass, per box of the maps of q and dout, per block of stats */
    BWD_WARPGROUPS = 3, /* the first copies, the others multiply */
    BWD_THREADS = BWD_WARPGROUPS * 128,
    BWD_CONSUMERS = BWD_THREADS - 128,
};

/* For a row and a query head: its log-sum-exp in base 2, and delta, the sum of dout * out over the head, which equals
 * that of P dP over the keys except for the rounding of out. In blocks of BWD_ROWS rows counted from the start of each
 * sequence, so that a tile's block is one aligned copy. */
struct bwd_stats {
    float lse2[BWD_ROWS], delta[BWD_ROWS];
};

struct bwd_args {
    bwd_stats *stats; /* [H, n_blocks] */
    int n_blocks;
    bf16 *dq, *dk, *dv;
};

struct bwd_maps { /* q, dout: boxes of BWD_ROWS rows; k, v: of BWD_KEYS */
    CUtensorMap q, dout, k, v;
};

/* Start of a sequence's blocks. A sequence of n rows that starts at row r gets at least ceil(n / 64) of them: (r + n) /
 * 64 + s + 1 - (r / 64 + s) >= n / 64 + 1, all rounded down. */
static __host__ __device__ inline int bwd_stats_at(int first_row, int seq) {
    return first_row / BWD_ROWS + seq;
}

/* Accumulators of 16 columns as the A fragment of one step of 16. */
static __device__ __forceinline__ void bwd_fragment(uint32_t (&a)[4], const float (&c)[4], const float (&next)[4]) {
    a[0] = pack2(c[0], c[1]);
    a[1] = pack2(c[2], c[3]);
    a[2] = pack2(next[0], next[1]);
    a[3] = pack2(next[2], next[3]);
}

/* Zeroes rows n .. rows - 1 of a tile: they belong to the next sequence, and 0 x NaN is NaN. Every consumer. */
template <int PANELS, int ROWS>
static __device__ __forceinline__ void bwd_zero_rows(bf16 (&tile)[PANELS][ROWS][64], int n) {
    for (int e = threadIdx.x - 128 + n * 8; e < ROWS * 8; e += BWD_CONSUMERS)
#pragma unroll
        for (int p = 0; p < PANELS; p++) *(uint4 *)&tile[p][e / 8][e % 8 * 8] = make_uint4(0, 0, 0, 0);
}

/* dkv.cu and dq.cu */
void clime_cuda_attn_dkv_open(struct clime_dev *d);
void clime_cuda_attn_dq_open(struct clime_dev *d);
void clime_cuda_attn_dkv(struct clime_dev *d, const attn_args &a, const bwd_args &g, const bwd_maps &m, int n_tiles);
void clime_cuda_attn_dq(struct clime_dev *d, const attn_args &a, const bwd_args &g, const bwd_maps &m, int n_tiles);
/* stats.delta = the sum of P dP itself. */
void clime_cuda_attn_delta(struct clime_dev *d, const attn_args &a, const bwd_args &g, const bwd_maps &m, int n_tiles);

#endif
