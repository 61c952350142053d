/* Gather of columns of a few rows to all ranks, by one kernel that decode steps can record. Launched by the owner of
 * context and links (links.cu); owns the receive buffers ("places"), which peers map, and a page of host memory.
 *
 * A kernel writes its rank's columns into a place on every other GPU and reads theirs from its own. A word there is a
 * value next to the launch's number, written and read at once: it validates itself, so there is no fence and no
 * counter, and the cost is one way over the link. The number is in device memory and incremented by every launch, so a
 * recorded launch can be replayed. All ranks launch the same, in the same order.
 *
 * Two sets of places alternate. In every launch every rank gets a word from every other, also from ranks without bytes
 * for it: a rank with all words of launch n knows that the others have read those of n - 1, whose places n + 1 uses.
 * Invariant: a word is overwritten only after it was read.
 *
 * A block waits for blocks of other GPUs, which must all be running: at most one per multiprocessor. Once a millisecond
 * a waiting kernel reports what it waits for to the host and checks whether the host has given up on it (a lost or late
 * rank, links.cu); some time after the group's limit it gives up by itself. Then it and all later ones exit, and later
 * results are undefined. */
#include <stdlib.h>

#include "kernels/cuda/links/gather.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 512, EACH = 4 /* words in flight per thread */, STILL_US = 1000000 };
#define SPARE_NS 10000000000ull /* beyond the group's limit, so that the host acts first */
#define PLACE ((size_t)4 << 20) /* bytes of words from one rank, per turn */

struct gather_args {
    int n, rank, root; /* root: the rank that gets the rows, -1 = all */
    uint32_t T, first, most;
    uint32_t at[RANKS + 1]; /* columns of a rank, in values; first and most: of each rank's part */
    const void *mine;
    void *y;
    char *to[RANKS], *from[RANKS]; /* places */
    struct gather_waits waits;
};

/* ---- words ---- */

static __device__ __forceinline__ uint64_t word_of(uint32_t x, uint32_t number) {
    return (uint64_t)number << 32 | x;
}

/* Eight bytes of a row, in two words. */
static __device__ __forceinline__ void put(char *place, uint32_t i, uint2 x, uint32_t number) {
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};\n" ::"l"(place + (size_t)i * 16),
                 "l"(word_of(x.x, number)), "l"(word_of(x.y, number))
                 : "memory");
}
static __device__ __forceinline__ bool take(const char *place, uint32_t i, uint2 &x, uint32_t number) {
    uint64_t a, b;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];\n"
                 : "=l"(a), "=l"(b)
                 : "l"(place + (size_t)i * 16)
                 : "memory");
    x = make_uint2((uint32_t)a, (uint32_t)b);
    return (uint32_t)(a >> 32) == number && (uint32_t)(b >> 32) == number;
}

/* Two bytes, for columns cut at any place. */
static __device__ __forceinline__ void put(char *place, uint32_t i, uint16_t x, uint32_t number) {
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;\n" ::"l"(place + (size_t)i * 8), "l"(word_of(x, number))
                 : "memory");
}
static __device__ __forceinline__ bool take(const char *place, uint32_t i, uint16_t &x, uint32_t number) {
    uint64_t a;
    asm volatile("ld.relaxed.sys.global.b64 %0, [%1];\n" : "=l"(a) : "l"(place + (size_t)i * 8) : "memory");
    x = (uint16_t)a;
    return (uint32_t)(a >> 32) == number;
}

/* ---- the kernel ---- */

/* Values of rank r that this launch moves. */
static __device__ __forceinline__ uint32_t moved(const gather_args &a, int r) {
    uint32_t all = a.T * (a.at[r + 1] - a.at[r]);
    return all <= a.first ? 0 : min(all - a.first, a.most);
}

template <class V> static __device__ __forceinline__ V *in_row(const gather_args &a, int r, uint32_t i) {
    uint32_t width = a.at[r + 1] - a.at[r], row = (a.first + i) / width;
    return (V *)a.y + (size_t)row * a.at[a.n] + a.at[r] + (a.first + i - row * width);
}

template <class V> static __device__ void send(const gather_args &a, uint32_t number, size_t turn) {
    uint32_t n = moved(a, a.rank), stride = gridDim.x * THREADS, i = blockIdx.x * THREADS + threadIdx.x;
    bool here = a.root < 0 || a.root == a.rank;
    const V *mine = (const V *)a.mine + a.first;
    for (; i < n || i == 0; i += EACH * stride) {
        V x[EACH] = {};
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (i + k * stride < n) x[k] = mine[i + k * stride];
        for (int k = 1; k < a.n; k++) {
            int q = (a.rank + k) % a.n;
            bool all = a.root < 0 || q == a.root;
#pragma unroll
            for (int j = 0; j < EACH; j++)
                if (i + j * stride == 0 || (all && i + j * stride < n))
                    put(a.to[q] + turn, i + j * stride, x[j], number);
        }
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (here && i + k * stride < n) *in_row<V>(a, a.rank, i + k * stride) = x[k];
    }
}

