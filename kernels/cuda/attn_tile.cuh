/* A block of keys or values in shared memory for mma.sync. Included by attn_fwd.cu. */
#ifndef CLIME_KERNELS_CUDA_ATTN_TILE_CUH
#define CLIME_KERNELS_CUDA_ATTN_TILE_CUH

#include "kernels/cuda/attn.cuh"

enum { BLOCK = CLIME_PAGE };

template <int DH> struct kv_tile { bf16 at[BLOCK][DH + 8]; /* 16 bytes of padding: ldmatrix without bank conflicts */ };

/* A warp queues block b of the keys or values in `from`; keys at or after n_keys become zeros (0 x garbage must stay 0
 * in P V). */
template <int DH>
static __device__ __forceinline__ void fetch_tile(const attn_args &a, const bf16 *from, int seq, int head, int b,
                                                  int n_keys, kv_tile<DH> *to) {
    size_t ld, at = attn_block_at(a, seq, head, b, &ld);
    constexpr int VECS = DH / 8;
#pragma unroll 8
    for (int e = threadIdx.x & 31; e < BLOCK * VECS; e += 32) {
        int key = e / VECS, c = e % VECS * 8;
        bool in = b * BLOCK + key < n_keys;
        cp_async16(&to->at[key][c], from + (in ? at + key * ld + c : 0), in);
    }
}

#endif
