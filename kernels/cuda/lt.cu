/* cuBLASLt: the library, and one checked algorithm per (kind, bucket of rows, N, K). Called by gemm.cu.
 *
 * The library is opened at run time, so that a program built with CUDA starts where there is none. Its heuristic is
 * asked for split-free algorithms; the first whose bits on random data equal the plain kernel's chain is kept. The
 * check runs once per shape, at its first use, on a slice of the output: what an algorithm does along the reduction
 * does not depend on how many tiles of the output there are. Nothing is ever timed, so every run makes the same choice.
 */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_int.cuh"

extern "C" {
#include "common/log.h"
}

enum { MAX_SHAPES = 512, CANDIDATES = 16, WORKSPACE = 32 << 20 };
enum { CHECK_ROWS = 512, CHECK_COLUMNS = 2560, CHECK_BYTES = 256 << 20 }; /* of the slice that a check computes */

/* It never settles on a list of macros. */
/* clang-format off */
#define LT_FUNCTIONS(X)                                                                                                \
    X(Create) X(Destroy) X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute) X(MatrixLayoutCreate)      \
    X(MatrixLayoutDestroy) X(MatrixLayoutSetAttribute) X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy)            \
    X(MatmulPreferenceSetAttribute) X(MatmulAlgoGetHeuristic) X(Matmul)
/* clang-format on */

struct shape {
    int kind, rows, N, K; /* rows: T rounded up to a power of two */
    bool usable;
    cublasLtMatmulAlgo_t algo;
};

struct clime_lt {
    void *library;
#define X(name) decltype(&cublasLt##name) name;
    LT_FUNCTIONS(X)
#undef X
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, y;
    void *workspace;
    struct shape shapes[MAX_SHAPES];
    int n_shapes;
};

/* ---- the library ---- */

static bool lt_ok(struct clime_dev *d, cublasStatus_t rc, const char *what) {
    if (rc == CUBLAS_STATUS_SUCCESS) return true;
    if (d->failure.code == CLIME_OK) clime_fail(&d->failure, CLIME_ERR_DEVICE, "cuBLASLt failed in %s: %d", what, rc);
    return false;
}
#define LT(d, call) lt_ok((d), (d)->lt->call, #call)

void clime_lt_open(struct clime_dev *d) {
    void *library = clime_cuda_library("libcublasLt.so.13", "cu13");
    if (!library) {
        LOG_WARN(
            "cuda: libcublasLt.so.13 is not found; all matrix products run on clime's plain kernel, which is slow. "
            "Install the CUDA 13 toolkit or name its folder in LD_LIBRARY_PATH");
        return;
    }
    struct clime_lt *lt = (struct clime_lt *)xcalloc(1, sizeof *lt);
    d->lt = lt;
    lt->library = library;
    bool all = true;
#define X(name) all &= (lt->name = (decltype(lt->name))dlsym(library, "cublasLt" #name)) != NULL;
    LT_FUNCTIONS(X)
#undef X
    if (!all) {
        LOG_WARN("cuda: the cuBLASLt found lacks functions; it is not used");
        dlclose(library);
        free(lt);
        d->lt = NULL;
        return;
    }
    LT(d, Create(&lt->handle));
    LT(d, MatmulDescCreate(&lt->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(d, MatrixLayoutCreate(&lt->a, CUDA_R_16BF, 8, 8, 8));
    LT(d, MatrixLayoutCreate(&lt->b, CUDA_R_16BF, 8, 8, 8));
    LT(d, MatrixLayoutCreate(&lt->y, CUDA_R_16BF, 8, 8, 8));
    CU(d, cudaMalloc(&lt->workspace, WORKSPACE));
}

void clime_lt_close(struct clime_dev *d) {
    struct clime_lt *lt = d->lt;
    if (!lt) return;
    cudaFree(lt->workspace);
    if (lt->y) lt->MatrixLayoutDestroy(lt->y);
    if (lt->b) lt->MatrixLayoutDestroy(lt->b);
    if (lt->a) lt->MatrixLayoutDestroy(lt->a);
    if (lt->desc) lt->MatmulDescDestroy(lt->desc);
    if (lt->handle) lt->Destroy(lt->handle);
    dlclose(lt->library);
    free(lt);
    d->lt = NULL;
}

/* ---- one product ---- */

static void set_layout(struct clime_lt *lt, cublasLtMatrixLayout_t l, cudaDataType_t type, int rows, int columns) {
    uint32_t t = type;
    uint64_t r = (uint64_t)rows, c = (uint64_t)columns;
    int64_t ld = rows;
    lt->MatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_TYPE, &t, sizeof t);
    lt->MatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ROWS, &r, sizeof r);
    lt->MatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_COLS, &c, sizeof c);
    lt->MatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
}

