/* Shared by decode's kernels: a block of keys or values in shared memory, and 16 rows against it with mma.sync.
 * Included by forward.cu and wide.cu. */
#ifndef CLIME_KERNELS_CUDA_ATTENTION_TILE_CUH
#define CLIME_KERNELS_CUDA_ATTENTION_TILE_CUH

#include "kernels/cuda/attention/rows.cuh"

enum { BLOCK = CLIME_PAGE };

template <int DH> struct kv_tile { bf16 at[BLOCK][DH + 8]; /* 16 bytes of padding: ldmatrix without bank conflicts */ };

/* A warp queues a block of keys or values, rows of `ld` elements from `at` of `from` on; those from n on are zeroed (0
 * x garbage must stay 0 in P V). */
template <int DH>
static __device__ __forceinline__ void fetch_rows(const bf16 *from, size_t at, size_t ld, int n, kv_tile<DH> *to) {
    constexpr int VECS = DH / 8;
#pragma unroll 8
    for (int e = threadIdx.x & 31; e < BLOCK * VECS; e += 32) {
        int key = e / VECS, c = e % VECS * 8;
        bool in = key < n;
        cp_async16(&to->at[key][c], from + (in ? at + key * ld + c : 0), in);
    }
}

/* Block b of the keys or values in `from`; the sequence has n_keys. */
template <int DH>
static __device__ __forceinline__ void fetch_tile(const attn_args &a, const bf16 *from, int seq, int head, int b,
                                                  int n_keys, kv_tile<DH> *to) {
    size_t ld, at = attn_block_at(a, seq, head, b, &ld);
    fetch_rows<DH>(from, at, ld, n_keys - b * BLOCK, to);
}

/* Rows first .. + 15 of the span; pos is -1 for rows past its end. */
template <int DH>
static __device__ __forceinline__ void load_rows(const attn_args &a, const attn_span &s, int first,
                                                 uint32_t (&q)[DH / 16][4], int (&pos)[2]) {
    int lane = threadIdx.x & 31;
    const bf16 *from[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = first + lane / 4 + h * 8;
        pos[h] = row < s.n ? s.pos0 + row / s.group : -1;
        from[h] = a.q + attn_row(a, s, row < s.n ? row : 0) * DH + lane % 4 * 2;
    }
#pragma unroll
    for (int kk = 0; kk < DH / 16; kk++)
#pragma unroll
        for (int e = 0; e < 4; e++) q[kk][e] = *(const uint32_t *)(from[e % 2] + kk * 16 + e / 2 * 8);
}

/* Scores of 16 rows against a block of keys. */
template <int DH>
static __device__ __forceinline__ void attn_scores(float (&s)[BLOCK / 8][4], const uint32_t (&q)[DH / 16][4],
                                                   const kv_tile<DH> *k) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int kk = 0; kk < DH / 16; kk++)
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n += 2) {
            uint32_t f[4];
            ldmatrix_x4(f, &k->at[n * 8 + lane / 16 * 8 + lane % 8][kk * 16 + lane / 8 % 2 * 8]);
            mma_16816(s[n], q[kk], f);
            mma_16816(s[n + 1], q[kk], f + 2);
        }
}

/* o = o * factor + P V for N tiles of 8 columns from column `first` on; kk: 16 of the block's keys. */
template <int DH, int N>
static __device__ __forceinline__ void attn_add(float (&o)[N][4], const uint32_t (&p)[4], const kv_tile<DH> *v, int kk,
                                                int first) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t f[4];
        ldmatrix_x4_trans(f, &v->at[kk * 16 + lane % 16][first + n * 8 + lane / 16 * 8]);
        mma_16816(o[n], p, f);
        mma_16816(o[n + 1], p, f + 2);
    }
}

template <int N> static __device__ __forceinline__ void attn_shrink(float (&o)[N][4], const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][e] *= factor[e / 2];
}

#endif
