/* The forward pass of latent attention on wgmma: decode, prefill and training. Launched by attention.cu.
 *
 * Blocks of threads stay and take item after item: a tile of 64 rows of (position, head), with all keys that it sees or
 * one split of them. One warp brings the queries and, two blocks of 64 keys ahead, keys. The first warpgroup multiplies
 * queries and keys and makes the weights, which go to shared memory; both add the weighted values, half of the columns
 * each. The first asks for the next block's scores behind its values, so that the tensor cores have work while the
 * weights are stored.
 *
 * The bits are attn_rows.cuh's and attn.cuh's with splits of LATENT_SPLIT keys. A tile's sums of one split fill the
 * registers of its warpgroups; the merged sums of the splits before it lie in memory (the L2 holds them), and each
 * thread reads and writes its own. */
#include "kernels/cuda/latent/latent.cuh"

struct fwd_shared {
    char q[PANELS][PANEL], k[2][PANELS][PANEL], p[PANEL];
    float factor[LATENT_ROWS];                                     /* what earlier output shrinks by */
    float keep[LATENT_ROWS], add[LATENT_ROWS], scale[LATENT_ROWS]; /* of a split that ends */
    int shrinks[4];                                                /* of the 16 rows of a warp, any */
    uint64_t q_full, q_empty, k_full[2], k_empty[2], p_full, p_empty;
};

struct fwd_item {
    attn_span rows;
    int seq, first, begin, end; /* its first row in the span; blocks of keys */
    int split;                  /* side by side: which; -1: it is the only one */
};

/* The index-th item; false: there are no more. One warp; every lane gets it. */
static __device__ __forceinline__ bool find_item(const attn_args &a, int n_splits, int index, fwd_item *item) {
    int lane = threadIdx.x & 31, before = 0;
    for (int base = 0; base < a.n_seq; base += 32) {
        int s = base + lane, n = 0, splits = 1;
        if (s < a.n_seq) {
            attn_span rows = attn_rows_of(a, s, 0);
            if (n_splits) splits = (rows.pos0 + rows.n / rows.group + LATENT_SPLIT - 1) / LATENT_SPLIT;
            n = (rows.n + LATENT_ROWS - 1) / LATENT_ROWS * splits;
        }
        int upto = n;
#pragma unroll
        for (int k = 1; k < 32; k *= 2) {
            int other = __shfl_up_sync(0xffffffffu, upto, k);
            if (lane >= k) upto += other;
        }
        unsigned over = __ballot_sync(0xffffffffu, before + upto > index);
        if (over) {
            int found = __ffs(over) - 1, at = index - before - __shfl_sync(0xffffffffu, upto - n, found);
            splits = __shfl_sync(0xffffffffu, splits, found);
            item->seq = base + found;
            item->rows = attn_rows_of(a, item->seq, 0);
            item->first = at / splits * LATENT_ROWS;
            item->split = splits > 1 ? at % splits : -1;
            int last = min(item->first + LATENT_ROWS, item->rows.n) - 1;
            item->begin = at % splits * LATENT_SPLIT_BLOCKS;
            item->end = (item->rows.pos0 + last / item->rows.group) / CLIME_PAGE + 1;
            if (n_splits) item->end = min(item->end, item->begin + LATENT_SPLIT_BLOCKS);
            return true;
        }
        before += __shfl_sync(0xffffffffu, upto, 31);
    }
    return false;
}

static __device__ void fetch(const attn_args &a, const CUtensorMap &q_map, const CUtensorMap &k_map, int n_splits,
                             fwd_shared &s) {
    ring_at<2> at = {0, 1}; /* parity: of the phase that empties a stage */
    int q_parity = 1;
    fwd_item t;
    for (int index = blockIdx.x; find_item(a, n_splits, index, &t); index += gridDim.x) {
        if (t.begin >= t.end) continue;
        barrier_wait(&s.q_empty, q_parity);
        q_parity ^= 1;
        if ((threadIdx.x & 31) == 0) fetch_panels(s.q, PANELS, &q_map, t.rows.row0 * a.H + t.first, &s.q_full);
        for (int b = t.begin; b < t.end; b++, at.next()) {
            int row = a.page_table ? a.page_table[(size_t)t.seq * a.max_pages + b] * CLIME_PAGE
                                   : t.rows.row0 + b * CLIME_PAGE;
            barrier_wait(&s.k_empty[at.stage], at.parity);
            if ((threadIdx.x & 31) == 0) fetch_panels(s.k[at.stage], PANELS, &k_map, row, &s.k_full[at.stage]);
        }
        __syncwarp();
    }
}

