/* The kernel of row_program.cu: several products of one row, one after another, by blocks that all run at the same
 * time.
 *
 * A block's producer brings the weights of its columns through a ring in shared memory, product after product, whatever
 * the other blocks are at. The other warps wait for all blocks, take the row that the next product multiplies, and run
 * the chains: w is A, 16 rows of it a warp; the row is B, the same in all 8 columns. A step of a chain takes 24 cycles
 * where nothing else is waited for, so what a panel needs is loaded while the panel before is multiplied, and the loop
 * is small. Included by row_program.cu. */
#ifndef CLIME_KERNELS_CUDA_ROW_KERNEL_CUH
#define CLIME_KERNELS_CUDA_ROW_KERNEL_CUH

#include "kernels/cuda/wgmma.cuh"

enum { PANEL = 64, WARPS = 11, CONSUMERS = WARPS * 32, THREADS = CONSUMERS + 32 };
enum { MAX_STEPS = 8, MAX_STAGES = 16, MAX_ROWS = 256, MAX_NORM = 8192, MAX_K = 16384 };
enum { SMEM = 227 << 10, STATIC = 2048, ALIGN = 1024, STAGE = 40 << 10 };
enum { NORM_TURNS = (MAX_NORM / 8 + CONSUMERS - 1) / CONSUMERS, NORM_WARPS = NORM_TURNS * WARPS };

/* One product but its weights' map. Its "columns" are those of y; of h when gated, where a block has as many rows of
 * gate as of up. */
struct row_step {
    const bf16 *x, *w; /* [K], [N, K] */
    const bf16 *scale; /* not NULL: the row is rmsnorm(x) by these weights, */
    bf16 *norm;        /* and is written here as well */
    float eps;
    const bf16 *res; /* not NULL: sum = res + y is written as well */
    bf16 *sum;
    void *y;
    bf16 *h; /* not NULL: gated; y = gate|up, h = swiglu(y) */
    bool f32;
    int N, K, n_columns, columns; /* of all blocks; of one, in each of its turns */
    int tiles;                    /* of 16 rows of w that a warp has */
    int panels, panel_bytes;      /* panels of a stage */
};

struct row_kernel_args {
    CUtensorMap w_map[MAX_STEPS]; /* boxes of 64 of K, the block's rows, gate and up */
    row_step step[MAX_STEPS];
    int n, n_stages, stage_bytes;
    unsigned *arrived; /* blocks that have ended a product; 0 between launches */
};

static __device__ __forceinline__ void together() {
    named_barrier(1, CONSUMERS);
}

/* The block's part of a product is in memory. */
static __device__ __forceinline__ void arrive(unsigned *arrived) {
    together();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(arrived) : "memory");
}

static __device__ __forceinline__ void wait_for(const unsigned *arrived, unsigned n) {
    if (threadIdx.x == 0) {
        unsigned seen;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(seen) : "l"(arrived) : "memory");
        while (seen < n);
    }
    together();
}

/* This block waits no more; the last one to say so makes the counter 0. */
static __device__ __forceinline__ void leave(unsigned *arrived, unsigned all) {
    if (threadIdx.x == 0 && atomicAdd(arrived, 1) == all - 1) atomicExch(arrived, 0);
}

/* The ring in shared memory, and where a thread is in it. full[] and empty[] count arrivals at the stages. */
struct ring_place {
    uint32_t ring, full, empty; /* addresses */
    int n_stages, stage_bytes;
    int stage, parity;

    __device__ __forceinline__ uint32_t at() const { return ring + stage * stage_bytes; }
    __device__ __forceinline__ void wait_full() const { barrier_wait(full + stage * 8, parity); }
    __device__ __forceinline__ void wait_empty() const { /* at first all are */
        barrier_wait(empty + stage * 8, parity ^ 1);
    }
    __device__ __forceinline__ void release() const { barrier_arrive(empty + stage * 8); }
    __device__ __forceinline__ void next() {
        if (++stage == n_stages) stage = 0, parity ^= 1;
    }
};

