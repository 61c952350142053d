/* A libcublasLt.so.13 whose first algorithm errs where a product has many tiles, and only there: everything goes on to
 * the library that CLIME_REAL_CUBLASLT names; after a product by an algorithm that a heuristic put first, a corner of
 * an output of more than MANY_TILES tiles is zeroed. test_products runs over it, to see that clime's check of
 * algorithms (kernels/cuda/lt.cu) looks at the products as they will be. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_ROWS = 128, TILE_COLUMNS = 128, MANY_TILES = 264, MOST_FIRST = 4096 };

static cublasLtMatmulAlgo_t first[MOST_FIRST];
static int n_first, n_spoiled;

static void *real(const char *name) {
    static void *library;
    const char *path = getenv("CLIME_REAL_CUBLASLT");
    if (!library && path) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *f = library ? dlsym(library, name) : NULL;
    if (!f) {
        fprintf(stderr, "erring_lt: no %s in CLIME_REAL_CUBLASLT\n", name);
        abort();
    }
    return f;
}

/* clang-format off */
#define GO_ON(name, declared, ...)                                                                                     \
    cublasStatus_t name declared {                                                                                     \
        __typeof__(&name) f;                                                                                           \
        *(void **)&f = real(#name);                                                                                    \
        return f(__VA_ARGS__);                                                                                         \
    }
GO_ON(cublasLtCreate, (cublasLtHandle_t *h), h)
GO_ON(cublasLtDestroy, (cublasLtHandle_t h), h)
GO_ON(cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t *d, cublasComputeType_t c, cudaDataType_t t), d, c, t)
GO_ON(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t d), d)
GO_ON(cublasLtMatmulDescSetAttribute,
      (cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *v, size_t n), d, a, v, n)
GO_ON(cublasLtMatrixLayoutCreate,
      (cublasLtMatrixLayout_t *l, cudaDataType t, uint64_t r, uint64_t c, int64_t ld), l, t, r, c, ld)
GO_ON(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t l), l)
GO_ON(cublasLtMatrixLayoutSetAttribute,
      (cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a, const void *v, size_t n), l, a, v, n)
GO_ON(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *p), p)
GO_ON(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t p), p)
GO_ON(cublasLtMatmulPreferenceSetAttribute,
      (cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, const void *v, size_t n), p, a, v, n)
GO_ON(cublasLtMatmulAlgoConfigGetAttribute,
      (const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t a, void *v, size_t n, size_t *written),
      algo, a, v, n, written)
/* clang-format on */

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t p, int most,
                                              cublasLtMatmulHeuristicResult_t out[], int *n) {
    __typeof__(&cublasLtMatmulAlgoGetHeuristic) f;
    *(void **)&f = real("cublasLtMatmulAlgoGetHeuristic");
    cublasStatus_t rc = f(h, desc, a, b, c, d, p, most, out, n);
    if (rc == CUBLAS_STATUS_SUCCESS && *n > 0 && n_first < MOST_FIRST) first[n_first++] = out[0].algo;
    return rc;
}

static uint64_t attribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a) {
    __typeof__(&cublasLtMatrixLayoutGetAttribute) f;
    uint64_t v = 0;
    size_t n;
    *(void **)&f = real("cublasLtMatrixLayoutGetAttribute");
    f(l, a, &v, a == CUBLASLT_MATRIX_LAYOUT_TYPE ? sizeof(uint32_t) : sizeof v, &n);
    return v;
}

static void spoil(cublasLtMatrixLayout_t l, char *y, cudaStream_t stream) {
    uint64_t rows = attribute(l, CUBLASLT_MATRIX_LAYOUT_ROWS), columns = attribute(l, CUBLASLT_MATRIX_LAYOUT_COLS);
    size_t width = attribute(l, CUBLASLT_MATRIX_LAYOUT_TYPE) == CUDA_R_32F ? 4 : 2;
    uint64_t down = (rows + TILE_ROWS - 1) / TILE_ROWS, across = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    if (down * across <= MANY_TILES) return;
    uint64_t row = (down - 1) * TILE_ROWS, column = (across - 1) * TILE_COLUMNS;
    cudaMemset2DAsync(y + (column * rows + row) * width, rows * width, 0, (rows - row) * width, columns - column,
                      stream);
    n_spoiled++;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t stream) {
    __typeof__(&cublasLtMatmul) f;
    *(void **)&f = real("cublasLtMatmul");
    cublasStatus_t rc = f(h, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, algo, workspace, bytes, stream);
    for (int i = 0; i < n_first && rc == CUBLAS_STATUS_SUCCESS; i++) {
        if (memcmp(&first[i], algo, sizeof *algo)) continue;
        spoil(ld, d, stream);
        break;
    }
    return rc;
}

/* How many products were spoiled, so that a test knows that it tested. */
int erring_lt_spoiled(void);
int erring_lt_spoiled(void) {
    return n_spoiled;
}
