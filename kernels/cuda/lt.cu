/* cuBLASLt: the library, and one checked algorithm per (kind, bucket of rows, N, K). Called by gemm.cu.
 *
 * The library is opened at run time, so that a program built with CUDA starts without it. Its heuristic is asked for
 * split-free algorithms; the first whose bits on random data equal the plain kernel's chain is used. The check runs
 * once per shape, at its first use or before (clime_cuda_choose: a server's all run at start), with the most and the
 * fewest rows of the bucket and the real N and K, so that a schedule that depends on the number of tiles is caught. It
 * compares a million outputs, rows and columns an odd step apart, which hits every tile at varying places, of one
 * product or of several. Fewer are not enough: of an algorithm with other steps of K, a few in 100,000 outputs differ
 * after rounding to bf16. Nothing is timed, so every run makes the same choice. Sizes that are no multiple of 8 use the
 * plain kernel: the library's algorithms for them were seen to differ too rarely. The check allocates temporary device
 * memory for its operands. Without memory the plain kernel computes the shape, with a warning: slow, never other bits,
 * never an abort. It is retried after FIRST_AGAIN products of the shape, then after twice as many, and so on: the bits
 * are the same before and after. */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/links.cuh"
#include "kernels/cuda/ops.h"

extern "C" {
#include "common/log.h"
}

enum { CANDIDATES = 16, FIRST_AGAIN = 16, WORKSPACE = 32 << 20, LEAST_ROWS = 16, DEEP_ROWS = 256, ENOUGH = 48 };
enum { MANY_OUTPUTS = 16 * 176 * 128 }; /* per multiprocessor */
/* Outputs compared by a check; and the most bytes of its output: more would be hundreds of tiles per multiprocessor. */
enum { CHECK_OUTPUTS = 1 << 20, MOST_ROUNDS = 32, CHECK_BYTES = 1 << 30 };

/* It never settles on a list of macros. */
/* clang-format off */
#define LT_FUNCTIONS(X)                                                                                                \
    X(Create) X(Destroy) X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute) X(MatrixLayoutCreate)      \
    X(MatrixLayoutDestroy) X(MatrixLayoutSetAttribute) X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy)            \
    X(MatmulPreferenceSetAttribute) X(MatmulAlgoGetHeuristic) X(MatmulAlgoConfigGetAttribute) X(Matmul)
/* clang-format on */

struct shape {
    int kind, rows, N, K; /* rows: T rounded up to a power of two; 0: any number, not aligned */
    bool usable;
    int n_without, again_in; /* trials without memory for them; products until the next one, 0 = none */
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
    struct shape *shapes; /* [n_shapes] */
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
    free(lt->shapes);
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

/* cuBLASLt is column-major: it computes the transpose of each row-major product, operands swapped. */
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
static cublasStatus_t multiply(struct clime_dev *d, const cublasLtMatmulAlgo_t *algo, const void *a, const void *b,
                               bool add, void *y) {
    struct clime_lt *lt = d->lt;
    float one = 1, beta = add;
    return lt->Matmul(lt->handle, lt->desc, &one, b, lt->a, a, lt->b, &beta, y, lt->y, y, lt->y, algo, lt->workspace,
                      WORKSPACE, d->stream);
}

/* ---- the choice ---- */

/* Values of both signs over a few binades, so that the order of a sum affects its bits. */
__global__ void noise_kernel(size_t n, uint32_t seed, bf16 *x) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t h = (uint32_t)i * 0x9E3779B1u + seed;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    h ^= h >> 16;
    x[i] = b_of(((int32_t)h >> 8) * 0x1p-23f * (float)(1 << (h & 3)));
}

/* Compares elements of 2 or 4 bytes: want[i][j] with got[i * step][j * step], rows of got ld apart. */
__global__ void differ_kernel(int rows, int columns, int step, int64_t ld, int width, const char *want, const char *got,
                              int *out) {
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i = at / columns, j = at % columns;
    if (i >= rows) return;
    const char *w = want + at * width, *g = got + (i * ld + j) * step * width;
    if (width == 2 ? *(const uint16_t *)w != *(const uint16_t *)g : *(const uint32_t *)w != *(const uint32_t *)g)
        *out = 1;
}

static void noise(struct clime_dev *d, size_t n, uint32_t seed, void *x) {
    launch_after(d, noise_kernel, (unsigned)((n + 255) / 256), 256, 0, n, seed, (bf16 *)x);
}

/* The plain kernel's result for a shape's noise with T rows, at the sampled places. */
struct cut {
    int T, n_rows, n_columns, step;
    char *want;
};