/* cuBLASLt is column-major: it computes the transpose of each of our row-major products, operands exchanged. */
static void describe(struct clime_lt *lt, enum clime_lt_kind kind, int T, int N, int K) {
    bool forward = kind == CLIME_LT_FORWARD || kind == CLIME_LT_FORWARD_F32;
    cublasOperation_t op_a = forward ? CUBLAS_OP_T : CUBLAS_OP_N,
                      op_b = kind == CLIME_LT_DW ? CUBLAS_OP_T : CUBLAS_OP_N;
    lt->MatmulDescSetAttribute(lt->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    lt->MatmulDescSetAttribute(lt->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    if (kind == CLIME_LT_DW) { /* dw^T[K,N] = x^T[K,T] dy[T,N] */
        set_layout(lt, lt->a, CUDA_R_16BF, K, T);
        set_layout(lt, lt->b, CUDA_R_16BF, N, T);
        set_layout(lt, lt->y, CUDA_R_32F, K, N);
    } else { /* y^T[N,T] = w[N,K] x^T[K,T]; dx^T[K,T] = w^T[K,N] dy^T[N,T] */
        set_layout(lt, lt->a, CUDA_R_16BF, K, N);
        set_layout(lt, lt->b, CUDA_R_16BF, forward ? K : N, T);
        set_layout(lt, lt->y, kind == CLIME_LT_FORWARD_F32 ? CUDA_R_32F : CUDA_R_16BF, forward ? N : K, T);
    }
}

/* The layouts must describe the product. */
static cublasStatus_t multiply(struct clime_dev *d, const cublasLtMatmulAlgo_t *algo, enum clime_lt_kind kind,
                               const void *a, const void *b, void *y) {
    struct clime_lt *lt = d->lt;
    float one = 1, beta = kind == CLIME_LT_DW ? 1 : 0;
    return lt->Matmul(lt->handle, lt->desc, &one, b, lt->a, a, lt->b, &beta, y, lt->y, y, lt->y, algo, lt->workspace,
                      WORKSPACE, d->stream);
}

/* ---- the choice ---- */

/* Values of both signs over a few binades, so that the order of a sum shows in its bits. */
__global__ void noise_kernel(size_t n, uint32_t seed, bf16 *x) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t h = (uint32_t)i * 0x9E3779B1u + seed;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    h ^= h >> 16;
    x[i] = b_of(((int32_t)h >> 8) * 0x1p-23f * (float)(1 << (h & 3)));
}

__global__ void differ_kernel(size_t n, const uint16_t *a, const uint16_t *b, int *out) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && a[i] != b[i]) *out = 1;
}

static void noise(struct clime_dev *d, size_t n, uint32_t seed, void *x) {
    launch_after(d, noise_kernel, (unsigned)((n + 255) / 256), 256, 0, n, seed, (bf16 *)x);
}

/* A slice of a shape with the whole reduction, its inputs, and what the plain kernel makes of them. */
struct trial {
    int T, N, K; /* the slice */
    size_t n_a, n_b, y_bytes;
    char *memory, *a, *b, *want, *got;
    int *differs;
};

/* How many of n columns are checked, with this length of the reduction. */
static int slice(int n, int reduction) {
    int most = CHECK_BYTES / 2 / reduction / 8 * 8;
    if (most > CHECK_COLUMNS) most = CHECK_COLUMNS;
    return n < most ? n : most;
}

static bool trial_open(struct clime_dev *d, enum clime_lt_kind kind, int T, int N, int K, struct trial *t) {
    *t = trial{T, N, K};
    if (kind != CLIME_LT_DW) t->T = T < CHECK_ROWS ? T : CHECK_ROWS;
    if (kind != CLIME_LT_DX) t->N = slice(N, kind == CLIME_LT_DW ? T : K);
    if (kind == CLIME_LT_DX || kind == CLIME_LT_DW) t->K = slice(K, kind == CLIME_LT_DW ? T : N);
    bool forward = kind == CLIME_LT_FORWARD || kind == CLIME_LT_FORWARD_F32;
    t->n_a = (size_t)t->T * (forward ? t->K : t->N);
    t->n_b = kind == CLIME_LT_DW ? (size_t)t->T * t->K : (size_t)t->N * t->K;
    size_t n_y = kind == CLIME_LT_DW ? (size_t)t->N * t->K : (size_t)t->T * (forward ? t->N : t->K);
    t->y_bytes = n_y * (kind == CLIME_LT_FORWARD || kind == CLIME_LT_DX ? 2 : 4);
    size_t a = (t->n_a * 2 + 255) & ~(size_t)255, b = (t->n_b * 2 + 255) & ~(size_t)255,
           y = (t->y_bytes + 255) & ~(size_t)255;
    if (!CU(d, cudaMalloc((void **)&t->memory, a + b + 2 * y + 256))) return false;
    t->a = t->memory;
    t->b = t->a + a;
    t->want = t->b + b;
    t->got = t->want + y;
    t->differs = (int *)(t->got + y);
    noise(d, t->n_a, 1, t->a);
    noise(d, t->n_b, 2, t->b);
    CU(d, cudaMemsetAsync(t->want, 0x3f, t->y_bytes, d->stream)); /* 0.747: what dW adds to */
    struct clime_product p = clime_product_of(kind, t->T, t->N, t->K, t->a, t->b, t->want);
    clime_cuda_product_plain(d, &p);
    return d->failure.code == CLIME_OK;
}

