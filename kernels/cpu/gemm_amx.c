/* Matrix products on AMX tiles: forward and the two of the backward pass, for contexts of bf16.
 *
 * Called by the context's owner; tiles run on the pool. Owns nothing: packed weights belong to the caller, everything
 * else is in the context's scratch. Contexts of fp32 use the AVX-512 build, as do all other operations. Invariant: an
 * output is one chain over steps of 32 of K in ascending order, whatever the number of rows, the blocking or the
 * threads. A step is one TDPBF16PS: the even and the odd products are two fp32 chains of 16, whose sum is added
 * (Intel's instruction reference); denormals are zero. The bits are specific to this build.
 *
 * Operands are in tiles of 1 KiB, zero beyond the matrix:
 *   a  [row tile][step][16 rows][16 words]     words: two neighbours along K
 *   b  [column vector][step][16 words][16 columns]
 * Both are packed in shared scratch before a product begins (a server's weights at load): at this speed packing in each
 * task would take longer than multiplying. Groups of columns, then of rows, bound the scratch.
 */
#define CLIME_CPU_AVX512
#define CLIME_CPU_AMX

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/gemm_store.h"

#define TILE 16                       /* rows of a, words of a step, columns of b */
#define TILE_WORDS (TILE * TILE)      /* 1 KiB */
#define STEP 32                       /* elements of K */
#define BLOCK_TILES 8                 /* rows and columns of a task's block, in tiles */
#define STEPS_AT_ONCE 16              /* of a pair of column vectors: 32 KiB stay in the L1 cache */
#define ROOM_BYTES ((size_t)16 << 20) /* of each operand packed for one product */
#define AHEAD 16                      /* tiles of b prefetched when rows are few */

struct product {
    struct clime_dev *d;
    struct gemm_operand a, b; /* lanes: rows of C, columns of C */
    int M, N, steps;
    const uint32_t *b_tiles; /* all of b, packed in advance; NULL: each group is packed */
    struct gemm_result c;
    /* the current group */
    int row0, rows, col0, cols, n_row_blocks;
    uint32_t *a_room, *b_room; /* packed: row tiles from row0 on, column vectors from col0 on */
};

static int tiles_of(int n) {
    return (n + TILE - 1) / TILE;
}

static int steps_of(int K) {
    return (K + STEP - 1) / STEP;
}

/* ---- packing --------------------------------------------------------------------------------------------- */

/* Lanes [lane0, lane0 + TILE) of m as word streams [steps * 16][16], in b's order. */
static void pack_b_vector(const struct gemm_operand *m, int lane0, int steps, uint32_t *out) {
    int words = gemm_words(m->K, true), lanes = m->n_lanes - lane0 < TILE ? m->n_lanes - lane0 : TILE;
    gemm_streams(m, true, lane0, lanes, TILE, 1, 0, words, out);
    memset(out + (size_t)words * TILE, 0, ((size_t)steps * TILE - (size_t)words) * TILE * 4);
}

/* Rows along K: 64 bytes of each row per step. */
static void pack_a_along(const struct gemm_operand *m, int lane0, int lanes, int steps, uint32_t *out) {
    for (int r = 0; r < TILE; r++) {
        const uint16_t *row = (const uint16_t *)m->p + (size_t)(lane0 + r) * m->ld;
        int whole = r < lanes ? m->K / STEP : 0;
        for (int s = 0; s < whole; s++) memcpy(out + (size_t)s * TILE_WORDS + r * TILE, row + s * STEP, STEP * 2);
        for (int s = whole; s < steps; s++) {
            uint32_t *to = out + (size_t)s * TILE_WORDS + r * TILE;
            memset(to, 0, STEP * 2);
            if (r < lanes) memcpy(to, row + s * STEP, (size_t)(m->K - s * STEP) * 2);
        }
    }
}

