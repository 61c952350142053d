/* What the kernels of latent attention share: the shape that they are for, a tile of 64 rows or keys in shared memory,
 * and who works on it. Included by kernels/cuda/latent only.
 *
 * Of a position one row of 576 is kept, the key of all heads, whose first 512 are their value (kernels.h). So the rows
 * of a tile are neighbours in memory, position major, heads minor, and a decoding sequence's heads are rows of one
 * tile. A tile is nine panels of 64 columns (wgmma.cuh). Of three warpgroups the first brings tiles, the others
 * multiply. Other shapes go to attention/plain.cu. */
#ifndef CLIME_KERNELS_CUDA_LATENT_LATENT_CUH
#define CLIME_KERNELS_CUDA_LATENT_LATENT_CUH

#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    LATENT_WIDTH = 576,
    LATENT_VALUE = 512,
    LATENT_ROWS = 64,
    PANEL = LATENT_ROWS * 128, /* bytes */
    PANELS = LATENT_WIDTH / 64,
    VALUE_PANELS = LATENT_VALUE / 64,
    CONSUMERS = 256,
    THREADS = 128 + CONSUMERS,
    REGISTERS = 232, /* of those that multiply; the others have 40 */
    /* Keys of a split. Longer ones leave a decode of few sequences to few multiprocessors; of shorter ones a tile of
     * the training forward would merge its 64 x 512 sums, which registers hold once and not twice, more often. */
    LATENT_SPLIT = 512,
    LATENT_SPLIT_BLOCKS = LATENT_SPLIT / CLIME_PAGE,
};

static inline bool latent_shape(const struct clime_heads *h) {
    return h->HK == 1 && h->Dh == LATENT_WIDTH && h->Dv == LATENT_VALUE;
}

enum { LATENT_FEW_ROWS = 16 }; /* of (position, head), of a sequence that few.cu takes */
enum { LATENT_BLOCKS = 160 };  /* of threads, at most, of a forward */
static inline int latent_blocks(const struct clime_dev *d) {
    return d->n_sm < LATENT_BLOCKS ? d->n_sm : LATENT_BLOCKS;
}

static inline bool latent_aligned(const void *a, const void *b, const void *c, const void *d) {
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 == 0;
}

/* The panels of 64 rows from `row` on, by one thread. */
static __device__ __forceinline__ void fetch_panels(char (*to)[PANEL], int n, const CUtensorMap *map, int row,
                                                    uint64_t *full) {
    barrier_expect(full, n * PANEL);
#pragma unroll 1
    for (int p = 0; p < n; p++) tensor_copy(to[p], map, p * 64, row, full);
}

/* Of a thread that multiplies, among its kind; its warpgroup. */
static __device__ __forceinline__ int consumer() {
    return threadIdx.x - 128;
}
static __device__ __forceinline__ int consumer_group() {
    return uniform(threadIdx.x / 128 - 1);
}

/* Rows from n on become zeros: they are another sequence's or nobody's, and 0 x NaN is NaN. Of `threads`, each. */
static __device__ __forceinline__ void zero_rows(char (*tile)[PANEL], int panels, int n, int thread = consumer(),
                                                 int threads = CONSUMERS) {
    for (int e = thread + n * 8; e < LATENT_ROWS * 8; e += threads)
        for (int p = 0; p < panels; p++) *(uint4 *)(tile[p] + e * 16) = make_uint4(0, 0, 0, 0);
}

/* 16 columns of a warp's 16 rows, as an A fragment, into a panel. chunk: the first 8 of the columns, of the panel's. */
static __device__ __forceinline__ void store_fragment(char *panel, const uint32_t (&f)[4], int chunk) {
    int lane = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    stmatrix_x4(panel + swizzled(row, chunk + lane / 16), f);
}

static __device__ __forceinline__ void fragment_of(uint32_t (&f)[4], const float (&c)[4], const float (&next)[4]) {
    f[0] = pack2(c[0], c[1]);
    f[1] = pack2(c[2], c[3]);
    f[2] = pack2(next[0], next[1]);
    f[3] = pack2(next[2], next[3]);
}

/* The splits of a row, joined in order: four columns of the output. They come past the L1: other blocks of threads may
 * have written them. */
static __device__ __forceinline__ void latent_merge_row(const attn_args &a, const attn_span &rows, int in_span,
                                                        int column, int n_splits, const float *o, const float2 *ml) {
    size_t row = attn_row(a, rows, in_span), at = row * n_splits;
    int pos = rows.pos0 + in_span / rows.group;
    float2 state = __ldcg(&ml[at]);
    float m = state.x, l = state.y;
    float4 sum = __ldcg((const float4 *)(o + at * LATENT_VALUE + column));
#pragma unroll 4
    for (int s = 1; s * LATENT_SPLIT <= pos; s++) {
        float4 v = __ldcg((const float4 *)(o + (at + s) * LATENT_VALUE + column));
        float2 next = __ldcg(&ml[at + s]);
        attn_weights w = attn_merge(m, l, next.x, next.y);
        sum.x = attn_merge_value(w, sum.x, v.x);
        sum.y = attn_merge_value(w, sum.y, v.y);
        sum.z = attn_merge_value(w, sum.z, v.z);
        sum.w = attn_merge_value(w, sum.w, v.w);
        m = w.m;
        l = w.l;
    }
    float scale = 1.0f / l;
    *(uint2 *)(a.out + row * LATENT_VALUE + column) =
        make_uint2(pack2(attn_value(sum.x, scale), attn_value(sum.y, scale)),
                   pack2(attn_value(sum.z, scale), attn_value(sum.w, scale)));
    if (a.lse && column == 0) a.lse[row] = attn_lse(m, l);
}

/* attention.cu, backward.cu; forward.cu, few.cu, keys.cu, queries.cu */
void clime_cuda_latent_forward_open(struct clime_dev *d);
void clime_cuda_latent_few_open(struct clime_dev *d);
void clime_cuda_latent_keys_open(struct clime_dev *d);
void clime_cuda_latent_queries_open(struct clime_dev *d);

/* Splits side by side, o[T, H, n_splits, 512] and ml[T, H, n_splits] theirs, where n_splits > 0; else one after the
 * other, state room for as many sums as there are blocks of threads. Queues the kernel over all tiles. */
struct latent_splits {
    int n_splits;
    float *o;
    float2 *ml;
    float4 *state;
};
void clime_cuda_latent_forward(struct clime_dev *d, const attn_args &a, int T, const latent_splits &splits);
/* Splits side by side, and their sum; state is not read. rows: of the sequence that has most. False: not for few.cu. */
bool clime_cuda_latent_few(struct clime_dev *d, const attn_args &a, int T, int rows, const latent_splits &splits);

/* What the two passes of the backward read and write. Rows are those of q: [T, H]. */
struct latent_bwd {
    const float *lse2,
        *delta;     /* [T * H]: log-sum-exp in base 2, the sum of dout * out; one tile longer than the rows */
    float *partial; /* [LATENT_PARTS, T, 576] */
    bf16 *dq;
    int T;
};
enum { LATENT_PARTS = 4 }; /* that the rows of a tile of keys are dealt to, so that there is work for all */
void clime_cuda_latent_keys(struct clime_dev *d, const attn_args &a, const bf16 *dout, const latent_bwd &g,
                            int n_tiles);
void clime_cuda_latent_queries(struct clime_dev *d, const attn_args &a, const bf16 *dout, const latent_bwd &g,
                               int n_tiles);

#endif
