/* Shared by the CUDA files: the context, error capture, launch and conversion helpers. Included by kernels/cuda only.
 *
 * One stream per context; every launch goes to it, so order is program order and ops->sync is one stream sync. The
 * first CUDA or cuBLASLt failure is kept in the context and reported by sync; the context is then dead and launches are
 * skipped, because a CUDA error is sticky. */
#ifndef CLIME_KERNELS_CUDA_CUDA_INT_CUH
#define CLIME_KERNELS_CUDA_CUDA_INT_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "common/err.h"
#include "kernels/kernels.h"
}

typedef __nv_bfloat16 bf16;

struct clime_lt; /* cuBLASLt: handle, cached algorithms (lt.cu) */
struct clime_cuda_links;
struct clime_word_room;
struct clime_row_program; /* single-row products waiting to be launched together (row/program.cu) */

struct clime_dev {
    struct clime_dev_head head; /* must be first */
    cudaStream_t stream;
    cudaEvent_t copied[2]; /* the marks of copy_out_start */
    struct clime_lt *lt;
    struct clime_row_program *rows;
    struct clime_rope_args *rope; /* deferred while recording (rope.cu) */
    bool flushing;                /* deferred operations are being launched */
    int gpu, n_sm;
    bool deterministic;
    struct clime_error failure; /* the first device failure, code CLIME_OK = none */
    void *scratch;              /* grows; partial sums and splits of one operation */
    size_t scratch_bytes;
    void *outgrown[64]; /* old scratch whose address a graph may hold: kept until close */
    int n_outgrown, n_graphs;
    bool recording;                /* between graph_begin and graph_end */
    struct clime_word_room *words; /* words.cu */
    unsigned *ended;               /* latent/few.cu: splits of each panel; 0 between launches */
    int *ticket;                   /* the next tile of attention/forward_wgmma.cu; 0 between launches */
    char *h_draw;                  /* staging of a step's parameters and masks (draw/sample.cu); grows */
    size_t h_draw_bytes;
    char *h_stage; /* pinned ring buffer for small copies to the device */
    /* Bytes written to it; bytes the stream has certainly read; and bytes written at each mark. */
    size_t staged, unstaged, staged_at[2];
    struct clime_cuda_fixed *fixed; /* memory at fixed addresses (fixed.cu) */
    unsigned n_launched;            /* kernels launched that may overlap the previous one */
    const int32_t *gated_start;     /* of the last gated product of experts (grouped.cu), and n_launched since then */
    unsigned gated_at;
    struct clime_cuda_links *links; /* open links, notified of this context's waits (links/links.cu) */
    enum clime_links_way links_way;
};

/* Records the first failure; returns whether there has been none. */
bool clime_cuda_ok(struct clime_dev *d, cudaError_t rc, const char *what);
#define CU(d, call) clime_cuda_ok((d), (call), #call)

/* Waits until the stream is idle; false after a failure. The only way to wait for it: while links are open, what it
 * waits for may never arrive (links/links.cu). */
bool clime_cuda_wait(struct clime_dev *d);
bool clime_cuda_links_wait(struct clime_cuda_links *l, cudaEvent_t event);

/* At least `bytes` of device scratch, valid until the next operation requests some; NULL after a failure. */
void *clime_cuda_scratch(struct clime_dev *d, size_t bytes);

/* Largest scratch of clime_cuda_attn for a server's step; of draw/ for sampling R tokens in sequences of up to max_len
 * sampled tokens, and for listing R rows. */
size_t clime_cuda_attn_scratch(const struct clime_heads *h, int n_seq, int max_len);
size_t clime_cuda_draw_scratch(int R, int V, int max_len);
size_t clime_cuda_keep_scratch(int R, int V);
size_t clime_cuda_list_scratch(int R);

/* latent/: scratch of latent attention, forward and backward; 0 for shapes it does not support. */
size_t clime_cuda_latent_scratch(const struct clime_heads *h, int n_seq, int max_len);
size_t clime_cuda_latent_bwd_scratch(const struct clime_heads *h, int T);

/* Most chunks of the rows of a sum. */
enum { MOST_CHUNKS = 1024 };

/* norm.cu: out[N] += the first n rows of partial[n + n_more][N], more[N] += the others (NULL: not wanted), in a fixed
 * order. */
