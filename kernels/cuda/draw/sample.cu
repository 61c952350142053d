/* Sampling kernels. Launched by the context's owner.
 *
 * One block per row. Truncation finds a threshold on the order-preserving integer form of the logits by radix descent,
 * with counts (top-k) and with probabilities as 64-bit fixed point (top-p): integer atomics give the same sum in any
 * order. Parameters are read from pinned memory, since a copy would cost a separate launch. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/draw/radix.cuh"
#include "kernels/cuda/ops.h"

enum { SUM_WARPS = 4, NEAR = 4096 };

struct row_params {
    uint64_t seed;
    int64_t position;
    float inv_temp, top_p, min_p;
    int32_t top_k, greedy;
    int32_t first_edit, n_edits;
    int32_t seen, allowed; /* start of the sets, in words; -1: none */
    float repetition;
    int32_t kept_room;
    int64_t kept_at; /* start of the list */
};

/* ---- device helpers ---- */

/* Unnormalised probability as 40-bit fixed point; top is the largest logit. */
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

static __device__ __forceinline__ bool edits_of(const row_params &p) {
    return p.seen >= 0 || p.n_edits > 0 || p.allowed >= 0;
}

static __device__ __forceinline__ bool in_set(const uint32_t *set, int id) {
    return set[id / 32] >> id % 32 & 1;
}

/* edited = the logits after edits, of the rows that have any. One block per row. */
__global__ void __launch_bounds__(THREADS) edit_kernel(int V, const row_params *p, const struct clime_logit_edit *edits,
                                                       const uint32_t *sets, const float *logits, float *edited) {
    const row_params q = p[blockIdx.x];
    if (!edits_of(q)) return;
    const float *from = logits + (size_t)blockIdx.x * V;
    float *x = edited + (size_t)blockIdx.x * V;
    for (int i = threadIdx.x; i < V; i += THREADS) {
        float v = from[i];
        if (q.seen >= 0 && in_set(sets + q.seen, i)) v = v > 0 ? v / q.repetition : v * q.repetition;
        x[i] = v;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < q.n_edits; i += THREADS) {
        struct clime_logit_edit e = edits[q.first_edit + i];
        x[e.id] += e.add;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < V && q.allowed >= 0; i += THREADS)
        if (!in_set(sets + q.allowed, i)) x[i] = -INFINITY;
}

/* Bins of equal width over the range in which an id has weight, the largest logits last. Unlike a key's leading digits,
 * which most logits share, they keep the threads of a warp apart. */
static __device__ __forceinline__ int bin_of(float x, float top, float inv_temp) {
    float steps = (top - x) * inv_temp * (RADIX / 28.0f); /* e^-28 < 2^-40 */
    return steps < RADIX ? RADIX - 1 - (int)steps : 0;
}

/* top-p among the ids above key `limit` and the first n_equal of those with that key: the key at which the sum of
 * fixed-point probabilities of larger-or-equal keys first reaches its share of the total. That share is *want, and
 * *above the sum of the strictly larger keys. The ids of one bin are gathered in near[NEAR] if they fit, so that the
 * descent reads few. All threads call it and get the same result. */
static __device__ uint32_t mass_threshold(const float *x, int V, const row_params &p, float top, uint32_t limit,
                                          unsigned long long n_equal, unsigned long long *want,
                                          unsigned long long *above, radix_bins &b, uint32_t *near, int *n_near) {
    clear(b);
    if (threadIdx.x == 0) *n_near = 0;
    each_logit(x, V, [&](float v) {
        unsigned long long mass = key_of(v) > limit ? mass_of(v, top, p.inv_temp) : 0;
        if (mass) add_weight(b, bin_of(v, top, p.inv_temp), mass);
    });
    unsigned long long total = sum_of(b);
    unsigned long long all = total + n_equal * mass_of(value_of(limit), top, p.inv_temp);
    *want = (unsigned long long)((double)p.top_p * (double)all);
    if (*want < 1) *want = 1;
    *above = total;
    if (total < *want) return limit;
    *above = 0;
    int bin = reach(b, *want, above);
    each_logit(x, V, [&](float v) {
        if (key_of(v) <= limit || bin_of(v, top, p.inv_temp) != bin) return;
        int at = atomicAdd(n_near, 1);
        if (at < NEAR) near[at] = key_of(v);
    });
    __syncthreads();
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        clear(b);
        auto add = [&](uint32_t key) {
            if ((key & mask) == prefix) add_weight(b, key >> shift & 255, mass_of(value_of(key), top, p.inv_temp));
        };
        if (*n_near <= NEAR)
            for (int i = threadIdx.x; i < *n_near; i += THREADS) add(near[i]);
        else
            each_logit(x, V, [&](float v) {
                if (key_of(v) > limit && bin_of(v, top, p.inv_temp) == bin) add(key_of(v));
            });
        prefix |= (uint32_t)reach(b, *want, above) << shift;
        mask |= 0xffu << shift;
    }
    return prefix;
}

