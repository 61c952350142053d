/* Returns rows that ranks have made whole, by columns: experts' outputs, to the ranks that add them. Launched by the
 * owner of context and links (links.cu); its places follow those of gathers (gather.cuh).
 *
 * The rows of each rank are read from the device, where the router's choice was sorted: the host does not wait, and a
 * launch can be recorded and replayed with others. Only existing rows move: nothing waits for a rank without rows. Half
 * of the blocks send and half receive: sender b of a rank is paired with receiver b of every other, slice by slice of
 * 16 KiB, every n_pairs-th of the rank's rows, through a ring of SLOTS slices on the receiver's GPU. Two counters per
 * ring, of all slices since it was opened, show how many were sent and taken; each is on the GPU of the rank that waits
 * for it.
 *
 * Invariant: taken <= sent <= taken + SLOTS. It cannot deadlock: senders wait only for receivers and receivers for
 * senders, and all blocks of all GPUs run at the same time, as those of gathers. Long waits end as there. */
#include "kernels/cuda/links/gather.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, EACH = 4 /* values in flight per thread */, SLOTS = 4, SLICE = 16 << 10 };

struct home_place { /* written by one rank on another GPU */
    char slice[HOME_PAIRS][SLOTS][SLICE];
    uint32_t sent[HOME_PAIRS], taken[HOME_PAIRS]; /* taken: of what the memory's owner has sent */
};

struct home_args {
    int n, rank, each;
    uint32_t width, n_pairs; /* width: values of a row's columns */
    const int32_t *start;
    const void *rows;
    void *y;
    struct home_place *to[RANKS], *from[RANKS]; /* this rank's there, theirs here */
    struct gather_waits waits;
};

/* A block's view of its launch. */
struct home_turn {
    uint32_t first[RANKS + 1]; /* first row of each rank */
    uint32_t taken[RANKS];     /* slices before this launch */
    uint32_t sent, number, pair;
};

/* ---- counts ---- */

static __device__ __forceinline__ void put_count(uint32_t *at, uint32_t n) {
    asm volatile("st.release.sys.global.u32 [%0], %1;\n" ::"l"(at), "r"(n) : "memory");
}

static __device__ __forceinline__ uint32_t take_count(const uint32_t *at) {
    uint32_t n;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];\n" : "=r"(n) : "l"(at) : "memory");
    return n;
}

/* By one thread: waits until the count is n; seen: its last value. False: given up. */
static __device__ __forceinline__ bool await_count(const home_args &a, const uint32_t *at, uint32_t n, int rank,
                                                   uint32_t number, uint32_t &seen) {
    gather_patience patience = {};
    for (int tries = 1; (int32_t)(seen - n) < 0; tries++) {
        seen = take_count(at);
        if (tries % TRIES == 0 && given_up(a.waits, rank, number, patience)) return false;
    }
    return true;
}

/* ---- the kernel ---- */

/* Values of rank r's rows, and slices of them per pair. */
static __device__ __forceinline__ uint32_t values_of(const home_args &a, const home_turn &t, int r) {
    return (t.first[r + 1] - t.first[r]) * a.width;
}
template <class V> static __device__ __forceinline__ uint32_t slices_of(const home_args &a, const home_turn &t, int r) {
    constexpr uint32_t PER = SLICE / sizeof(V);
    uint32_t all = (values_of(a, t, r) + PER - 1) / PER;
    return all <= t.pair ? 0 : (all - t.pair + a.n_pairs - 1) / a.n_pairs;
}