void clime_cuda_add_chunks(struct clime_dev *d, int N, const float *partial, int n, float *out, int n_more,
                           float *more);

/* share.cu: the UUID as the driver's tools write it. */
void clime_cuda_unit(const cudaDeviceProp *prop, char out[64]);
/* Start of the allocation that contains p: what its handle maps. */
enum clime_err clime_cuda_share_base(struct clime_dev *d, void *p, char **base, struct clime_error *e);

/* fixed.cu: frees p if it is memory at a fixed address; false: it is not. */
bool clime_cuda_free_fixed(struct clime_dev *d, void *p);
/* Copies to pinned memory that kernels of this context can read; valid until the next sync, or until a copy_wait
 * confirms that work queued after it has run. */
const void *clime_cuda_stage(struct clime_dev *d, const void *h_src, size_t bytes);

/* ---- matrix products: gemm.cu selects one of the others ---- */

enum clime_lt_kind { CLIME_LT_FORWARD, CLIME_LT_FORWARD_F32, CLIME_LT_DX, CLIME_LT_DW };
enum clime_out { CLIME_OUT_BF16, CLIME_OUT_F32, CLIME_OUT_F32_ADD };

/* An operand of a product: element (i, k) at at[i * stride i + k * stride k]. */
struct clime_strided {
    const bf16 *at;
    int64_t i, k;
};

/* y[M,N] = or += sum over k < K of a(i,k) b(j,k). */
struct clime_product {
    int M, N, K;
    struct clime_strided a, b;
    void *y;
    enum clime_out out;
    int64_t ld; /* of y, elements from row to row */
};

/* a, b, y as in the table: forward x, w, y; dX dy, w, dx; dW dy, x, dw. */
static inline __host__ __device__ struct clime_product clime_product_of(enum clime_lt_kind kind, int T, int N, int K,
                                                                        const void *a, const void *b, void *y) {
    const bf16 *pa = (const bf16 *)a, *pb = (const bf16 *)b;
    switch (kind) {
    case CLIME_LT_DX:
        return {T, K, N, {pa, N, 1}, {pb, 1, K}, y, CLIME_OUT_BF16, K};
    case CLIME_LT_DW:
        return {N, K, T, {pa, 1, N}, {pb, 1, K}, y, CLIME_OUT_F32_ADD, K};
    default:
        return {T, N, K, {pa, K, 1}, {pb, K, 1}, y, kind == CLIME_LT_FORWARD ? CLIME_OUT_BF16 : CLIME_OUT_F32, N};
    }
}

void clime_cuda_product_plain(struct clime_dev *d, const struct clime_product *p);

/* Products of experts: each has rows start[e] .. start[e+1]-1 of R, and its own [N,K], contiguous with the others'.
 * kind is not CLIME_LT_FORWARD_F32. a, b, y as in clime_product_of; b of dW is x. */
struct clime_grouped {
    enum clime_lt_kind kind;
    int R, E, N, K;
    const int32_t *start; /* device memory */
    const bf16 *a, *b;
    void *y;
    bool add;   /* dW: to the old value; else an expert without rows gets zeros */
    bool early; /* start is ready before the previous kernel ends */
    struct {    /* not dW: as in struct clime_matrix */
        const bf16 *b;
        int from, to;
    } kept;
};

static inline __device__ struct clime_product clime_product_of_expert(const struct clime_grouped *g, int e) {
    size_t row = (size_t)g->start[e], rows = (size_t)g->start[e + 1] - row, all = (size_t)e * g->N * g->K;
    const bf16 *b = g->b + (g->kind == CLIME_LT_DW ? row * g->K : all);
    if (e >= g->kept.from && e < g->kept.to) b = g->kept.b + (size_t)(e - g->kept.from) * g->N * g->K;
    const bf16 *a = g->a + row * (g->kind == CLIME_LT_FORWARD ? g->K : g->N);
    void *y = g->kind == CLIME_LT_DW ? (void *)((float *)g->y + all)
                                     : (void *)((bf16 *)g->y + row * (g->kind == CLIME_LT_DX ? g->K : g->N));
    struct clime_product p = clime_product_of(g->kind, (int)rows, g->N, g->K, a, b, y);
    if (g->kind == CLIME_LT_DW && !g->add) p.out = CLIME_OUT_F32;
    return p;
}

/* embed.cu, norm.cu: gather and swiglu over the places of E experts. In a recording they leave room on a multiprocessor
 * for the next product, which gather lets start once `start` is ready. */