/* Largest of the block; every thread gets it. */
static __device__ unsigned long long block_max64(unsigned long long v, unsigned long long *shared) {
    for (int m = 16; m > 0; m >>= 1) {
        unsigned long long other = __shfl_xor_sync(0xffffffffu, v, m);
        v = other > v ? other : v;
    }
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    for (int k = 0; k < THREADS / 32; k++) v = shared[k] > v ? shared[k] : v;
    __syncthreads();
    return v;
}

/* A row's kept ids: those whose key is above `limit` and the first n_equal of those with that key. An id's weight is
 * e^(x scale - shift) when it is kept and not below min_z. */
struct kept {
    const float *x;
    int V;
    float scale, shift, min_z; /* min_z: of x scale - shift */
    uint32_t limit;
    unsigned long long n_equal;
};

/* rank: ids of `limit` before this one */
static __device__ __forceinline__ float weight_of(const kept &q, float v, int rank) {
    float z = v * q.scale - q.shift;
    uint32_t key = key_of(v);
    bool in = key > q.limit || (key == q.limit && (unsigned long long)rank < q.n_equal);
    return in && z >= q.min_z ? expf(z) : 0.0f;
}

/* 32 ids from `first` on, by a warp. *rank: ids of `limit` before them, advanced. */
static __device__ __forceinline__ float weight_in_turn(const kept &q, int first, int *rank) {
    int lane = threadIdx.x & 31, i = first + lane;
    float v = i < q.V ? q.x[i] : 0;
    unsigned equal = q.n_equal > 0 ? __ballot_sync(0xffffffffu, i < q.V && key_of(v) == q.limit) : 0;
    int mine = *rank + __popc(equal & ((1u << lane) - 1));
    *rank += __popc(equal);
    return i < q.V ? weight_of(q, v, mine) : 0;
}

static __device__ __forceinline__ bool cuts_of(const row_params &p, int V) {
    return edits_of(p) || (p.top_k > 0 && p.top_k < V) || p.top_p < 1.0f || p.min_p > 0;
}

static __device__ __forceinline__ kept keeps_all(const float *x, int V, const row_params &p, float lse) {
    return {x, V, p.inv_temp, lse, -INFINITY, key_of(-INFINITY), 0}; /* n_equal 0: everything above -inf is kept */
}

/* The sum of weights of split s (THREADS ids), by one warp. equal_before: ids of `limit` before it */
static __device__ __forceinline__ float split_sum_of(const kept &q, int s, int equal_before) {
    float sum = 0;
#pragma unroll 16
    for (int k = 0; k < THREADS; k += 32) sum += weight_in_turn(q, s * THREADS + k, &equal_before);
    return warp_sum(sum);
}

/* The same for few rows without truncation, the common case, by many blocks: one block takes some 50 us per pass over a
 * vocabulary. (With many rows the parameters, in host memory, would be read too often.) Grid: splits by SUM_WARPS,
 * rows. */
__global__ void __launch_bounds__(SUM_WARPS * 32)
    split_sums_kernel(int V, const float *logits, const float *lse, const row_params *params, float *sums) {
    int r = blockIdx.y, n_splits = (V + THREADS - 1) / THREADS, s = blockIdx.x * SUM_WARPS + threadIdx.x / 32;
    const row_params p = params[r];
    if (p.greedy || cuts_of(p, V) || s >= n_splits) return;
    float sum = split_sum_of(keeps_all(logits + (size_t)r * V, V, p, lse[r]), s, 0);
    if (threadIdx.x % 32 == 0) sums[(size_t)r * n_splits + s] = sum;
}

/* Writes the candidate ids, ascending, the first `room` of them, to ids; returns their number. A warp counts those of a
 * split, then writes them. behind: scratch, [n_splits]. All threads call it. */