static __device__ void bring_weights(const row_kernel_args &p, char *ring, uint64_t *full, ring_place at) {
    for (int i = 0; i < p.n; i++) tensor_map_prefetch(&p.w_map[i]);
    for (int i = 0; i < p.n; i++) {
        const row_step &a = p.step[i];
        int n_panels = a.K / PANEL;
        for (int first = blockIdx.x * a.columns; first < a.n_columns; first += gridDim.x * a.columns)
            for (int k = 0; k < n_panels; k += a.panels, at.next()) {
                int n = min(a.panels, n_panels - k);
                char *to = ring + at.stage * p.stage_bytes;
                at.wait_empty();
                barrier_expect(&full[at.stage], n * a.panel_bytes);
                for (int q = 0; q < n; q++)
                    tensor_copy_3d(to + q * a.panel_bytes, &p.w_map[i], (k + q) * PANEL, first, 0, &full[at.stage]);
            }
    }
}

/* Values i .. i + 7 of the row, where a lane finds its part of two steps of a chain in 16 bytes: of each 32 values,
 * lane i % 4 has 0, 1, 8, 9, 16, 17, 24, 25, counted from twice its number. */
static __device__ __forceinline__ void put_row(uint32_t *row, int i, uint4 v) {
    uint32_t *to = row + i / 32 * 16 + i / 8 % 4;
    to[0] = v.x, to[4] = v.y, to[8] = v.z, to[12] = v.w;
}

/* The row that a step multiplies into shared memory; normalised in TURNS turns of all threads. */
template <int TURNS>
static __device__ __forceinline__ void bring_normed(const row_step &a, uint32_t *row, float *sums) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    union eight {
        uint4 all;
        bf16 x[8];
    } v[TURNS], scale[TURNS];
    if (TURNS * WARPS < 32 && threadIdx.x < 32) sums[threadIdx.x] = 0;
#pragma unroll
    for (int n = 0; n < TURNS; n++) {
        int i = (n * CONSUMERS + threadIdx.x) * 8;
        v[n].all = scale[n].all = make_uint4(0, 0, 0, 0);
        if (i >= a.K) continue;
        v[n].all = *(const uint4 *)(a.x + i);
        scale[n].all = *(const uint4 *)(a.scale + i);
    }
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

static __device__ __forceinline__ void bring_row(const row_step &a, uint32_t *row, float *sums) {
    if (a.scale && a.K <= CONSUMERS * 8)
        bring_normed<1>(a, row, sums);
    else if (a.scale)
        bring_normed<NORM_TURNS>(a, row, sums);
    else {
#pragma unroll 1
        for (int i = threadIdx.x * 8; i < a.K; i += CONSUMERS * 32) { /* four loads at a time */
            uint4 v[4];
#pragma unroll
            for (int n = 0; n < 4; n++)
                if (i + n * CONSUMERS * 8 < a.K) v[n] = *(const uint4 *)(a.x + i + n * CONSUMERS * 8);
#pragma unroll
            for (int n = 0; n < 4; n++)
                if (i + n * CONSUMERS * 8 < a.K) put_row(row, i + n * CONSUMERS * 8, v[n]);
        }
        together();
    }
}

/* What a warp multiplies of one panel: A is w, NT tiles of 16 rows (8 of gate and 8 of up when gated); B is the row, in
 * all of its 8 columns. */
template <int NT> struct row_fragments {
    uint32_t x[2][4];
    uint32_t w[NT][PANEL / 16][4];
};

template <int NT>
static __device__ __forceinline__ void product(const row_step &a, int column0, const uint32_t *row, ring_place &place) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, left = a.K / PANEL, rows = a.h ? 8 : 16;
    int first = warp * NT * rows, panels = a.panels; /* first: of the block's columns */
    if (first >= a.columns) {                        /* nothing for this warp, which goes along with the ring */
#pragma unroll 1
        for (; left > 0; left -= panels) {
            place.wait_full();
            if (lane == 0) place.release();
            place.next();
        }
        return;
    }
    /* The lane's results: of each tile row lane / 4 and, 8 rows further, another; up in its place when gated. */
    int column[NT];
    bool mine[NT][2];
    bf16 res[NT][2];
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
            if (a.res && mine[n][k]) res[n][k] = a.res[column[n] + k * 8]; /* nobody waits for it before the end */
    }
