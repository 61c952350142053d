/* Causal attention of prefill and training on wgmma, head sizes 64 and 128. Launched by forward.cu.
 *
 * Persistent blocks take tile after tile, the longest first. A tile is 64 rows of (position, query head of one KV head)
 * for each of two or three warpgroups that multiply. In one more warpgroup, a warp finds tiles, one loads blocks of 64
 * keys and values into a ring and two load queries, so that all of these run ahead. A multiplying group queues the
 * scores of the next block before it multiplies the previous one's values, so that its softmax overlaps its own product
 * and the other groups' (Shah et al. 2024). Queries, the output of the current split and the merged output of the
 * earlier ones are in registers, which limit the speed; see docs/lab/cuda.md before adding any.
 *
 * The computation is rows.cuh's and attention.cuh's: bit for bit what decode computes. */
#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/wgmma.cuh"

enum { PANEL = CLIME_PAGE * 128, TILES = 2, QUERY_WARPS = 2 };

/* A tile, passed from the warp that finds it to those that process it. */
struct tile_info {
    attn_span rows;
    int seq, first, n_blocks; /* its first row in the span; blocks of keys visible to any row, 0: no more tiles */
};

template <int DH> struct fwd_shared {
    static constexpr int CONSUMERS = DH == 128 ? 2 : 3, ROWS = CONSUMERS * 64, STAGES = 512 / DH;
    static constexpr int THREADS = (CONSUMERS + 1) * 128,
                         REGISTERS = DH == 128 ? 240 : 160; /* of the multiplying groups */
    struct {
        char k[DH / 64][PANEL], v[DH / 64][PANEL];
    } ring[STAGES];
    bf16 q[ROWS][DH + 8], out[ROWS][DH + 8]; /* 16 bytes of padding: ldmatrix without bank conflicts */
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES], v_tail;
    uint64_t tile_full[TILES], tile_empty[TILES], q_full, q_empty;
    tile_info tile[TILES];
};

/* ---- the tile-finding warp ---- */

/* A sequence's rows, numbered by position times heads of the group, so that those of all sequences are comparable. */
struct finder_rows {
    int begin, n;
};

static __device__ __forceinline__ finder_rows finder_rows_of(const attn_args &a, int group, int seq) {
    if (seq >= a.n_seq) return {0, 0};
    return {a.pos0 ? a.pos0[seq] * group : 0, (a.q_start[seq + 1] - a.q_start[seq]) * group};
}

/* Number of its tiles that end at row x or before. */
template <int ROWS> static __device__ __forceinline__ int tiles_before(const finder_rows &r, int x) {
    return x >= r.begin + r.n ? (r.n + ROWS - 1) / ROWS : max(0, (x - r.begin) / ROWS);
}

/* Number of all sequences' tiles that end after row x. mine: of sequence `lane`. Every lane gets it. */
template <int ROWS>
static __device__ __forceinline__ int tiles_after(const attn_args &a, int group, const finder_rows &mine, int x) {
    int n = (mine.n + ROWS - 1) / ROWS - tiles_before<ROWS>(mine, x);
#pragma unroll 1
    for (int s = (threadIdx.x & 31) + 32; s < a.n_seq; s += 32) {
        finder_rows r = finder_rows_of(a, group, s);
        n += (r.n + ROWS - 1) / ROWS - tiles_before<ROWS>(r, x);
    }
    return __reduce_add_sync(0xffffffffu, n);
}