/* False: given up. */
template <class V> static __device__ bool receive(const gather_args &a, uint32_t number, size_t turn, int q) {
    bool here = a.root < 0 || a.root == a.rank;
    uint32_t n = here ? moved(a, q) : 0, all = n ? n : 1, stride = gridDim.x * THREADS;
    const char *place = a.from[q] + turn;
    gather_patience patience = {};
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < all; i += EACH * stride) {
        V x[EACH];
        bool there[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) there[k] = i + k * stride >= all || take(place, i + k * stride, x[k], number);
#pragma unroll
        for (int k = 0; k < EACH; k++)
            for (int tries = 1; !there[k]; tries++) {
                there[k] = take(place, i + k * stride, x[k], number);
                if (!there[k] && tries % TRIES == 0 && given_up(a.waits, q, number, patience)) return false;
            }
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (i + k * stride < n) *in_row<V>(a, q, i + k * stride) = x[k];
    }
    return true;
}

template <class V>
static __global__ void __launch_bounds__(THREADS) gather_kernel(const __grid_constant__ gather_args a) {
    start_next();
    wait_for_last();
    uint32_t launch = launch_number(&a.waits.state->launched);
    uint32_t number = 2 * launch + 1; /* never the number of an unwritten word */
    size_t turn = launch % 2 * PLACE;
    bool go_on = !*(volatile unsigned *)&a.waits.state->gone;
    if (go_on) send<V>(a, number, turn);
    for (int k = 1; k < a.n && go_on; k++) go_on = receive<V>(a, number, turn, (a.rank + a.n - k) % a.n);
    __syncthreads();
    if (threadIdx.x == 0) count_launch(&a.waits.state->launched);
}

/* ---- launching ---- */

struct gather_waits clime_link_gather_waits(struct clime_link_gather *g, const char *what, int64_t limit_us) {
    int i = 0;
    while (i < g->n_names && g->names[i] != what) i++;
    if (i == NAMES) i = 0;
    if (i == g->n_names) g->names[g->n_names++] = what;
    g->host->limit_ns = (unsigned long long)limit_us * 1000 + SPARE_NS;
    return {g->state, g->host, i};
}

static char *place(char *places, int to, int from) {
    return places + (size_t)(from - (from > to)) * 2 * PLACE;
}

template <class V> static void gather(struct clime_link_gather *g, gather_args a, const size_t *at, size_t word_bytes) {
    uint32_t most = 0, room = (uint32_t)(PLACE / word_bytes);
    for (int r = 0; r <= g->world; r++) a.at[r] = (uint32_t)(at[r] / sizeof(V));
    for (int r = 0; r < g->world; r++) most = max(most, a.T * (a.at[r + 1] - a.at[r]));
    for (a.first = 0, a.most = room; a.first < most; a.first += room) {
        uint32_t blocks = (min(most - a.first, room) + THREADS - 1) / THREADS;
        launch(g->d, gather_kernel<V>, min(blocks, (uint32_t)g->d->n_sm), THREADS, 0, a);
    }
}

void clime_link_gather_queue(struct clime_link_gather *g, const char *what, int64_t limit_us, int root, int T,
                             const size_t *at, const void *mine, void *y) {
    gather_args a = {g->world, g->rank, root, (uint32_t)T};
    bool wide = (uintptr_t)mine % sizeof(uint2) == 0 && (uintptr_t)y % sizeof(uint2) == 0;
    a.mine = mine;
    a.y = y;
    a.waits = clime_link_gather_waits(g, what, limit_us);
    for (int r = 0; r <= g->world; r++) wide = wide && at[r] % sizeof(uint2) == 0;
    for (int r = 0; r < g->world; r++) {
        if (r == g->rank) continue;
        a.to[r] = place(g->peers[r], r, g->rank);
        a.from[r] = place(g->own, g->rank, r);
    }
    if (wide)
        gather<uint2>(g, a, at, 16);
    else
        gather<uint16_t>(g, a, at, 8);
}

/* ---- checking on waits ---- */

const char *clime_link_gather_awaited(const struct clime_link_gather *g, int *rank) {
    union gather_wait w = g->seen;
    if (!w.word) return NULL;
    *rank = w.rank;
    return g->names[w.what];
}

