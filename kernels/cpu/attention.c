/* Causal attention of packed and paged batches: online softmax over blocks of CLIME_PAGE keys (Dao et al. 2022,
 * "FlashAttention"; Milakov & Gimelshein 2018 for the running maximum).
 *
 * Called by the context's owner; a task is a few query rows with all the query heads of one KV head, on the pool. Owns
 * nothing. Invariant: a row's steps are the same whichever rows share its task: blocks by absolute position, a chain
 * over Dh for each score, a fixed tree for the sum of a block, a chain over keys for each output. A block is rows with
 * a stride in both layouts, so packed and paged run the same code. Keys after a row's position never enter its sums,
 * not even with weight 0: 0 x NaN is NaN, and -0 + 0 is not -0. P stays in fp32: on the CPU rounding it would save
 * nothing.
 */
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/cpu_ops.h"

#define TASK_ROWS 32 /* query rows times heads per task: they share the transposed block of keys */

struct attn_tile {
    int32_t seq, row, n; /* first row in the batch, rows */
};

struct attn_job {
    struct clime_dev *d;
    const struct clime_heads *h;
    const struct clime_attn *a;
    const struct attn_tile *tiles;
    int n_tiles;
    const void *q, *k, *v;
    void *out;
    float *lse;
};

struct attn_block {
    size_t at, ld; /* first element, elements between keys */
};

static struct attn_block attn_block_of(const struct clime_heads *h, const struct clime_attn *a, int seq, int head,
                                       int block) {
    size_t HK = (size_t)h->HK, Dh = (size_t)h->Dh;
    struct attn_block b;
    if (a->page_table) {
        size_t page = (size_t)a->page_table[(size_t)seq * (size_t)a->max_pages + (size_t)block];
        b.at = (page * HK + (size_t)head) * CLIME_PAGE * Dh;
        b.ld = Dh;
    } else {
        b.at = ((size_t)(a->h_q_start[seq] + block * CLIME_PAGE) * HK + (size_t)head) * Dh;
        b.ld = HK * Dh;
    }
    return b;
}

/* Turns one row's scores into weights in place, with n valid keys; rescales the running sum and returns the factor for
 * the running output. */
static float softmax_block(float *s, int n, float scale, float *m, float *l) {
    vf top = vf_set1(-INFINITY);
    for (int i = 0; i < n; i += VW) {
        vf v = vf_first_n(vf_load(s + i) * scale, n - i, -INFINITY);
        vf_store(s + i, v);
        top = vf_max(v, top);
    }
    float m_new = vf_hmax(top);
    if (!(m_new > *m)) m_new = *m;
    vf sum = {0};
    for (int i = 0; i < n; i += VW) {
        vf p = vf_exp(vf_load(s + i) - m_new);
        vf_store(s + i, p);
        sum += p;
    }
    float alpha = f32_exp(*m - m_new);
    *l = *l * alpha + vf_sum(sum);
    *m = m_new;
    return alpha;
}

/* o[r] = o[r] * alpha[r] + p[r] v for rows with n[r] valid keys, n ascending. */
VEC_INLINE void attn_values(const bool bf16, int rows, int Dv, const int *n, const float *alpha, const float *p,
                            const void *v, size_t ld, const char *ahead, float *o) {
    int pad = attn_pad(Dv);
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < pad; i += VW) vf_store(o + r * pad + i, vf_load(o + r * pad + i) * alpha[r]);
    }
    const size_t size = bf16 ? 2 : 4;
    for (int r = 0; r < rows;) {
        /* up to four rows share the keys that all of them see; the rest is row by row */
        int group = rows - r < 4 ? rows - r : 4, shared = n[r];
        sum_rows(bf16, Dv, group, shared, p + r * CLIME_PAGE, CLIME_PAGE, 1, v, ld, r == 0 ? ahead : NULL, o + r * pad,
                 (size_t)pad);
        for (int i = 1; i < group; i++) {
            if (n[r + i] == shared) continue;
            sum_rows(bf16, Dv, 1, n[r + i] - shared, p + (r + i) * CLIME_PAGE + shared, CLIME_PAGE, 1,
                     (const char *)v + (size_t)shared * ld * size, ld, NULL, o + (r + i) * pad, (size_t)pad);
        }
        r += group;
    }
}

/* The block of keys that this thread most likely reads after block b of task i: the same sequence's next, or the first
 * of the next task. */
static const char *attn_next_keys(const struct attn_job *j, int i, int b, int last, size_t size) {
    const struct clime_heads *h = j->h;
    if ((b + 1) * CLIME_PAGE <= last) {
        return (const char *)j->k + attn_block_of(h, j->a, j->tiles[i / h->HK].seq, i % h->HK, b + 1).at * size;
    }
    int next = i + 1 < j->n_tiles * h->HK ? i + 1 : i;
    return (const char *)j->k + attn_block_of(h, j->a, j->tiles[next / h->HK].seq, next % h->HK, 0).at * size;
}