/* The rank-th tile of a KV head, in order of descending end. One warp; every lane gets it. */
template <int ROWS>
static __device__ tile_info find_tile(const attn_args &a, int head, int rank, int max_len, const finder_rows &mine) {
    int group = a.H / a.HK, lane = threadIdx.x & 31;
    int low = 0, high = (max_len * group + ROWS - 1) / ROWS; /* more than `rank` tiles end after low * ROWS */
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (tiles_after<ROWS>(a, group, mine, mid * ROWS) > rank)
            low = mid;
        else
            high = mid;
    }
    /* By sequence among those that end in the ROWS rows after low * ROWS. */
    int left = rank - tiles_after<ROWS>(a, group, mine, (low + 1) * ROWS);
    for (int base = 0;; base += 32) {
        finder_rows r = base == 0 ? mine : finder_rows_of(a, group, base + lane);
        int before = tiles_before<ROWS>(r, low * ROWS), n = tiles_before<ROWS>(r, (low + 1) * ROWS) - before, upto = n;
#pragma unroll
        for (int k = 1; k < 32; k *= 2) {
            int other = __shfl_up_sync(0xffffffffu, upto, k);
            if (lane >= k) upto += other;
        }
        unsigned over = __ballot_sync(0xffffffffu, upto > left);
        if (over) {
            int found = __ffs(over) - 1, first = __shfl_sync(0xffffffffu, before + left - (upto - n), found) * ROWS;
            attn_span rows = attn_rows_of(a, base + found, head);
            int last = rows.pos0 + (min(first + ROWS, rows.n) - 1) / group;
            return {rows, base + found, first, last / CLIME_PAGE + 1};
        }
        left -= __shfl_sync(0xffffffffu, upto, 31);
    }
}

template <int DH>
static __device__ void find_tiles(const attn_args &a, int n_items, int max_len, int *ticket, fwd_shared<DH> &s) {
    constexpr int ROWS = fwd_shared<DH>::ROWS;
    int lane = threadIdx.x & 31;
    ring_at<TILES> at = {0, 1}; /* parity: of the phase that empties */
    finder_rows mine = finder_rows_of(a, a.H / a.HK, lane);
    for (int item = blockIdx.x;; at.next()) {
        int drawn = 0;
        tile_info t = {};
        if (item < n_items) {
            if (lane == 0) drawn = atomicAdd(ticket, 1);
            t = find_tile<ROWS>(a, item % a.HK, item / a.HK, max_len, mine);
            if (drawn == n_items - 1) *ticket = 0; /* the last of all blocks resets it for the next launch */
        }
        barrier_wait(&s.tile_empty[at.stage], at.parity);
        if (lane == 0) {
            s.tile[at.stage] = t;
            barrier_arrive(&s.tile_full[at.stage]);
        }
        if (t.n_blocks == 0) return;
        item = gridDim.x + __shfl_sync(0xffffffffu, drawn, 0);
    }
}

/* ---- the query-loading warps ---- */

/* which: of QUERY_WARPS. (A bulk copy per row would take a warp some 50 cycles each.) */
template <int DH> static __device__ void fetch_queries(const attn_args &a, int which, fwd_shared<DH> &s) {
    constexpr int VECS = DH / 8;
    int lane = threadIdx.x & 31, q_parity = 1; /* of the phase that empties */
    ring_at<TILES> at = {0, 0};
    for (;; at.next(), q_parity ^= 1) {
        barrier_wait(&s.tile_full[at.stage], at.parity);
        tile_info t = s.tile[at.stage];
        if (t.n_blocks == 0) return;
        barrier_wait(&s.q_empty, q_parity);
#pragma unroll 1
        for (int base = which * 32; base < fwd_shared<DH>::ROWS; base += 32 * QUERY_WARPS) {
            int row = t.first + base + lane < t.rows.n ? (int)attn_row(a, t.rows, t.first + base + lane) : -1;
#pragma unroll 4
            for (int e = lane; e < 32 * VECS; e += 32) {
                int from = __shfl_sync(0xffffffffu, row, e / VECS), c = e % VECS * 8;
                if (from >= 0) cp_async16(&s.q[base + e / VECS][c], a.q + (size_t)from * DH + c, true);
            }
        }
        barrier_arrive_copies(&s.q_full);
        __syncwarp();
        if (lane == 0) barrier_arrive(&s.tile_empty[at.stage]);
    }
}

/* ---- the key- and value-loading warp ---- */

