/* The kernel of program.cu: several single-row products in sequence, by blocks that all run at the same time.
 *
 * A block's producer loads the weights of its columns through a ring in shared memory, product after product,
 * independent of the other blocks' progress. It keeps only as many loads in flight as keep the memory busy: the few
 * bytes that blocks wait for would queue behind a full ring, 3 us instead of 1. The other warps read the row of the
 * next product and run the chains: w is A, 16 rows of it per warp; the row is B, the same in all 8 columns. A step of a
 * chain takes 24 cycles if nothing else stalls, so a panel's operands are loaded while the previous one is multiplied,
 * and the loop is small.
 *
 * A row passes from block to block in words (words.cuh), written and read at once. Included by program.cu. */
#ifndef CLIME_KERNELS_CUDA_ROW_KERNEL_CUH
#define CLIME_KERNELS_CUDA_ROW_KERNEL_CUH

#include "kernels/cuda/row/experts.cuh"
#include "kernels/cuda/wgmma.cuh"

enum { PANEL = 64, WARPS = 11, CONSUMERS = WARPS * 32, THREADS = CONSUMERS + 2 * 32 };
enum { MAX_STEPS = 8, MAX_STAGES = 16, MAX_ROWS = 256, MAX_NORM = 8192, MAX_K = 16384 };
enum { SMEM = 227 << 10, STATIC = 2048, ALIGN = 1024, STAGE = 20 << 10, IN_FLIGHT = 60 << 10 };
enum { NORM_TURNS = (MAX_NORM / 8 + CONSUMERS - 1) / CONSUMERS, NORM_WARPS = NORM_TURNS * WARPS };

/* One product except its weights' map. Its "columns" are those of y; of h when gated, where a block has as many rows of
 * gate as of up. */
struct row_step {
    const bf16 *x, *w; /* [K], [N, K] */
    const bf16 *scale; /* not NULL: the row is rmsnorm(x) with these weights, */
    bf16 *norm;        /* and is also written here */
    float eps;
    const bf16 *res; /* not NULL: also writes sum = res + y */
    bf16 *sum;
    void *y;
    bf16 *h;          /* not NULL: gated; y = gate|up, h = swiglu(y) */
    uint64_t *words;  /* [K / 2] not NULL: x is the previous kernel's and arrives by these */
    uint64_t *logits; /* [n_columns] not NULL: y is also passed to the router by these */
    bool again;       /* the row is that of the previous step, by the same means */
    bool f32;
    int K, n_columns, columns; /* of all blocks; per block, in each of its turns */
    int tiles;                 /* of 16 rows of w per warp */
    int panels, panel_bytes;   /* panels per stage */
};

struct row_kernel_args {
    CUtensorMap w_map[MAX_STEPS]; /* boxes of 64 of K, the block's rows, gate and up */
    row_step step[MAX_STEPS];
    row_experts experts;
    row_router router;
    int n, n_stages, stage_bytes;
    int in_flight;     /* stages in flight */
    clime_words words; /* for the rows from step to step, and for the router */
};

static __device__ __forceinline__ void together() {
    named_barrier(1, CONSUMERS);
}

/* The ring in shared memory, and a thread's position in it. full[] and empty[] count arrivals at the stages. */
struct ring_place {
    uint32_t ring, full, empty; /* addresses */
    int n_stages, stage_bytes;
    int stage, parity;

    __device__ __forceinline__ uint32_t at() const { return ring + stage * stage_bytes; }
    __device__ __forceinline__ void wait_full() const { barrier_wait(full + stage * 8, parity); }
    __device__ __forceinline__ bool next_is_full() const {
        int last = stage + 1 == n_stages;
        return barrier_passed(full + (last ? 0 : stage + 1) * 8, parity ^ last);
    }
    __device__ __forceinline__ void wait_empty() const { /* initially all are */
        barrier_wait(empty + stage * 8, parity ^ 1);
    }
    __device__ __forceinline__ void release() const { barrier_arrive(empty + stage * 8); }
    __device__ __forceinline__ void next() {
        if (++stage == n_stages) stage = 0, parity ^= 1;
    }
};

