/* Products of experts for a handful of rows, as in decoding one sequence: reads the weights of the chosen experts once,
 * near memory bandwidth. Launched by grouped.cu.
 *
 * A block has COLUMNS outputs of one row, a warp 8 of them as one chain of mma.sync (all 16 rows of the fragment are
 * the same row), which loads a panel while it multiplies the previous one; one more warp finds the row's expert and
 * fills a ring with tensor copies of its weights. Three blocks per multiprocessor overlap, so that some read while
 * others begin or end. Rows of the same expert each read its weights, the second from the L2. A gated product has half
 * of its columns from up, and also does the SwiGLU. Blocks of rows whose experts are elsewhere (kernels.h) exit; if the
 * experts arrive by words they multiply zeros, as tensor copies out of bounds give. Bytes: R N K 2.
 *
 * Inside a recording the product after a gated one starts while that still runs and reads weights before it waits. It
 * must know the rows' experts: they were sorted before the gated one's own wait ended, and only then does a gated one
 * let the next start. Its rows arrive by words (words.cuh); if a row's program has chosen the experts, the gated one
 * also gets them by words. */
#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/words.cuh"

enum { PANEL = 64, PANELS = 4, CHUNK = PANEL * PANELS, COLUMNS = 32, WARPS = COLUMNS / 8, STAGES = 4 };
enum { W_PANEL = COLUMNS * PANEL * 2, STAGE = PANELS * W_PANEL, ALIGN = 1024, THREADS = (WARPS + 1) * 32 };
enum { MOST_ROWS = 32, MOST_K = 8192 };
enum { TOGETHER = 5 }; /* blocks per multiprocessor that the registers allow */

struct rows_args {
    int E, N, K;
    const int32_t *start, *from; /* from NULL: x is in place order */
    const bf16 *x;
    bf16 *y, *h;
    bool early;         /* start is ready before the previous work ends */
    clime_words chosen; /* the rows' experts; at NULL: start has them */
    clime_words rows;   /* gated: also passes h on; else x arrives by them; at NULL: unused */
};

/* A warp's operands for one panel: B is w, 8 rows of it; A is the row. */
struct rows_fragments {
    uint32_t w[PANEL / 32][4], x[PANEL / 32][4];
};

/* Whether a place belongs to none of the E (contiguous) experts. */
static __device__ __forceinline__ bool place_of_others(const int32_t *start, int E, int place) {
    return place < __ldcg(start) || place >= __ldcg(start + E);
}