static __device__ int list_kept(const kept &q, const int *equal_before, int n_splits, int *behind, int room,
                                int32_t *ids) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    __shared__ int n_kept;
    __syncthreads();
    for (int s = warp; s < n_splits; s += THREADS / 32) {
        int n = 0, rank = equal_before[s];
        for (int k = 0; k < THREADS; k += 32)
            n += __popc(__ballot_sync(0xffffffffu, weight_in_turn(q, s * THREADS + k, &rank) > 0));
        if (lane == 0) behind[s] = n;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int s = 0; s < n_splits; s++) behind[s] = sum += behind[s];
        n_kept = sum;
    }
    __syncthreads();
    for (int s = warp; s < n_splits; s += THREADS / 32) {
        int at = s > 0 ? behind[s - 1] : 0, rank = equal_before[s], first = s * THREADS;
        for (int k = 0; k < THREADS && at < behind[s] && at < room; k += 32) {
            bool in = weight_in_turn(q, first + k, &rank) > 0;
            unsigned all = __ballot_sync(0xffffffffu, in);
            int place = at + __popc(all & ((1u << lane) - 1));
            if (in && place < room) ids[place] = first + k + lane;
            at += __popc(all);
        }
    }
    return n_kept;
}

/* edited: of the rows with edits; plain: of all. sums: of split_sums_kernel, or NULL */
__global__ void __launch_bounds__(THREADS)
    sample_kernel(int V, const float *edited, const float *plain, const float *lse, const row_params *params,
                  const float *sums, struct clime_drawn *out, int32_t *kept_ids) {
    __shared__ radix_bins bins;
    __shared__ unsigned long long warp_best[THREADS / 32];
    __shared__ uint32_t near[NEAR];
    __shared__ int n_near;
    __shared__ float split_sum[1024], values[THREADS + THREADS / 32], before_at; /* values: 33 places for 32 */
    __shared__ int equal_before[1024], split_at, last_at;
    int r = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const row_params p = params[r];
    const float *x = (edits_of(p) ? edited : plain) + (size_t)r * V;
    struct clime_drawn drawn = {0, 0, 0, false, 0};
    bool cuts = cuts_of(p, V);
    kept q = keeps_all(x, V, p, lse[r]);
    if (!isfinite(lse[r])) { /* a NaN, or nothing finite */
        drawn.bad = true;
        if (threadIdx.x == 0) out[r] = drawn;
        return;
    }
    if (cuts || p.greedy) {
        /* the largest logit, ties by lower id */
        unsigned long long best = 0;
        int nan = 0;
#pragma unroll 8
        for (int i = threadIdx.x; i < V; i += THREADS) {
            unsigned long long c = (unsigned long long)key_of(x[i]) << 32 | (0xffffffffu - (uint32_t)i);
            nan |= x[i] != x[i];
            best = c > best ? c : best;
        }
        nan = __syncthreads_or(nan);
        best = block_max64(best, warp_best);
        float top = value_of((uint32_t)(best >> 32));
        if (nan || !isfinite(top)) { /* edits can cause that */
            drawn.bad = true;
            if (threadIdx.x == 0) out[r] = drawn;
            return;
        }
        if (p.greedy) {
            drawn.id = (int)(0xffffffffu - (uint32_t)best);
            drawn.logp = plain[(size_t)r * V + drawn.id] * p.inv_temp - lse[r];
            drawn.n_kept = p.kept_room > 0;
            if (threadIdx.x == 0) {
                if (p.kept_room > 0) kept_ids[p.kept_at] = drawn.id;
                out[r] = drawn;
            }
            return;
        }
        q.shift = top * p.inv_temp;
        if (p.min_p > 0) q.min_z = logf(p.min_p);
        if (p.top_k > 0 && p.top_k < V) {
            unsigned long long above;
            q.limit = count_threshold(x, V, 0, (unsigned long long)p.top_k, &above, bins);
            q.n_equal = (unsigned long long)p.top_k - above;
        }
        if (p.top_p < 1.0f) {
            unsigned long long want, above, equal_mass = mass_of(value_of(q.limit), top, p.inv_temp);
            uint32_t t = mass_threshold(x, V, p, top, q.limit, q.n_equal, &want, &above, bins, near, &n_near);
            if (t > q.limit) {
                unsigned long long each = mass_of(value_of(t), top, p.inv_temp);
                q.n_equal = each ? (want - above + each - 1) / each : 1;
                if (q.n_equal < 1) q.n_equal = 1;
                q.limit = t;
            } else if (t == q.limit && q.n_equal) {
                unsigned long long need = equal_mass ? (want - above + equal_mass - 1) / equal_mass : 1;
                if (need < q.n_equal) q.n_equal = need < 1 ? 1 : need;
            }
        }
    }

    /* inverse CDF in id order: sums of splits of THREADS ids, one warp each; then the split with the target */
    int n_splits = (V + THREADS - 1) / THREADS;
    for (int s = warp; s < n_splits && q.n_equal > 0; s += THREADS / 32) {
        int n = 0;
        for (int i = s * THREADS + lane; i < V && i < (s + 1) * THREADS; i += 32) n += key_of(x[i]) == q.limit;
        n = __reduce_add_sync(0xffffffffu, n);
        if (lane == 0) equal_before[s] = n;
    }
    __syncthreads();
    if (threadIdx.x == 0 && q.n_equal > 0) {
        int sum = 0;
        for (int s = 0; s < n_splits; s++) {
            int n = equal_before[s];
            equal_before[s] = sum;
            sum += n;
        }
    }
    __syncthreads();
    int mine = threadIdx.x; /* a split, then an id in it */
    if (mine == 0) {
        split_at = THREADS;
        last_at = 0;
    }
    bool summed = sums && !cuts;
    if (summed && mine < n_splits) split_sum[mine] = sums[(size_t)r * n_splits + mine];
    for (int s = warp; s < n_splits && !summed; s += THREADS / 32) {
        float sum = split_sum_of(q, s, equal_before[s]);
        if (lane == 0) split_sum[s] = sum;
    }
    __syncthreads();
    float total = 0, sum_before = 0;
    for (int s = 0; s < n_splits; s++) {
        if (s == mine) sum_before = total;
        total += split_sum[s];
    }
    float target = uniform_of(p.seed, (uint64_t)p.position) * total;
    if (mine < n_splits && split_sum[mine] != 0) {
        atomicMax(&last_at, mine);
        if (sum_before + split_sum[mine] > target) atomicMin(&split_at, mine);
    }
    __syncthreads();
    bool none = split_at == THREADS; /* rounding at the very end */
    int at = none ? last_at : split_at;
    if (mine == at) before_at = none ? total - split_sum[at] : sum_before;
    int first = at * THREADS, rank = equal_before[at];
    bool there = first + mine < V;
    if (q.n_equal > 0 && there && key_of(x[first + mine]) == q.limit)
        for (int i = first; i < first + mine; i++) rank += key_of(x[i]) == q.limit;
    values[mine + mine / 32] = there ? weight_of(q, x[first + mine], rank) : 0;
    __syncthreads();
    if (p.kept_room > 0)
        drawn.n_kept = list_kept(q, equal_before, n_splits, (int *)near, p.kept_room, kept_ids + p.kept_at);
    if (warp > 0) return;
    /* a lane has 32 ids: find the lane with the target, then the id */
    float weight = 0, before = 0, run = before_at;
    for (int k = 0; k < 32; k++) weight += values[lane * 33 + k];
    for (int k = 0; k < 32; k++) {
        if (lane == k) before = run;
        run += __shfl_sync(0xffffffffu, weight, k);
    }
    unsigned over = __ballot_sync(0xffffffffu, weight > 0 && before + weight > target),
             any = __ballot_sync(0xffffffffu, weight > 0);
    int holder = over ? __ffs(over) - 1 : any ? 31 - __clz(any) : 0; /* none: rounding again */
    if (lane != holder) return;
    for (int k = 0; k < 32; k++) {
        float w = values[lane * 33 + k];
        if (w == 0) continue;
        before += w;
        drawn.id = first + lane * 32 + k;
        if (before > target) break;
    }
    drawn.logp = plain[(size_t)r * V + drawn.id] * p.inv_temp - lse[r];
    drawn.logp_cut = cuts ? x[drawn.id] * q.scale - q.shift - logf(total) : drawn.logp;
    out[r] = drawn;
}