/* By the producer only. */
static __device__ void bring_weights(const row_kernel_args &p, char *ring, uint64_t *full, ring_place at) {
    for (int i = 0; i < p.n; i++) tensor_map_prefetch(&p.w_map[i]);
    uint64_t policy = leaves_first();
    ring_place oldest = at; /* of the stages in flight */
    int asked = 0;
    for (int i = 0; i < p.n; i++) {
        const row_step &a = p.step[i];
        int n_panels = a.K / PANEL;
        for (int first = blockIdx.x * a.columns; first < a.n_columns; first += gridDim.x * a.columns)
            for (int k = 0; k < n_panels; k += a.panels, at.next()) {
                int n = min(a.panels, n_panels - k);
                char *to = ring + at.stage * p.stage_bytes;
                at.wait_empty();
                if (asked++ >= p.in_flight) {
                    oldest.wait_full();
                    oldest.next();
                }
                barrier_expect(&full[at.stage], n * a.panel_bytes);
                for (int q = 0; q < n; q++)
                    tensor_copy_3d_once(to + q * a.panel_bytes, &p.w_map[i], (k + q) * PANEL, first, 0, &full[at.stage],
                                        policy);
            }
    }
}

union eight {
    uint4 all;
    bf16 x[8];
};

/* 8 values of a step's row from `first` on, and from each of TURNS - 1 further turns of all threads; those beyond its
 * end are unchanged. */
template <int TURNS>
static __device__ __forceinline__ void take_row(const row_step &a, int first, uint32_t number, eight (&v)[TURNS]) {
    bool all;
    do {
        all = true;
#pragma unroll
        for (int n = 0; n < TURNS; n++) {
            int i = first + n * CONSUMERS * 8;
            if (i >= a.K) continue;
            if (!a.words) {
                v[n].all = *(const uint4 *)(a.x + i);
                continue;
            }
            const uint64_t *from = a.words + i / 2;
            all &= take_words(from, number, v[n].all.x, v[n].all.y);
            all &= take_words(from + 2, number, v[n].all.z, v[n].all.w);
        }
    } while (!all);
}

/* Loads a step's row into shared memory, normalised, in TURNS turns of all threads. */
template <int TURNS>
static __device__ __forceinline__ void bring_normed(const row_step &a, uint32_t number, uint32_t *row, float *sums) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    eight v[TURNS], scale[TURNS];
    if (TURNS * WARPS < 32 && threadIdx.x < 32) sums[threadIdx.x] = 0;
#pragma unroll
    for (int n = 0; n < TURNS; n++) {
        int i = (n * CONSUMERS + threadIdx.x) * 8;
        v[n].all = scale[n].all = make_uint4(0, 0, 0, 0);
        if (i < a.K) scale[n].all = *(const uint4 *)(a.scale + i);
    }
    take_row<TURNS>(a, threadIdx.x * 8, number, v);
    if (TURNS * WARPS < 32) together();
#pragma unroll
    for (int n = 0; n < TURNS; n++) { /* a warp's 256 values as there: one sum */
        float square = 0;
#pragma unroll
        for (int k = 0; k < 8; k++) square = norm_add(square, v[n].x[k]);
        square = warp_sum(square);
        if (lane == 0) sums[n * WARPS + warp] = square;
    }
    together();
    float r = norm_rstd(warp_sum(sums[lane]), a.K, a.eps);
#pragma unroll
    for (int n = 0; n < TURNS; n++) {
        int i = (n * CONSUMERS + threadIdx.x) * 8;
        if (i >= a.K) continue;
#pragma unroll
        for (int k = 0; k < 8; k++) v[n].x[k] = norm_of(v[n].x[k], r, scale[n].x[k]);
        put_row(row, i, v[n].all);
        if (blockIdx.x == 0) *(uint4 *)(a.norm + i) = v[n].all;
    }
    together();
}

static __device__ __forceinline__ void bring_row(const row_step &a, uint32_t number, uint32_t *row, float *sums) {
    if (a.words) { /* one thread polls one word: if all polled they would delay the weights. When it has arrived, the
                    * others have too, or soon will. All warps have multiplied the previous row. */
        uint32_t two[2];
        if (threadIdx.x == 0)
            while (!take_words(a.words + a.K / 2 - 2, number, two[0], two[1])) {
            }
        together();
    }
    if (a.scale && a.K <= CONSUMERS * 8)
        bring_normed<1>(a, number, row, sums);
    else if (a.scale)
        bring_normed<NORM_TURNS>(a, number, row, sums);
    else {
#pragma unroll 1
        for (int i = threadIdx.x * 8; i < a.K; i += CONSUMERS * 32) {
            eight v[4];
            take_row<4>(a, i, number, v);
#pragma unroll
            for (int n = 0; n < 4; n++)
                if (i + n * CONSUMERS * 8 < a.K) put_row(row, i + n * CONSUMERS * 8, v[n].all);
        }
        together();
    }
}