/* Zeroes values past the end of a sequence: they are not its own, and 0 x NaN is NaN. */
template <int DH> static __device__ __forceinline__ void clear_values(char (&v)[DH / 64][PANEL], int from) {
    for (int e = from * 8 + (threadIdx.x & 31); e < CLIME_PAGE * 8; e += 32)
#pragma unroll
        for (int c = 0; c < DH / 64; c++) *(uint4 *)(v[c] + e * 16) = make_uint4(0, 0, 0, 0);
    fence_async();
    __syncwarp();
}

template <int DH>
static __device__ void fetch(const attn_args &a, const CUtensorMap &k_map, const CUtensorMap &v_map,
                             fwd_shared<DH> &s) {
    int lane = threadIdx.x & 31, tail_parity = 0;
    ring_at<fwd_shared<DH>::STAGES> at = {0, 1}; /* parity: of the phase that empties a stage */
    ring_at<TILES> tile_at = {0, 0};
    for (;; tile_at.next()) {
        barrier_wait(&s.tile_full[tile_at.stage], tile_at.parity);
        tile_info t = s.tile[tile_at.stage];
        if (t.n_blocks == 0) return;
        int n_keys = t.rows.pos0 + t.rows.n / t.rows.group, page = 0;
        for (int b = 0; b < t.n_blocks; b++) {
            if (a.page_table && b % 32 == 0 && b + lane < t.n_blocks)
                page = a.page_table[(size_t)t.seq * a.max_pages + b + lane];
            int row = t.rows.row0 + b * CLIME_PAGE, column = t.rows.head * DH;
            if (a.page_table) {
                row = (__shfl_sync(0xffffffffu, page, b % 32) * a.HK + t.rows.head) * CLIME_PAGE;
                column = 0;
            }
            auto &stage = s.ring[at.stage];
            bool tail = (b + 1) * CLIME_PAGE > n_keys;
            barrier_wait(&s.k_empty[at.stage], at.parity);
            if (lane == 0) {
                barrier_expect(&s.k_full[at.stage], sizeof stage.k);
#pragma unroll
                for (int c = 0; c < DH / 64; c++)
                    tensor_copy(stage.k[c], &k_map, column + c * 64, row, &s.k_full[at.stage]);
            }
            barrier_wait(&s.v_empty[at.stage], at.parity);
            if (lane == 0) {
                uint64_t *full = tail ? &s.v_tail : &s.v_full[at.stage];
                barrier_expect(full, sizeof stage.v);
#pragma unroll
                for (int c = 0; c < DH / 64; c++) tensor_copy(stage.v[c], &v_map, column + c * 64, row, full);
            }
            if (tail) {
                barrier_wait(&s.v_tail, tail_parity);
                tail_parity ^= 1;
                clear_values<DH>(stage.v, n_keys - b * CLIME_PAGE);
                if (lane == 0) barrier_arrive(&s.v_full[at.stage]);
            }
            at.next();
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&s.tile_empty[tile_at.stage]);
    }
}

/* ---- the multiplying warpgroups ---- */

template <int DH>
static __device__ __forceinline__ void issue_scores(float (&z)[CLIME_PAGE / 8][4], const uint32_t (&q)[DH / 16][4],
                                                    char (&k)[DH / 64][PANEL]) {
    uint64_t tile = wgmma_tile(k, PANEL);
#pragma unroll
    for (int kk = 0; kk < DH / 16; kk++) wgmma_rs<0>(z, q[kk], wgmma_columns(tile, kk, PANEL), kk > 0);
    wgmma_commit();
}

/* o = add * o + P V */
template <int DH>
static __device__ __forceinline__ void issue_values(float (&o)[DH / 8][4], const uint32_t (&p)[CLIME_PAGE / 16][4],
                                                    char (&v)[DH / 64][PANEL], int add) {
    uint64_t tile = wgmma_tile(v, PANEL);
#pragma unroll
    for (int kk = 0; kk < CLIME_PAGE / 16; kk++) wgmma_rs<1>(o, p[kk], wgmma_rows(tile, kk), kk > 0 ? 1 : add);
    wgmma_commit();
}