VEC_INLINE void attn_task_body(const struct attn_job *j, int i, int slot, const bool bf16) {
    const struct clime_heads *h = j->h;
    const struct attn_tile *tile = &j->tiles[i / h->HK];
    const int head = i % h->HK, G = h->H / h->HK, Dh = h->Dh, Dv = attn_value(h), pad = attn_pad(Dv);
    const int KW = gemm_words(Dh, bf16);
    const int rows = tile->n * G;
    const bool ahead = tile->n == 1 && j->a->page_table; /* few rows: memory-bound, so the next blocks are prefetched */
    const size_t size = bf16 ? 2 : 4;
    const int pos0 = (j->a->pos0 ? j->a->h_pos0[tile->seq] : 0) + tile->row - j->a->h_q_start[tile->seq];
    const int last = pos0 + tile->n - 1;

    size_t floats = (size_t)KW * CLIME_PAGE + (size_t)rows * (CLIME_PAGE + (size_t)pad + 3);
    float *o = clime_cpu_scratch(j->d, slot, floats * 4 + (size_t)rows * (sizeof(char *) + sizeof(int)) + 64);
    uint32_t *kt = (uint32_t *)(void *)(o + (size_t)rows * (size_t)pad);
    float *s = (float *)(void *)(kt + (size_t)KW * CLIME_PAGE), *m = s + (size_t)rows * CLIME_PAGE, *l = m + rows;
    float *alpha = l + rows;
    int *n = (int *)(void *)(alpha + rows);
    const char **qs = (const char **)(((uintptr_t)(n + rows) + 15) & ~(uintptr_t)15);

    memset(o, 0, (size_t)rows * (size_t)pad * 4);
    for (int r = 0; r < rows; r++) {
        m[r] = -INFINITY;
        l[r] = 0;
        size_t row = (size_t)(tile->row + r / G) * (size_t)h->H + (size_t)(head * G + r % G);
        qs[r] = (const char *)j->q + row * (size_t)Dh * size;
    }
    for (int b = 0; b * CLIME_PAGE <= last; b++) {
        int key0 = b * CLIME_PAGE, nk = last + 1 - key0 < CLIME_PAGE ? last + 1 - key0 : CLIME_PAGE;
        struct attn_block at = attn_block_of(h, j->a, tile->seq, head, b);
        struct gemm_operand keys = {(const char *)j->k + at.at * size, nk, Dh, false, at.ld};
        const char *values = (const char *)(h->Dv ? j->k : j->v) + at.at * size, *next_keys = NULL;
        if (ahead) next_keys = attn_next_keys(j, i, b, last, size);
        gemm_streams(&keys, bf16, 0, nk, CLIME_PAGE, 1, 0, KW, kt);
        int r0 = pos0 >= key0 ? 0 : (key0 - pos0) * G; /* earlier rows see nothing of this block */
        score_rows(bf16, qs + r0, rows - r0, KW, kt, nk, ahead ? values : NULL, s + (size_t)r0 * CLIME_PAGE);
        for (int r = r0; r < rows; r++) {
            int valid = pos0 + r / G + 1 - key0;
            n[r] = valid < CLIME_PAGE ? valid : CLIME_PAGE;
            alpha[r] = softmax_block(s + (size_t)r * CLIME_PAGE, n[r], h->scale, &m[r], &l[r]);
        }
        attn_values(bf16, rows - r0, Dv, n + r0, alpha + r0, s + (size_t)r0 * CLIME_PAGE, values, at.ld, next_keys,
                    o + (size_t)r0 * (size_t)pad);
    }
    for (int r = 0; r < rows; r++) {
        size_t row = (size_t)(tile->row + r / G) * (size_t)h->H + (size_t)(head * G + r % G);
        for (int k = 0; k < Dv; k += VW) {
            dt_store(j->out, row * (size_t)Dv + (size_t)k, vf_load(o + (size_t)r * (size_t)pad + k) / l[r],
                     vec_lanes(k, Dv), bf16);
        }
        if (j->lse) j->lse[row] = m[r] + f32_log(l[r]);
    }
}

static void attn_task(void *arg, int i, int slot) {
    const struct attn_job *j = arg;
    if (clime_cpu_bf16(j->d)) {
        attn_task_body(j, i, slot, true);
    } else {
        attn_task_body(j, i, slot, false);
    }
}

void CPU(attn)(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
               const void *k, const void *v, void *out, float *lse) {
    CHECK(h->H % h->HK == 0 && h->Dh % 2 == 0 && h->Dv <= h->Dh);
    struct attn_tile *tiles = clime_cpu_shared(d, (size_t)(T > 0 ? T : 1) * sizeof *tiles);
    int G = h->H / h->HK, step = TASK_ROWS / G > 0 ? TASK_ROWS / G : 1, n_tiles = 0;
    double pairs = 0; /* of query row and key */
    for (int s = 0; s < a->n_seq; s++) {
        int end = a->h_q_start[s + 1], pos0 = a->pos0 ? a->h_pos0[s] : 0;
        for (int r = a->h_q_start[s]; r < end; r += step) {
            int n = end - r < step ? end - r : step;
            tiles[n_tiles++] = (struct attn_tile){s, r, n};
            pairs += (double)n * (pos0 + r - a->h_q_start[s] + n);
        }
    }
    struct attn_job j = {
        .d = d, .h = h, .a = a, .tiles = tiles, .n_tiles = n_tiles, .q = q, .k = k, .v = v, .out = out, .lse = lse};
    clime_cpu_for(d, n_tiles * h->HK, pairs * h->H * h->Dh / VW, attn_task, &j);
}
