/* Attention of few decoding sequences, head sizes 64 and 128. Launched by attn_fwd.cu.
 *
 * Four warps a (sequence, KV head, split of keys): each computes the weights of one block of keys and a quarter of the
 * output's columns. The last of a head's blocks to end merges its splits, in order. While a step is recorded the
 * rotation that comes before is done here as well (clime_cuda_rope_take): every block rotates the queries it needs, and
 * the one with the newest keys writes k and v. A launch of its own would cost more than it computes. */
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/rope_head.cuh"

enum { WARPS = ATTN_SPLIT_BLOCKS, THREADS = WARPS * 32 };

template <int DH> struct wide_shared {
    kv_tile<DH> k[ATTN_SPLIT_BLOCKS], v[ATTN_SPLIT_BLOCKS];
    bf16 q[16][DH + 8]; /* rotated here */
    attn_split_weights<ATTN_SPLIT_BLOCKS> w;
    bool last; /* of the head's blocks to end */
};

/* The sequence's one row: queries of this head to sh.q; k and v to the pools and, when the tiles have arrived, to the
 * newest of them, where that is one of this block's. In one turn: a group has at most 16 query heads. */
template <int DH> struct row_turns {
    static constexpr int LANES = DH / 16; /* of a head */
    static_assert(THREADS / LANES >= 16, "a group's queries in one turn");
    int t, at, item, q_head, kv_head; /* item: this lane's query head of the group; 0 is also k, 1 also v */
    bool is_q, is_kv;
    head_turn q, kv;

    /* newest: of the block's tiles; others have none. */
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

struct __align__(16) four {
    float x[4]; /* two of them where DH is 64 */
};

/* As merge_kernel, a warp a row, whose lanes have DH/32 elements each. Other blocks may have written the splits: they
 * come past the L1, as many at a time as fly at once. */
template <int DH>
static __device__ __forceinline__ void merge_rows(const attn_args &a, const attn_span &rows, int n_splits,
                                                  const float *o, const float2 *ml) {
    enum { EACH = DH / 32, AT_ONCE = 4 };
    int lane = threadIdx.x & 31;
    for (int row = threadIdx.x >> 5; row < rows.n; row += WARPS) {
        int n = (rows.pos0 + row / rows.group) / ATTN_SPLIT + 1;
        size_t to = attn_row(a, rows, row), at = to * n_splits;
        float m = 0, l = 0;
        four sum = {};
        for (int s0 = 0; s0 < n; s0 += AT_ONCE) {
            four more[AT_ONCE];
            float2 state[AT_ONCE];
#pragma unroll
            for (int s = 0; s < AT_ONCE; s++)
                if (s0 + s < n) {
                    const float *from = o + (at + s0 + s) * DH + lane * EACH;
                    state[s] = __ldcg(&ml[at + s0 + s]);
                    if (DH == 128)
                        *(float4 *)more[s].x = __ldcg((const float4 *)from);
                    else
                        *(float2 *)more[s].x = __ldcg((const float2 *)from);
                }
#pragma unroll
            for (int s = 0; s < AT_ONCE; s++) {
                if (s0 + s >= n) break;
                if (s0 + s == 0) {
                    m = state[0].x, l = state[0].y, sum = more[0];
                    continue;
                }
                attn_weights w = attn_merge(m, l, state[s].x, state[s].y);
#pragma unroll
                for (int e = 0; e < EACH; e++) sum.x[e] = attn_merge_value(w, sum.x[e], more[s].x[e]);
                m = w.m;
                l = w.l;
            }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) a.out[to * DH + lane * EACH + e] = b_of(attn_value(sum.x[e], 1.0f / l));
        if (a.lse && lane == 0) a.lse[to] = attn_lse(m, l);
    }
}

/* As split_kernel, the same bits: the chains over blocks run where their results are needed, in the same order. done:
 * how many blocks of each head have ended, 0 between launches. */
template <int DH, bool ROTATES>
__global__ void __launch_bounds__(THREADS)
    wide_kernel(attn_args a, const clime_rope_args r, int n_splits, float *o, float2 *ml, unsigned *done) {
    constexpr int COLUMNS = DH / 8 / ATTN_SPLIT_BLOCKS; /* n8 tiles of the output a warp has */
    extern __shared__ __align__(16) char smem[];
    wide_shared<DH> &sh = *(wide_shared<DH> *)smem;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, split = blockIdx.x, head = blockIdx.y, seq = blockIdx.z;
    /* What follows is known before the step runs. A rotated row is the sequence's only one: its number and position say
     * all, and each load that another waits for costs as much as the attention of a block. */
    attn_span rows = ROTATES ? attn_span{head, a.H / a.HK, seq, a.H / a.HK, r.pos[seq]} : attn_rows_of(a, seq, head);
    int first = split * ATTN_SPLIT_BLOCKS, b = first + warp;
    size_t page = ROTATES && b < a.max_pages ? a.page_table[(size_t)seq * a.max_pages + b] : 0;
    int n_keys = rows.pos0 + rows.n / rows.group;
    int n_blocks = min(ATTN_SPLIT_BLOCKS, (n_keys + BLOCK - 1) / BLOCK - first);
    if (n_blocks <= 0) {
        start_next();
        wait_for_last();
        return;
    }
    bool mine = warp < n_blocks, older = a.page_table && (b + 1) * BLOCK <= rows.pos0; /* no row of this step in it */
    auto fetch = [&]() {
        for (int is_v = 0; is_v < 2; is_v++) {
            kv_tile<DH> *to = is_v ? &sh.v[warp] : &sh.k[warp];
            const bf16 *from = is_v ? a.v : a.k;
            if (ROTATES) /* but the step's row, which is put there below */
                fetch_rows<DH>(from, (page * a.HK + head) * BLOCK * DH, DH, n_keys - 1 - b * BLOCK, to);
            else
                fetch_tile<DH>(a, from, seq, head, b, n_keys, to);
            cp_async_commit();
        }
    };
    bool early = ROTATES || older;
    if (mine && early) fetch();
    start_next(); /* not before: the next kernel fills its shared memory with weights, and keys would stand in that
                     queue */
    uint32_t q[DH / 16][4];
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
    store_split<DH>(a, rows, n_splits, split, warp * COLUMNS * 8, out, m, l, warp == n_blocks - 1, o, ml);
    /* the head's last block merges */
    int live = (n_keys + ATTN_SPLIT - 1) / ATTN_SPLIT;
    __threadfence();
    __syncthreads();
    if (live > 1) {
        unsigned *ended = &done[seq * a.HK + head];
        if (threadIdx.x == 0) {
            sh.last = (int)atomicAdd(ended, 1) == live - 1;
            if (sh.last) *ended = 0;
            __threadfence();
        }
        __syncthreads();
        if (!sh.last) return;
    }
    merge_rows<DH>(a, rows, n_splits, o, ml);
}

template <int DH> static void open_size(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(wide_kernel<DH, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(wide_shared<DH>)));
    CU(d, cudaFuncSetAttribute(wide_kernel<DH, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(wide_shared<DH>)));
}