/* State of all finished splits. */
template <int DH> struct merged_rows { float o[DH / 8][4], m[2], l[2]; };

/* Ends a split: its reference and sum are merged with the others', and a new softmax begins. The outputs are merged by
 * w. Returns whether any row's earlier output is rescaled. */
template <int DH>
static __device__ __forceinline__ bool end_split(merged_rows<DH> &all, float (&m)[2], float (&l)[2],
                                                 attn_weights (&w)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w[h] = attn_merge(all.m[h], all.l[h], m[h], attn_quad_sum(l[h]));
        all.m[h] = w[h].m;
        all.l[h] = w[h].l;
        m[h] = ATTN_LOWEST;
        l[h] = 0;
    }
    return __any_sync(0xffffffffu, w[0].keep != 1 || w[1].keep != 1);
}

/* attn_merge_value of all outputs. */
template <int DH>
static __device__ __forceinline__ void merge(merged_rows<DH> &all, const attn_weights (&w)[2], bool shrinks,
                                             const float (&o)[DH / 8][4]) {
    if (shrinks) {
#pragma unroll
        for (int n = 0; n < DH / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) all.o[n][e] *= w[e / 2].keep;
    }
#pragma unroll
    for (int n = 0; n < DH / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) all.o[n][e] = __fmaf_rn(o[n][e], w[e / 2].add, all.o[n][e]);
}

