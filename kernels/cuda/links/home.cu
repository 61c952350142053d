/* Rows that ranks have made whole go home by columns: what experts made of rows, to the ranks that add them. Launched
 * by the owner of context and links (links.cu); its places lie behind those of gathers (gather.cuh).
 *
 * Which rows a rank has made is read from the device, where the router's choice was sorted: no host waits for it, and a
 * launch can be recorded and replayed with others. Only what there is moves: of a rank without rows nobody waits for
 * anything. Block b of a rank sends to block b of every other and takes from it, slice by slice of 16 KiB, every
 * gridDim.x-th of a rank's rows, through a ring of SLOTS slices that lies where they are taken. Two counts for each
 * ring, of all slices since it was opened, say how many were sent and taken; each lies on the GPU of the rank that
 * waits for it. Values go without a number beside each, as gathers have it: a row of each expert that is hit is more
 * than a few.
 *
 * Invariant: taken <= sent <= taken + SLOTS. It cannot lock: a rank sends slice i + AHEAD of its own when it has taken
 * slice i of all others, for which all need to have come to i - 1, and AHEAD < SLOTS - 1.
 *
 * All blocks of all GPUs must run, as those of gathers; what is waited for long ends as there. */
#include "kernels/cuda/links/gather.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 512, SLOTS = 4, AHEAD = 2, SLICE = 16 << 10 };

struct home_place { /* what a rank writes on another GPU */
    char slice[HOME_BLOCKS][SLOTS][SLICE];
    uint32_t sent[HOME_BLOCKS], taken[HOME_BLOCKS]; /* taken: of what the owner of the memory has sent */
};

struct home_args {
    int n, rank, each;
    uint32_t width; /* values of a row's columns */
    const int32_t *start;
    const void *rows;
    void *y;
    struct home_place *to[RANKS], *from[RANKS]; /* this rank's there, theirs here */
    struct gather_waits waits;
};

/* What a block knows of its launch. */
struct home_turn {
    uint32_t first[RANKS + 1]; /* row of each rank's */
    uint32_t taken[RANKS];     /* slices so far */
    uint32_t sent, number;
};

/* ---- counts ---- */

static __device__ __forceinline__ void put_count(uint32_t *at, uint32_t n) {
    asm volatile("st.release.sys.global.u32 [%0], %1;\n" ::"l"(at), "r"(n) : "memory");
}

/* By one thread, until there are n; false: given up. */
static __device__ __forceinline__ bool await_count(const home_args &a, const uint32_t *at, uint32_t n, int rank,
                                                   uint32_t number) {
    gather_patience patience = {};
    for (int tries = 1;; tries++) {
        uint32_t there;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];\n" : "=r"(there) : "l"(at) : "memory");
        if ((int32_t)(there - n) >= 0) return true;
        if (tries % TRIES == 0 && given_up(a.waits, rank, number, patience)) return false;
    }
}

/* ---- the kernel ---- */

static __device__ __forceinline__ uint32_t values_of(const home_args &a, const home_turn &t, int r) {
    return (t.first[r + 1] - t.first[r]) * a.width;
}

/* Slices of rank r's rows that this block has. */
template <class V> static __device__ __forceinline__ uint32_t slices_of(const home_args &a, const home_turn &t, int r) {
    constexpr uint32_t PER = SLICE / sizeof(V);
    uint32_t all = (values_of(a, t, r) + PER - 1) / PER;
    return all <= blockIdx.x ? 0 : (all - blockIdx.x + gridDim.x - 1) / gridDim.x;
}

/* Value i of this rank's rows, of the columns that are q's. */
template <class V>
static __device__ __forceinline__ V own_value(const home_args &a, const home_turn &t, int q, uint32_t i) {
    uint32_t row = i / a.width;
    size_t at = (size_t)(t.first[a.rank] + row) * a.n * a.width + q * a.width + (i - row * a.width);
    return ((const V *)a.rows)[at];
}

/* Slice i of this block's; false: given up. */
template <class V> static __device__ bool send(const home_args &a, const home_turn &t, uint32_t i) {
    constexpr uint32_t PER = SLICE / sizeof(V);
    uint32_t base = (blockIdx.x + i * gridDim.x) * PER, n = min(PER, values_of(a, t, a.rank) - base);
    int slot = (t.sent + i) % SLOTS, other = threadIdx.x;
    bool go_on = true, others = other < a.n && other != a.rank;
    if (others) go_on = await_count(a, &a.from[other]->taken[blockIdx.x], t.sent + i + 1 - SLOTS, other, t.number);
    if (!__syncthreads_and(go_on)) return false;
    for (int k = 1; k < a.n; k++) {
        int q = (a.rank + k) % a.n;
        V *to = (V *)a.to[q]->slice[blockIdx.x][slot];
#pragma unroll 4
        for (uint32_t v = threadIdx.x; v < n; v += THREADS) to[v] = own_value<V>(a, t, q, base + v);
    }
    __syncthreads();
    if (others) put_count(&a.to[other]->sent[blockIdx.x], t.sent + i + 1);
    return true;
}

