/* The forward pass of latent attention on wgmma: decode, prefill and training. Launched by attention.cu.
 *
 * Persistent blocks take item after item: a tile of 64 rows of (position, head), with all keys that it sees or one
 * split of them. One warp loads the queries and, two blocks of 64 keys ahead, keys, panel by panel. Each of two
 * warpgroups has half of the columns of the weighted values, and one of two neighbouring blocks of keys, whose scores
 * it computes and turns into weights: the steps of a block's scores are dependent, so one block's alone leave the
 * tensor cores half idle, and one warpgroup's weights overlap the other's products. The weights go to shared memory, to
 * the block's last panel, which is no longer read. In prefill and training a cluster of two thread blocks has
 * neighbouring tiles; each loads half of the panels for both.
 *
 * The bits are attention/rows.cuh's and attention/attention.cuh's with splits of LATENT_SPLIT keys: references and sums
 * pass from block to block, so from warpgroup to warpgroup. A tile's sums of one split fill the registers of its
 * warpgroups; the merged sums of the earlier splits are in memory (cached in the L2), and each thread reads and writes
 * its own. */
#include "kernels/cuda/latent/latent.cuh"

struct fwd_shared {
    char q[PANELS][PANEL], k[2][PANELS][PANEL]; /* once its scores are computed, a block's weights in its last panel */
    float4 state[2][128];                       /* of each warpgroup's last block, by thread: references and sums */
    float factor[2][LATENT_ROWS];               /* of the block in a stage: factor on earlier output */
    int shrinks[2][4];                          /* any of the 16 rows of a warp */
    uint64_t q_full, q_empty, k_full[2][PANELS], k_empty[2], p_full[2];
};

/* Registers of the multiplying warps; the loading ones have the remaining 24 of 504. */
enum { FORWARD_REGISTERS = 240 };

typedef ring_at<2> place;

struct fwd_item {
    attn_span rows;
    int seq, first, begin, end; /* its first row in the span; blocks of keys */
    int end_all;                /* of the cluster's tiles */
    int split;                  /* in parallel: its index; -1: the only one */
};

/* The item of the cluster's C thread blocks in a turn; false: no more. Tiles are assigned from each sequence's last on,
 * which see the most keys, with every other turn reversed, so that all clusters end at about the same time. One warp;
 * every lane gets it. */
template <int C>
static __device__ __forceinline__ bool find_item(const attn_args &a, int n_splits, int turn, fwd_item *item) {
    int lane = threadIdx.x & 31, before = 0, n_clusters = gridDim.x / C, cluster = blockIdx.x / C;
    int index = turn * n_clusters + (turn % 2 ? n_clusters - 1 - cluster : cluster);
    for (int base = 0; base < a.n_seq; base += 32) {
        int s = a.n_seq - 1 - base - lane, n = 0, splits = 1;
        if (s >= 0) {
            attn_span rows = attn_rows_of(a, s, 0);
            if (n_splits) splits = (rows.pos0 + rows.n / rows.group + LATENT_SPLIT - 1) / LATENT_SPLIT;
            n = (rows.n + C * LATENT_ROWS - 1) / (C * LATENT_ROWS) * splits;
        }
        int upto = n;
#pragma unroll
        for (int k = 1; k < 32; k *= 2) {
            int other = __shfl_up_sync(0xffffffffu, upto, k);
            if (lane >= k) upto += other;
        }
        unsigned over = __ballot_sync(0xffffffffu, before + upto > index);
        if (over) {
            int found = __ffs(over) - 1, at = before + __shfl_sync(0xffffffffu, upto, found) - 1 - index;
            splits = __shfl_sync(0xffffffffu, splits, found);
            item->seq = a.n_seq - 1 - base - found;
            item->rows = attn_rows_of(a, item->seq, 0);
            item->split = splits > 1 ? at % splits : -1;
            item->begin = at % splits * LATENT_SPLIT_BLOCKS;
            auto end_of = [&](int first, int rows) { /* no rows: none */
                                                     int last = min(first + rows, item->rows.n) - 1;
                                                     int end =
                                                         (item->rows.pos0 + last / item->rows.group) / CLIME_PAGE + 1;
                                                     if (n_splits) end = min(end, item->begin + LATENT_SPLIT_BLOCKS);
                                                     return last < first ? item->begin : end;
            };
            int all = at / splits * C * LATENT_ROWS;
            item->first = all + (C > 1 ? cluster_rank() * LATENT_ROWS : 0);
            item->end = end_of(item->first, LATENT_ROWS);
            item->end_all = end_of(all, C * LATENT_ROWS);
            return true;
        }
        before += __shfl_sync(0xffffffffu, upto, 31);
    }
    return false;
}