/* A warp's operands for one panel: A is w, NT tiles of 16 rows (8 of gate and 8 of up when gated); B is the row, in all
 * of its 8 columns. */
template <int NT> struct row_fragments {
    uint32_t x[2][4];
    uint32_t w[NT][PANEL / 16][4];
};

/* words: not NULL: destination of the result as the next row. */
template <int NT>
static __device__ __forceinline__ void product(const row_step &a, int column0, const uint32_t *row, ring_place &place,
                                               uint64_t *words, uint32_t number) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, left = a.K / PANEL, rows = a.h ? 8 : 16;
    int first = warp * NT * rows, panels = a.panels; /* first: of the block's columns */
    if (first >= a.columns) {                        /* nothing for this warp, which only keeps pace with the ring */
#pragma unroll 1
        for (; left > 0; left -= panels) {
            place.wait_full();
            if (lane == 0) place.release();
            place.next();
        }
        return;
    }
    /* The lane's results: of each tile row lane / 4 and the one 8 rows further; with up in its place when gated. */
    int column[NT];
    bool mine[NT][2];
    bf16 res[NT][2] = {};
    uint32_t tile_at[NT], step_at[PANEL / 16]; /* of rows lane % 8 and, for every other 8 lanes, 8 rows further */
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int at = first + n * rows, in_block = min(at, a.columns - 8), more = lane / 8 % 2;
        bool both = !a.h && at + 8 < a.columns;
        tile_at[n] = in_block * 128 + (a.h ? more * a.columns * 128 : both ? more * 1024 : 0);
        column[n] = column0 + at + lane / 4;
        mine[n][0] = lane % 4 == 0 && at < a.columns && column[n] < a.n_columns;
        mine[n][1] = mine[n][0] && both && column[n] + 8 < a.n_columns;
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (a.res && mine[n][k]) res[n][k] = a.res[column[n] + k * 8]; /* not needed before the end */
    }
#pragma unroll
    for (int k = 0; k < PANEL / 16; k++) step_at[k] = swizzled(lane % 8, k * 2 + lane / 16);

    float c[NT][4] = {};
    int panel_bytes = a.panel_bytes;
    uint32_t row_at = shared_address(row) + lane % 4 * 16, at = 0;
    row_fragments<NT> f[2]; /* double buffer: one loads while the other is multiplied */
    auto load_step = [&](row_fragments<NT> &to, int k) {
        if (k % 2 == 0) load_shared(to.x[k / 2], row_at + k / 2 * 64);
#pragma unroll
        for (int n = 0; n < NT; n++) ldmatrix_x4(to.w[n][k], at + tile_at[n] + step_at[k]);
    };
    auto multiply_step = [&](const row_fragments<NT> &now, int k) {
        uint32_t x[2] = {now.x[k / 2][k % 2 * 2], now.x[k / 2][k % 2 * 2 + 1]};
#pragma unroll
        for (int n = 0; n < NT; n++) mma_16816(c[n], now.w[n][k], x);
    };
    auto next_panel = [&]() {
        row_at += PANEL * (int)sizeof(bf16);
        at += panel_bytes;
    };
    auto multiply = [&](const row_fragments<NT> &now) {
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) multiply_step(now, k);
    };
    auto multiply_and_load = [&](const row_fragments<NT> &now, row_fragments<NT> &next) {
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) {
            multiply_step(now, k);
            load_step(next, k);
        }
        next_panel();
    };
    /* The stage has been loaded. The next one was polled while there was still something to multiply: the answer takes
     * as long as several steps of the chain. */
    auto next_stage = [&](bool is_there) {
        __syncwarp();
        if (lane == 0) place.release();
        place.next();
        left -= panels;
        at = place.at();
        if (left > 0 && !is_there) place.wait_full();
    };
    at = place.at();
    place.wait_full();
#pragma unroll
    for (int k = 0; k < PANEL / 16; k++) load_step(f[0], k);
    next_panel();