/* ---- the warpgroups that multiply ---- */

struct fwd_state { /* of the warpgroup's rows; the first one's alone counts */
    float m[2], l[2], all_m[2], all_l[2];
};

static __device__ __forceinline__ void issue_scores(float (&z)[8][4], fwd_shared &s, int stage) {
    uint64_t q = wgmma_tile(s.q, PANEL), k = wgmma_tile(s.k[stage], PANEL);
    wgmma_fence();
    wgmma_ss_first<0, 0>(z, q, k);
#pragma unroll
    for (int kk = 1; kk < LATENT_WIDTH / 16; kk++)
        wgmma_ss<0, 0>(z, wgmma_columns(q, kk, PANEL), wgmma_columns(k, kk, PANEL), 1);
    wgmma_commit();
}

/* o = add * o + P V, of the warpgroup's 256 columns. */
static __device__ __forceinline__ void issue_values(float (&o)[2][16][4], fwd_shared &s, int stage, int group,
                                                    int add) {
    uint64_t p = wgmma_tile(s.p, PANEL), v = wgmma_tile(s.k[stage][group * 4], PANEL);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < CLIME_PAGE / 16; kk++)
#pragma unroll
        for (int part = 0; part < 2; part++)
            wgmma_ss<0, 1>(o[part], wgmma_columns(p, kk, PANEL), wgmma_rows(v + (part * 2 * PANEL >> 4), kk),
                           kk > 0 ? 1 : add);
    wgmma_commit();
}

/* A block has arrived; what is past the sequence's end becomes zeros. Every consumer. */
static __device__ __forceinline__ void arrive(fwd_shared &s, const ring_at<2> &at, int n_left) {
    barrier_wait(&s.k_full[at.stage], at.parity);
    if (n_left < CLIME_PAGE) {
        zero_rows(s.k[at.stage], PANELS, n_left);
        fence_async();
        named_barrier(1, CONSUMERS);
    }
}

/* The weights of a block, from scores, to shared memory. */
static __device__ __forceinline__ void weigh(float (&z)[8][4], const attn_args &a, fwd_shared &s, fwd_state &state,
                                             int &p_parity) {
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4, row = warp * 16 + lane / 4;
    float factor[2] = {1, 1};
    bool any = attn_softmax(z, a.scale2, state.m, state.l, factor);
    uint32_t p[CLIME_PAGE / 16][4];
    attn_pack(p, z);
    barrier_wait(&s.p_empty, p_parity);
    p_parity ^= 1;
#pragma unroll
    for (int kk = 0; kk < CLIME_PAGE / 16; kk++) store_fragment(s.p, p[kk], kk * 2);
    if (lane == 0) s.shrinks[warp] = any;
    if (lane % 4 == 0) s.factor[row] = factor[0], s.factor[row + 8] = factor[1];
    fence_async();
    barrier_arrive(&s.p_full);
}

static __device__ __forceinline__ void multiply_by(float (&o)[2][16][4], float low, float high) {
#pragma unroll
    for (int n = 0; n < 32; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n / 16][n % 16][e] *= e < 2 ? low : high;
}

/* The rows' output to memory, o times what s.scale says. */
static __device__ __forceinline__ void store_rows(const attn_args &a, const fwd_item &t, const fwd_shared &s,
                                                  const float (&o)[2][16][4], int row, int column) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (t.first + row + h * 8 >= t.rows.n) continue;
        float scale = s.scale[row + h * 8];
        bf16 *to = a.out + ((size_t)t.rows.row0 * a.H + t.first + row + h * 8) * LATENT_VALUE + column;
#pragma unroll
        for (int n = 0; n < 32; n++)
            *(uint32_t *)(to + n * 8) =
                pack2(attn_value(o[n / 16][n % 16][h * 2], scale), attn_value(o[n / 16][n % 16][h * 2 + 1], scale));
    }
}