template <int C>
static __device__ void fetch(const attn_args &a, const CUtensorMap &q_map, const CUtensorMap &k_map, int n_splits,
                             fwd_shared &s) {
    place at = {0, 1}; /* parity: of the phase that empties a stage */
    int q_parity = 1, rank = C > 1 ? cluster_rank() : 0;
    fwd_item t;
    for (int turn = 0; find_item<C>(a, n_splits, turn, &t); turn++) {
        if (t.begin < t.end) {
            barrier_wait(&s.q_empty, q_parity);
            q_parity ^= 1;
            if ((threadIdx.x & 31) == 0) fetch_panels(s.q, PANELS, &q_map, t.rows.row0 * a.H + t.first, &s.q_full);
        }
        for (int b = t.begin; b < t.end_all; b++, at.next()) {
            int row = a.page_table ? a.page_table[(size_t)t.seq * a.max_pages + b] * CLIME_PAGE
                                   : t.rows.row0 + b * CLIME_PAGE;
            barrier_wait(&s.k_empty[at.stage], at.parity);
            if ((threadIdx.x & 31) != 0) continue;
            for (int p = 0; p < PANELS; p++) barrier_expect(&s.k_full[at.stage][p], PANEL);
            for (int p = C > 1 ? (rank + b) % 2 : 0; p < PANELS; p += C)
                if (C > 1)
                    tensor_copy_to_all<C>(s.k[at.stage][p], &k_map, p * 64, row, &s.k_full[at.stage][p]);
                else
                    tensor_copy(s.k[at.stage][p], &k_map, p * 64, row, &s.k_full[at.stage][p]);
        }
        __syncwarp();
    }
}

/* ---- the multiplying warpgroups ---- */

struct fwd_state {
    float m[2], l[2]; /* of the rows' split so far; l: each lane's sum */
};

static __device__ __forceinline__ void wait_panels(fwd_shared &s, const place &at, int first, int n) {
#pragma unroll
    for (int p = first; p < first + n; p++) barrier_wait(&s.k_full[at.stage][p], at.parity);
}

/* The warp no longer reads the block: signals all that load its panels. */
template <int C> static __device__ __forceinline__ void release_block(uint64_t *empty) {
    if (C == 1)
        release(empty);
    else if ((threadIdx.x & 31) == 0)
        for (int r = 0; r < C; r++) barrier_arrive_at(empty, r);
}

/* Queues the block's scores as its panels arrive; keys past the sequence's end are zeroed. */
static __device__ __forceinline__ void issue_scores(float (&z)[8][4], fwd_shared &s, const place &at, int n_left) {
    uint64_t q = wgmma_tile(s.q, PANEL), k = wgmma_tile(s.k[at.stage], PANEL);
    if (n_left < CLIME_PAGE) {
        wait_panels(s, at, 0, PANELS);
        zero_rows(s.k[at.stage], PANELS, n_left, threadIdx.x % 128, 128);
        fence_async();
        named_barrier(1 + threadIdx.x / 128, 128);
    }
    wait_panels(s, at, 0, 1);
    wgmma_fence();
    wgmma_ss_first<0, 0>(z, q, k);
#pragma unroll
    for (int kk = 1; kk < LATENT_WIDTH / 16; kk++) {
        if (kk % 4 == 0) {
            wait_panels(s, at, kk / 4, 1);
            /* else the compiler computes all steps' operands at once, for which there are no registers */
            asm volatile("" : "+l"(q), "+l"(k));
            wgmma_fence();
        }
        wgmma_ss<0, 0>(z, wgmma_columns(q, kk, PANEL), wgmma_columns(k, kk, PANEL), 1);
    }
    wgmma_commit();
}

