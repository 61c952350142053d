/* Latent attention of packed and paged batches: kernel selection, and the merge of parallel splits. Called by
 * attention/forward.cu, on the thread of the context's owner.
 *
 * A decode step's splits run in parallel and latent_merge_kernel merges them (few.cu does both, for few sequences); a
 * tile of prefill or training processes its splits in sequence. The bits are the same. */
#include "kernels/cuda/latent/latent.cuh"

enum { MERGE_THREADS = LATENT_VALUE / 4 };

/* One block per row of a sequence, if it has more than one split; a thread has four columns. */
__global__ void __launch_bounds__(MERGE_THREADS)
    latent_merge_kernel(attn_args a, int n_splits, const float *o, const float2 *ml) {
    start_next();
    wait_for_last();
    attn_span rows = attn_rows_of(a, blockIdx.y, 0);
    if ((int)blockIdx.x >= rows.n || rows.pos0 + rows.n / rows.group <= LATENT_SPLIT) return;
    latent_merge_row(a, rows, blockIdx.x, threadIdx.x * 4, n_splits, o, ml);
}

void clime_cuda_latent_open(struct clime_dev *d) {
    clime_cuda_latent_forward_open(d);
    clime_cuda_latent_few_open(d);
    clime_cuda_latent_keys_open(d);
    clime_cuda_latent_queries_open(d);
}

/* As attention/forward.cu's: splits' outputs take at most this much at a time. */
#define SPLITS_BYTES ((size_t)256 << 20)

static size_t row_bytes(int H, int n_splits) {
    return (size_t)H * n_splits * (LATENT_VALUE * sizeof(float) + sizeof(float2));
}

static int n_splits_of(int keys) {
    return (keys + LATENT_SPLIT - 1) / LATENT_SPLIT;
}

/* Rows of each sequence that counts as decoding: about a tile of rows and heads. */
static int decode_rows(int H) {
    return H < LATENT_ROWS ? LATENT_ROWS / H : 1;
}

/* Bytes of the sums that one tile's splits leave to the next. */
static size_t state_bytes(void) {
    return (size_t)LATENT_BLOCKS * LATENT_ROWS * LATENT_VALUE * sizeof(float);
}

size_t clime_cuda_latent_scratch(const struct clime_heads *h, int n_seq, int max_len) {
    if (!latent_shape(h)) return 0;
    size_t one = decode_rows(h->H) * row_bytes(h->H, n_splits_of(max_len)), all = n_seq * one, state = state_bytes();
    size_t splits = all < SPLITS_BYTES ? all : one > SPLITS_BYTES ? one : SPLITS_BYTES;
    return splits > state ? splits : state;
}

/* T rows of the sequences of a, from row `first` of the batch on. */
static void side_by_side(struct clime_dev *d, const attn_args &a, int first, int T, int all, int rows, int n_splits) {
    if (n_splits == 1) { /* they write the final output */
        const latent_splits one = {1, NULL, NULL, NULL};
        if (!clime_cuda_latent_few(d, a, all, rows, one)) clime_cuda_latent_forward(d, a, all, one);
        return;
    }
    size_t n = (size_t)T * a.H * n_splits, before = (size_t)first * a.H * n_splits; /* kernels count from the batch's */
    float *o = (float *)clime_cuda_scratch(d, T * row_bytes(a.H, n_splits));
    if (!o) return;
    float2 *ml = (float2 *)(o + n * LATENT_VALUE) - before;
    o -= before * LATENT_VALUE;
    const latent_splits splits = {n_splits, o, ml, NULL};
    if (clime_cuda_latent_few(d, a, all, rows, splits)) return;
    clime_cuda_latent_forward(d, a, all, splits);
    launch(d, latent_merge_kernel, dim3(rows * a.H, a.n_seq), MERGE_THREADS, 0, a, n_splits, (const float *)o,
           (const float2 *)ml);
}

/* T: the batch's rows. rows, keys: of the sequence with the most; h_q_start NULL: one row each. */
static void decode(struct clime_dev *d, const attn_args &all, int T, const int32_t *h_q_start, int rows, int keys) {
    int n_splits = n_splits_of(keys), n;
    size_t fit = SPLITS_BYTES / row_bytes(all.H, n_splits);
    auto row_of = [&](int s) { return h_q_start ? h_q_start[s] : s; };
    for (int s = 0; s < all.n_seq; s += n) {
        for (n = 1; s + n < all.n_seq && (size_t)(row_of(s + n + 1) - row_of(s)) <= fit;) n++;
        attn_args a = all;
        a.n_seq = n;
        a.q_start += s;
        if (a.pos0) a.pos0 += s;
        if (a.page_table) a.page_table += (size_t)s * a.max_pages;
        side_by_side(d, a, row_of(s), row_of(s + n) - row_of(s), T, rows, n_splits);
    }
}

bool clime_cuda_latent_attn(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                            const attn_args &args) {
    if (!latent_shape(h) || !latent_aligned(args.q, args.k, args.out, NULL)) return false;
    int rows = 1, keys = a->max_len; /* of the sequence with the most */
    if (a->h_q_start) keys = 0;
    for (int s = 0; a->h_q_start && s < a->n_seq; s++) {
        int len = a->h_q_start[s + 1] - a->h_q_start[s], upto = (a->pos0 ? a->h_pos0[s] : 0) + len;
        rows = len > rows ? len : rows;
        keys = upto > keys ? upto : keys;
    }
    if (rows <= decode_rows(h->H)) {
        decode(d, args, T, a->h_q_start, rows, keys);
        return true;
    }
    float4 *state = (float4 *)clime_cuda_scratch(d, state_bytes());
    if (state) clime_cuda_latent_forward(d, args, T, {0, NULL, NULL, state});
    return true;
}
