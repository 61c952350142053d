/* Drawing tokens and listing the likeliest ones. Launched by the context's owner.
 *
 * One block a row. Truncation finds a threshold on the order-preserving integer form of the logits by radix descent,
 * with counts (top-k) and with probabilities as 64-bit fixed point (top-p): integer atomics give the same sum in any
 * order. Results land in pinned memory and are copied to the caller's place by the next sync. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 1024, RADIX = 256, MAX_WAITS = 64 };

struct row_params {
    uint64_t seed;
    int64_t position;
    float inv_temp, top_p, min_p;
    int32_t top_k, greedy;
    int32_t first_edit, n_edits;
};

/* A result waiting for sync: n bytes at `from` in pinned memory go to `to`. */
struct clime_cuda_pending {
    struct wait {
        void *to;
        size_t from, n;
    } w[MAX_WAITS];
    int n;
    size_t used; /* bytes of the pinned buffer taken since the last sync */
};

void clime_cuda_deliver(struct clime_dev *d) {
    if (!d->pending) return;
    for (int i = 0; i < d->pending->n; i++)
        memcpy(d->pending->w[i].to, (char *)d->h_drawn + d->pending->w[i].from, d->pending->w[i].n);
    d->pending->n = 0;
    d->pending->used = 0;
}

/* Device address of n bytes for results, valid until the next sync; NULL after a failure. Room for two more waits. */
static char *result_room(struct clime_dev *d, size_t n) {
    if (!d->pending) d->pending = (struct clime_cuda_pending *)xcalloc(1, sizeof *d->pending);
    struct clime_cuda_pending *p = d->pending;
    n = (n + 15) / 16 * 16;
    if (p->n + 2 > MAX_WAITS || p->used + n > d->drawn_bytes) { /* hand out what is there, then there is room */
        if (!CU(d, cudaStreamSynchronize(d->stream))) return NULL;
        clime_cuda_deliver(d);
    }
    if (n > d->drawn_bytes) {
        cudaFree(d->d_drawn);
        cudaFreeHost(d->h_drawn);
        d->d_drawn = d->h_drawn = NULL;
        d->drawn_bytes = 0;
        size_t size = n < 65536 ? 65536 : 2 * n;
        if (!CU(d, cudaMalloc(&d->d_drawn, size)) || !CU(d, cudaMallocHost(&d->h_drawn, size))) return NULL;
        d->drawn_bytes = size;
    }
    p->used += n;
    return (char *)d->d_drawn + p->used - n;
}

/* Sends n bytes at `at`, inside a room, to `to` by the next sync. */
static void result_to(struct clime_dev *d, void *to, const void *at, size_t n) {
    size_t from = (size_t)((const char *)at - (const char *)d->d_drawn);
    CU(d, cudaMemcpyAsync((char *)d->h_drawn + from, at, n, cudaMemcpyDeviceToHost, d->stream));
    d->pending->w[d->pending->n++] = {to, from, n};
}

/* ---- device helpers ---- */