/* Turns scores into weights, in shared memory. */
static __device__ __forceinline__ void weigh(float (&z)[8][4], const attn_args &a, fwd_shared &s, const place &at,
                                             fwd_state &state, int group) {
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4, row = warp * 16 + lane / 4;
    float factor[2] = {1, 1};
    bool any = attn_softmax(z, a.scale2, state.m, state.l, factor);
    uint32_t p[CLIME_PAGE / 16][4];
    attn_pack(p, z);
#pragma unroll
    for (int kk = 0; kk < CLIME_PAGE / 16; kk++) store_fragment(s.k[at.stage][VALUE_PANELS], p[kk], kk * 2);
    s.state[group][threadIdx.x % 128] = make_float4(state.m[0], state.m[1], state.l[0], state.l[1]);
    if (lane == 0) s.shrinks[at.stage][warp] = any;
    if (lane % 4 == 0) s.factor[at.stage][row] = factor[0], s.factor[at.stage][row + 8] = factor[1];
    fence_async();
    barrier_arrive(&s.p_full[at.stage]);
}

static __device__ __forceinline__ void multiply_by(float (&o)[32][4], float low, float high) {
#pragma unroll
    for (int n = 0; n < 32; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][e] *= e < 2 ? low : high;
}

/* The block's weights are ready: o = o * factor + P V, for the warpgroup's 256 columns. first: of its split. */
static __device__ __forceinline__ void issue_values(float (&o)[32][4], fwd_shared &s, const place &at, int group,
                                                    bool first) {
    int row = threadIdx.x / 32 % 4 * 16 + (threadIdx.x & 31) / 4;
    wait_panels(s, at, group * 4, 4);
    if (!first && uniform(s.shrinks[at.stage][row / 16])) { /* seldom; the previous block may still be in flight */
        wgmma_wait<0>();
        wgmma_hold(o);
        multiply_by(o, s.factor[at.stage][row], s.factor[at.stage][row + 8]);
    }
    wgmma_hold(o);
    uint64_t p = wgmma_tile(s.k[at.stage][VALUE_PANELS], PANEL), v = wgmma_tile(s.k[at.stage][group * 4], PANEL);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < CLIME_PAGE / 16; kk++)
        wgmma_ss<0, 1>(o, wgmma_columns(p, kk, PANEL), wgmma_rows(v, kk), kk > 0 ? 1 : !first);
    wgmma_commit();
}

/* Stores the rows' output, o times scale. */
static __device__ __forceinline__ void store_rows(const attn_args &a, const fwd_item &t, const float (&scale)[2],
                                                  const float (&o)[32][4], int row, int column) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (t.first + row + h * 8 >= t.rows.n) continue;
        bf16 *to = a.out + ((size_t)t.rows.row0 * a.H + t.first + row + h * 8) * LATENT_VALUE + column;
#pragma unroll
        for (int n = 0; n < 32; n++)
            *(uint32_t *)(to + n * 8) = pack2(attn_value(o[n][h * 2], scale[h]), attn_value(o[n][h * 2 + 1], scale[h]));
    }
}

/* o = o * add + the sums in memory * keep. Eight loads are in flight at a time: in sequence, each would wait for the
 * L2. */
static __device__ __forceinline__ void add_sums(float (&o)[32][4], const float4 *sums, const float (&keep)[2],
                                                const float (&add)[2]) {
    enum { N = 8 };
#pragma unroll
    for (int first = 0; first < 32; first += N) {
        float4 old[N];
#pragma unroll
        for (int i = 0; i < N; i++) old[i] = __ldcg(&sums[(first + i) * CONSUMERS]);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float(&v)[4] = o[first + i];
            v[0] = __fmaf_rn(v[0], add[0], old[i].x * keep[0]);
            v[1] = __fmaf_rn(v[1], add[0], old[i].y * keep[0]);
            v[2] = __fmaf_rn(v[2], add[1], old[i].z * keep[1]);
            v[3] = __fmaf_rn(v[3], add[1], old[i].w * keep[1]);
        }
    }
}

/* Merges a split's references and sums with the earlier splits'; sets the factors on the rows' sums of values. */
static __device__ __forceinline__ void join_state(fwd_state &all, const fwd_state &state, float (&keep)[2],
                                                  float (&add)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        attn_weights w = attn_merge(all.m[h], all.l[h], state.m[h], attn_quad_sum(state.l[h]));
        all.m[h] = w.m;
        all.l[h] = w.l;
        keep[h] = w.keep;
        add[h] = w.add;
    }
}

/* An item's last split has ended: it is merged with the earlier ones and the rows are finished, or it is stored as it
 * is. Both warpgroups do the same. */