#pragma unroll 1
    while (true) { /* small: instruction cache misses cost more than the computation */
        int n = min(panels, left);
#pragma unroll 1
        for (; n > 2; n -= 2) {
            multiply_and_load(f[0], f[1]);
            multiply_and_load(f[1], f[0]);
        }
        bool is_there = place.next_is_full();
        if (n == 2) { /* the rest with f[] swapped; a single exit for both spills registers */
            multiply_and_load(f[0], f[1]);
            next_stage(is_there);
            if (left <= 0) {
                multiply(f[1]);
                break;
            }
            multiply_and_load(f[1], f[0]);
        } else {
            next_stage(is_there);
            if (left <= 0) {
                multiply(f[0]);
                break;
            }
            multiply_and_load(f[0], f[1]);
            f[0] = f[1];
        }
    }

#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int to = column[n] + k * 8;
            float y = c[n][k * 2], up = c[n][2]; /* equal in a quad */
            bf16 out = b_of(y);
            if (a.res) out = b_of(f_of(res[n][k]) + f_of(out));
            if (a.h) out = b_of(swiglu_of(out, b_of(up)));
            if (words) { /* before what no block waits for */
                uint32_t one = __bfloat16_as_ushort(out), other = __shfl_down_sync(0xffffffffu, one, 4);
                if (mine[n][k] && lane % 8 == 0) put_word(words + to / 2, one | other << 16, number);
            }
            if (!mine[n][k]) continue;
            if (a.logits) put_word(a.logits + to, __float_as_uint(y), number);
            if (a.f32 && a.y)
                ((float *)a.y)[to] = y;
            else if (!a.f32)
                ((bf16 *)a.y)[to] = b_of(y);
            if (a.res) a.sum[to] = out;
            if (!a.h) continue;
            ((bf16 *)a.y)[a.n_columns + to] = b_of(up);
            a.h[to] = out;
        }
}

__global__ void __launch_bounds__(THREADS, 1) row_kernel(const __grid_constant__ row_kernel_args p) {
    extern __shared__ char smem[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    __shared__ float sums[NORM_WARPS > 32 ? NORM_WARPS : 32];
    __shared__ float routed[MAX_ROUTED];
    __shared__ row_step steps[MAX_STEPS]; /* a constant not read recently takes as long as memory */
    __shared__ row_experts experts;
    char *ring = smem + (ALIGN - shared_address(smem) % ALIGN) % ALIGN;
    uint32_t *row = (uint32_t *)(ring + p.n_stages * p.stage_bytes);
    start_next();
    if (threadIdx.x == 0) {
        for (int s = 0; s < p.n_stages; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], WARPS);
        }
        barrier_init_done();
    }
    for (int i = threadIdx.x; i < p.n * (int)(sizeof(row_step) / sizeof(uint64_t)); i += THREADS)
        ((uint64_t *)steps)[i] = ((const uint64_t *)p.step)[i];
    if (threadIdx.x == 0) experts = p.experts;
    __syncthreads();
    ring_place at = {kept(shared_address(ring)),
                     kept(shared_address(full)),
                     kept(shared_address(empty)),
                     p.n_stages,
                     p.stage_bytes,
                     0,
                     0};
    bool routes = p.router.r.k > 0 && blockIdx.x == gridDim.x - 1; /* it has the fewest columns */
    if (threadIdx.x >= CONSUMERS + 32) {
        if (!routes) return;
        if (p.router.r.E <= 64)
            choose<2>(p.router, number_of(p.words), routed);
        else
            choose<4>(p.router, number_of(p.words), routed);
        return;
    }
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) bring_weights(p, ring, full, at);
        return;
    }
    uint32_t number = number_of(p.words);
    wait_for_last();
    int needed = 0, there = -1; /* the row: the step for which it was first loaded */
    if (experts.k > 0) sum_experts(experts, CONSUMERS, steps[0].words, number);
#pragma unroll 1
    for (int i = 0; i < p.n; i++) {
        const row_step &a = steps[i];
        if (!a.again) needed = i;
        if (a.scale && threadIdx.x * PANEL < a.K) /* not in the caches */
            asm volatile("prefetch.global.L2 [%0];\n" ::"l"(a.scale + threadIdx.x * PANEL));
        if (blockIdx.x * a.columns >= a.n_columns) continue;
        if (there != needed) bring_row(a, number, row, sums);
        there = needed;
        uint64_t *words = i + 1 < p.n && !steps[i + 1].again ? steps[i + 1].words : NULL;
        for (int first = blockIdx.x * a.columns; first < a.n_columns; first += gridDim.x * a.columns)
            if (a.tiles == 1)
                product<1>(a, first, row, at, words, number);
            else
                product<2>(a, first, row, at, words, number);
    }
}

#endif
