/* Programs of single-row products with the sums and norms between them, many in one kernel. Launched by the context's
 * owner.
 *
 * With one row a product only reads its weights, and a decode step loses time between products, when nothing is read.
 * Here a block stays for several of them: its producer fills a ring in shared memory with the weights of one product
 * after another, independent of the other blocks' progress, while the other warps run the chains and wait for the row
 * that all blocks write. The ring's contents (some 6 us of reading) cover these waits.
 *
 * Inside a recording, products are collected until something else is queued (clime_cuda_flush), each of the previous
 * one's result, of its norm or of the same row; outside of one each is a program of its own. A sum before a norm is
 * computed by the block with the product's columns, the norm by every block for itself, as add_rmsnorm_kernel does; the
 * sum of a layer's experts may begin a program, and a router's choice runs in parallel with its products (experts.cuh):
 * the bits are those of one operation after another. The choice is passed to the next kernel by words (words.cuh).
 *
 * A block has 8 to 256 rows of w, as few as give each multiprocessor one block: all blocks must run at the same time,
 * or they would deadlock. A program's first product, of a row that the previous kernel makes, leaves that kernel some
 * multiprocessors, if a block's weights still fit its ring. Only one context of a process may record (a server's);
 * launches of others in it are programs of one product, which wait for no other block. */
#include <stdlib.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/row/kernel.cuh"

/* Multiprocessors left to the kernel before a program's first product: as attention has of one short sequence. */
enum { LEFT = 16 };

struct clime_row_program {
    row_kernel_args a; /* step[0 .. n) are waiting */
    struct {           /* a norm whose product is still to come; x NULL: none */
        const bf16 *x, *scale;
        bf16 *y;
        float eps;
        int D;
    } norm;
};

void clime_cuda_row_open(struct clime_dev *d) {
    static_assert(NORM_WARPS >= 32 && MAX_ROWS / 16 <= 2 * WARPS, "all are served");
    d->rows = (struct clime_row_program *)xcalloc(1, sizeof *d->rows);
    CU(d, cudaFuncSetAttribute(row_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM - STATIC));
}

void clime_cuda_row_close(struct clime_dev *d) {
    free(d->rows);
}

static bool recording_row(const struct clime_dev *d) {
    return d->recording && d->deterministic && !d->flushing;
}

/* Launches steps [0, n). */
static void run(struct clime_dev *d, row_kernel_args *p) {
    int widest = 0, most_k = 0;
    p->words = clime_cuda_words(d, CLIME_WORDS_STEPS, MAX_STEPS * (MAX_K / 2));
    CHECK(p->words.at || !d->recording); /* there is room */
    if (p->router.chosen)
        clime_cuda_words_give(d, p->router.start, {p->router.chosen, p->words.before, p->words.ordinal});
    for (int i = 0; i < p->n; i++) {
        const row_step *a = &p->step[i];
        int panel = a->columns * (a->h ? 2 : 1) * PANEL * (int)sizeof(bf16);
        widest = panel > widest ? panel : widest;
        most_k = a->K > most_k ? a->K : most_k;
    }
    p->stage_bytes = widest >= STAGE ? widest : STAGE / widest * widest;
    int row = most_k * (int)sizeof(bf16), blocks = 0;
    p->n_stages = (SMEM - STATIC - ALIGN - row) / p->stage_bytes;
    if (p->n_stages > MAX_STAGES) p->n_stages = MAX_STAGES;
    CHECK(p->n_stages >= 2);
    p->in_flight = IN_FLIGHT / p->stage_bytes < 2 ? 2 : IN_FLIGHT / p->stage_bytes;
    for (int i = 0; i < p->n; i++) {
        row_step *a = &p->step[i];
        int parts = a->h ? 2 : 1;
        a->panel_bytes = a->columns * parts * PANEL * (int)sizeof(bf16);
        a->panels = p->stage_bytes / a->panel_bytes;
        uint64_t row_bytes = (uint64_t)a->K * sizeof(bf16);
        const uint64_t size[3] = {(uint64_t)a->K, (uint64_t)a->n_columns, (uint64_t)parts},
                       stride[2] = {row_bytes, row_bytes * (uint64_t)a->n_columns};
        const uint32_t box[3] = {PANEL, (uint32_t)a->columns, (uint32_t)parts};
        if (!clime_cuda_tensor_map_3d(d, &p->w_map[i], a->w, size, stride, box)) return;
        int n = (a->n_columns + a->columns - 1) / a->columns;
        if (n > d->n_sm) n = d->n_sm; /* in turns */
        blocks = n > blocks ? n : blocks;
    }
    launch(d, row_kernel, blocks, THREADS, p->n_stages * p->stage_bytes + row + ALIGN, *p);
}