/* Rows across K: b's order, each tile transposed. */
static void pack_a_across(const struct gemm_operand *m, int lane0, int steps, uint32_t *out) {
    pack_b_vector(m, lane0, steps, out);
    for (int s = 0; s < steps; s++) {
        vu r[VW];
        for (int i = 0; i < VW; i++) r[i] = vu_load(out + (size_t)s * TILE_WORDS + i * TILE);
        vu_transpose(r);
        for (int i = 0; i < VW; i++) vf_store(out + (size_t)s * TILE_WORDS + i * TILE, (vf)r[i]);
    }
}

static void pack_a_tile(void *arg, int i, int slot) {
    (void)slot;
    const struct product *p = arg;
    int lane0 = p->row0 + i * TILE, lanes = p->M - lane0 < TILE ? p->M - lane0 : TILE;
    uint32_t *out = p->a_room + (size_t)i * (size_t)p->steps * TILE_WORDS;
    if (p->a.across) {
        pack_a_across(&p->a, lane0, p->steps, out);
    } else {
        pack_a_along(&p->a, lane0, lanes, p->steps, out);
    }
}

static void pack_b_tile(void *arg, int i, int slot) {
    (void)slot;
    const struct product *p = arg;
    pack_b_vector(&p->b, p->col0 + i * TILE, p->steps, p->b_room + (size_t)i * (size_t)p->steps * TILE_WORDS);
}

struct weight_packing {
    struct gemm_operand b;
    int steps;
    uint32_t *out;
};

static void pack_weight_vector(void *arg, int i, int slot) {
    (void)slot;
    const struct weight_packing *w = arg;
    pack_b_vector(&w->b, i * TILE, w->steps, w->out + (size_t)i * (size_t)w->steps * TILE_WORDS);
}

size_t GEMM(pack_bytes)(struct clime_dev *d, int N, int K) {
    if (!clime_cpu_bf16(d)) return CPU(pack_bytes)(d, N, K);
    return (size_t)tiles_of(N) * (size_t)steps_of(K) * TILE_WORDS * 4;
}

void GEMM(pack)(struct clime_dev *d, const struct clime_matrix *w) {
    if (!clime_cpu_bf16(d)) {
        CPU(pack)(d, w);
        return;
    }
    struct weight_packing job = {{w->data, w->N, w->K, false, (size_t)w->K}, steps_of(w->K), w->packed};
    clime_cpu_for(d, tiles_of(w->N), (double)w->N * w->K, pack_weight_vector, &job);
}

/* ---- multiplying ----------------------------------------------------------------------------------------- */

/* Tile registers: 0 to 3 are sums, 4 and 5 rows, 6 and 7 columns; all of 16 rows of 64 bytes. */
static void configure(void) {
    /* A constant: gcc's intrinsic marks only 8 bytes of it as read, so stores to the rest of a local may be dropped. */
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) c = {.palette = 1,
                                        .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                        .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE}};
    _tile_loadconfig(&c);
}

/* c[2 or 1 tiles of rows][2 or 1 of columns] over n steps from a and b; row tiles and column vectors are `apart` words
 * apart. first: the chains begin; else they continue from c, rows ldc floats apart. */
VEC_INLINE void multiply(const bool two_rows, const bool two_columns, int n, const uint32_t *a, const uint32_t *b,
                         size_t apart, float *c, size_t ldc, bool first) {
    size_t stride = ldc * 4;
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, c, stride);
        if (two_columns) _tile_loadd(1, c + TILE, stride);
        if (two_rows) _tile_loadd(2, c + TILE * ldc, stride);
        if (two_rows && two_columns) _tile_loadd(3, c + TILE * ldc + TILE, stride);
    }
    for (int s = 0; s < n; s++, a += TILE_WORDS, b += TILE_WORDS) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (two_columns) {
            _tile_loadd(7, b + apart, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, a + apart, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (two_rows && two_columns) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, stride);
    if (two_columns) _tile_stored(1, c + TILE, stride);
    if (two_rows) _tile_stored(2, c + TILE * ldc, stride);
    if (two_rows && two_columns) _tile_stored(3, c + TILE * ldc + TILE, stride);
}