enum { CLIME_BESIDE = 2 }; /* blocks per multiprocessor */
void clime_cuda_gather_places(struct clime_dev *d, int R, int D, const int32_t *start, int E, const int32_t *rows,
                              const void *x, void *y);
void clime_cuda_swiglu_places(struct clime_dev *d, int R, int F, const int32_t *start, int E, const void *gu, void *h);

void clime_cuda_grouped_plain(struct clime_dev *d, const struct clime_grouped *g);
/* grouped_tiles.cu, grouped_rows.cu: false for unsupported shapes. */
bool clime_cuda_grouped_tiles(struct clime_dev *d, const struct clime_grouped *g);
bool clime_cuda_grouped_rows(struct clime_dev *d, const struct clime_grouped *g);
/* a has the rows that `from` names, in any order; g->y is gate|up; also writes h. */
bool clime_cuda_grouped_rows_swiglu(struct clime_dev *d, const struct clime_grouped *g, const int32_t *from, void *h);
/* False for unsupported shapes. 16-byte aligned operands. */
bool clime_cuda_gemm_small(struct clime_dev *d, int T, int N, int K, const void *x, const void *w, void *y, bool f32);
/* w [2F,K]: gate, then up; also writes h [T,F]. */
bool clime_cuda_gemm_small_swiglu(struct clime_dev *d, int T, int F, int K, const void *x, const void *w, void *gu,
                                  void *h);

/* row/program.cu: single-row products, deferred while recording. y = x w^T; with h, w is gate and up. False for
 * unsupported shapes. 16-byte aligned operands. */
bool clime_cuda_row_product(struct clime_dev *d, int N, int K, const void *x, const void *w, void *y, void *h,
                            bool f32);
/* add_rmsnorm of one row (rmsnorm: delta and sum NULL), if its input is deferred; false: not accepted. */
bool clime_cuda_row_norm(struct clime_dev *d, int D, float eps, const void *x, const void *delta, const void *scale,
                         void *sum, void *y);
/* For one row, while recording: the router's choice, if the product of its logits is deferred, and the sort of its
 * experts; the sum of its experts, which add_rmsnorm reads next. False: not accepted. */
bool clime_cuda_row_route(struct clime_dev *d, const struct clime_router *r, const float *logits, const float *bias,
                          float *scores, int32_t *ids, float *weights, uint32_t *fold);
bool clime_cuda_row_permute(struct clime_dev *d, const int32_t *ids, int32_t *start, int32_t *from, int32_t *at);
bool clime_cuda_row_combine(struct clime_dev *d, int D, int k, const int32_t *at, const float *weights, const void *x,
                            const void *last, const float *last_weight, void *y);
/* Launches deferred products; called by clime_cuda_flush. */
void clime_cuda_row_end(struct clime_dev *d);
void clime_cuda_row_close(struct clime_dev *d);

/* rope.cu: launches a deferred rotation. */
void clime_cuda_rope_end(struct clime_dev *d);
bool clime_cuda_rope_waits(const struct clime_dev *d);
void clime_cuda_rope_open(struct clime_dev *d);
void clime_cuda_rope_close(struct clime_dev *d);

/* graph.cu: launches what operations deferred while recording to fuse it with the next; called before anything is
 * queued, and at the recording's end. */
void clime_cuda_flush(struct clime_dev *d);

/* Kernel attributes set once, at open: shared memory above 48 KB. */
void clime_cuda_gemm_small_open(struct clime_dev *d);
void clime_cuda_row_open(struct clime_dev *d);
void clime_cuda_grouped_tiles_open(struct clime_dev *d);
void clime_cuda_grouped_rows_open(struct clime_dev *d);
void clime_cuda_attn_open(struct clime_dev *d);
void clime_cuda_attn_bwd_open(struct clime_dev *d);
void clime_cuda_latent_open(struct clime_dev *d);
void clime_cuda_heads_open(struct clime_dev *d);

/* library.cu: opens an NVIDIA library (soname; the folder of its Python package under nvidia/); NULL when not found. */
void *clime_cuda_library(const char *soname, const char *package);

/* lt.cu: without the library a context still opens, and clime_lt_matmul returns false. */
void clime_lt_open(struct clime_dev *d);
void clime_lt_close(struct clime_dev *d);
/* False when cuBLASLt has no split-free algorithm with the canonical bits for this shape, or it is not aligned: use the
 * plain kernel. Logged once. */