size_t clime_cuda_draw_scratch(int R, int V, int max_len) {
    size_t most = (size_t)max_len + 8192, edits = most < (size_t)V ? most : (size_t)V, /* also biases and stop ids */
        n_splits = (size_t)V / THREADS + 1, words = clime_id_words(V),
           row = V * sizeof(float) + n_splits * sizeof(float) + sizeof(row_params) +
                 edits * sizeof(struct clime_logit_edit) + 2 * words * sizeof(uint32_t);
    return (size_t)R * row + 64;
}

/* Appends a set to the *n at `sets`; returns its start, in words. */
static int32_t put_set(uint32_t *sets, size_t *n, const uint32_t *set, size_t words) {
    if (!set) return -1;
    memcpy(sets + *n * words, set, words * sizeof *set);
    return (int32_t)(words * (*n)++);
}

/* Kept from step to step: 5 MB from malloc are 1,200 page faults. */
static char *host_room(struct clime_dev *d, size_t bytes) {
    if (bytes > d->h_draw_bytes) {
        free(d->h_draw);
        d->h_draw = (char *)xmalloc(bytes);
        d->h_draw_bytes = bytes;
    }
    return d->h_draw;
}

CUDA_OP void clime_cuda_sample(struct clime_dev *d, int R, int V, const float *logits, const float *lse,
                               const struct clime_sampling *p, struct clime_drawn *out, int32_t *kept) {
    if (R == 0) return;
    CHECK(V <= 1024 * THREADS);
    size_t n_edits = 0, n_sets = 0, words = clime_id_words(V);
    for (int r = 0; r < R; r++) {
        n_edits += (size_t)p[r].n_edits;
        n_sets += (p[r].seen != NULL) + (p[r].allowed != NULL);
    }
    bool edits = n_edits + n_sets > 0;
    size_t params_bytes = (size_t)R * sizeof(row_params), edit_bytes = n_edits * sizeof(struct clime_logit_edit),
           host_bytes = params_bytes + edit_bytes + n_sets * words * sizeof(uint32_t);
    int n_splits = (V + THREADS - 1) / THREADS;
    size_t row_bytes = edits ? ((size_t)R * V * sizeof(float) + 15) / 16 * 16 : 0;
    size_t sum_bytes = ((size_t)R * n_splits * sizeof(float) + 15) / 16 * 16;
    char *scratch = (char *)clime_cuda_scratch(d, sum_bytes + row_bytes + (edits ? host_bytes : 0));
    if (!scratch) return;
    float *sums = R <= d->n_sm / 8 ? (float *)scratch : NULL;
    scratch += sum_bytes;

    char *host = host_room(d, host_bytes);
    row_params *hp = (row_params *)host;
    struct clime_logit_edit *he = (struct clime_logit_edit *)(host + params_bytes);
    uint32_t *hs = (uint32_t *)(host + params_bytes + edit_bytes);
    size_t sets = 0;
    int64_t kept_at = 0;
    int at = 0;
    for (int r = 0; r < R; r++) {
        int32_t seen = put_set(hs, &sets, p[r].seen, words), allowed = put_set(hs, &sets, p[r].allowed, words);
        hp[r] = row_params{
            p[r].seed, p[r].position, p[r].inv_temp, p[r].top_p, p[r].min_p,      p[r].top_k,     p[r].greedy,
            at,        p[r].n_edits,  seen,          allowed,    p[r].repetition, p[r].kept_room, kept_at};
        kept_at += p[r].kept_room;
        if (p[r].n_edits) memcpy(he + at, p[r].edits, (size_t)p[r].n_edits * sizeof *he);
        at += p[r].n_edits;
    }
    const row_params *dp = (const row_params *)(scratch + row_bytes);
    float *edited = (float *)scratch;
    if (edits) { /* many blocks read them often: not from pinned memory */
        const struct clime_logit_edit *de = (const struct clime_logit_edit *)(dp + R);
        clime_cuda_copy_in(d, scratch + row_bytes, host, host_bytes);
        launch_after(d, edit_kernel, R, THREADS, 0, V, dp, de, (const uint32_t *)(de + n_edits), logits, edited);
    } else {
        dp = (const row_params *)clime_cuda_stage(d, host, params_bytes);
    }
    if (!dp) return;
    dim3 grid((n_splits + SUM_WARPS - 1) / SUM_WARPS, R);
    if (sums) launch_after(d, split_sums_kernel, grid, SUM_WARPS * 32, 0, V, logits, lse, dp, sums);
    launch_after(d, sample_kernel, R, THREADS, 0, V, (const float *)edited, logits, lse, dp, sums, out, kept);
}

__global__ void take_drawn_kernel(int n, const int32_t *rows, const struct clime_drawn *drawn, int32_t *ids) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n && rows[i] >= 0) ids[i] = drawn[rows[i]].id;
}

CUDA_OP void clime_cuda_take_drawn(struct clime_dev *d, int n, const int32_t *rows, const struct clime_drawn *drawn,
                                   int32_t *ids) {
    if (n == 0) return;
    launch_after(d, take_drawn_kernel, (n + 255) / 256, 256, 0, n, rows, drawn, ids);
}
