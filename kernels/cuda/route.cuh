/* One row of a router, by one warp; and the sum of a row's experts. Included by experts.cu and row/experts.cuh.
 *
 * A lane has experts lane, lane + 32, ... in registers, so sums are over a lane's own, ascending, then over lanes by
 * warp_sum. Experts are compared as integers that order as their scores do (NaN has some place, and is chosen at most
 * once); the warp finds the largest, then the lowest id that has it. */
#ifndef CLIME_KERNELS_CUDA_ROUTE_CUH
#define CLIME_KERNELS_CUDA_ROUTE_CUH

#include "kernels/checksum.h"
#include "kernels/cuda/cuda_int.cuh"

/* Orders as the floats do; 0 is unused. */
static __device__ __forceinline__ uint32_t order_of(float x) {
    uint32_t u = __float_as_uint(x);
    return max(u & 0x80000000u ? ~u : u | 0x80000000u, 1u);
}

/* Index of the warp's largest key, ties by lower index; its key becomes 0. key[i] has index lane + 32 i. */
template <int N> static __device__ __forceinline__ int take_largest(uint32_t (&key)[N]) {
    uint32_t lane = threadIdx.x & 31, most = 0, at = 0xffffffffu;
#pragma unroll
    for (int i = 0; i < N; i++) most = max(most, key[i]);
    most = __reduce_max_sync(0xffffffffu, most);
#pragma unroll
    for (int i = N - 1; i >= 0; i--)
        if (key[i] == most) at = lane + 32 * i;
    at = __reduce_min_sync(0xffffffffu, at);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (at == lane + 32 * i) key[i] = 0;
    return (int)at;
}

/* Zeroes the keys of the experts of all groups but the best. c: the compared values, [E] in shared memory. */
template <int N>
static __device__ __forceinline__ void keep_groups(const clime_router &r, const float *c, uint32_t (&key)[N]) {
    int lane = threadIdx.x & 31, size = r.E / r.n_groups;
    uint32_t group[N], kept[N] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        int g = lane + 32 * i;
        group[i] = 0;
        if (g >= r.n_groups) continue;
        const float *of = c + g * size;
        float first = of[0], second = of[1];
        if (second > first) first = of[1], second = of[0];
        for (int e = 2; e < size; e++) {
            if (of[e] > first)
                second = first, first = of[e];
            else if (of[e] > second)
                second = of[e];
        }
        group[i] = order_of(first + second);
    }
    for (int i = 0; i < r.k_groups; i++) {
        int g = take_largest(group);
#pragma unroll
        for (int n = 0; n < N; n++) kept[n] |= (lane + 32 * n) / size == g;
    }
#pragma unroll
    for (int n = 0; n < N; n++)
        if (!kept[n]) key[n] = 0;
}

/* x: the lane's logits, -inf past the last expert. given: the row's prescribed experts, NULL: none. c: 32 N numbers of
 * the warp's in shared memory. fold: the row's, or NULL. below: for each of the lane's experts, the number chosen
 * before it. Without `write` skips only global effects; calls chosen_at(place, expert) for each. */
template <int N, class F>
static __device__ __forceinline__ void route_row(const clime_router &r, const float (&x)[N], const float *bias,
                                                 const int16_t *given, float *scores, int32_t *ids, float *weights,
                                                 uint32_t *fold, float *c, int (&below)[N], bool write, F chosen_at) {
    int lane = threadIdx.x & 31;
    float s[N], top = -INFINITY, all = 0;
    uint32_t key[N], chosen[N] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        s[i] = x[i];
        top = fmaxf(top, s[i]);
    }
    if (r.sigmoid) {
#pragma unroll
        for (int i = 0; i < N; i++) s[i] = 1.0f / (1.0f + expf(-s[i]));
    } else {
        top = warp_max(top);
#pragma unroll
        for (int i = 0; i < N; i++) all += s[i] = lane + 32 * i < r.E ? expf(s[i] - top) : 0;
        all = warp_sum(all);
#pragma unroll
        for (int i = 0; i < N; i++) s[i] /= all;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        int e = lane + 32 * i;
        float v = s[i];
        key[i] = 0;
        if (e >= r.E) continue;
        if (write) scores[e] = s[i];
        if (bias) v += bias[e];
        key[i] = order_of(v);
        c[e] = v;
    }
    if (!given && r.k_groups < r.n_groups) {
        __syncwarp();
        keep_groups(r, c, key);
        __syncwarp();
    }
    for (int j = 0; j < r.k; j++) {
        int e = given ? given[j] : take_largest(key);
#pragma unroll
        for (int i = 0; i < N; i++) chosen[i] |= e == lane + 32 * i;
    }
    /* by ascending id; scores go to shared memory, where each lane adds them in that order */
    int before = 0;
    uint32_t terms = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t who = __ballot_sync(0xffffffffu, chosen[i]);
        below[i] = before + __popc(who & ((1u << lane) - 1));
        before += __popc(who);
        if (chosen[i]) {
            terms += clime_choice_term(lane + 32 * i);
            if (write) chosen_at(below[i], lane + 32 * i);
            if (write) ids[below[i]] = lane + 32 * i;
            c[below[i]] = s[i];
        }
    }
    if (fold) {
        terms = __reduce_add_sync(0xffffffffu, terms);
        if (lane == 0 && write) *fold = clime_choice_fold(*fold, terms);
    }
    __syncwarp();
    float sum = 0;
    for (int j = 0; j < r.k; j++) sum += c[j];
#pragma unroll
    for (int i = 0; i < N; i++)
        if (chosen[i] && write) weights[below[i]] = (r.renormalize ? s[i] / (sum + 1e-20f) : s[i]) * r.scale;
}

/* V columns from c on: experts' rows at[0 .. k) and `last`, if any, each times its weight, in fp32. AT_ONCE of them are
 * loaded before the first is added: in a decode step one load takes as long as all. */
template <int V>
static __device__ __forceinline__ void experts_sum(float (&sum)[V], int k, const int32_t *at, const float *weights,
                                                   const bf16 *x, int D, int c, const bf16 *last, float last_weight) {
    enum { AT_ONCE = 8 };
    lanes<V> v[AT_ONCE], of_last;
    float w[AT_ONCE];
    auto add = [&](float by, const lanes<V> &from) {
        float f[V];
        unpack(from, f);
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] = __fmaf_rn(by, f[i], sum[i]);
    };
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = 0;
    if (last) of_last = load<V>(last + c);
    for (int first = 0; first < k; first += AT_ONCE) {
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (first + j < k) {
                w[j] = weights ? weights[first + j] : 1.0f;
                v[j] = load<V>(x + (size_t)at[first + j] * D + c);
            }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (first + j < k) add(w[j], v[j]);
    }
    if (last) add(last_weight, of_last);
}

#endif