static bool trial_passes(struct clime_dev *d, enum clime_lt_kind kind, struct trial *t,
                         const cublasLtMatmulAlgo_t *algo) {
    int differs = 0;
    CU(d, cudaMemsetAsync(t->differs, 0, sizeof(int), d->stream));
    CU(d, cudaMemsetAsync(t->got, 0x3f, t->y_bytes, d->stream));
    describe(d->lt, kind, t->T, t->N, t->K);
    if (multiply(d, algo, kind, t->a, t->b, t->got) != CUBLAS_STATUS_SUCCESS) return false;
    launch_after(d, differ_kernel, (unsigned)((t->y_bytes / 2 + 255) / 256), 256, 0, t->y_bytes / 2,
                 (const uint16_t *)t->want, (const uint16_t *)t->got, t->differs);
    CU(d, cudaMemcpyAsync(&differs, t->differs, sizeof(int), cudaMemcpyDeviceToHost, d->stream));
    CU(d, cudaStreamSynchronize(d->stream));
    return !differs && d->failure.code == CLIME_OK;
}

static int candidates(struct clime_dev *d, enum clime_lt_kind kind, int T, int N, int K,
                      cublasLtMatmulHeuristicResult_t out[CANDIDATES]) {
    struct clime_lt *lt = d->lt;
    cublasLtMatmulPreference_t pref = NULL;
    uint64_t workspace = WORKSPACE;
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE, align = 16;
    int n = 0;
    if (!LT(d, MatmulPreferenceCreate(&pref))) return 0;
    lt->MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    if (d->deterministic)
        lt->MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
    lt->MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align);
    lt->MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align);
    lt->MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align);
    lt->MatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align);
    describe(lt, kind, T, N, K);
    if (lt->MatmulAlgoGetHeuristic(lt->handle, lt->desc, lt->a, lt->b, lt->y, lt->y, pref, CANDIDATES, out, &n) !=
        CUBLAS_STATUS_SUCCESS)
        n = 0; /* no algorithm for the shape */
    lt->MatmulPreferenceDestroy(pref);
    return n;
}

static void choose(struct clime_dev *d, struct shape *s) {
    static const char *const KIND[] = {"forward", "forward fp32", "dX", "dW"};
    enum clime_lt_kind kind = (enum clime_lt_kind)s->kind;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = candidates(d, kind, s->rows, s->N, s->K, found), i = 0;
    if (n > 0 && d->deterministic) {
        struct trial t;
        if (trial_open(d, kind, s->rows, s->N, s->K, &t))
            while (i < n && !trial_passes(d, kind, &t, &found[i].algo)) i++;
        else
            i = n;
        cudaFree(t.memory);
    }
    s->usable = i < n;
    if (s->usable) s->algo = found[i].algo;
    if (!s->usable)
        LOG_WARN(
            "cuda: %s, %d rows, N %d, K %d: none of %d library algorithms has the canonical bits; the plain kernel, "
            "which is slow, computes it",
            KIND[s->kind], s->rows, s->N, s->K, n);
    else
        LOG_DEBUG("cuda: %s, %d rows, N %d, K %d: library algorithm %d of %d", KIND[s->kind], s->rows, s->N, s->K,
                  i + 1, n);
}

bool clime_lt_matmul(struct clime_dev *d, enum clime_lt_kind kind, int T, int N, int K, const void *a, const void *b,
                     void *y) {
    struct clime_lt *lt = d->lt;
    if (!lt || d->failure.code != CLIME_OK) return false;
    bool deep = kind == CLIME_LT_FORWARD && K > 2 * N && d->deterministic;
    int rows = deep ? 256 : 16; /* deep and narrow: below 256 the heuristic's split-free choice errs, 10 x */
    while (rows < T) rows *= 2;
    struct shape *s = lt->shapes, *end = s + lt->n_shapes;
    while (s < end && !(s->kind == kind && s->rows == rows && s->N == N && s->K == K)) s++;
    if (s == end) {
        if (lt->n_shapes == MAX_SHAPES) return false;
        lt->n_shapes++;
        *s = shape{kind, rows, N, K};
        choose(d, s);
    }
    if (!s->usable) return false;
    clime_cuda_flush(d);
    describe(lt, kind, T, N, K);
    cublasStatus_t rc = multiply(d, &s->algo, kind, a, b, y);
    if (rc == CUBLAS_STATUS_NOT_SUPPORTED || rc == CUBLAS_STATUS_INVALID_VALUE) return false; /* nothing was queued */
    lt_ok(d, rc, "Matmul");
    return true;
}