/* to[v] = from(v), with several values in flight. */
template <class V, class F> static __device__ __forceinline__ void copy(uint32_t n, V *to, F from) {
    for (uint32_t first = threadIdx.x; first < n; first += THREADS * EACH) {
        V x[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (first + k * THREADS < n) x[k] = from(first + k * THREADS);
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (first + k * THREADS < n) to[first + k * THREADS] = x[k];
    }
}

/* The pair's slice i of rank r's rows. */
template <class V> struct home_slice {
    static constexpr uint32_t PER = SLICE / sizeof(V);
    uint32_t base, n; /* values before it, and in it */

    __device__ __forceinline__ home_slice(const home_args &a, const home_turn &t, int r, uint32_t i)
        : base((t.pair + i * a.n_pairs) * PER), n(min(PER, values_of(a, t, r) - base)) {}

    /* q's columns of this rank's rows. */
    __device__ __forceinline__ void own(const home_args &a, const home_turn &t, int q, V *to) const {
        const V *rows = (const V *)a.rows + (size_t)t.first[a.rank] * a.n * a.width + q * a.width;
        copy(n, to, [&](uint32_t v) {
            uint32_t row = (base + v) / a.width;
            return rows[(size_t)row * a.n * a.width + (base + v - row * a.width)];
        });
    }
    __device__ __forceinline__ V *home(const home_args &a, const home_turn &t, int r) const {
        return (V *)a.y + (size_t)t.first[r] * a.width + base;
    }
};

/* False: given up, as below. */
template <class V> static __device__ bool send(const home_args &a, const home_turn &t) {
    int other = threadIdx.x;
    bool others = other < a.n && other != a.rank;
    uint32_t mine = slices_of<V>(a, t, a.rank), seen = others && mine ? take_count(&a.from[other]->taken[t.pair]) : 0;
    for (uint32_t i = 0; i < mine; i++) {
        bool go_on = true;
        const home_slice<V> slice(a, t, a.rank, i);
        if (others)
            go_on = await_count(a, &a.from[other]->taken[t.pair], t.sent + i + 1 - SLOTS, other, t.number, seen);
        if (!__syncthreads_and(go_on)) return false;
        for (int k = 1; k < a.n; k++) {
            int q = (a.rank + k) % a.n;
            slice.own(a, t, q, (V *)a.to[q]->slice[t.pair][(t.sent + i) % SLOTS]);
        }
        __syncthreads();
        if (others) put_count(&a.to[other]->sent[t.pair], t.sent + i + 1);
    }
    return true;
}

/* Also copies this rank's own. */
template <class V> static __device__ bool take(const home_args &a, const home_turn &t) {
    int other = threadIdx.x;
    uint32_t theirs = other < a.n && other != a.rank ? slices_of<V>(a, t, other) : 0, rounds = 0, seen = 0;
    if (theirs) seen = t.taken[other];
    for (int q = 0; q < a.n; q++) rounds = max(rounds, slices_of<V>(a, t, q));
    for (uint32_t i = 0; i < rounds; i++) {
        bool go_on = true;
        if (i < slices_of<V>(a, t, a.rank)) {
            const home_slice<V> slice(a, t, a.rank, i);
            slice.own(a, t, a.rank, slice.home(a, t, a.rank));
        }
        if (i < theirs)
            go_on = await_count(a, &a.from[other]->sent[t.pair], t.taken[other] + i + 1, other, t.number, seen);
        if (!__syncthreads_and(go_on)) return false;
        for (int k = 1; k < a.n; k++) {
            int q = (a.rank + a.n - k) % a.n;
            if (i >= slices_of<V>(a, t, q)) continue;
            const home_slice<V> slice(a, t, q, i);
            const V *from = (const V *)a.from[q]->slice[t.pair][(t.taken[q] + i) % SLOTS];
            copy(slice.n, slice.home(a, t, q), [&](uint32_t v) { return __ldcg(from + v); });
        }
        __syncthreads();
        if (i < theirs) put_count(&a.to[other]->taken[t.pair], t.taken[other] + i + 1);
    }
    return true;
}

template <class V>
static __global__ void __launch_bounds__(THREADS, 4) home_kernel(const __grid_constant__ home_args a) {
    __shared__ home_turn t;
    struct gather_state *state = a.waits.state;
    uint32_t pair = blockIdx.x / 2;
    int r = threadIdx.x;
    bool sends = blockIdx.x % 2 == 0;
    start_next();
    wait_for_last();
    if (r <= a.n) t.first[r] = __ldcg(a.start + r * a.each);
    if (r < a.n) t.taken[r] = __ldcg(&state->taken[r][pair]);
    if (r == 0) {
        t.pair = pair;
        t.sent = __ldcg(&state->sent[pair]);
        t.number = launch_number(&state->went_home) | 1u << 31; /* differs from a gather's */
    }
    bool go_on = !__syncthreads_or(*(volatile unsigned *)&state->gone); /* the whole block, or none of it */
    if (go_on) go_on = sends ? send<V>(a, t) : take<V>(a, t);
    __syncthreads();
    if (go_on && !sends && r < a.n) state->taken[r][pair] = t.taken[r] + slices_of<V>(a, t, r);
    if (go_on && sends && r == 0) state->sent[pair] = t.sent + slices_of<V>(a, t, a.rank);
    if (r == 0) count_launch(&state->went_home);
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
    a.n_pairs = (uint32_t)(slices < HOME_PAIRS ? slices : HOME_PAIRS);
    launch(d, home_kernel<V>, 2 * a.n_pairs, THREADS, 0, a);
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