VEC_INLINE void fetch_tile(const uint32_t *at) {
    for (int i = 0; i < TILE; i++) __builtin_prefetch(at + i * TILE, 0, 2);
}

/* One tile of rows, four of columns, all n steps. Weights are in memory: they are prefetched AHEAD tiles in advance,
 * also the first of the next four vectors. */
static void multiply_few(int n, const uint32_t *a, const uint32_t *b, size_t apart, float *c, size_t ldc) {
    size_t stride = ldc * 4;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int s = 0; s < n; s++, a += TILE_WORDS, b += TILE_WORDS) {
        const uint32_t *ahead = b + AHEAD * TILE_WORDS;
        if (s + AHEAD >= n) ahead += 4 * apart - (size_t)n * TILE_WORDS;
        for (int j = 0; j < 4; j++) fetch_tile(ahead + (size_t)j * apart);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + apart, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(6, b + 2 * apart, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, b + 3 * apart, 64);
        _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, c, stride);
    _tile_stored(1, c + TILE, stride);
    _tile_stored(2, c + 2 * TILE, stride);
    _tile_stored(3, c + 3 * TILE, stride);
}

/* The sums of nr x nc tiles over n steps. */
static void multiply_tiles(int nr, int nc, int n, const uint32_t *a, const uint32_t *b, size_t apart, float *c,
                           size_t ldc, bool first) {
    for (int j = 0; j < nc; j += 2) {
        for (int k = 0; k < nr; k += 2) {
            const uint32_t *at = a + (size_t)k * apart, *bt = b + (size_t)j * apart;
            float *ct = c + (size_t)k * TILE * ldc + j * TILE;
            if (nr - k > 1 && nc - j > 1)
                multiply(true, true, n, at, bt, apart, ct, ldc, first);
            else if (nr - k > 1)
                multiply(true, false, n, at, bt, apart, ct, ldc, first);
            else if (nc - j > 1)
                multiply(false, true, n, at, bt, apart, ct, ldc, first);
            else
                multiply(false, false, n, at, bt, apart, ct, ldc, first);
        }
    }
}

static void block_task(void *arg, int i, int slot) {
    const struct product *p = arg;
    int most = BLOCK_TILES * TILE, r0 = i % p->n_row_blocks * most, c0 = i / p->n_row_blocks * most;
    int rows = p->rows - r0 < most ? p->rows - r0 : most, cols = p->cols - c0 < most ? p->cols - c0 : most;
    int nr = tiles_of(rows), nc = tiles_of(cols);
    size_t ldc = (size_t)most, apart = (size_t)p->steps * TILE_WORDS;
    float *c = clime_cpu_scratch(p->d, slot, (size_t)most * (size_t)most * 4);
    const uint32_t *a = p->a_room + (size_t)(r0 / TILE) * apart, *b = p->b_room + (size_t)(c0 / TILE) * apart;
    configure();
    int done = 0;
    for (; nr == 1 && done + 4 <= nc; done += 4)
        multiply_few(p->steps, a, b + (size_t)done * apart, apart, c + done * TILE, ldc);
    b += (size_t)done * apart;
    for (int s = 0; s < p->steps; s += STEPS_AT_ONCE) {
        int n = p->steps - s < STEPS_AT_ONCE ? p->steps - s : STEPS_AT_ONCE;
        size_t at = (size_t)s * TILE_WORDS;
        multiply_tiles(nr, nc - done, n, a + at, b + at, apart, c + done * TILE, ldc, s == 0);
    }
    _tile_release();
    gemm_store(&p->c, c, ldc, p->row0 + r0, rows, p->col0 + c0, cols);
}

/* Rows or columns per group whose packed operand fits its scratch: whole blocks, one at least. */
static int group_of(const struct product *p, int all) {
    size_t lane = (size_t)p->steps * TILE * 4, n = ROOM_BYTES / lane / (BLOCK_TILES * TILE) * (BLOCK_TILES * TILE);
    if (n < BLOCK_TILES * TILE) n = BLOCK_TILES * TILE;
    return n < (size_t)all ? (int)n : all;
}