bool clime_link_gather_late(struct clime_link_gather *g, int64_t now_us, int64_t limit_us) {
    union gather_wait w, late;
    w.word = g->host->waits;
    late.word = g->host->late;
    if (late.word) w = late;
    if (w.number != g->seen.number || now_us - g->changed_us > STILL_US) g->since_us = now_us;
    if (w.word != g->seen.word) {
        g->changed_us = now_us;
        g->seen = w;
    } else if (now_us - g->changed_us > STILL_US) {
        g->seen.word = 0; /* it has arrived since */
        g->host->waits = 0;
    }
    return late.word || (g->seen.word && now_us - g->since_us > limit_us);
}

void clime_link_gather_release(struct clime_link_gather *g) {
    g->host->gone = 1;
}

/* ---- open and close ---- */

struct card { /* sent to the other ranks */
    uint8_t handle[CLIME_SHARE_BYTES];
    struct clime_error why; /* its failure; code CLIME_OK = none */
};

static size_t room(int world) {
    return (size_t)(world - 1) * 2 * PLACE + clime_link_home_bytes(world);
}

size_t clime_link_gather_bytes(int world) {
    return world <= RANKS ? room(world) : 0;
}

static enum clime_err open_own(struct clime_link_gather *g, struct card *c, struct clime_error *e) {
    struct clime_dev *d = g->d;
    void *host, *state;
    if (cudaMallocHost(&host, sizeof *g->host) != cudaSuccess)
        return clime_fail(e, CLIME_ERR_LIMIT, "a page of page-locked host memory is not to be had");
    g->host = (struct gather_host *)host;
    memset(host, 0, sizeof *g->host);
    enum clime_err rc = clime_cuda_alloc(d, sizeof *g->state, "places of gathers", &state, e);
    if (rc) return rc;
    g->state = (struct gather_state *)state;
    rc = clime_cuda_alloc_shared(d, room(g->world), "places of gathers", (void **)&g->own, e);
    if (rc) return rc;
    clime_cuda_zero(d, state, sizeof *g->state);
    clime_cuda_zero(d, g->own, room(g->world));
    rc = clime_cuda_sync(d, e); /* before anyone writes there */
    return rc ? rc : clime_cuda_share_export(d, g->own, c->handle, e);
}

static enum clime_err open_peers(struct clime_link_gather *g, const struct card *cards, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    bool same_unit;
    for (int r = 0; r < g->world && !rc; r++)
        if (r != g->rank)
            rc = clime_cuda_share_open(g->d, cards[r].handle, room(g->world), &same_unit, (void **)&g->peers[r], e);
    g->home_at = (size_t)(g->world - 1) * 2 * PLACE;
    return rc;
}

/* Exchanges all cards; all ranks fail with the first failure. */
static enum clime_err tell(struct clime_group *group, int world, struct card *cards, struct clime_error *e) {
    size_t from[CLIME_GROUP_MAX + 1];
    for (int r = 0; r <= world; r++) from[r] = (size_t)r * sizeof *cards;
    enum clime_err rc = clime_group_share(group, "opening gathers", cards, from, e);
    for (int r = 0; r < world && !rc; r++)
        if (cards[r].why.code)
            rc = clime_fail(e, cards[r].why.code, "%s: %.300s", clime_group_name(group, r), cards[r].why.msg);
    return rc;
}

enum clime_err clime_link_gather_open(struct clime_dev *d, struct clime_group *group, struct clime_link_gather **out,
                                      struct clime_error *e) {
    int world = clime_group_world(group), rank = clime_group_rank(group);
    *out = NULL;
    if (world > RANKS) return CLIME_OK;
    struct clime_link_gather *g = (struct clime_link_gather *)xcalloc(1, sizeof *g);
    struct card *cards = (struct card *)xcalloc((size_t)world, sizeof *cards);
    g->d = d;
    g->rank = rank;
    g->world = world;
    open_own(g, &cards[rank], &cards[rank].why);
    enum clime_err rc = tell(group, world, cards, e);
    if (!rc) {
        open_peers(g, cards, &cards[rank].why);
        rc = tell(group, world, cards, e);
    }
    free(cards);
    if (rc)
        clime_link_gather_close(g);
    else
        *out = g;
    return rc;
}

void clime_link_gather_close(struct clime_link_gather *g) {
    if (!g) return;
    for (int r = 0; r < g->world; r++)
        if (g->peers[r]) cudaIpcCloseMemHandle(g->peers[r]);
    cudaFree(g->own);
    cudaFree(g->state);
    if (g->host) cudaFreeHost(g->host);
    free(g);
}