bool clime_lt_matmul(struct clime_dev *d, enum clime_lt_kind kind, bool aligned, int T, int N, int K, const void *a,
                     const void *b, bool add, void *y);

/* ---- words (words.cuh): rows passed from kernel to kernel, or from block to block, before a kernel has ended ---- */

/* Of one launch: a number, unique among 2^31 launches, and the words' place on the device. */
struct clime_words {
    uint64_t *at;           /* NULL: no words */
    const uint32_t *before; /* device memory; NULL: no number */
    uint32_t ordinal;
};
enum clime_words_of {
    CLIME_WORDS_STEPS,  /* rows between the products of a program */
    CLIME_WORDS_LOGITS, /* a router's logits */
    CLIME_WORDS_CHOSEN, /* experts of a row's places */
    CLIME_WORDS_GATED,  /* h of experts' rows */
    CLIME_WORDS_SPLITS  /* attention's splits, before they are merged */
};
void clime_cuda_words_open(struct clime_dev *d);
void clime_cuda_words_close(struct clime_dev *d);
/* n words for the next kernel launched; none outside of a recording or without room. */
struct clime_words clime_cuda_words(struct clime_dev *d, enum clime_words_of of, size_t n);
uint64_t *clime_cuda_words_at(const struct clime_dev *d, enum clime_words_of of);
/* Declares that the next kernel launched puts `what` into these words: rows of bf16, two values per word, or, if what
 * is the `start` of a sort, the experts of its places. words_given returns them until another kernel is launched; else
 * none. */
void clime_cuda_words_give(struct clime_dev *d, const void *what, struct clime_words words);
struct clime_words clime_cuda_words_given(const struct clime_dev *d, const void *what);
/* At a recording's end: the next replay uses other numbers. */
void clime_cuda_words_recorded(struct clime_dev *d);

/* ---- launches of a decode step ----
 *
 * A step is a long chain of short kernels. Inside a recording each may start while the previous one still runs
 * (programmatic dependent launch): it calls wait_for_last() before it reads what others write, except words
 * (words.cuh), or writes what others read, and start_next() as early as it likes. Every kernel launched this way must
 * call wait_for_last, since the next one relies on all earlier ones having ended. Outside of a recording both do
 * nothing. */

static __device__ __forceinline__ void wait_for_last() {
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
}
static __device__ __forceinline__ void start_next() {
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}

/* A launch's number counts the earlier launches of the same family of kernels, in 32 bits; no two of them run at the
 * same time. Each of a launch's at most LAUNCH_BLOCKS blocks adds its part, by one thread, when it no longer needs the
 * number; the parts add up to LAUNCH. */
enum { LAUNCH_BLOCKS = 1024 };
#define LAUNCH (1ull << 32)

static __device__ __forceinline__ uint32_t launch_number(const unsigned long long *launched) {
    uint32_t high;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];\n" : "=r"(high) : "l"((const uint32_t *)launched + 1) : "memory");
    return high;
}

static __device__ __forceinline__ void count_launch(unsigned long long *launched) {
    unsigned long long part = LAUNCH / LAUNCH_BLOCKS;
    atomicAdd(launched, blockIdx.x ? part : LAUNCH - part * (gridDim.x - 1));
}