/* Larger float <=> larger key; NaN below everything. */
static __device__ __forceinline__ uint32_t key_of(float x) {
    if (x != x) return 0;
    uint32_t u = __float_as_uint(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __device__ __forceinline__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Probability before normalisation as 40-bit fixed point; top is the largest logit. */
static __device__ __forceinline__ unsigned long long mass_of(float x, float top, float inv_temp) {
    return (unsigned long long)(expf((x - top) * inv_temp) * 0x1p40f);
}

/* Philox4x32-10, as common/rng.c: counter (position low, position high, 0, 0), key seed; 24 bits. */
static __device__ float uniform_of(uint64_t seed, uint64_t position) {
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0},
             k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t n0 = (uint32_t)(b >> 32) ^ c[1] ^ k[0], n2 = (uint32_t)(a >> 32) ^ c[3] ^ k[1];
        c[0] = n0;
        c[1] = (uint32_t)b;
        c[2] = n2;
        c[3] = (uint32_t)a;
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return (float)(c[0] >> 8) * 0x1p-24f;
}

__global__ void edit_kernel(int V, const row_params *p, const struct clime_logit_edit *edits, float *logits) {
    const row_params &q = p[blockIdx.x];
    for (int i = threadIdx.x; i < q.n_edits; i += blockDim.x) {
        struct clime_logit_edit e = edits[q.first_edit + i];
        float *x = logits + (size_t)blockIdx.x * V + e.id;
        float v = *x;
        *x = (v > 0 ? v / e.rep : v * e.rep) + e.add;
    }
}

/* The key of the item at which the sum of weights of larger-or-equal keys first reaches `want`, by radix descent from
 * the top digit; weight 1 (counts) or the fixed-point probability. Ids whose key is below `floor` do not count.
 * *above = weight of the strictly larger keys. All threads call it and get the same result. */
static __device__ uint32_t radix_threshold(const float *x, int V, uint32_t floor, bool by_mass, float scale, float top,
                                           unsigned long long want, unsigned long long *above,
                                           unsigned long long *histogram, unsigned long long *state) {
    uint32_t prefix = 0, mask = 0;
    unsigned long long over = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < RADIX; i += THREADS) histogram[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < V; i += THREADS) {
            uint32_t key = key_of(x[i]);
            if (key < floor || (key & mask) != prefix) continue;
            unsigned long long w = by_mass ? mass_of(x[i], top, scale) : 1;
            atomicAdd(&histogram[key >> shift & 255], w);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255;
            unsigned long long sum = over;
            while (digit > 0 && sum + histogram[digit] < want) sum += histogram[digit--];
            state[0] = sum;
            state[1] = (unsigned long long)digit;
        }
        __syncthreads();
        over = state[0];
        prefix |= (uint32_t)state[1] << shift;
        mask |= 0xffu << shift;
        __syncthreads();
    }
    *above = over;
    return prefix;
}

