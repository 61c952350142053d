/* A block of keys and values in shared memory for decode's mma.sync. Included by attn_fwd.cu. */
#ifndef CLIME_KERNELS_CUDA_ATTN_TILE_CUH
#define CLIME_KERNELS_CUDA_ATTN_TILE_CUH

#include "kernels/cuda/attn.cuh"

enum { BLOCK = CLIME_PAGE };

template <int DH> struct kv_stage {
    bf16 k[BLOCK][DH + 8], v[BLOCK][DH + 8]; /* 16 bytes of padding: ldmatrix without bank conflicts */
};

/* Queues block b of keys and values; keys at or after n_keys become zeros (0 x garbage must stay 0 in P V). */
template <int DH, int THREADS>
static __device__ __forceinline__ void fetch_block(const attn_args &a, int seq, int head, int b, int n_keys,
                                                   kv_stage<DH> *s) {
    size_t ld, at = attn_block_at(a, seq, head, b, &ld);
    constexpr int VECS = DH / 8;
#pragma unroll 8
    for (int e = threadIdx.x; e < BLOCK * VECS; e += THREADS) {
        int key = e / VECS, c = e % VECS * 8;
        bool in = b * BLOCK + key < n_keys;
        size_t from = in ? at + key * ld + c : 0;
        cp_async16(&s->k[key][c], a.k + from, in);
        cp_async16(&s->v[key][c], a.v + from, in);
    }
}

#endif
