/* Matrix products: forward, and the two of the backward pass, as one blocked product over word streams.
 *
 * Called by the context's owner; tiles run on the pool. Owns nothing: packed weights belong to the caller, everything
 * else is in the context's scratch. Invariant: an output is one fp32 chain over ascending K, whatever the number of
 * rows, the blocking or the threads (docs/numerics.md). K is cut into pieces only between steps of that chain, with the
 * sum kept in fp32. Zero padding at odd ends is part of the chain and the same for every row.
 *
 * Blocking (Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication"): a task is a block of C;
 * within it a piece of B of a few vectors times K_PIECE words stays in the L1 cache while all row tiles of the block
 * pass over it.
 */
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/gemm_store.h"
#include "kernels/cpu/gemm_tile.h"

/* Products whose A is packed in advance: 96 x 1024 bf16 = 192 KiB of it stay in the L2 cache. */
#define BLOCK_ROWS 96
#define BLOCK_VECS 8 /* vectors of outputs */
#define K_PIECE 256  /* words: a piece of B of 2 AVX-512 vectors is 32 KiB */

/* Products of the backward pass: each task packs its own A and B, in blocks large enough to amortise it. */
#define OWN_ROWS 384
#define OWN_VECS 16
#define OWN_K_PIECE 128

#define STRIP_ROWS 512    /* rows whose A is packed at once, which bounds the shared scratch */
#define PACK_INLINE 32768 /* words of A that the caller's thread packs alone */

struct product {
    struct clime_dev *d;
    struct gemm_operand a, b; /* lanes: rows of C, columns of C */
    bool bf16;
    int M, N, KW; /* KW: K in words */
    int block_rows, block_vecs, k_piece;
    int n_row_blocks, n_col_blocks;
    const uint32_t *a_stream; /* all rows of a, packed in advance; NULL: each task packs */
    const uint32_t *b_stream; /* all of b in packed order; NULL: each task packs */
    struct gemm_result c;
};

/* The most vectors per tile of mr rows. */
static int tile_vecs(bool bf16, int mr, int vecs) {
    int nb = 8;
    while (nb > vecs || !GEMM_TILE[bf16][mr][nb]) nb /= 2;
    return nb;
}

/* One step of a block along K: kn words of both operands. */
struct piece {
    int kn;
    const uint32_t *a, *b;
    size_t a_row, a_k;     /* the tile of mr rows from row r begins at a + r * a_row + a_k * mr */
    size_t bs;             /* words from one vector's stream in b to the next */
    const uint32_t *after; /* next part of b to be read */
};

/* Adds a piece of the product to the block's sums c[rows][vecs * VW]. */
static void block_piece(const struct product *p, int rows, int vecs, const struct piece *in, float *c, bool first) {
    int n_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    size_t ldc = (size_t)vecs * VW;
    int widest = tile_vecs(p->bf16, (rows + n_tiles - 1) / n_tiles, vecs);
    for (int v = 0; v < vecs; v += widest) {
        /* the first tile on a group of vectors prefetches the next group */
        const uint32_t *next = v + widest < vecs ? in->b + (size_t)(v + widest) * in->bs : in->after;
        int end = v + widest < vecs ? v + widest : vecs;
        for (int t = 0; t < n_tiles; t++) {
            int r0 = gemm_panel(rows, n_tiles, t), mr = gemm_panel(rows, n_tiles, t + 1) - r0;
            const uint32_t *a = in->a + (size_t)r0 * in->a_row + in->a_k * (size_t)mr;
            for (int j = v, nb; j < end; j += nb) {
                nb = tile_vecs(p->bf16, mr, end - j);
                const uint32_t *b = in->b + (size_t)j * in->bs, *ahead = t == 0 && p->b_stream ? next : b;
                GEMM_TILE[p->bf16][mr][nb](in->kn, a, b, in->bs, ahead, c + (size_t)r0 * ldc + j * VW, ldc, first);
            }
        }
    }
}