#pragma unroll
    for (int k = 0; k < PANEL / 16; k++) step_at[k] = swizzled(lane % 8, k * 2 + lane / 16);

    float c[NT][4] = {};
    int panel_bytes = a.panel_bytes;
    uint32_t row_at = shared_address(row) + lane % 4 * 16, at = 0;
    row_fragments<NT> f[2]; /* one is loaded while the other is multiplied */
    auto load = [&](row_fragments<NT> &to) {
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) {
            if (k % 2 == 0) load_shared(to.x[k / 2], row_at + k / 2 * 64);
#pragma unroll
            for (int n = 0; n < NT; n++) ldmatrix_x4(to.w[n][k], at + tile_at[n] + step_at[k]);
        }
        row_at += PANEL * (int)sizeof(bf16);
        at += panel_bytes;
    };
    auto multiply = [&](const row_fragments<NT> &now) {
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) {
            uint32_t x[2] = {now.x[k / 2][k % 2 * 2], now.x[k / 2][k % 2 * 2 + 1]};
#pragma unroll
            for (int n = 0; n < NT; n++) mma_16816(c[n], now.w[n][k], x);
        }
    };
    /* waits for a stage, and goes to its first panel */
    auto arrived = [&]() {
        at = place.at();
        place.wait_full();
    };
    /* all of the stage has been loaded */
    auto release = [&]() {
        __syncwarp();
        if (lane == 0) place.release();
        place.next();
        left -= panels;
    };
    arrived();
    load(f[0]);
#pragma unroll 1
    while (left > 0) { /* small: what is not in the nearest instruction cache costs more than it computes */
        int n = min(panels, left);
#pragma unroll 1
        for (; n > 2; n -= 2) {
            load(f[1]);
            multiply(f[0]);
            load(f[0]);
            multiply(f[1]);
        }
        if (n == 2) {
            load(f[1]);
            multiply(f[0]);
            release();
            if (left > 0) {
                arrived();
                load(f[0]);
            }
            multiply(f[1]);
        } else {
            release();
            if (left > 0) {
                arrived();
                load(f[1]);
            }
            multiply(f[0]);
            f[0] = f[1];
        }
    }

#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (!mine[n][k]) continue;
            float y = c[n][k * 2];
            int to = column[n] + k * 8;
            if (a.f32)
                ((float *)a.y)[to] = y;
            else
                ((bf16 *)a.y)[to] = b_of(y);
            if (a.res) a.sum[to] = b_of(f_of(res[n][k]) + f_of(b_of(y)));
            if (!a.h) continue;
            float up = c[n][2];
            ((bf16 *)a.y)[a.n_columns + to] = b_of(up);
            a.h[to] = b_of(swiglu_of(b_of(y), b_of(up)));
        }
}

__global__ void __launch_bounds__(THREADS, 1) row_kernel(const __grid_constant__ row_kernel_args p) {
    extern __shared__ char smem[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    __shared__ float sums[NORM_WARPS > 32 ? NORM_WARPS : 32];
    __shared__ row_step steps[MAX_STEPS]; /* a constant that nobody has read lately takes as long as memory does */
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
    __syncthreads();
    ring_place at = {
        shared_address(ring), shared_address(full), shared_address(empty), p.n_stages, p.stage_bytes, 0, 0};
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) bring_weights(p, ring, full, at);
        return;
    }
    wait_for_last();
#pragma unroll 1
    for (int i = 0; i < p.n; i++) {
        const row_step &a = steps[i];
        if (a.scale && threadIdx.x * PANEL < a.K) /* nobody has read these lately */
            asm volatile("prefetch.global.L2 [%0];\n" ::"l"(a.scale + threadIdx.x * PANEL));
        if (i > 0) {
            wait_for(p.arrived, i * gridDim.x);
            if (i == p.n - 1) leave(p.arrived, p.n * gridDim.x);
        }
        if (blockIdx.x * a.columns < a.n_columns) {
            bring_row(a, row, sums);
            for (int first = blockIdx.x * a.columns; first < a.n_columns; first += gridDim.x * a.columns)
                if (a.tiles == 1)
                    product<1>(a, first, row, at);
                else
                    product<2>(a, first, row, at);
        }
        if (i + 1 < p.n) arrive(p.arrived);
    }
}

#endif
