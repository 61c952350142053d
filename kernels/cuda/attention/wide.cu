/* Attention of few decoding sequences inside a recording, head sizes 64 and 128. Launched by forward.cu.
 *
 * Four warps per (sequence, KV head, split of keys): each computes the weights of one block of keys and a quarter of
 * the output's columns. All blocks run at the same time: splits are exchanged by words (words.cuh), and the head's
 * blocks divide its rows among them and merge each row's splits, in order. While recording, the preceding rotation is
 * also done here (clime_cuda_rope_take): every block rotates the queries it needs, and the one with the newest keys
 * writes k and v. A separate launch would cost more than it computes. */
#include "kernels/cuda/attention/tile.cuh"
#include "kernels/cuda/rope_head.cuh"
#include "kernels/cuda/words.cuh"

enum { WARPS = ATTN_SPLIT_BLOCKS, THREADS = WARPS * 32 };

template <int DH> struct wide_shared {
    kv_tile<DH> k[ATTN_SPLIT_BLOCKS], v[ATTN_SPLIT_BLOCKS];
    bf16 q[16][DH + 8]; /* rotated here */
    attn_split_weights<ATTN_SPLIT_BLOCKS> w;
};

/* The sequence's one row: queries of this head to sh.q; k and v to the pools and, when the tiles have arrived, to the
 * newest of them, if it is one of this block's. In one turn: a group has at most 16 query heads. */
template <int DH> struct row_turns {
    static constexpr int LANES = DH / 16; /* per head */
    static_assert(THREADS / LANES >= 16, "a group's queries in one turn");
    int t, at, item, q_head, kv_head; /* item: this lane's query head of the group; 0 is also k, 1 also v */
    bool is_q, is_kv;
    head_turn q, kv;

    /* newest: of the block's tiles; else the block has none. */
    __device__ __forceinline__ row_turns(const clime_rope_args &r, const attn_span &rows, int newest) {
        t = rows.row0, at = threadIdx.x % LANES * 8, item = threadIdx.x / LANES;
        is_q = item < rows.group;
        is_kv = newest >= 0 && newest < ATTN_SPLIT_BLOCKS; /* the same for the whole block */
        q_head = rows.head * rows.group + (is_q ? item : 0);
        kv_head = r.s.H + rows.head + (item % 2 ? r.s.HK : 0);
        q = turn_of<DH>(r, t, q_head, at);
        if (is_kv) kv = turn_of<DH>(r, t, kv_head, at);
    }

    template <class F>
    __device__ __forceinline__ void write(const clime_rope_args &r, const attn_span &rows, int newest, bool write_q,
                                          wide_shared<DH> &sh, F arrived) {
        halves x = turned_head<DH>(r, q, t, q_head, at), y;
        if (is_q) store_halves<DH>(sh.q[item], at, x);
        if (is_q && write_q) store_halves<DH>(r.q + ((size_t)t * r.s.H + q_head) * DH, at, x);
        if (is_kv) y = turned_head<DH>(r, kv, t, kv_head, at);
        if (is_kv && item < 2) store_halves<DH>((item ? r.v : r.k) + kv_at(r, t, rows.head), at, y);
        arrived();
        if (is_kv && item < 2) store_halves<DH>((item ? sh.v : sh.k)[newest].at[rows.pos0 % BLOCK], at, y);
        __syncthreads();
    }
};

/* Two words of a value each. */
static __device__ __forceinline__ void put_floats(uint64_t *to, float x, float y, uint32_t number) {
    uint64_t high = (uint64_t)number << 32;
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};\n" ::"l"(to), "l"(high | __float_as_uint(x)),
                 "l"(high | __float_as_uint(y))
                 : "memory");
}

static __device__ __forceinline__ bool take_floats(const uint64_t *from, uint32_t number, float &x, float &y) {
    uint32_t a, b;
    bool there = take_words(from, number, a, b);
    x = __uint_as_float(a), y = __uint_as_float(b);
    return there;
}

/* A warp's part of a split: its output from column `first` on and, from one warp, the state (m, l), as words. (As one
 * template with forward.cu's store_split, this kernel grows by 1 to 2 %.) */
template <int DH, int N>
static __device__ __forceinline__ void put_split(const attn_args &a, const attn_span &rows, int n_splits, int split,
                                                 int first, const float (&out)[N][4], const float (&m)[2],
                                                 const float (&l)[2], bool state, uint64_t *words, uint32_t number) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = attn_quad_sum(l[h]);
        int row = lane / 4 + h * 8;
        if (row >= rows.n) continue;
        uint64_t *to = words + (attn_row(a, rows, row) * n_splits + split) * (DH + 2);