__global__ void sample_kernel(int V, const float *logits, const float *plain, const float *lse,
                              const row_params *params, struct clime_drawn *out) {
    __shared__ float shared[32];
    __shared__ unsigned long long histogram[RADIX], state[2];
    __shared__ float split_sum[1024], values[THREADS];
    __shared__ int split_kept[1024];
    __shared__ int best_id;
    int r = blockIdx.x;
    const row_params p = params[r];
    const float *x = logits + (size_t)r * V;
    struct clime_drawn drawn = {0, 0, 0, false};

    /* the largest logit, the lowest id among equals; a NaN anywhere spoils the row */
    float top = -INFINITY;
    int nan = 0;
    for (int i = threadIdx.x; i < V; i += THREADS) {
        nan |= x[i] != x[i];
        top = fmaxf(top, x[i]);
    }
    top = block_max(top, shared);
    if (__syncthreads_or(nan) || top == -INFINITY || top == INFINITY || !isfinite(lse[r])) {
        drawn.bad = true;
        if (threadIdx.x == 0) out[r] = drawn;
        return;
    }
    if (threadIdx.x == 0) best_id = V;
    __syncthreads();
    for (int i = threadIdx.x; i < V; i += THREADS)
        if (x[i] == top) atomicMin(&best_id, i);
    __syncthreads();
    if (p.greedy) {
        if (threadIdx.x == 0) {
            drawn.id = best_id;
            drawn.logp = plain[(size_t)r * V + best_id] * p.inv_temp - lse[r];
            out[r] = drawn;
        }
        return;
    }

    /* kept: keys above `limit`, and the first n_equal ids with that very key */
    uint32_t limit = key_of(-INFINITY);
    unsigned long long n_equal = 0; /* 0 with limit -inf: nothing at the limit is kept, all above it is */
    if (p.top_k > 0 && p.top_k < V) {
        unsigned long long above;
        limit = radix_threshold(x, V, 0, false, 0, 0, (unsigned long long)p.top_k, &above, histogram, state);
        n_equal = (unsigned long long)p.top_k - above;
    }
    if (p.top_p < 1.0f) {
        /* mass of what top-k kept: ties beyond n_equal left out */
        unsigned long long mass = 0, equal_mass = mass_of(value_of(limit), top, p.inv_temp);
        for (int i = threadIdx.x; i < V; i += THREADS)
            if (key_of(x[i]) > limit) mass += mass_of(x[i], top, p.inv_temp);
        if (threadIdx.x == 0) state[0] = 0;
        __syncthreads();
        atomicAdd(&state[0], mass);
        __syncthreads();
        unsigned long long total = state[0] + n_equal * equal_mass, above;
        __syncthreads();
        unsigned long long want = (unsigned long long)((double)p.top_p * (double)total);
        if (want < 1) want = 1;
        uint32_t t = radix_threshold(x, V, 0, true, p.inv_temp, top, want, &above, histogram, state);
        if (t > limit) {
            unsigned long long each = mass_of(value_of(t), top, p.inv_temp);
            n_equal = each ? (want - above + each - 1) / each : 1;
            if (n_equal < 1) n_equal = 1;
            limit = t;
        } else if (t == limit && n_equal) {
            unsigned long long need = equal_mass ? (want - above + equal_mass - 1) / equal_mass : 1;
            if (need < n_equal) n_equal = need < 1 ? 1 : need;
        }
    }
    float min_z = p.min_p > 0 ? logf(p.min_p) : -INFINITY; /* of z - max z */

    /* inverse CDF in id order: sums of splits of THREADS ids, then the split that holds the target */
    int n_splits = (V + THREADS - 1) / THREADS;
    int equal_before = 0;
    float total = 0;
    for (int s = 0; s < n_splits; s++) {
        int i = s * THREADS + threadIdx.x;
        uint32_t key = i < V ? key_of(x[i]) : 0;
        int equal = i < V && key == limit && n_equal > 0;
        int n_here = __syncthreads_count(equal);
        float w = 0;
        if (i < V && key >= limit && (x[i] - top) * p.inv_temp >= min_z) {
            bool kept = key > limit;
            if (equal) { /* rank among the equals: few rows have any, so a plain count will do */
                int rank = equal_before;
                for (int k = s * THREADS; k < i; k++) rank += key_of(x[k]) == limit;
                kept = (unsigned long long)rank < n_equal;
            }
            if (kept) w = expf((x[i] - top) * p.inv_temp);
        }
        float sum = block_sum(w, shared);
        if (threadIdx.x == 0) {
            split_sum[s] = sum;
            split_kept[s] = equal_before;
        }
        equal_before += n_here;
        total += sum;
    }
    __syncthreads();
    float target = uniform_of(p.seed, (uint64_t)p.position) * total, before = 0;
    int at = -1, last = 0;
    for (int s = 0; s < n_splits; s++) {
        if (split_sum[s] == 0) continue;
        last = s;
        if (before + split_sum[s] > target) {
            at = s;
            break;
        }
        before += split_sum[s];
    }
    if (at < 0) { /* rounding at the very end */
        at = last;
        before -= split_sum[last];
    }
    {
        int i = at * THREADS + threadIdx.x;
        float w = 0;
        if (i < V) {
            uint32_t key = key_of(x[i]);
            bool kept = key > limit;
            if (key == limit && n_equal > 0) {
                int rank = split_kept[at];
                for (int k = at * THREADS; k < i; k++) rank += key_of(x[k]) == limit;
                kept = (unsigned long long)rank < n_equal;
            }
            if (kept && (x[i] - top) * p.inv_temp >= min_z) w = expf((x[i] - top) * p.inv_temp);
        }
        values[threadIdx.x] = w;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int id = -1;
        float sum = before;
        for (int k = 0; k < THREADS; k++) {
            if (values[k] == 0) continue;
            sum += values[k];
            id = at * THREADS + k;
            if (sum > target) break;
        }
        drawn.id = id < 0 ? best_id : id;
        drawn.logp = plain[(size_t)r * V + drawn.id] * p.inv_temp - lse[r];
        bool plain_draw = p.n_edits == 0 && !(p.top_k > 0 && p.top_k < V) && p.top_p >= 1.0f && p.min_p <= 0;
        drawn.logp_cut = plain_draw ? drawn.logp : (x[drawn.id] - top) * p.inv_temp - logf(total);
        out[r] = drawn;
    }
}