/* Stores the warp's rows, first .. of the span, through shared memory, so that a row is written in whole sectors. */
template <int DH>
static __device__ __forceinline__ void store(const attn_args &a, const attn_span &rows, int first,
                                             const merged_rows<DH> &all, bf16 (*at)[DH + 8]) {
    constexpr int VECS = DH / 8;
    int lane = threadIdx.x & 31, row = -1;
    if (first + lane % 16 < rows.n) row = (int)attn_row(a, rows, first + lane % 16);
    float scale[2] = {1.0f / all.l[0], 1.0f / all.l[1]};
#pragma unroll
    for (int n = 0; n < DH / 8; n += 2) {
        uint32_t r[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            r[e] = pack2(attn_value(all.o[n + e / 2][e % 2 * 2], scale[e % 2]),
                         attn_value(all.o[n + e / 2][e % 2 * 2 + 1], scale[e % 2]));
        stmatrix_x4(&at[lane % 16][n * 8 + lane / 16 * 8], r);
    }
    __syncwarp();
#pragma unroll
    for (int e = lane; e < 16 * VECS; e += 32) {
        int to = __shfl_sync(0xffffffffu, row, e / VECS), c = e % VECS * 8;
        uint4 v = *(const uint4 *)&at[e / VECS][c];
        if (to >= 0) *(uint4 *)(a.out + (size_t)to * DH + c) = v;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int at_row = __shfl_sync(0xffffffffu, row, lane / 4 + h * 8);
        if (a.lse && lane % 4 == 0 && at_row >= 0) a.lse[at_row] = attn_lse(all.m[h], all.l[h]);
    }
    __syncwarp();
}

template <int DH> static __device__ void multiply(const attn_args &a, fwd_shared<DH> &s) {
    int group_of_warps = uniform(threadIdx.x / 128 - 1), lane = threadIdx.x & 31;
    int warp = uniform(threadIdx.x / 32 - 4), q_parity = 0;
    ring_at<fwd_shared<DH>::STAGES> at = {0, 0};
    ring_at<TILES> tile_at = {0, 0};
    for (;; tile_at.next()) {
        barrier_wait(&s.tile_full[tile_at.stage], tile_at.parity);
        const tile_info &t = s.tile[tile_at.stage];
        int n_all = uniform(t.n_blocks), n_blocks = 0, min_pos = 0;
        if (n_all == 0) break;
        uint32_t q[DH / 16][4], p[CLIME_PAGE / 16][4];
        int pos[2];
        {
            attn_span rows = t.rows;
            int first = t.first + group_of_warps * 64; /* of the warpgroup's rows */
            min_pos = uniform(rows.pos0 + first / rows.group);
            if (first < rows.n) n_blocks = (rows.pos0 + (min(first + 64, rows.n) - 1) / rows.group) / CLIME_PAGE + 1;
            n_blocks = uniform(n_blocks);
#pragma unroll
            for (int h = 0; h < 2; h++) pos[h] = rows.pos0 + (t.first + warp * 16 + lane / 4 + h * 8) / rows.group;
        }
        barrier_wait(&s.q_full, q_parity);
        q_parity ^= 1;
#pragma unroll
        for (int kk = 0; kk < DH / 16; kk++) ldmatrix_x4(q[kk], &s.q[warp * 16 + lane % 16][kk * 16 + lane / 16 * 8]);
        __syncwarp();
        release(&s.q_empty);

        if (n_blocks > 0) {
            float z[CLIME_PAGE / 8][4], o[DH / 8][4] = {}, factor[2];
            merged_rows<DH> all = {{}, {ATTN_LOWEST, ATTN_LOWEST}, {}};
            float m[2] = {ATTN_LOWEST, ATTN_LOWEST}, l[2] = {};
            attn_weights w[2];

            barrier_wait(&s.k_full[at.stage], at.parity);
            wgmma_fence();
            issue_scores<DH>(z, q, s.ring[at.stage].k);
            wgmma_wait<0>();
            wgmma_hold(z);
            release(&s.k_empty[at.stage]);
            if (CLIME_PAGE > min_pos + 1) attn_mask(z, 0, pos);
            attn_softmax(z, a.scale2, m, l, factor);
            attn_pack(p, z);
            barrier_wait(&s.v_full[at.stage], at.parity);
            for (int b = 1; b < n_blocks; b++) {
                ring_at<fwd_shared<DH>::STAGES> before = at;
                at.next();
                bool fresh = b % ATTN_SPLIT_BLOCKS == 0, shrinks = false;
                barrier_wait(&s.k_full[at.stage], at.parity);
                wgmma_hold(o);
                wgmma_fence();
                issue_scores<DH>(z, q, s.ring[at.stage].k);
                wgmma_fence();
                issue_values<DH>(o, p, s.ring[before.stage].v, (b - 1) % ATTN_SPLIT_BLOCKS != 0);
                wgmma_wait<1>();
                wgmma_hold(z);
                release(&s.k_empty[at.stage]);
                if (fresh) shrinks = end_split(all, m, l, w);
                if ((b + 1) * CLIME_PAGE > min_pos + 1) attn_mask(z, b * CLIME_PAGE, pos);
                bool grew = attn_softmax(z, a.scale2, m, l, factor);
                /* All of this overlaps the product of the previous values. The barrier's branch keeps it so: ptxas
                 * moves a wait for wgmma to the beginning of its basic block. */
                wgmma_hold(z);
                barrier_wait(&s.v_full[at.stage], at.parity);
                wgmma_wait<0>();
                wgmma_hold(o);
                release(&s.v_empty[before.stage]);
                if (fresh) {
                    merge(all, w, shrinks, o);
                } else if (grew) {
#pragma unroll
                    for (int n = 0; n < DH / 8; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++) o[n][e] *= factor[e / 2];
                }
                attn_pack(p, z);
            }
            wgmma_hold(o);
            wgmma_fence();
            issue_values<DH>(o, p, s.ring[at.stage].v, (n_blocks - 1) % ATTN_SPLIT_BLOCKS != 0);
            bool shrinks = end_split(all, m, l, w);
            wgmma_wait<0>();
            wgmma_hold(o);
            release(&s.v_empty[at.stage]);
            at.next();
            merge(all, w, shrinks, o);
            store<DH>(a, t.rows, t.first + warp * 16, all, &s.out[warp * 16]);
        }
        __syncwarp();
        release(&s.tile_empty[tile_at.stage]);
        for (int b = n_blocks; b < n_all; b++, at.next()) { /* blocks that only another group's rows see */
            barrier_wait(&s.k_full[at.stage], at.parity);
            release(&s.k_empty[at.stage]);
            barrier_wait(&s.v_full[at.stage], at.parity);
            release(&s.v_empty[at.stage]);
        }
    }
}

template <int DH>
__global__ void __launch_bounds__(fwd_shared<DH>::THREADS, 1)
    fwd_kernel(const attn_args a, const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map,
               int n_items, int max_len, int *ticket) {
    extern __shared__ __align__(1024) char smem[];
    constexpr int CONSUMERS = fwd_shared<DH>::CONSUMERS;
    fwd_shared<DH> &s = *(fwd_shared<DH> *)smem;
    if (threadIdx.x == 0) {
        for (int i = 0; i < fwd_shared<DH>::STAGES; i++) {
            barrier_init(&s.k_full[i], 1);
            barrier_init(&s.v_full[i], 1);
            barrier_init(&s.k_empty[i], CONSUMERS * 4);
            barrier_init(&s.v_empty[i], CONSUMERS * 4);
        }
        for (int i = 0; i < TILES; i++) {
            barrier_init(&s.tile_full[i], 1);
            barrier_init(&s.tile_empty[i], CONSUMERS * 4 + 1 + QUERY_WARPS);
        }
        barrier_init(&s.v_tail, 1);
        barrier_init(&s.q_full, QUERY_WARPS * 32);
        barrier_init(&s.q_empty, CONSUMERS * 4);
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_down<24>();
        int warp = threadIdx.x / 32;
        if (warp == 0)
            find_tiles<DH>(a, n_items, max_len, ticket, s);
        else if (warp == 1)
            fetch<DH>(a, k_map, v_map, s);
        else
            fetch_queries<DH>(a, warp - 2, s);
    } else {
        registers_up<fwd_shared<DH>::REGISTERS>();
        multiply<DH>(a, s);
    }
}

/* ---- launch ---- */

template <int DH> static void set_attributes(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(fwd_kernel<DH>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(fwd_shared<DH>)));
}