#pragma unroll
        for (int n = 0; n < N; n++)
            put_floats(to + first + n * 8 + lane % 4 * 2, out[n][h * 2], out[n][h * 2 + 1], number);
        if (state && lane % 4 == 0) put_floats(to + DH, m[h], sum, number);
    }
}

/* Merges a row's splits in order, by one warp, whose lanes have DH/32 elements each; several splits are in flight. */
template <int DH>
static __device__ __forceinline__ void merge_row(const attn_args &a, size_t to, int n, int n_splits,
                                                 const uint64_t *splits, uint32_t number) {
    enum { EACH = DH / 32, AT_ONCE = 4 };
    int lane = threadIdx.x & 31;
    const uint64_t *at = splits + to * n_splits * (DH + 2);
    float m = 0, l = 0, sum[EACH] = {};
    for (int s0 = 0; s0 < n; s0 += AT_ONCE) {
        float more[AT_ONCE][EACH];
        float2 state[AT_ONCE];
        bool there;
        do {
            there = true;
#pragma unroll
            for (int s = 0; s < AT_ONCE; s++)
                if (s0 + s < n) {
                    const uint64_t *from = at + (size_t)(s0 + s) * (DH + 2);
                    there &= take_floats(from + DH, number, state[s].x, state[s].y);
#pragma unroll
                    for (int e = 0; e < EACH; e += 2)
                        there &= take_floats(from + lane * EACH + e, number, more[s][e], more[s][e + 1]);
                }
        } while (!there);
#pragma unroll
        for (int s = 0; s < AT_ONCE; s++) {
            if (s0 + s >= n) break;
            if (s0 + s == 0) {
                m = state[0].x, l = state[0].y;
#pragma unroll
                for (int e = 0; e < EACH; e++) sum[e] = more[0][e];
                continue;
            }
            attn_weights w = attn_merge(m, l, state[s].x, state[s].y);
#pragma unroll
            for (int e = 0; e < EACH; e++) sum[e] = attn_merge_value(w, sum[e], more[s][e]);
            m = w.m;
            l = w.l;
        }
    }
    __syncwarp();
    lanes<EACH> value;
#pragma unroll
    for (int e = 0; e < EACH; e++) value.x[e] = b_of(attn_value(sum[e], 1.0f / l));
    store<EACH>(a.out + to * DH + lane * EACH, value);
    if (a.lse && lane == 0) a.lse[to] = attn_lse(m, l);
}

/* Same bits as split_kernel and merge_kernel: the chains over blocks run where their results are needed, in the same
 * order. */
