/* Shared by the kernels of links (links/gather.cu, links/home.cu): the memory that peers map, and waits with an end.
 *
 * A kernel that waits for another rank reports it to the host, and exits when the host has given up on that rank; some
 * time after the group's limit it gives up by itself. */
#ifndef CLIME_KERNELS_CUDA_LINKS_GATHER_CUH
#define CLIME_KERNELS_CUDA_LINKS_GATHER_CUH

#include "kernels/cuda/links.cuh"

enum { RANKS = 16, NAMES = 8, TRIES = 256, BEAT_NS = 1000000, HOME_PAIRS = 128 };

/* A kernel's wait in one word: its number, what and which rank, and a clock, so that an ongoing wait changes it. */
union gather_wait {
    struct {
        uint16_t beat;
        uint8_t rank, what;
        uint32_t number;
    };
    unsigned long long word; /* 0: nothing */
};

struct gather_host { /* pinned */
    volatile unsigned long long waits, late;
    volatile unsigned long long limit_ns;
    volatile unsigned gone;
};

struct gather_state {             /* device memory */
    unsigned long long launched;  /* gathers */
    unsigned long long went_home; /* launches of home.cu; slices that each of its pairs has sent to every rank, */
    uint32_t sent[HOME_PAIRS], taken[RANKS][HOME_PAIRS]; /* and read from each */
    unsigned gone;
};

/* A launch's view of that. */
struct gather_waits {
    struct gather_state *state;
    struct gather_host *host;
    int what;
};

struct clime_link_gather {
    struct clime_dev *d;
    int rank, world;
    char *own, *peers[RANKS]; /* places; from home_at on those of home.cu */
    size_t home_at;
    struct gather_state *state;
    struct gather_host *host;
    const char *names[NAMES]; /* of past gathers */
    int n_names;
    union gather_wait seen; /* the last wait; when it began, and when it last changed */
    int64_t since_us, changed_us;
};

struct gather_waits clime_link_gather_waits(struct clime_link_gather *g, const char *what, int64_t limit_us);
size_t clime_link_home_bytes(int world); /* home.cu's part of the places */

struct gather_patience {
    uint64_t began, next;
};

static __device__ __forceinline__ uint64_t globaltimer() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;\n" : "=l"(ns));
    return ns;
}

/* Polled while nothing arrives: whether to give up. */
static __device__ __noinline__ bool given_up(const gather_waits &a, int rank, uint32_t number, gather_patience &p) {
    uint64_t now = globaltimer();
    if (!p.began) p.began = now, p.next = now + BEAT_NS;
    if (now < p.next) return false;
    p.next = now + BEAT_NS;
    union gather_wait w = {};
    w.beat = (uint16_t)(now / BEAT_NS);
    w.rank = (uint8_t)rank;
    w.what = (uint8_t)a.what;
    w.number = number;
    a.host->waits = w.word;
    if (now - p.began > a.host->limit_ns) {
        a.host->late = w.word;
        a.host->gone = 1;
    }
    if (!a.host->gone) return false;
    *(volatile unsigned *)&a.state->gone = 1;
    return true;
}

#endif