void clime_cuda_row_end(struct clime_dev *d) {
    struct clime_row_program *p = d->rows;
    row_experts *e = &p->a.experts;
    bool summed = p->a.n > 0; /* the experts, if any */
    if (summed)
        run(d, &p->a);
    else if (e->k > 0)
        clime_cuda_combine(d, 1, e->D, e->k, e->at, e->weights, e->x, e->last, e->last_weight, e->y);
    if (p->norm.x && e->res && !summed)
        clime_cuda_add_rmsnorm(d, 1, p->norm.D, p->norm.eps, e->res, e->y, p->norm.scale, e->sum, p->norm.y, NULL);
    else if (p->norm.x)
        clime_cuda_rmsnorm(d, 1, p->norm.D, p->norm.eps, p->norm.x, p->norm.scale, p->norm.y, NULL);
    p->a.n = 0;
    p->norm.x = NULL;
    *e = row_experts{};
    p->a.router = row_router{};
}

bool clime_cuda_row_combine(struct clime_dev *d, int D, int k, const int32_t *at, const float *weights, const void *x,
                            const void *last, const float *last_weight, void *y) {
    if (!recording_row(d) || D % PANEL != 0 || D > MAX_NORM || ((uintptr_t)x | (uintptr_t)last | (uintptr_t)y) % 16)
        return false;
    clime_cuda_flush(d);
    d->rows->a.experts = {k, D, at, weights, (const bf16 *)x, (const bf16 *)last, last_weight, (bf16 *)y, NULL, NULL};
    return true;
}

bool clime_cuda_row_route(struct clime_dev *d, const struct clime_router *r, const float *logits, const float *bias,
                          float *scores, int32_t *ids, float *weights, uint32_t *fold) {
    struct clime_row_program *p = d->rows;
    if (!recording_row(d) || r->E > MAX_ROUTED || p->a.router.r.k > 0) return false;
    for (int i = 0; i < p->a.n; i++) {
        row_step *a = &p->a.step[i];
        if (a->y != logits || !a->f32 || a->n_columns != r->E) continue;
        a->logits = clime_cuda_words_at(d, CLIME_WORDS_LOGITS);
        if (scores == logits) a->y = NULL; /* the scores are there */
        p->a.router = {*r, a->logits, bias, scores, ids, weights, fold, NULL, NULL, NULL, NULL};
        return true;
    }
    return false;
}

bool clime_cuda_row_permute(struct clime_dev *d, const int32_t *ids, int32_t *start, int32_t *from, int32_t *at) {
    row_router *r = &d->rows->a.router;
    if (!recording_row(d) || r->r.k == 0 || r->ids != ids) return false;
    r->start = start, r->from = from, r->at = at;
    r->chosen = clime_cuda_words_at(d, CLIME_WORDS_CHOSEN);
    return true;
}

bool clime_cuda_row_norm(struct clime_dev *d, int D, float eps, const void *x, const void *delta, const void *scale,
                         void *sum, void *y) {
    struct clime_row_program *p = d->rows;
    const void *all[] = {x, delta, scale, sum, y};
    if (!recording_row(d) || D % PANEL != 0 || D > MAX_NORM) return false;
    for (const void *at : all)
        if ((uintptr_t)at % 16 != 0) return false;
    const void *in = delta ? sum : x;
    if (y == in) return false;
    if (p->norm.x || clime_cuda_rope_waits(d)) clime_cuda_flush(d);
    row_experts *e = &p->a.experts;
    if (e->k > 0 && x == e->sum) return false; /* other blocks have its columns */
    if (delta && p->a.n == 0 && e->y == delta && e->D == D) {
        e->res = (const bf16 *)x;
        e->sum = (bf16 *)sum;
    } else if (delta) {
        row_step *last = p->a.n > 0 ? &p->a.step[p->a.n - 1] : NULL;
        bool fits = last && last->y == delta && !last->f32 && !last->h && last->n_columns == D && !last->res;
        /* x may be an earlier step's sum: a block has the same columns of it, as the number of columns is equal */
        if (!fits || x == delta || last->x == sum || p->a.step[0].x == sum)
            return false; /* a block reads before another has written */
        last->res = (const bf16 *)x;
        last->sum = (bf16 *)sum;
    }
    p->norm = {(const bf16 *)in, (const bf16 *)scale, (bf16 *)y, eps, D};
    return true;
}