template <int C, int GROUP>
static __device__ __forceinline__ void end_item(const attn_args &a, const latent_splits &splits, const fwd_item &t,
                                                const fwd_state &state, fwd_state &all, float (&o)[32][4],
                                                const float4 *sums, bool fresh) {
    int lane = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + lane / 4, column = GROUP * 256 + lane % 4 * 2;
    size_t at_row = (size_t)t.rows.row0 * a.H + t.first + row;
    bool mine[2];
#pragma unroll
    for (int h = 0; h < 2; h++) mine[h] = GROUP == 0 && lane % 4 == 0 && t.first + row + h * 8 < t.rows.n;
    if (C == 1 && t.split >= 0) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = attn_quad_sum(state.l[h]);
            if (mine[h]) splits.ml[(at_row + h * 8) * splits.n_splits + t.split] = make_float2(state.m[h], sum);
            if (t.first + row + h * 8 >= t.rows.n) continue;
            float *to = splits.o + ((at_row + h * 8) * splits.n_splits + t.split) * LATENT_VALUE + column;
#pragma unroll
            for (int n = 0; n < 32; n++) *(float2 *)(to + n * 8) = make_float2(o[n][h * 2], o[n][h * 2 + 1]);
        }
        return;
    }
    float keep[2], add[2];
    join_state(all, state, keep, add);
    if (C > 1 && !fresh) add_sums(o, sums, keep, add);
    const float scale[2] = {1.0f / all.l[0], 1.0f / all.l[1]};
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (a.lse && mine[h]) a.lse[at_row + h * 8] = attn_lse(all.m[h], all.l[h]);
    store_rows(a, t, scale, o, row, column);
}

/* An item's n blocks from `at` on. */
template <int C, int GROUP>
static __device__ __forceinline__ void take_item(const attn_args &a, const latent_splits &splits, const fwd_item &t,
                                                 int n, fwd_shared &s, place &at) {
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4, begin = uniform(t.begin), pos[2];
    int n_keys = uniform(t.rows.pos0 + t.rows.n / t.rows.group);
    int min_pos = uniform(t.rows.pos0 + t.first / t.rows.group);
#pragma unroll
    for (int h = 0; h < 2; h++) pos[h] = t.rows.pos0 + (t.first + warp * 16 + lane / 4 + h * 8) / t.rows.group;
    const fwd_state none = {{ATTN_LOWEST, ATTN_LOWEST}, {}};
    fwd_state all = none;
    float z[8][4], o[32][4] = {};
    auto starts = [](int j) { return j % LATENT_SPLIT_BLOCKS == 0; }; /* a split; all begin with one */
    auto state_of = [&](int group) {
        float4 v = s.state[group][threadIdx.x % 128];
        fwd_state r = {{v.x, v.y}, {v.z, v.w}};
        return r;
    };
    auto scores = [&](int j, const place &of) { issue_scores(z, s, of, n_keys - (begin + j) * CLIME_PAGE); };
    auto weights = [&](int j, const place &of) {
        int b = begin + j;
        wgmma_hold(z);
        if (GROUP == 0 && j + 2 >= n) release(&s.q_empty);
        if ((b + 1) * CLIME_PAGE > min_pos + 1) attn_mask(z, b * CLIME_PAGE, pos);
        fwd_state state = starts(j) ? none : state_of(GROUP ^ 1);
        weigh(z, a, s, of, state, GROUP);
    };
    auto values = [&](int j, const place &of) {
        barrier_wait(&s.p_full[of.stage], of.parity);
        issue_values(o, s, of, GROUP, starts(j));
    };
    float4 *sums = splits.state + (size_t)blockIdx.x * 32 * CONSUMERS + consumer();
    /* Before block j: ends a split and begins the next. Never with parallel splits, one per item. */
    auto join = [&](int j) {
        if (C == 1 || j == 0 || !starts(j)) return;
        float keep[2], add[2];
        join_state(all, state_of(1), keep, add);
        if (j > LATENT_SPLIT_BLOCKS) add_sums(o, sums, keep, add);
#pragma unroll
        for (int i = 0; i < 32; i++) __stcg(&sums[i * CONSUMERS], make_float4(o[i][0], o[i][1], o[i][2], o[i][3]));
    };
    int j = 0;
    for (; j + 1 < n; j += 2) {
        place next = at;
        next.next();
        if (GROUP == 0) { /* its scores are computed while both merge the previous split */
            scores(j, at);
            join(j);
            wgmma_wait<0>();
            weights(j, at);
            values(j, at);
        } else {
            join(j);
            scores(j + 1, next);
            values(j, at);
            wgmma_wait<1>();
            weights(j + 1, next);
        }
        values(j + 1, next);
        wgmma_wait<1>();
        release_block<C>(&s.k_empty[at.stage]);
        wgmma_wait<0>();
        wgmma_hold(o);
        release_block<C>(&s.k_empty[next.stage]);
        at.parity ^= 1;
    }
    if (j < n) {
        join(j);
        if (GROUP == 0) {
            scores(j, at);
            wgmma_wait<0>();
            weights(j, at);
        }
        values(j, at);
        wgmma_wait<0>();
        wgmma_hold(o);
        release_block<C>(&s.k_empty[at.stage]);
        at.next();
    }
    fwd_state state = state_of((n - 1) % 2);
    if (GROUP == 1) release(&s.q_empty); /* the first warpgroup may write another state there */
    end_item<C, GROUP>(a, splits, t, state, all, o, sums, n <= LATENT_SPLIT_BLOCKS);
}

