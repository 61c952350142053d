/* Shared by the attention kernels: addresses of keys, merging of two partial softmaxes, finding a tile of rows.
 *
 * The contract (docs/numerics.md): blocks of CLIME_PAGE keys and splits of ATTN_SPLIT keys, both counted from the start
 * of the sequence. Inside a split one online softmax runs over its blocks; P is rounded to bf16 for P V. Splits merge
 * in order by attn_merge. A kernel may run splits in parallel or in sequence; the bits are the same. Everything is
 * built with -fmad=false: multiply-adds are fused only where written so. */
#ifndef CLIME_KERNELS_CUDA_ATTENTION_ATTENTION_CUH
#define CLIME_KERNELS_CUDA_ATTENTION_ATTENTION_CUH

#include <float.h>

#include "kernels/cuda/cuda_int.cuh"

enum { ATTN_SPLIT = 256, ATTN_SPLIT_BLOCKS = ATTN_SPLIT / CLIME_PAGE };
#define LN2 0.6931471805599453f

/* Arguments of every attention kernel, by value. */
struct attn_args {
    int n_seq, H, HK, Dh;
    int Dv;              /* of a value and of a head's output; Dh unless values are the first part of their keys */
    float scale, scale2; /* of q.k; the same times log2(e), since exponentials here are powers of 2 */
    const int32_t *q_start, *pos0, *page_table;
    int max_pages;
    const bf16 *q, *k, *v;
    bf16 *out;
    float *lse;
};

static inline attn_args attn_args_of(const struct clime_heads *h, const struct clime_attn *a, const void *q,
                                     const void *k, const void *v, void *out, float *lse) {
    CHECK(h->H % h->HK == 0 && h->scale > 0); /* the largest score is the largest q.k */
    attn_args r = {a->n_seq, h->H, h->HK, h->Dh, h->Dv ? h->Dv : h->Dh, h->scale, h->scale * 1.4426950408889634f};
    r.q_start = a->q_start;
    r.pos0 = a->pos0;
    r.page_table = a->page_table;
    r.max_pages = a->max_pages;
    r.q = (const bf16 *)q;
    r.k = (const bf16 *)k;
    r.v = (const bf16 *)(h->Dv ? k : v);
    r.out = (bf16 *)out;
    r.lse = lse;
    return r;
}

/* First element of block b of a sequence's keys (or values) of one KV head, and the elements between keys. */
static __device__ __forceinline__ size_t attn_block_at(const attn_args &a, int seq, int head, int b, size_t *ld) {
    if (a.page_table) {
        *ld = a.Dh;
        size_t page = a.page_table[(size_t)seq * a.max_pages + b];
        return (page * a.HK + head) * CLIME_PAGE * a.Dh;
    }
    *ld = (size_t)a.HK * a.Dh;
    return ((size_t)(a.q_start[seq] + b * CLIME_PAGE) * a.HK + head) * a.Dh;
}

/* 2^x, one instruction: relative error 2^-22, 0 below 2^-126. */
static __device__ __forceinline__ float attn_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

/* A running softmax uses a reference m instead of the exact maximum: it grows only to a score that exceeds it by more
 * than ATTN_SLACK (powers of 2), so the output is seldom rescaled. Weights are then below 2^ATTN_SLACK. */
#define ATTN_LOWEST -FLT_MAX /* m without keys; not -inf, since m - m would be NaN */
#define ATTN_SLACK 8.0f

static __device__ __forceinline__ float attn_reference(float m, float z) {
    return z > m + ATTN_SLACK ? z : m;
}

/* Merges two partial softmaxes; l: their sums of weights. */
struct attn_weights {
    float m, l, keep, add; /* the merged reference and sum; factors of the old and the new output */
};

static __device__ __forceinline__ attn_weights attn_merge(float m, float l, float m_new, float l_new) {
    attn_weights w;
    w.m = attn_reference(m, m_new);
    w.keep = attn_exp2(m - w.m);
    w.add = attn_exp2(m_new - w.m);
    w.l = __fmaf_rn(l_new, w.add, l * w.keep);
    return w;
}

static __device__ __forceinline__ float attn_merge_value(const attn_weights &w, float o, float o_new) {
    return __fmaf_rn(o_new, w.add, o * w.keep);
}

/* o times 1 / l. + 0: a zero is +0, whether its chain began with 0 + or not. */
static __device__ __forceinline__ float attn_value(float o, float scale) {
    return o * scale + 0.0f;
}
static __device__ __forceinline__ float attn_lse(float m, float l) {
    return (m + log2f(l)) * LN2;
}

/* A sequence of n positions has n * heads rows; tiles of `rows` of them are numbered over all sequences. Finds the
 * tile-th: its sequence, and the tile's number in it. One warp; every lane gets it. */
static __device__ __forceinline__ void attn_find_tile(const attn_args &a, int tile, int rows, int heads, int *seq,
                                                      int *tile_in_seq) {
    int lane = threadIdx.x & 31, before = 0;
    for (int base = 0;; base += 32) {
        int s = base + lane, n = 0;
        if (s < a.n_seq) n = ((a.q_start[s + 1] - a.q_start[s]) * heads + rows - 1) / rows;
        int upto = n;
#pragma unroll
        for (int k = 1; k < 32; k *= 2) {
            int other = __shfl_up_sync(0xffffffffu, upto, k);
            if (lane >= k) upto += other;
        }
        unsigned over = __ballot_sync(0xffffffffu, before + upto > tile);
        if (over) {
            int found = __ffs(over) - 1;
            *seq = base + found;
            *tile_in_seq = tile - before - __shfl_sync(0xffffffffu, upto - n, found);
            return;
        }
        before += __shfl_sync(0xffffffffu, upto, 31);
    }
}

static inline int attn_n_tiles(const struct clime_attn *a, int rows, int heads) {
    int n = 0;
    if (!a->h_q_start) return a->n_seq * ((heads + rows - 1) / rows); /* one row per sequence */
    for (int s = 0; s < a->n_seq; s++) n += ((a->h_q_start[s + 1] - a->h_q_start[s]) * heads + rows - 1) / rows;
    return n;
}

/* wide.cu: decode of few sequences inside a recording, so that all blocks run at the same time; T rows, from row
 * `first` of the batch on. */
void clime_cuda_attn_wide_open(struct clime_dev *d);
void clime_cuda_attn_wide(struct clime_dev *d, const attn_args &a, int first, int T, int n_splits);

/* forward_wgmma.cu: prefill and training, head sizes 64 and 128 */
void clime_cuda_attn_tiles_open(struct clime_dev *d);
void clime_cuda_attn_tiles(struct clime_dev *d, const attn_args &a, const struct clime_attn *batch, int T);

/* latent/: false for unsupported shapes */
bool clime_cuda_latent_attn(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                            const attn_args &args);
bool clime_cuda_latent_attn_bwd(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                                const attn_args &args, const void *dout, void *dq, void *dk);

/* plain.cu: any head size up to 2048 */
void clime_cuda_attn_plain(struct clime_dev *d, const attn_args &a, int T);
void clime_cuda_attn_bwd_plain(struct clime_dev *d, const attn_args &a, int T, bool common_keys, const bf16 *dout,
                               bf16 *dq, bf16 *dk, bf16 *dv);

#endif