/* Whether x is the row that `last` multiplies, and neither it nor its inputs are written by last or here: a block
 * without columns of last may still read it late. */
static bool row_again(const row_step *last, int K, const void *x, const void *y, const void *h) {
    const void *row = last->scale ? last->norm : last->x, *written[] = {last->y, last->h, last->sum, y, h};
    if (row != x || last->K != K) return false;
    for (const void *w : written)
        if (w && (w == x || w == last->x)) return false;
    return true;
}

bool clime_cuda_row_product(struct clime_dev *d, int N, int K, const void *x, const void *w, void *y, void *h,
                            bool f32) {
    struct clime_row_program *p = d->rows;
    int parts = h ? 2 : 1, n_columns = N / parts, columns = 8, tiles;
    int turns = (n_columns * parts + d->n_sm * MAX_ROWS - 1) / (d->n_sm * MAX_ROWS);
    auto widen = [&](int least, int n_blocks) {
        while ((n_columns + least - 1) / least > n_blocks) least += 8;
        return least;
    };
    columns = widen(columns, d->n_sm * turns);
    bool begins = d->recording && p->a.n == 0 && p->a.experts.k == 0 && !p->norm.x;
    if (begins && turns == 1) { /* then all blocks load their weights while the row is made */
        int wide = widen(columns, d->n_sm - LEFT), room = SMEM - STATIC - ALIGN - K * (int)sizeof(bf16);
        if (wide * parts <= MAX_ROWS && wide * parts * K * (int)sizeof(bf16) <= room) columns = wide;
    }
    for (int i = 0; i < p->a.n; i++) /* a block has the same columns of a row and of its sums throughout */
        if (p->a.step[i].n_columns == n_columns && !p->a.step[i].h == !h) columns = p->a.step[i].columns;
    if (K % PANEL != 0 || K > MAX_K || columns * parts > MAX_ROWS) return false;
    tiles = ((columns * parts + 15) / 16 + WARPS - 1) / WARPS;
    bool normed = p->norm.x && p->norm.y == x && p->norm.D == K && p->norm.x != y && p->norm.x != h;
    const row_step *last = p->a.n > 0 ? &p->a.step[p->a.n - 1] : NULL;
    const void *in = normed ? p->norm.x : x, *made = !last ? in : last->h ? last->h : last->res ? last->sum : last->y;
    bool again = last && !p->norm.x && row_again(last, K, x, y, h);
    bool follows = !last || again || (in == made && K == last->n_columns && !last->f32);
    /* the first row is in memory, and with several products of it some blocks may read it late */
    if (last && (p->a.step[0].x == y || p->a.step[0].x == h)) follows = false;
    bool lone = p->a.experts.k > 0 && p->a.n == 0 && !normed; /* a sum without a product */
    if (p->a.n == MAX_STEPS || (p->norm.x && !normed) || lone || !follows || clime_cuda_rope_waits(d)) {
        clime_cuda_flush(d);
        normed = again = false;
    }
    int place = p->a.n++;
    row_step *a = &p->a.step[place];
    *a = again ? *last : row_step{};
    if (!again) {
        a->x = normed ? p->norm.x : (const bf16 *)x;
        a->words =
            place > 0 || p->a.experts.k > 0 ? clime_cuda_words_at(d, CLIME_WORDS_STEPS) + place * (MAX_K / 2) : NULL;
    }
    a->again = again;
    a->logits = NULL;
    a->res = NULL, a->sum = NULL; /* the next norm's, if it has a sum */
    a->w = (const bf16 *)w;
    if (normed) a->scale = p->norm.scale, a->norm = p->norm.y, a->eps = p->norm.eps, p->norm.x = NULL;
    a->y = y;
    a->h = (bf16 *)h;
    a->f32 = f32;
    a->K = K;
    a->n_columns = n_columns;
    a->columns = columns;
    a->tiles = tiles;
    if (!d->recording) clime_cuda_row_end(d);
    return true;
}