static size_t room_words(const struct product *p, int lanes) {
    return (size_t)tiles_of(lanes) * (size_t)p->steps * TILE_WORDS;
}

/* Estimated time on one core, for clime_cpu_for: multiply-adds, or the bytes of B when rows are few. */
static double product_ns(const struct product *p) {
    double K = (double)p->steps * STEP, work = (double)p->rows * p->cols * K / 500, bytes = p->cols * K * 2 / 20;
    return work > bytes ? work : bytes;
}

static void run_product(struct product *p) {
    if (p->M == 0 || p->N == 0) return;
    int rows = group_of(p, p->M), cols = p->b_tiles ? p->N : group_of(p, p->N);
    size_t a_words = room_words(p, rows), b_words = p->b_tiles ? 0 : room_words(p, cols);
    p->a_room = clime_cpu_shared(p->d, (a_words + b_words) * 4);
    for (p->col0 = 0; p->col0 < p->N; p->col0 += cols) {
        p->cols = p->N - p->col0 < cols ? p->N - p->col0 : cols;
        if (p->b_tiles) {
            p->b_room = (uint32_t *)(uintptr_t)p->b_tiles; /* read-only from here on */
        } else {
            p->b_room = p->a_room + a_words;
            clime_cpu_for(p->d, tiles_of(p->cols), (double)p->cols * p->steps * STEP / 4, pack_b_tile, p);
        }
        for (p->row0 = 0; p->row0 < p->M; p->row0 += rows) {
            p->rows = p->M - p->row0 < rows ? p->M - p->row0 : rows;
            if (p->row0 > 0 || p->col0 == 0 || rows < p->M)
                clime_cpu_for(p->d, tiles_of(p->rows), (double)p->rows * p->steps * STEP / 4, pack_a_tile, p);
            p->n_row_blocks = (p->rows + BLOCK_TILES * TILE - 1) / (BLOCK_TILES * TILE);
            int n_col_blocks = (p->cols + BLOCK_TILES * TILE - 1) / (BLOCK_TILES * TILE);
            clime_cpu_for(p->d, p->n_row_blocks * n_col_blocks, product_ns(p), block_task, p);
        }
    }
}

void GEMM(gemm)(struct clime_dev *d, enum clime_dtype out, int T, const void *x, const struct clime_matrix *w,
                void *y) {
    if (!clime_cpu_bf16(d)) {
        CPU(gemm)(d, out, T, x, w, y);
        return;
    }
    struct product p = {.d = d,
                        .a = {x, T, w->K, false, (size_t)w->K},
                        .b = {w->data, w->N, w->K, false, (size_t)w->K},
                        .M = T,
                        .N = w->N,
                        .steps = steps_of(w->K),
                        .b_tiles = w->packed,
                        .c = {y, w->N, out, false}};
    run_product(&p);
}

void GEMM(gemm_dx)(struct clime_dev *d, int T, const void *dy, const struct clime_matrix *w, void *dx) {
    if (!clime_cpu_bf16(d)) {
        CPU(gemm_dx)(d, T, dy, w, dx);
        return;
    }
    struct product p = {.d = d,
                        .a = {dy, T, w->N, false, (size_t)w->N},
                        .b = {w->data, w->K, w->N, true, (size_t)w->K},
                        .M = T,
                        .N = w->K,
                        .steps = steps_of(w->N),
                        .c = {dx, w->K, CLIME_BF16, false}};
    run_product(&p);
}

void GEMM(gemm_dw)(struct clime_dev *d, int T, int N, int K, const void *dy, const void *x, bool add, float *dw) {
    if (!clime_cpu_bf16(d) || T == 0) {
        CPU(gemm_dw)(d, T, N, K, dy, x, add, dw);
        return;
    }
    struct product p = {.d = d,
                        .a = {dy, N, T, true, (size_t)N},
                        .b = {x, K, T, true, (size_t)K},
                        .M = N,
                        .N = K,
                        .steps = steps_of(T),
                        .c = {dw, K, CLIME_F32, add}};
    run_product(&p);
}