void clime_cuda_attn_tiles_open(struct clime_dev *d) {
    set_attributes<64>(d);
    set_attributes<128>(d);
    CU(d, cudaMalloc(&d->ticket, sizeof *d->ticket));
    CU(d, cudaMemsetAsync(d->ticket, 0, sizeof *d->ticket, d->stream));
}

template <int DH> static void launch(struct clime_dev *d, const attn_args &a, const struct clime_attn *batch, int T) {
    /* keys and values as matrices: a row per key and KV head of a page, for the most pages possible; or per key */
    uint64_t rows = batch->page_table ? (uint64_t)1 << 31 : (uint64_t)T,
             columns = batch->page_table ? DH : (uint64_t)a.HK * DH;
    CUtensorMap k_map, v_map;
    if (!clime_cuda_tensor_map(d, &k_map, a.k, rows, columns, columns, CLIME_PAGE) ||
        !clime_cuda_tensor_map(d, &v_map, a.v, rows, columns, columns, CLIME_PAGE))
        return;
    int n_items = attn_n_tiles(batch, fwd_shared<DH>::ROWS, a.H / a.HK) * a.HK,
        max_len = batch->h_q_start ? 0 : batch->max_len;
    for (int s = 0; batch->h_q_start && s < batch->n_seq; s++) {
        int len = batch->h_q_start[s + 1] - batch->h_q_start[s] + (batch->pos0 ? batch->h_pos0[s] : 0);
        max_len = len > max_len ? len : max_len;
    }
    int n_blocks = n_items < d->n_sm ? n_items : d->n_sm;
    launch_after(d, fwd_kernel<DH>, n_blocks, fwd_shared<DH>::THREADS, sizeof(fwd_shared<DH>), a, k_map, v_map, n_items,
                 max_len, d->ticket);
}

void clime_cuda_attn_tiles(struct clime_dev *d, const attn_args &a, const struct clime_attn *batch, int T) {
    if (a.Dh == 64)
        launch<64>(d, a, batch, T);
    else
        launch<128>(d, a, batch, T);
}