struct trial {
    enum clime_lt_kind kind;
    int N, K, width;   /* N, K of the operation, N fewer where dW's output would be too large; bytes of an output */
    struct cut cut[2]; /* the bucket's most and fewest rows */
    char *memory, *a, *b, *got;
    size_t n_a, n_b; /* elements */
    int *differs;
};

static int step_of(int M, int N) {
    int s = 1;
    while ((int64_t)(M / s + 1) * (N / s + 1) > CHECK_OUTPUTS + M + N) s += 2;
    return s;
}

static struct clime_product product_of(const struct trial *t, int T, void *y) {
    return clime_product_of(t->kind, T, t->N, t->K, t->a, t->b, y);
}

static void make_want(struct clime_dev *d, struct trial *t, struct cut *c) {
    struct clime_product p = product_of(t, c->T, c->want);
    p.M = c->n_rows;
    p.ld = p.N = c->n_columns;
    p.a.i *= c->step;
    p.b.i *= c->step;
    CU(d, cudaMemsetAsync(c->want, 0x3f, (size_t)p.M * p.N * t->width, d->stream)); /* 0.747, for dW to add to */
    clime_cuda_product_plain(d, &p);
}

/* Memory of a trial: inputs, output, expected results of its two cuts. */
struct trial_parts {
    size_t a, b, y, want[2];
};

static size_t bytes_of(const struct trial_parts *p) {
    return p->a + p->b + p->y + p->want[0] + p->want[1] + 256;
}

/* least, most: rows of the bucket. */
static struct trial_parts trial_plan(enum clime_lt_kind kind, int least, int most, int N, int K, struct trial *t) {
    struct trial_parts parts;
    *t = trial{kind, N, K, kind == CLIME_LT_FORWARD || kind == CLIME_LT_DX ? 2 : 4};
    int64_t columns = kind == CLIME_LT_FORWARD || kind == CLIME_LT_FORWARD_F32 ? N : K,
            fit = CHECK_BYTES / (columns * t->width) / 8 * 8;
    if (kind == CLIME_LT_DW && fit < N) t->N = (int)fit;
    if (kind != CLIME_LT_DW && fit < most) most = (int)fit;
    if (least > most) least = most;
    struct clime_product p = product_of(t, most, NULL);
    auto round = [](size_t bytes) { return (bytes + 255) & ~(size_t)255; };
    parts.a = round((size_t)most * (kind == CLIME_LT_DX || kind == CLIME_LT_DW ? t->N : K) * 2);
    parts.b = round((size_t)(kind == CLIME_LT_DW ? most : t->N) * K * 2);
    parts.y = round((size_t)p.M * p.N * t->width);
    for (int i = 0; i < 2; i++) {
        struct cut *c = &t->cut[i];
        c->T = i == 0 ? most : least;
        p = product_of(t, c->T, NULL);
        c->step = step_of(p.M, p.N);
        c->n_rows = (p.M + c->step - 1) / c->step;
        c->n_columns = (p.N + c->step - 1) / c->step;
        parts.want[i] = round((size_t)c->n_rows * c->n_columns * t->width);
    }
    return parts;
}