/* A split has ended: it joins those before it, or goes to memory as it is. */
static __device__ __forceinline__ void end_split(const attn_args &a, const latent_splits &splits, const fwd_item &t,
                                                 fwd_shared &s, fwd_state &state, float (&o)[2][16][4], int group,
                                                 bool fresh, bool last) {
    int lane = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + lane / 4, column = group * 256 + lane % 4 * 2;
    size_t at_row = (size_t)t.rows.row0 * a.H + t.first + row;
    if (t.split < 0) named_barrier(2, CONSUMERS); /* everyone has read what the split before left */
    if (group == 0) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = attn_quad_sum(state.l[h]);
            bool in = t.first + row + h * 8 < t.rows.n && lane % 4 == 0;
            if (t.split >= 0) {
                if (in) splits.ml[(at_row + h * 8) * splits.n_splits + t.split] = make_float2(state.m[h], sum);
            } else {
                attn_weights w = attn_merge(state.all_m[h], state.all_l[h], state.m[h], sum);
                state.all_m[h] = w.m;
                state.all_l[h] = w.l;
                if (lane % 4 == 0) {
                    s.keep[row + h * 8] = w.keep;
                    s.add[row + h * 8] = w.add;
                    s.scale[row + h * 8] = 1.0f / w.l;
                }
                if (a.lse && last && in) a.lse[at_row + h * 8] = attn_lse(w.m, w.l);
            }
            state.m[h] = ATTN_LOWEST;
            state.l[h] = 0;
        }
    }
    if (t.split >= 0) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (t.first + row + h * 8 >= t.rows.n) continue;
            float *to = splits.o + ((at_row + h * 8) * splits.n_splits + t.split) * LATENT_VALUE + column;