static void block_task(void *arg, int i, int slot) {
    const struct product *p = arg;
    int row0 = i % p->n_row_blocks * p->block_rows, vec0 = i / p->n_row_blocks * p->block_vecs;
    int rows = p->M - row0 < p->block_rows ? p->M - row0 : p->block_rows;
    int n_vecs = (p->N + VW - 1) / VW, vecs = n_vecs - vec0 < p->block_vecs ? n_vecs - vec0 : p->block_vecs;

    size_t c_words = (size_t)p->block_rows * (size_t)p->block_vecs * VW;
    size_t a_words = p->a_stream ? 0 : (size_t)p->block_rows * (size_t)p->k_piece;
    size_t b_words = p->b_stream ? 0 : (size_t)p->block_vecs * VW * (size_t)p->k_piece;
    float *c = clime_cpu_scratch(p->d, slot, (c_words + a_words + b_words) * 4);
    uint32_t *own_a = (uint32_t *)(void *)c + c_words, *own_b = own_a + a_words;
    int n_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;

    for (int k = 0; k < p->KW; k += p->k_piece) {
        int kn = p->KW - k < p->k_piece ? p->KW - k : p->k_piece;
        size_t stream = (size_t)p->KW * VW;
        struct piece in = {kn, own_a, own_b, (size_t)kn, 0, (size_t)kn * VW, own_b};
        if (p->a_stream) {
            in.a = p->a_stream + (size_t)row0 * (size_t)p->KW;
            in.a_row = (size_t)p->KW;
            in.a_k = (size_t)k;
        } else {
            gemm_streams(&p->a, p->bf16, row0, rows, rows, n_tiles, k, kn, own_a);
        }
        if (p->b_stream) {
            bool last = k + kn == p->KW, more = vec0 + 2 * vecs <= n_vecs;
            in.bs = stream;
            in.b = p->b_stream + (size_t)vec0 * stream + (size_t)k * VW;
            in.after = last ? p->b_stream + (size_t)(more ? vec0 + vecs : 0) * stream : in.b + (size_t)kn * VW;
        } else {
            int lane0 = vec0 * VW, lanes = p->N - lane0 < vecs * VW ? p->N - lane0 : vecs * VW;
            gemm_streams(&p->b, p->bf16, lane0, lanes, vecs * VW, vecs, k, kn, own_b);
        }
        block_piece(p, rows, vecs, &in, c, k == 0);
    }
    int cols = p->N - vec0 * VW < vecs * VW ? p->N - vec0 * VW : vecs * VW;
    gemm_store(&p->c, c, (size_t)vecs * VW, row0, rows, vec0 * VW, cols);
}

/* Estimated time on one core, for clime_cpu_for: multiply-adds, or the bytes of B when rows are few. */
static double product_ns(int M, int N, int K) {
    const double macs_per_ns = VW == 16 ? 200 : VW == 8 ? 40 : 15;
    double work = (double)M * N * K / macs_per_ns, bytes = (double)N * K * 2 / 20;
    return work > bytes ? work : bytes;
}

static void product_run(struct product *p) {
    p->n_row_blocks = (p->M + p->block_rows - 1) / p->block_rows;
    p->n_col_blocks = ((p->N + VW - 1) / VW + p->block_vecs - 1) / p->block_vecs;
    clime_cpu_for(p->d, p->n_row_blocks * p->n_col_blocks, product_ns(p->M, p->N, p->a.K), block_task, p);
}

/* ---- streams packed before the product ------------------------------------------------------------------ */
struct a_packing {
    const struct product *p;
    uint32_t *out;
};

static void a_pack_block(void *arg, int i, int slot) {
    (void)slot;
    const struct a_packing *w = arg;
    const struct product *p = w->p;
    int row0 = i * p->block_rows, rows = p->M - row0 < p->block_rows ? p->M - row0 : p->block_rows;
    int n_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    gemm_streams(&p->a, p->bf16, row0, rows, rows, n_tiles, 0, p->KW, w->out + (size_t)row0 * (size_t)p->KW);
}

static void a_pack(struct product *p) {
    size_t words = (size_t)p->M * (size_t)p->KW;
    struct a_packing w = {p, clime_cpu_shared(p->d, words * 4)};
    int n = (p->M + p->block_rows - 1) / p->block_rows;
    clime_cpu_for(p->d, n, words < PACK_INLINE ? 0 : (double)words, a_pack_block, &w);
    p->a_stream = w.out;
}