template <int DH, bool ROTATES>
__global__ void __launch_bounds__(THREADS)
    wide_kernel(attn_args a, const clime_rope_args r, const clime_words splits, int n_splits) {
    constexpr int COLUMNS = DH / 8 / ATTN_SPLIT_BLOCKS; /* n8 tiles of the output per warp */
    extern __shared__ __align__(16) char smem[];
    wide_shared<DH> &sh = *(wide_shared<DH> *)smem;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, split = blockIdx.x, head = blockIdx.y, seq = blockIdx.z;
    /* Known before the step runs. A rotated row is the sequence's only one: its number and position suffice, and each
     * dependent load costs as much as the attention of a block. */
    attn_span rows = ROTATES ? attn_span{head, a.H / a.HK, seq, a.H / a.HK, r.pos[seq]} : attn_rows_of(a, seq, head);
    int first = split * ATTN_SPLIT_BLOCKS, b = first + warp;
    size_t page = ROTATES && b < a.max_pages ? a.page_table[(size_t)seq * a.max_pages + b] : 0;
    int n_keys = rows.pos0 + rows.n / rows.group;
    int n_blocks = min(ATTN_SPLIT_BLOCKS, (n_keys + BLOCK - 1) / BLOCK - first);
    if (n_blocks <= 0) return; /* the first split's blocks wait for the previous work */
    bool mine = warp < n_blocks, older = a.page_table && (b + 1) * BLOCK <= rows.pos0; /* no row of this step in it */
    auto fetch = [&]() {
        for (int is_v = 0; is_v < 2; is_v++) {
            kv_tile<DH> *to = is_v ? &sh.v[warp] : &sh.k[warp];
            const bf16 *from = is_v ? a.v : a.k;
            if (ROTATES) /* except the step's row, which is written below */
                fetch_rows<DH>(from, (page * a.HK + head) * BLOCK * DH, DH, n_keys - 1 - b * BLOCK, to);
            else
                fetch_tile<DH>(a, from, seq, head, b, n_keys, to);
            cp_async_commit();
        }
    };
    bool early = ROTATES || older;
    if (mine && early) fetch();
    start_next(); /* not earlier: the next kernel fills its shared memory with weights, and keys would queue behind them
                   * */
    uint32_t q[DH / 16][4], number = number_of(splits);
    int pos[2];
    if (ROTATES) {
        int newest = rows.pos0 / BLOCK - first;
        row_turns<DH> turns(r, rows, newest);
        wait_for_last();
        turns.write(r, rows, newest, split == 0, sh, [] {
            cp_async_wait<0>();
            __syncthreads();
        });
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = lane / 4 + h * 8;
            pos[h] = row < rows.n ? rows.pos0 : -1;
            if (row >= rows.n) row = 0;
#pragma unroll
            for (int kk = 0; kk < DH / 16; kk++)
#pragma unroll
                for (int e = h; e < 4; e += 2)
                    q[kk][e] = *(const uint32_t *)&sh.q[row][kk * 16 + e / 2 * 8 + lane % 4 * 2];
        }
    } else {
        wait_for_last();
        if (mine && !early) fetch();
        load_rows<DH>(a, rows, 0, q, pos);
    }
    float s[BLOCK / 8][4] = {};
    cp_async_wait<1>(); /* the keys */
    __syncwarp();
    if (mine) {
        attn_scores<DH>(s, q, &sh.k[warp]);
        attn_mask(s, b * BLOCK, pos);
        sh.w.put_top(warp, s);
    }
    __syncthreads();
    if (mine) sh.w.weigh(warp, a.scale2, s);
    cp_async_wait<0>();
    __syncthreads();
    float out[COLUMNS][4] = {}, m[2] = {ATTN_LOWEST, ATTN_LOWEST}, l[2] = {}, factor[2];
    for (int k = 0; k < n_blocks; k++) {
        sh.w.step(k, a.scale2, m, l, factor);
        attn_shrink(out, factor);
#pragma unroll
        for (int kk = 0; kk < BLOCK / 16; kk++) {
            uint4 w = sh.w.p[k][kk][lane];
            uint32_t p[4] = {w.x, w.y, w.z, w.w};
            attn_add<DH>(out, p, &sh.v[k], kk, warp * COLUMNS * 8);
        }
    }
    put_split<DH>(a, rows, n_splits, split, warp * COLUMNS * 8, out, m, l, warp == n_blocks - 1, splits.at, number);
    int live = (n_keys + ATTN_SPLIT - 1) / ATTN_SPLIT;
    for (int row = split + warp * live; row < rows.n; row += live * WARPS)
        merge_row<DH>(a, attn_row(a, rows, row), (rows.pos0 + row / rows.group) / ATTN_SPLIT + 1, n_splits, splits.at,
                      number);
}

template <int DH> static void open_size(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(wide_kernel<DH, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(wide_shared<DH>)));
    CU(d, cudaFuncSetAttribute(wide_kernel<DH, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(wide_shared<DH>)));
}

void clime_cuda_attn_wide_open(struct clime_dev *d) {
    open_size<64>(d);
    open_size<128>(d);
}

template <int DH>
static void run(struct clime_dev *d, const attn_args &a, const clime_rope_args *r, int first, int T, int n_splits) {
    dim3 grid(n_splits, a.HK, a.n_seq);
    auto kernel = r->T > 0 ? wide_kernel<DH, true> : wide_kernel<DH, false>;
    size_t row = (size_t)a.H * n_splits * (DH + 2);
    clime_cuda_flush(d); /* so that this kernel is the next one launched */
    clime_words splits = clime_cuda_words(d, CLIME_WORDS_SPLITS, T * row);
    CHECK(splits.at);         /* there is room: a multiprocessor has one block of at most 16 rows */
    splits.at -= first * row; /* kernels count rows from the batch's first */
    launch(d, kernel, grid, THREADS, sizeof(wide_shared<DH>), a, *r, splits, n_splits);
}

void clime_cuda_attn_wide(struct clime_dev *d, const attn_args &a, int first, int T, int n_splits) {
    clime_rope_args r = {};
    if (T != a.n_seq || !a.page_table || !clime_cuda_rope_take(d, a.q, a.k, a.v, &r)) r.T = 0;
    if (a.Dh == 64)
        run<64>(d, a, &r, first, T, n_splits);
    else
        run<128>(d, a, &r, first, T, n_splits);
}