/* False: no memory. */
static bool trial_open(struct clime_dev *d, enum clime_lt_kind kind, int least, int most, int N, int K,
                       struct trial *t) {
    struct trial_parts p = trial_plan(kind, least, most, N, K, t);
    if (cudaMalloc((void **)&t->memory, bytes_of(&p)) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    t->a = t->memory;
    t->b = t->a + p.a;
    t->got = t->b + p.b;
    t->cut[0].want = t->got + p.y;
    t->cut[1].want = t->cut[0].want + p.want[0];
    t->differs = (int *)(t->cut[1].want + p.want[1]);
    t->n_a = p.a / 2;
    t->n_b = p.b / 2;
    return true;
}

static bool cut_passes(struct clime_dev *d, struct trial *t, const struct cut *c, const cublasLtMatmulAlgo_t *algo) {
    struct clime_product p = product_of(t, c->T, NULL);
    int differs = 0;
    CU(d, cudaMemsetAsync(t->differs, 0, sizeof(int), d->stream));
    CU(d, cudaMemsetAsync(t->got, 0x3f, (size_t)p.M * p.N * t->width, d->stream));
    describe(d->lt, t->kind, c->T, t->N, t->K);
    if (multiply(d, algo, t->a, t->b, t->kind == CLIME_LT_DW, t->got) != CUBLAS_STATUS_SUCCESS) return false;
    size_t n = (size_t)c->n_rows * c->n_columns;
    launch_after(d, differ_kernel, (unsigned)((n + 255) / 256), 256, 0, c->n_rows, c->n_columns, c->step, (int64_t)p.N,
                 t->width, c->want, t->got, t->differs);
    clime_cuda_copy_out(d, &differs, t->differs, sizeof differs);
    return !differs && d->failure.code == CLIME_OK;
}

/* Runs both cuts, on as much noise as a million outputs need. */
static bool trial_passes(struct clime_dev *d, struct trial *t, const cublasLtMatmulAlgo_t *algo) {
    int rounds = CHECK_OUTPUTS / (t->cut[0].n_rows * t->cut[0].n_columns);
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    for (int r = 0; r < rounds; r++) {
        noise(d, t->n_a, 2 * r + 1, t->a);
        noise(d, t->n_b, 2 * r + 2, t->b);
        for (int i = 0; i < 2; i++) {
            make_want(d, t, &t->cut[i]);
            if (!cut_passes(d, t, &t->cut[i], algo)) return false;
        }
    }
    return true;
}

/* The heuristic's algorithms for a product of the shape's rows and K, and N columns. */
static int candidates(struct clime_dev *d, const struct shape *s, int N,
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
    describe(lt, (enum clime_lt_kind)s->kind, s->rows, N, s->K);
    if (lt->MatmulAlgoGetHeuristic(lt->handle, lt->desc, lt->a, lt->b, lt->y, lt->y, pref, CANDIDATES, out, &n) !=
        CUBLAS_STATUS_SUCCESS)
        n = 0; /* no algorithm for the shape */
    lt->MatmulPreferenceDestroy(pref);
    return n;
}

/* Deep and narrow: below 256 rows, and with fewer outputs than ENOUGH times the depth, the heuristic assumes a split
 * sum, and its split-free choice is 10 x slower. It is asked about more rows or columns instead
 * (docs/lab/cuda.md). */
static bool is_deep(const struct clime_dev *d, enum clime_lt_kind kind, int N, int K) {
    return kind == CLIME_LT_FORWARD && K > 2 * N && d->deterministic;
}

static int bucket_of(int T, bool deep) {
    int rows = deep ? DEEP_ROWS : LEAST_ROWS;
    while (rows < T) rows *= 2;
    return rows;
}

static enum clime_lt_kind kind_of(enum clime_trial of) {
    return of == CLIME_TRIAL_FORWARD       ? CLIME_LT_FORWARD
           : of == CLIME_TRIAL_FORWARD_F32 ? CLIME_LT_FORWARD_F32
           : of == CLIME_TRIAL_DX          ? CLIME_LT_DX
                                           : CLIME_LT_DW;
}

CUDA_OP size_t clime_cuda_trial_bytes(struct clime_dev *d, enum clime_trial of, int T, int N, int K) {
    const enum clime_lt_kind kind = kind_of(of);
    struct trial t;
    if (!d->lt || !d->deterministic) return 0;
    struct trial_parts p = trial_plan(kind, 1, bucket_of(T, is_deep(d, kind, N, K)), N, K, &t);
    return bytes_of(&p);
}

static int columns_to_ask(const struct shape *s) {
    int64_t N = s->N;
    while (s->rows * N < (int64_t)ENOUGH * s->K) N *= 2;
    return (int)N;
}

/* The fewest rows for which the bucket of `rows` is used. */
static int fewest(const struct shape *s, bool deep) {
    return s->rows == (deep ? DEEP_ROWS : LEAST_ROWS) ? 1 : s->rows / 2 + 1;
}

static uint32_t tile_of(const struct clime_lt *lt, const cublasLtMatmulAlgo_t *algo) {
    uint32_t tile = CUBLASLT_MATMUL_TILE_UNDEFINED;
    size_t written;
    lt->MatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &written);
    return tile;
}

/* Preference, lower is better: by tile, for a product too large for the last tiles' distribution to matter. */
static int place_of(const struct clime_dev *d, enum clime_lt_kind kind, const cublasLtMatmulAlgo_t *algo) {
    uint32_t tile = tile_of(d->lt, algo);
    if (kind == CLIME_LT_DX) return tile == CUBLASLT_MATMUL_TILE_192x192;
    if (kind == CLIME_LT_DW) return 0;
    return tile != CUBLASLT_MATMUL_TILE_176x128 && tile != CUBLASLT_MATMUL_TILE_168x128;
}

/* Long work runs at the device's power limit, at 1.6 of 1.98 GHz, where other tiles are faster than the heuristic's
 * first choice, by 4 to 9 % (docs/lab/cuda.md). A fixed order from measurements, so nothing is timed. */
static void sparing_first(const struct clime_dev *d, const struct shape *s, int n,
                          cublasLtMatmulHeuristicResult_t *found) {
    enum clime_lt_kind kind = (enum clime_lt_kind)s->kind;
    struct clime_product p = clime_product_of(kind, s->rows, s->N, s->K, NULL, NULL, NULL);
    if ((int64_t)p.M * p.N < (int64_t)d->n_sm * MANY_OUTPUTS) return;
    for (int i = 1, at; i < n; i++) {
        const cublasLtMatmulHeuristicResult_t r = found[i];
        for (at = i; at > 0 && place_of(d, kind, &found[at - 1].algo) > place_of(d, kind, &r.algo); at--)
            found[at] = found[at - 1];
        found[at] = r;
    }
}