struct b_packing {
    struct gemm_operand b;
    bool bf16;
    int KW;
    uint32_t *out;
};

static void b_pack_vec(void *arg, int i, int slot) {
    (void)slot;
    const struct b_packing *w = arg;
    gemm_streams(&w->b, w->bf16, i * VW, vec_lanes(i * VW, w->b.n_lanes), VW, 1, 0, w->KW,
                 w->out + (size_t)i * (size_t)w->KW * VW);
}

size_t CPU(pack_bytes)(struct clime_dev *d, int N, int K) {
    return (size_t)((N + VW - 1) / VW) * VW * (size_t)gemm_words(K, clime_cpu_bf16(d)) * 4;
}

void CPU(pack)(struct clime_dev *d, const struct clime_matrix *w) {
    bool bf16 = clime_cpu_bf16(d);
    int N = w->N, K = w->K;
    struct b_packing job = {{w->data, N, K, false, (size_t)K}, bf16, gemm_words(K, bf16), w->packed};
    clime_cpu_for(d, (N + VW - 1) / VW, (double)N * K, b_pack_vec, &job);
}

/* ---- the operations -------------------------------------------------------------------------------------- */
/* Rows of x and of y are x_row and y_row elements apart. */
static void forward_product(struct clime_dev *d, enum clime_dtype out, int T, const void *x, int x_row,
                            const struct clime_matrix *w, void *y, int y_row) {
    bool bf16 = clime_cpu_bf16(d);
    int N = w->N, K = w->K;
    for (int t = 0; t < T; t += STRIP_ROWS) {
        int rows = T - t < STRIP_ROWS ? T - t : STRIP_ROWS;
        struct product p = {.d = d,
                            .a = {clime_cpu_at(d, x, (size_t)t * (size_t)x_row), rows, K, false, (size_t)x_row},
                            .b = {w->data, N, K, false, (size_t)K},
                            .bf16 = bf16,
                            .M = rows,
                            .N = N,
                            .KW = gemm_words(K, bf16),
                            .block_rows = BLOCK_ROWS,
                            .block_vecs = BLOCK_VECS,
                            .k_piece = K_PIECE,
                            .b_stream = w->packed,
                            .c = {(char *)y + (size_t)t * (size_t)y_row * clime_dtype_bytes(out), y_row, out, false}};
        a_pack(&p);
        product_run(&p);
    }
}

static void dx_product(struct clime_dev *d, int T, const void *dy, int y_row, const struct clime_matrix *w, void *dx,
                       int x_row) {
    bool bf16 = clime_cpu_bf16(d);
    int N = w->N, K = w->K;
    struct product p = {.d = d,
                        .a = {dy, T, N, false, (size_t)y_row},
                        .b = {w->data, K, N, true, (size_t)K},
                        .bf16 = bf16,
                        .M = T,
                        .N = K,
                        .KW = gemm_words(N, bf16),
                        .block_rows = OWN_ROWS,
                        .block_vecs = OWN_VECS,
                        .k_piece = OWN_K_PIECE,
                        .c = {dx, x_row, d->head.dt, false}};
    product_run(&p);
}

static void dw_product(struct clime_dev *d, int T, int N, int K, const void *dy, int y_row, const void *x, int x_row,
                       bool add, float *dw) {
    if (T == 0) {
        if (!add) memset(dw, 0, (size_t)N * (size_t)K * sizeof *dw);
        return;
    }
    bool bf16 = clime_cpu_bf16(d);
    struct product p = {.d = d,
                        .a = {dy, N, T, true, (size_t)y_row},
                        .b = {x, K, T, true, (size_t)x_row},
                        .bf16 = bf16,
                        .M = N,
                        .N = K,
                        .KW = gemm_words(T, bf16),
                        .block_rows = OWN_ROWS,
                        .block_vecs = OWN_VECS,
                        .k_piece = OWN_K_PIECE,
                        .c = {dw, K, CLIME_F32, add}};
    product_run(&p);
}

void CPU(gemm)(struct clime_dev *d, enum clime_dtype out, int T, const void *x, const struct clime_matrix *w, void *y) {
    forward_product(d, out, T, x, w->K, w, y, w->N);
}