/* Slice i of those that this block has of each other rank. */
template <class V> static __device__ bool receive(const home_args &a, const home_turn &t, uint32_t i) {
    constexpr uint32_t PER = SLICE / sizeof(V);
    int other = threadIdx.x;
    bool go_on = true, there = other < a.n && other != a.rank && i < slices_of<V>(a, t, other);
    if (there) go_on = await_count(a, &a.from[other]->sent[blockIdx.x], t.taken[other] + i + 1, other, t.number);
    if (!__syncthreads_and(go_on)) return false;
    for (int k = 1; k < a.n; k++) {
        int q = (a.rank + a.n - k) % a.n;
        if (i >= slices_of<V>(a, t, q)) continue;
        uint32_t base = (blockIdx.x + i * gridDim.x) * PER, n = min(PER, values_of(a, t, q) - base);
        const V *from = (const V *)a.from[q]->slice[blockIdx.x][(t.taken[q] + i) % SLOTS];
        V *y = (V *)a.y + (size_t)t.first[q] * a.width + base;
#pragma unroll 4
        for (uint32_t v = threadIdx.x; v < n; v += THREADS) y[v] = __ldcg(from + v);
    }
    __syncthreads();
    if (there) put_count(&a.to[other]->taken[blockIdx.x], t.taken[other] + i + 1);
    return true;
}

template <class V> static __device__ void keep_own(const home_args &a, const home_turn &t) {
    V *y = (V *)a.y + (size_t)t.first[a.rank] * a.width;
    uint32_t n = values_of(a, t, a.rank);
    for (uint32_t v = blockIdx.x * THREADS + threadIdx.x; v < n; v += gridDim.x * THREADS)
        y[v] = own_value<V>(a, t, a.rank, v);
}

template <class V>
static __global__ void __launch_bounds__(THREADS, 2) home_kernel(const __grid_constant__ home_args a) {
    __shared__ home_turn t;
    struct gather_state *state = a.waits.state;
    int r = threadIdx.x;
    start_next();
    wait_for_last();
    if (r <= a.n) t.first[r] = __ldcg(a.start + r * a.each);
    if (r < a.n) t.taken[r] = __ldcg(&state->taken[r][blockIdx.x]);
    if (r == 0) {
        t.sent = __ldcg(&state->sent[blockIdx.x]);
        t.number = launch_number(&state->went_home) | 1u << 31; /* not a gather's */
    }
    bool go_on = !__syncthreads_or(*(volatile unsigned *)&state->gone); /* the whole block, or none of it */
    uint32_t mine = slices_of<V>(a, t, a.rank), rounds = 0;
    for (int q = 0; q < a.n; q++) rounds = max(rounds, slices_of<V>(a, t, q));
    for (uint32_t i = 0; i < AHEAD && i < mine && go_on; i++) go_on = send<V>(a, t, i);
    if (go_on) keep_own<V>(a, t);
    for (uint32_t i = 0; i < rounds && go_on; i++) {
        go_on = receive<V>(a, t, i);
        if (go_on && i + AHEAD < mine) go_on = send<V>(a, t, i + AHEAD);
    }
    __syncthreads();
    if (r < a.n && go_on) state->taken[r][blockIdx.x] = t.taken[r] + slices_of<V>(a, t, r);
    if (r > 0) return;
    if (go_on) state->sent[blockIdx.x] = t.sent + mine;
    count_launch(&state->went_home);
}

/* ---- launching ---- */

size_t clime_link_home_bytes(int world) {
    return (size_t)(world - 1) * sizeof(struct home_place);
}

static struct home_place *place(char *places, int to, int from) {
    return (struct home_place *)places + (from - (from > to));
}

template <class V> static void go_home(struct clime_dev *d, home_args a, int R, size_t row_bytes) {
    a.width = (uint32_t)(row_bytes / sizeof(V));
    size_t slices = ((size_t)R * row_bytes + SLICE - 1) / SLICE; /* if all rows were one rank's */
    launch(d, home_kernel<V>, (unsigned)(slices < HOME_BLOCKS ? slices : HOME_BLOCKS), THREADS, 0, a);
}

void clime_link_home_queue(struct clime_link_gather *g, const char *what, int64_t limit_us, int R, size_t row_bytes,
                           const int32_t *start, int each, const void *rows, void *y) {
    home_args a = {g->world, g->rank, each};
    a.start = start;
    a.rows = rows;
    a.y = y;
    a.waits = clime_link_gather_waits(g, what, limit_us);
    for (int r = 0; r < g->world; r++) {
        if (r == g->rank) continue;
        a.to[r] = place(g->peers[r] + g->home_at, r, g->rank);
        a.from[r] = place(g->own + g->home_at, g->rank, r);
    }
    if (row_bytes % sizeof(uint4) == 0 && ((uintptr_t)rows | (uintptr_t)y) % sizeof(uint4) == 0)
        go_home<uint4>(g->d, a, R, row_bytes);
    else
        go_home<uint16_t>(g->d, a, R, row_bytes);
}