#pragma unroll
            for (int n = 0; n < 32; n++)
                *(float2 *)(to + n * 8) = make_float2(o[n / 16][n % 16][h * 2], o[n / 16][n % 16][h * 2 + 1]);
        }
        return;
    }
    named_barrier(3, CONSUMERS);
    if (!fresh || !last) {
        float4 *mine = splits.state + (size_t)blockIdx.x * 32 * CONSUMERS + consumer();
        float keep[2] = {s.keep[row], s.keep[row + 8]}, add[2] = {s.add[row], s.add[row + 8]};
#pragma unroll
        for (int n = 0; n < 32; n++) {
            float4 old = fresh ? make_float4(0, 0, 0, 0) : mine[n * CONSUMERS];
            float(&v)[4] = o[n / 16][n % 16];
            v[0] = __fmaf_rn(v[0], add[0], old.x * keep[0]);
            v[1] = __fmaf_rn(v[1], add[0], old.y * keep[0]);
            v[2] = __fmaf_rn(v[2], add[1], old.z * keep[1]);
            v[3] = __fmaf_rn(v[3], add[1], old.w * keep[1]);
            if (!last) mine[n * CONSUMERS] = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
    if (last) store_rows(a, t, s, o, row, column);
}

/* Block b of an item: its weighted values, and, but for the last, the next one's scores. */
template <int GROUP, bool LAST>
static __device__ __forceinline__ void take_block(const attn_args &a, const latent_splits &splits, const fwd_item &t,
                                                  int b, int n_keys, int min_pos, const int (&pos)[2], fwd_shared &s,
                                                  fwd_state &state, float (&z)[8][4], float (&o)[2][16][4],
                                                  ring_at<2> &at, int &p_full, int &p_empty) {
    int row = threadIdx.x / 32 % 4 * 16 + (threadIdx.x & 31) / 4, stage = at.stage;
    bool first = (b - t.begin) % LATENT_SPLIT_BLOCKS == 0;
    if (GROUP == 0) {
        wgmma_wait<0>();
        wgmma_hold(z);
        if (LAST) release(&s.q_empty);
        if ((b + 1) * CLIME_PAGE > min_pos + 1) attn_mask(z, b * CLIME_PAGE, pos);
        weigh(z, a, s, state, p_empty);
    }
    at.next();
    if (!LAST) arrive(s, at, n_keys - (b + 1) * CLIME_PAGE);
    barrier_wait(&s.p_full, p_full);
    p_full ^= 1;
    if (!first && uniform(s.shrinks[row / 16])) multiply_by(o, s.factor[row], s.factor[row + 8]);
    wgmma_hold(o[0]);
    wgmma_hold(o[1]);
    issue_values(o, s, stage, GROUP, !first);
    if (GROUP == 0 && !LAST) {
        issue_scores(z, s, at.stage);
        wgmma_wait<1>();
    } else {
        wgmma_wait<0>();
    }
    wgmma_hold(o[0]);
    wgmma_hold(o[1]);
    release(&s.k_empty[stage]);
    release(&s.p_empty);
    if (LAST || (b + 1 - t.begin) % LATENT_SPLIT_BLOCKS == 0) {
        if (GROUP == 0 && !LAST) {
            wgmma_wait<0>();
            wgmma_hold(z);
        }
        end_split(a, splits, t, s, state, o, GROUP, b - t.begin < LATENT_SPLIT_BLOCKS, LAST);
    }
}

template <int GROUP>
static __device__ __forceinline__ void multiply(const attn_args &a, const latent_splits &splits, fwd_shared &s) {
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4, q_parity = 0, p_full = 0, p_empty = 1;
    ring_at<2> at = {0, 0};
    fwd_item t;
    for (int index = blockIdx.x; uniform(find_item(a, splits.n_splits, index, &t)); index += gridDim.x) {
        int begin = uniform(t.begin), last = uniform(t.end) - 1;
        if (begin > last) continue;
        int n_keys = uniform(t.rows.pos0 + t.rows.n / t.rows.group);
        int min_pos = uniform(t.rows.pos0 + t.first / t.rows.group), pos[2];
#pragma unroll
        for (int h = 0; h < 2; h++) pos[h] = t.rows.pos0 + (t.first + warp * 16 + lane / 4 + h * 8) / t.rows.group;
        fwd_state state = {{ATTN_LOWEST, ATTN_LOWEST}, {}, {ATTN_LOWEST, ATTN_LOWEST}, {}};
        float z[8][4], o[2][16][4] = {};
        if (GROUP == 0) {
            barrier_wait(&s.q_full, q_parity);
            q_parity ^= 1;
        }
        arrive(s, at, n_keys - begin * CLIME_PAGE);
        if (GROUP == 0) issue_scores(z, s, at.stage);
        for (int b = begin; b < last; b++)
            take_block<GROUP, false>(a, splits, t, b, n_keys, min_pos, pos, s, state, z, o, at, p_full, p_empty);
        take_block<GROUP, true>(a, splits, t, last, n_keys, min_pos, pos, s, state, z, o, at, p_full, p_empty);
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    latent_forward_kernel(const attn_args a, const __grid_constant__ CUtensorMap q_map,
                          const __grid_constant__ CUtensorMap k_map, const latent_splits splits) {
    extern __shared__ __align__(1024) char smem[];
    fwd_shared &s = *(fwd_shared *)smem;
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&q_map);
        tensor_map_prefetch(&k_map);
        barrier_init(&s.q_full, 1);
        barrier_init(&s.q_empty, 4);
        for (int i = 0; i < 2; i++) {
            barrier_init(&s.k_full[i], 1);
            barrier_init(&s.k_empty[i], CONSUMERS / 32);
        }
        barrier_init(&s.p_full, 128);
        barrier_init(&s.p_empty, CONSUMERS / 32);
        barrier_init_done();
    }
    __syncthreads();
    wait_for_last();
    start_next();
    if (threadIdx.x < 128) {
        registers_down<40>();
        if (threadIdx.x < 32) fetch(a, q_map, k_map, splits.n_splits, s);
    } else {
        registers_up<REGISTERS>();
        if (consumer_group() == 0)
            multiply<0>(a, splits, s);
        else
            multiply<1>(a, splits, s);
    }
}

void clime_cuda_latent_forward_open(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(latent_forward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(fwd_shared)));
}

void clime_cuda_latent_forward(struct clime_dev *d, const attn_args &a, int T, const latent_splits &splits) {
    CUtensorMap q_map, k_map;
    uint64_t keys = a.page_table ? (uint64_t)1 << 31 : (uint64_t)T;
    if (!clime_cuda_tensor_map(d, &q_map, a.q, (uint64_t)T * a.H, LATENT_WIDTH, LATENT_WIDTH, LATENT_ROWS) ||
        !clime_cuda_tensor_map(d, &k_map, a.k, keys, LATENT_WIDTH, LATENT_WIDTH, LATENT_ROWS))
        return;
    launch(d, latent_forward_kernel, latent_blocks(d), THREADS, sizeof(fwd_shared), a, q_map, k_map, splits);
}