void CPU(gemm_dx)(struct clime_dev *d, int T, const void *dy, const struct clime_matrix *w, void *dx) {
    dx_product(d, T, dy, w->N, w, dx, w->K);
}

void CPU(gemm_dw)(struct clime_dev *d, int T, int N, int K, const void *dy, const void *x, bool add, float *dw) {
    dw_product(d, T, N, K, dy, N, x, K, add, dw);
}

static struct clime_matrix head_matrix(const struct clime_dev *d, const struct clime_head_product *p, const void *w,
                                       int head) {
    return (struct clime_matrix){.N = p->N, .K = p->K, .data = clime_cpu_at(d, w, (size_t)head * (size_t)p->w_head)};
}

void CPU(heads_gemm)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *x, const void *w,
                     void *y) {
    for (int h = 0; h < p->H; h++) {
        struct clime_matrix one = head_matrix(d, p, w, h);
        forward_product(d, d->head.dt, T, clime_cpu_at(d, x, (size_t)h * (size_t)p->x_head), p->x_row, &one,
                        clime_cpu_at_mut(d, y, (size_t)h * (size_t)p->y_head), p->y_row);
    }
}

void CPU(heads_dx)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *w,
                   void *dx) {
    for (int h = 0; h < p->H; h++) {
        struct clime_matrix one = head_matrix(d, p, w, h);
        dx_product(d, T, clime_cpu_at(d, dy, (size_t)h * (size_t)p->y_head), p->y_row, &one,
                   clime_cpu_at_mut(d, dx, (size_t)h * (size_t)p->x_head), p->x_row);
    }
}

void CPU(heads_dw)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *x,
                   float *dw) {
    for (int h = 0; h < p->H; h++) {
        dw_product(d, T, p->N, p->K, clime_cpu_at(d, dy, (size_t)h * (size_t)p->y_head), p->y_row,
                   clime_cpu_at(d, x, (size_t)h * (size_t)p->x_head), p->x_row, true,
                   dw + (size_t)h * (size_t)p->w_head);
    }
}

struct bias_job {
    struct clime_dev *d;
    int T, N;
    void *y;
    const void *b, *dy;
    float *db;
};

#define BIAS_ROWS 32
static void bias_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct bias_job *j = arg;
    bool bf16 = clime_cpu_bf16(j->d);
    int end = (i + 1) * BIAS_ROWS < j->T ? (i + 1) * BIAS_ROWS : j->T;
    for (int t = i * BIAS_ROWS; t < end; t++) {
        size_t at = (size_t)t * (size_t)j->N;
        for (int k = 0; k < j->N; k += VW) {
            int n = vec_lanes(k, j->N);
            vf sum = dt_load(j->y, at + (size_t)k, n, bf16) + dt_load(j->b, (size_t)k, n, bf16);
            dt_store(j->y, at + (size_t)k, sum, n, bf16);
        }
    }
}

void CPU(bias)(struct clime_dev *d, int T, int N, void *y, const void *b) {
    struct bias_job j = {.d = d, .T = T, .N = N, .y = y, .b = b};
    clime_cpu_for(d, (T + BIAS_ROWS - 1) / BIAS_ROWS, (double)T * N / 4, bias_rows, &j);
}

static void bias_columns(void *arg, int i, int slot) {
    (void)slot;
    const struct bias_job *j = arg;
    bool bf16 = clime_cpu_bf16(j->d);
    int k = i * VW, n = vec_lanes(k, j->N);
    vf sum = {0};
    for (int t = 0; t < j->T; t++) sum += dt_load(j->dy, (size_t)t * (size_t)j->N + (size_t)k, n, bf16);
    dt_store(j->db, (size_t)k, dt_load(j->db, (size_t)k, n, false) + sum, n, false);
}

void CPU(bias_bwd)(struct clime_dev *d, int T, int N, const void *dy, float *db) {
    struct bias_job j = {.d = d, .T = T, .N = N, .dy = dy, .db = db};
    clime_cpu_for(d, (N + VW - 1) / VW, (double)T * N / 4, bias_columns, &j);
}
