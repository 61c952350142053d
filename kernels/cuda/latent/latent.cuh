/* Shared by the kernels of latent attention: their shape, a tile of 64 rows or keys in shared memory, and the roles of
 * warps. Included by kernels/cuda/latent only.
 *
 * One row of 576 per position is cached, the key of all heads, whose first 512 are their value (kernels.h). The rows of
 * a tile are contiguous in memory, position major, heads minor, and a decoding sequence's heads are rows of one tile. A
 * tile is nine panels of 64 columns (wgmma.cuh). Of three warpgroups the first loads tiles, the others multiply. Other
 * shapes use attention/plain.cu. */
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
    REGISTERS = 232, /* of the multiplying warps; the others have 40 */
    /* Keys per split. Longer splits leave a decode of few sequences on few multiprocessors; with shorter ones a tile of
     * the training forward would more often merge its 64 x 512 sums, which fit the registers once and not twice. */
    LATENT_SPLIT = 512,
    LATENT_SPLIT_BLOCKS = LATENT_SPLIT / CLIME_PAGE,
};

static inline bool latent_shape(const struct clime_heads *h) {
    return h->HK == 1 && h->Dh == LATENT_WIDTH && h->Dv == LATENT_VALUE;
}

enum { LATENT_FEW_ROWS = 16 }; /* of (position, head), of a sequence for few.cu */
enum { LATENT_BLOCKS = 160 };  /* most thread blocks of a forward */
static inline int latent_blocks(const struct clime_dev *d) {
    return d->n_sm < LATENT_BLOCKS ? d->n_sm : LATENT_BLOCKS;
}

static inline bool latent_aligned(const void *a, const void *b, const void *c, const void *d) {
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 == 0;
}

/* Loads the panels of 64 rows from `row` on, by one thread. */
static __device__ __forceinline__ void fetch_panels(char (*to)[PANEL], int n, const CUtensorMap *map, int row,
                                                    uint64_t *full) {
    barrier_expect(full, n * PANEL);
#pragma unroll 1
    for (int p = 0; p < n; p++) tensor_copy(to[p], map, p * 64, row, full);
}

/* Index of a multiplying thread; its warpgroup. */
static __device__ __forceinline__ int consumer() {
    return threadIdx.x - 128;
}
static __device__ __forceinline__ int consumer_group() {
    return uniform(threadIdx.x / 128 - 1);
}

/* Zeroes rows from n on: another sequence's or unused, and 0 x NaN is NaN. Called by each of `threads`. */
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

/* Merges the splits of a row in order: four columns of the output. Loads bypass the L1: other thread blocks may have
 * written the splits. */
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

/* Parallel splits, o[T, H, n_splits, 512] and ml[T, H, n_splits], when n_splits > 0; else sequential ones, with state
 * for the sums of each thread block. Queues the kernel over all tiles. */
struct latent_splits {
    int n_splits;
    float *o;
    float2 *ml;
    float4 *state;
};
void clime_cuda_latent_forward(struct clime_dev *d, const attn_args &a, int T, const latent_splits &splits);
/* Parallel splits, and their merge; state is not read. rows: of the sequence with the most. False: not for few.cu. */
bool clime_cuda_latent_few(struct clime_dev *d, const attn_args &a, int T, int rows, const latent_splits &splits);

/* Data of the two backward passes. Rows are those of q: [T, H]. */
struct latent_bwd {
    const float *lse2,
        *delta;     /* [T * H]: log-sum-exp in base 2, the sum of dout * out; one tile longer than the rows */
    float *partial; /* [LATENT_PARTS, T, 576] */
    bf16 *dq;
    int T;
};
enum { LATENT_PARTS = 4 }; /* parts of the rows of a tile of keys, so that all blocks have work */
void clime_cuda_latent_keys(struct clime_dev *d, const attn_args &a, const bf16 *dout, const latent_bwd &g,
                            int n_tiles);
void clime_cuda_latent_queries(struct clime_dev *d, const attn_args &a, const bf16 *dout, const latent_bwd &g,
                               int n_tiles);

#endif