void clime_cuda_attn_wide_open(struct clime_dev *d) {
    size_t bytes = (size_t)d->n_sm * sizeof *d->ended;
    open_size<64>(d);
    open_size<128>(d);
    if (CU(d, cudaMalloc((void **)&d->ended, bytes))) CU(d, cudaMemset(d->ended, 0, bytes));
}

template <int DH>
static void run(struct clime_dev *d, const attn_args &a, const clime_rope_args *r, int n_splits, float *o, float2 *ml) {
    dim3 grid(n_splits, a.HK, a.n_seq);
    auto kernel = r->T > 0 ? wide_kernel<DH, true> : wide_kernel<DH, false>;
    launch(d, kernel, grid, THREADS, sizeof(wide_shared<DH>), a, *r, n_splits, o, ml, d->ended);
}

void clime_cuda_attn_wide(struct clime_dev *d, const attn_args &a, int T, int n_splits, float *o, float2 *ml) {
    clime_rope_args r = {};
    if (T != a.n_seq || !a.page_table || !clime_cuda_rope_take(d, a.q, a.k, a.v, &r)) r.T = 0;
    if (a.Dh == 64)
        run<64>(d, a, &r, n_splits, o, ml);
    else
        run<128>(d, a, &r, n_splits, o, ml);
}