template <int C, int GROUP>
static __device__ __forceinline__ void multiply(const attn_args &a, const latent_splits &splits, fwd_shared &s) {
    int q_parity = 0;
    place at = {0, 0};
    fwd_item t;
    for (int turn = 0; uniform(find_item<C>(a, splits.n_splits, turn, &t)); turn++) {
        int n = uniform(t.end - t.begin), n_all = uniform(t.end_all - t.begin);
        if (n > 0) {
            barrier_wait(&s.q_full, q_parity);
            q_parity ^= 1;
            take_item<C, GROUP>(a, splits, t, n, s, at);
        }
        for (int j = max(n, 0); j < n_all; j++, at.next()) { /* only the other thread block's */
            wait_panels(s, at, 0, PANELS);
            release_block<C>(&s.k_empty[at.stage]);
            if (GROUP == 0) barrier_arrive(&s.p_full[at.stage]); /* not used */
        }
    }
}

template <int C>
__global__ void __launch_bounds__(THREADS, 1)
    latent_forward_kernel(const attn_args a, const __grid_constant__ CUtensorMap q_map,
                          const __grid_constant__ CUtensorMap k_map, const latent_splits splits) {
    extern __shared__ __align__(1024) char smem[];
    fwd_shared &s = *(fwd_shared *)smem;
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&q_map);
        tensor_map_prefetch(&k_map);
        barrier_init(&s.q_full, 1);
        barrier_init(&s.q_empty, CONSUMERS / 32);
        for (int i = 0; i < 2; i++) {
            for (int p = 0; p < PANELS; p++) barrier_init(&s.k_full[i][p], 1);
            barrier_init(&s.k_empty[i], C * CONSUMERS / 32);
            barrier_init(&s.p_full[i], 128);
        }
        barrier_init_done();
    }
    if (C > 1)
        cluster_sync();
    else
        __syncthreads();
    wait_for_last();
    start_next();
    if (threadIdx.x < 128) {
        registers_down<504 - 2 * FORWARD_REGISTERS>();
        if (threadIdx.x < 32) fetch<C>(a, q_map, k_map, splits.n_splits, s);
    } else {
        registers_up<FORWARD_REGISTERS>();
        if (consumer_group() == 0)
            multiply<C, 0>(a, splits, s);
        else
            multiply<C, 1>(a, splits, s);
    }
    if (C > 1) cluster_sync(); /* the other may still write here */
}

void clime_cuda_latent_forward_open(struct clime_dev *d) {
    for (auto kernel : {latent_forward_kernel<1>, latent_forward_kernel<2>})
        CU(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(fwd_shared)));
}

void clime_cuda_latent_forward(struct clime_dev *d, const attn_args &a, int T, const latent_splits &splits) {
    CUtensorMap q_map, k_map;
    uint64_t keys = a.page_table ? (uint64_t)1 << 31 : (uint64_t)T;
    if (!clime_cuda_tensor_map(d, &q_map, a.q, (uint64_t)T * a.H, LATENT_WIDTH, LATENT_WIDTH, LATENT_ROWS) ||
        !clime_cuda_tensor_map(d, &k_map, a.k, keys, LATENT_WIDTH, LATENT_WIDTH, LATENT_ROWS))
        return;
    int cluster = splits.n_splits ? 1 : 2; /* a decoding sequence is one tile */
    launch_cluster(d, cluster == 1 ? latent_forward_kernel<1> : latent_forward_kernel<2>,
                   latent_blocks(d) / cluster * cluster, THREADS, sizeof(fwd_shared), cluster, a, q_map, k_map, splits);
}