template <class... P, class... A>
static inline void launch_cluster(struct clime_dev *d, void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                                  int cluster, A... args) {
    clime_cuda_flush(d);
    cudaLaunchAttribute with[2];
    cudaLaunchConfig_t c = {grid, block, smem, d->stream, with, 0};
    if (cluster > 1) {
        with[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
        with[c.numAttrs++].val.clusterDim = {(unsigned)cluster, 1, 1};
    }
    if (d->recording) {
        with[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        with[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    CU(d, cudaLaunchKernelEx(&c, kernel, P(args)...));
    d->n_launched++;
}

template <class... P, class... A>
static inline void launch(struct clime_dev *d, void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, A... args) {
    launch_cluster(d, kernel, grid, block, smem, 1, args...);
}

/* For kernels that do not call wait_for_last: starts when all earlier ones have ended, recorded or not. The only other
 * way to launch (scripts/lint); deferred operations are always launched first. */
template <class... P, class... A>
static inline void launch_after(struct clime_dev *d, void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                                A... args) {
    clime_cuda_flush(d);
    cudaLaunchConfig_t c = {grid, block, smem, d->stream, NULL, 0};
    CU(d, cudaLaunchKernelEx(&c, kernel, P(args)...));
}

/* one table entry per line of kernels.h; the files that define them */
#define CUDA_OP extern "C"

static __device__ __forceinline__ float f_of(bf16 x) {
    return __bfloat162float(x);
}
static __device__ __forceinline__ bf16 b_of(float x) {
    return __float2bfloat16_rn(x);
}

/* This device's only SwiGLU, from gate and up as stored. */
static __device__ __forceinline__ float swiglu_of(bf16 gate, bf16 up) {
    float g = f_of(gate);
    return g / (1.0f + expf(-g)) * f_of(up);
}

/* This device's only RMSNorm of a row: adds a value to the sum of squares, 1/rms from the sum, a value. */
static __device__ __forceinline__ float norm_add(float squares, bf16 x) {
    return __fmaf_rn(f_of(x), f_of(x), squares);
}
static __device__ __forceinline__ float norm_rstd(float squares, int D, float eps) {
    return rsqrtf(squares / D + eps);
}
static __device__ __forceinline__ bf16 norm_of(bf16 x, float rstd, bf16 scale) {
    return b_of(f_of(x) * rstd * f_of(scale));
}

/* Sum over a warp by a fixed butterfly: every lane gets the same bits. */
static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

static __device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
    return v;
}

/* Sum over a block of up to 1024 threads by a fixed tree; every thread gets it. shared: 32 floats. */
static __device__ __forceinline__ float block_sum(float v, float *shared) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    return warp_sum(lane < n_warps ? shared[lane] : 0.0f);
}

static __device__ __forceinline__ float block_max(float v, float *shared) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    v = warp_max(v);
    __syncthreads();
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    return warp_max(lane < n_warps ? shared[lane] : -INFINITY);
}

/* D += A B for one 16x8x16 tile: the canonical step of a chain (docs/numerics.md). */
static __device__ __forceinline__ void mma_16816(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ uint32_t pack2(float lo, float hi) {
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&v);
}

/* V values in one access, of 16 bytes where V is 8 of bf16 or 4 floats; V is 1 where rows are no multiple of that. */
template <int V, class T = bf16> struct __align__(V * sizeof(T)) lanes {
    T x[V];
};
template <int V, class T> static __device__ __forceinline__ lanes<V, T> load(const T *p) {
    return *(const lanes<V, T> *)p;
}
template <int V, class T> static __device__ __forceinline__ void store(T *p, const lanes<V, T> &v) {
    *(lanes<V, T> *)p = v;
}

/* Unpacks to fp32, and packs with one rounding; by words of two, since a single bf16 takes a whole register. */
template <int V> static __device__ __forceinline__ void unpack(const lanes<V> &v, float (&f)[V]) {
    if constexpr (V == 1) {
        f[0] = f_of(v.x[0]);
    } else {
#pragma unroll
        for (int k = 0; k < V; k += 2) {
            uint32_t two = ((const uint32_t *)v.x)[k / 2];
            f[k] = __uint_as_float(two << 16);
            f[k + 1] = __uint_as_float(two & 0xffff0000u);
        }
    }
}
template <int V> static __device__ __forceinline__ lanes<V> pack(const float (&f)[V]) {
    lanes<V> v;
    if constexpr (V == 1) {
        v.x[0] = b_of(f[0]);
    } else {
#pragma unroll
        for (int k = 0; k < V; k += 2) ((uint32_t *)v.x)[k / 2] = pack2(f[k], f[k + 1]);
    }
    return v;
}

/* at: an address in shared memory */
static __device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], const void *smem) {
    ldmatrix_x4(r, (uint32_t)__cvta_generic_to_shared(smem));
}

static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], const void *smem) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(smem);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void load_shared(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

/* The reverse: lane i gives the address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void stmatrix_x4(void *smem, const uint32_t r[4]) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(smem);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}

static __device__ __forceinline__ void cp_async16(void *smem, const void *global, bool valid) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(smem);
    int bytes = valid ? 16 : 0; /* the rest is filled with zeros */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(at), "l"(global), "r"(bytes));
}
static __device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;\n");
}
template <int N> static __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N));
}

#endif