template <bool GATED>
__global__ void __launch_bounds__(THREADS, TOGETHER)
    rows_kernel(const __grid_constant__ CUtensorMap w_map, const rows_args a) {
    constexpr int ACROSS = GATED ? COLUMNS / 2 : COLUMNS; /* columns of a box of weights, of h or of y */
    extern __shared__ char smem[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ bf16 up[ACROSS];
    char *ring = (char *)(((uintptr_t)smem + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    int n_chunks = (a.K + CHUNK - 1) / CHUNK, row = blockIdx.y, n0 = blockIdx.x * ACROSS;
    int width = GATED ? a.N / 2 : a.N;
    uint32_t *x = (uint32_t *)(ring + min(STAGES, n_chunks) * STAGE);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&w_map);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    bool in_words = !GATED && a.rows.at;
    uint32_t number = a.rows.at ? number_of(a.rows) : 0;
    if (warp < WARPS ? !in_words : !(a.early || a.chosen.at)) wait_for_last();
    if (warp < WARPS) start_next();

    bool others = !a.chosen.at && place_of_others(a.start, a.E, row);
    if (warp == WARPS) {
        int expert = 0;
        if (a.chosen.at) {
            uint32_t number = number_of(a.chosen);
            uint64_t word;
            do word = take_word(a.chosen.at + row);
            while ((uint32_t)(word >> 32) != number);
            expert = (int)(uint32_t)word;
        } else { /* experts that end at this row or before; bypasses the L1, which may hold an older list */
#pragma unroll 4
            for (int e = lane; e < a.E; e += 32) expert += __ldcg(a.start + e + 1) <= row;
            expert = __reduce_add_sync(0xffffffffu, expert);
        }
        if (others) return;
        uint64_t policy = leaves_first();
        ring_at<STAGES> at = {0, 1}; /* parity: of the phase that empties a stage */
        for (int c = 0; c < n_chunks && lane == 0; c++, at.next()) {
            barrier_wait(&empty[at.stage], at.parity);
            barrier_expect(&full[at.stage], STAGE);
#pragma unroll
            for (int p = 0; p < PANELS; p++) {
                char *to = ring + at.stage * STAGE + p * W_PANEL;
                int k = c * CHUNK + p * PANEL, first = expert * a.N + n0;
                tensor_copy_once(to, &w_map, k, first, &full[at.stage], policy);
                if (GATED) tensor_copy_once(to + W_PANEL / 2, &w_map, k, first + width, &full[at.stage], policy);
            }
        }
        return;
    }
    const bf16 *own = a.x + (size_t)(a.from ? a.from[row] : row) * a.K;
    if (others) {
        wait_for_last(); /* where all rows are others', no other block does */
        return;
    }
    const uint64_t *words = a.rows.at + (size_t)row * a.K / 2;
    if (in_words) { /* one thread polls one word: if all polled they would delay the weights */
        uint32_t two[2];
        if (threadIdx.x == 0)
            while (!take_words(words, number, two[0], two[1])) {
            }
        named_barrier(1, WARPS * 32);
    }
    for (int k = threadIdx.x * 8; k < n_chunks * CHUNK; k += WARPS * 32 * 8) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (k < a.K && !in_words) v = *(const uint4 *)(own + k);
        if (k < a.K && in_words) {
            bool there;
            do {
                there = take_words(words + k / 2, number, v.x, v.y);
                there &= take_words(words + k / 2 + 2, number, v.z, v.w);
            } while (!there);
        }
        put_row(x, k, v);
    }
    named_barrier(1, WARPS * 32);
    float d[4] = {};
    ring_at<STAGES> at = {0, 0};
    uint32_t stage, x_at = shared_address(x) + lane % 4 * 16, w_at[PANEL / 32];
#pragma unroll
    for (int k = 0; k < PANEL / 32; k++) w_at[k] = kept(swizzled(warp * 8 + lane % 8, k * 4 + lane / 8));
    rows_fragments f[2]; /* double buffer: one loads while the other is multiplied */
    auto load = [&](rows_fragments &to, int p) {
#pragma unroll
        for (int k = 0; k < PANEL / 32; k++) {
            ldmatrix_x4(to.w[k], stage + p * W_PANEL + w_at[k]);
            load_shared(to.x[k], x_at + k * 64);
        }
        x_at += PANEL * (int)sizeof(bf16);
    };
    auto multiply = [&](const rows_fragments &now) {
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) {
            uint32_t low = now.x[k / 2][k % 2 * 2], high = now.x[k / 2][k % 2 * 2 + 1];
            const uint32_t rows[4] = {low, low, high, high};
            mma_16816(d, rows, &now.w[k / 2][k % 2 * 2]);
        }
    };
    auto begin_stage = [&]() {
        stage = shared_address(ring) + at.stage * STAGE;
        barrier_wait(&full[at.stage], at.parity);
        load(f[0], 0);
    };
    begin_stage();
#pragma unroll 1
    for (int left = n_chunks; left > 0; left--) {
        static_assert(PANELS % 2 == 0, "a stage begins with f[0]");
#pragma unroll
        for (int p = 1; p < PANELS; p++) {
            load(f[p % 2], p);
            multiply(f[(p - 1) % 2]);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&empty[at.stage]);
        at.next();
        if (left > 1) begin_stage();
        multiply(f[1]);
    }
    int at_column = warp * 8 % ACROSS + lane % 4 * 2, column = n0 + at_column;
    bool of_up = warp * 8 >= ACROSS, mine = lane < 4 && column < width;
    if (in_words) wait_for_last();
    if (mine) *(uint32_t *)(a.y + (size_t)row * a.N + (of_up ? width : 0) + column) = pack2(d[0], d[1]);
    if (!GATED) return;
    if (of_up && lane < 4) *(uint32_t *)(up + at_column) = pack2(d[0], d[1]);
    named_barrier(1, WARPS * 32);
    if (!mine || of_up) return;
    size_t to = (size_t)row * width + column;
    uint32_t two = pack2(swiglu_of(b_of(d[0]), up[at_column]), swiglu_of(b_of(d[1]), up[at_column + 1]));
    if (a.rows.at) put_word(a.rows.at + to / 2, two, number);
    *(uint32_t *)(a.h + to) = two;
}

static int bytes_of(int K) {
    int n_chunks = (K + CHUNK - 1) / CHUNK;
    return (n_chunks < STAGES ? n_chunks : STAGES) * STAGE + n_chunks * CHUNK * 2 + ALIGN;
}

void clime_cuda_grouped_rows_open(struct clime_dev *d) {
    for (auto kernel : {rows_kernel<false>, rows_kernel<true>})
        CU(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes_of(MOST_K)));
}

template <bool GATED>
static bool product(struct clime_dev *d, const struct clime_grouped *g, const int32_t *from, void *h) {
    int across = GATED ? COLUMNS / 2 : COLUMNS, width = GATED ? g->N / 2 : g->N;
    if (g->kind != CLIME_LT_FORWARD || g->R > MOST_ROWS || g->K > MOST_K || g->kept.b) return false;
    CUtensorMap w_map;
    if (!clime_cuda_tensor_map(d, &w_map, g->b, (uint64_t)g->E * g->N, g->K, g->K, across)) return true; /* kept */
    clime_cuda_flush(d);
    bool early = !GATED && d->gated_start == g->start && d->gated_at == d->n_launched;
    clime_words chosen = clime_cuda_words_given(d, g->start), rows = {};
    if (early) rows = clime_cuda_words_given(d, g->a);
    if (GATED) {
        rows = clime_cuda_words(d, CLIME_WORDS_GATED, (size_t)g->R * width / 2);
        clime_cuda_words_give(d, h, rows);
    }
    rows_args a = {g->E, g->N, g->K, g->start, from, g->a, (bf16 *)g->y, (bf16 *)h, early, chosen, rows};
    launch(d, rows_kernel<GATED>, dim3((width + across - 1) / across, g->R), THREADS, bytes_of(g->K), w_map, a);
    d->gated_start = GATED ? g->start : NULL;
    d->gated_at = d->n_launched;
    return true;
}

bool clime_cuda_grouped_rows(struct clime_dev *d, const struct clime_grouped *g) {
    return product<false>(d, g, NULL, NULL);
}

bool clime_cuda_grouped_rows_swiglu(struct clime_dev *d, const struct clime_grouped *g, const int32_t *from, void *h) {
    return product<true>(d, g, from, h);
}