CUDA_OP void clime_cuda_sample(struct clime_dev *d, int R, int V, const float *logits, const float *lse,
                               const struct clime_sampling *p, struct clime_drawn *out) {
    if (R == 0) return;
    CHECK(V <= 1024 * THREADS);
    size_t n_edits = 0;
    for (int r = 0; r < R; r++) n_edits += (size_t)p[r].n_edits;
    size_t params_bytes = (size_t)R * sizeof(row_params), edit_bytes = n_edits * sizeof(struct clime_logit_edit);
    size_t row_bytes = n_edits ? (size_t)R * V * sizeof(float) : 0;
    char *scratch = (char *)clime_cuda_scratch(d, params_bytes + edit_bytes + row_bytes + 64);
    struct clime_drawn *room = (struct clime_drawn *)result_room(d, (size_t)R * sizeof *out);
    if (!scratch || !room) return;

    char *host = (char *)xmalloc(params_bytes + edit_bytes);
    row_params *hp = (row_params *)host;
    struct clime_logit_edit *he = (struct clime_logit_edit *)(host + params_bytes);
    int at = 0;
    for (int r = 0; r < R; r++) {
        hp[r] = row_params{p[r].seed, p[r].position, p[r].inv_temp, p[r].top_p, p[r].min_p, p[r].top_k, p[r].greedy,
                           at,        p[r].n_edits};
        if (p[r].n_edits) memcpy(he + at, p[r].edits, (size_t)p[r].n_edits * sizeof *he);
        at += p[r].n_edits;
    }
    clime_cuda_copy_in(d, scratch, host, params_bytes + edit_bytes);
    free(host);
    const row_params *dp = (const row_params *)scratch;
    const float *edited = logits;
    if (n_edits) {
        float *copy = (float *)(scratch + (params_bytes + edit_bytes + 15) / 16 * 16);
        clime_cuda_copy(d, copy, logits, row_bytes);
        edit_kernel<<<R, 256, 0, d->stream>>>(V, dp, (const struct clime_logit_edit *)(scratch + params_bytes), copy);
        LAUNCHED(d);
        edited = copy;
    }
    sample_kernel<<<R, THREADS, 0, d->stream>>>(V, edited, logits, lse, dp, room);
    LAUNCHED(d);
    result_to(d, out, room, (size_t)R * sizeof *out);
}

/* n rounds of "the largest below the last one"; n is small (20 in OpenAI's protocol). */
__global__ void top_kernel(int V, const float *x, float scale, const float *lse, int n, int32_t *ids, float *logp) {
    __shared__ unsigned long long best;
    unsigned long long last = ~0ull;
    for (int k = 0; k < n; k++) {
        if (threadIdx.x == 0) best = 0;
        __syncthreads();
        unsigned long long mine = 0;
        for (int i = threadIdx.x; i < V; i += THREADS) { /* larger key first, lower id among equals */
            unsigned long long c = (unsigned long long)key_of(x[i]) << 32 | (0xffffffffu - (uint32_t)i);
            if (c < last && c > mine) mine = c;
        }
        atomicMax(&best, mine);
        __syncthreads();
        last = best;
        if (threadIdx.x == 0) {
            int id = (int)(0xffffffffu - (uint32_t)last);
            ids[k] = id;
            logp[k] = x[id] * scale - *lse;
        }
        __syncthreads();
    }
}

CUDA_OP void clime_cuda_top_logp(struct clime_dev *d, int V, const float *row, float inv_temp, const float *lse, int n,
                                 int32_t *h_ids, float *h_logp) {
    CHECK(n >= 0 && n <= V);
    if (n == 0) return;
    size_t bytes = (size_t)n * 4;
    char *room = result_room(d, 2 * bytes);
    if (!room) return;
    int32_t *ids = (int32_t *)room;
    float *logp = (float *)(room + bytes);
    top_kernel<<<1, THREADS, 0, d->stream>>>(V, row, inv_temp, lse, n, ids, logp);
    LAUNCHED(d);
    result_to(d, h_ids, ids, bytes);
    result_to(d, h_logp, logp, bytes);
}