static void choose(struct clime_dev *d, struct shape *s, bool deep) {
    static const char *const KIND[] = {"forward", "forward fp32", "dX", "dW"};
    cublasLtMatmulHeuristicResult_t found[2 * CANDIDATES];
    int columns = deep && s->rows ? columns_to_ask(s) : s->N, n = 0, i = 0;
    if (columns > s->N) n = candidates(d, s, columns, found);
    if (s->rows) n += candidates(d, s, s->N, found + n);
    sparing_first(d, s, n, found);
    const char *why = s->rows ? "none of its algorithms has the canonical bits" : "a size is no multiple of 8";
    if (n > 0 && d->deterministic) {
        struct trial t;
        if (d->links) clime_cuda_links_drain(d->links);
        if (trial_open(d, (enum clime_lt_kind)s->kind, fewest(s, deep), s->rows, s->N, s->K, &t)) {
            while (i < n && !trial_passes(d, &t, &found[i].algo)) i++;
            cudaFree(t.memory);
        } else {
            i = n;
            why = "no device memory is left to check its algorithms (it is tried again)";
            s->again_in = FIRST_AGAIN << (s->n_without < 16 ? s->n_without : 16);
            s->n_without++;
        }
    }
    s->usable = i < n;
    if (s->usable) s->algo = found[i].algo;
    if (s->usable && s->n_without > 0)
        LOG_INFO("cuda: %s, N %d, K %d, up to %d rows: cuBLASLt computes it now, there was memory to check it",
                 KIND[s->kind], s->N, s->K, s->rows);
    if (!s->usable && s->n_without > 1) return; /* already logged */
    if (!s->usable)
        LOG_WARN(
            "cuda: %s, N %d, K %d, up to %d rows (0: any): cuBLASLt is not used, %s; the plain kernel, which is slow, "
            "computes it",
            KIND[s->kind], s->N, s->K, s->rows, why);
    else
        LOG_DEBUG("cuda: %s, %d rows, N %d, K %d: library algorithm %d of %d", KIND[s->kind], s->rows, s->N, s->K,
                  i + 1, n);
}

/* rows: of a bucket; 0: any number, not aligned. Makes the choice at first use. */
static struct shape *shape_of(struct clime_dev *d, enum clime_lt_kind kind, int rows, int N, int K) {
    struct clime_lt *lt = d->lt;
    struct shape *s = lt->shapes, *end = s + lt->n_shapes;
    while (s < end && !(s->kind == kind && s->rows == rows && s->N == N && s->K == K)) s++;
    if (s < end) return s;
    lt->shapes = (struct shape *)xrealloc(lt->shapes, (size_t)(lt->n_shapes + 1) * sizeof *s);
    s = &lt->shapes[lt->n_shapes++];
    *s = shape{kind, rows, N, K};
    choose(d, s, is_deep(d, kind, N, K));
    return s;
}

CUDA_OP void clime_cuda_choose(struct clime_dev *d, enum clime_trial of, int T, int N, int K) {
    const enum clime_lt_kind kind = kind_of(of);
    const bool deep = is_deep(d, kind, N, K);
    if (!d->lt || N % 8 || K % 8) return;
    for (int rows = bucket_of(1, deep), most = bucket_of(T, deep); rows <= most && d->failure.code == CLIME_OK;
         rows *= 2)
        shape_of(d, kind, rows, N, K);
}

bool clime_lt_matmul(struct clime_dev *d, enum clime_lt_kind kind, bool aligned, int T, int N, int K, const void *a,
                     const void *b, bool add, void *y) {
    struct clime_lt *lt = d->lt;
    if (!lt || d->failure.code != CLIME_OK) return false;
    bool deep = is_deep(d, kind, N, K);
    struct shape *s = shape_of(d, kind, aligned ? bucket_of(T, deep) : 0, N, K);
    if (s->again_in > 0 && !d->recording && --s->again_in == 0) choose(d, s, deep);
    if (!s->usable) return false;
    clime_cuda_flush(d);
    describe(lt, kind, T, N, K);
    cublasStatus_t rc = multiply(d, &s->algo, a, b, add, y);
    if (rc == CUBLAS_STATUS_NOT_SUPPORTED || rc == CUBLAS_STATUS_INVALID_VALUE) return false; /* nothing was queued */
    lt_ok(d, rc, "Matmul");
    return true;
}
