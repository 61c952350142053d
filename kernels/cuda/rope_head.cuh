/* Norm and rotation of heads of 64 or 128 that rotate whole, (i, i + Dh/2): a lane holds 8 values of each half of a
 * head in registers, Dh/16 lanes are a head. Included by rope.cu, and by attention/wide.cu, which rotates its own
 * input. */
#ifndef CLIME_KERNELS_CUDA_ROPE_HEAD_CUH
#define CLIME_KERNELS_CUDA_ROPE_HEAD_CUH

#include "kernels/cuda/cuda_int.cuh"

struct qkv_shape {
    int H, HK, Dh;
    float eps;
    const float *cos, *sin;
    int rot, interleaved;
    int whole; /* Dh if heads of this size rotate whole, else 0 */
};

/* qkv_rope's arguments; T 0: none. */
struct clime_rope_args {
    int T;
    qkv_shape s;
    const bf16 *qkv, *q_norm, *k_norm;
    const int32_t *pos, *slot;
    bf16 *q, *k, *v;
};

/* Both halves of a head, 8 values each: dimensions at .. and at + Dh/2 .. */
struct halves {
    float a[8], b[8];
};

template <int DH> static __device__ __forceinline__ halves load_halves(const bf16 *head, int at) {
    halves r;
    unpack(load<8>(head + at), r.a);
    unpack(load<8>(head + DH / 2 + at), r.b);
    return r;
}

template <int DH> static __device__ __forceinline__ void store_halves(bf16 *head, int at, const halves &r) {
    store<8>(head + at, pack<8>(r.a));
    store<8>(head + DH / 2 + at, pack<8>(r.b));
}

/* Sum over the lanes of a head. */
template <int DH> static __device__ __forceinline__ float head_sum(float v) {
#pragma unroll
    for (int m = 1; m < DH / 16; m *= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

template <int DH> static __device__ __forceinline__ float halves_rstd(const halves &r, float eps) {
    float square = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) square = __fmaf_rn(r.b[i], r.b[i], __fmaf_rn(r.a[i], r.a[i], square));
    return rsqrtf(head_sum<DH>(square) / DH + eps);
}

static __device__ __forceinline__ void load8(const float *from, float (&x)[8]) {
    float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

/* A lane's factors for its values of head h of row t; known before the step runs. */
struct head_turn {
    bool normed, turned;
    halves scale;
    float cos[8], sin[8];
};

template <int DH> static __device__ __forceinline__ head_turn turn_of(const clime_rope_args &a, int t, int h, int at) {
    bool is_q = h < a.s.H, is_v = h >= a.s.H + a.s.HK;
    const bf16 *w = is_v ? NULL : is_q ? a.q_norm : a.k_norm;
    head_turn r;
    r.normed = w != NULL;
    r.turned = !is_v;
    if (w) r.scale = load_halves<DH>(w, at);
    if (r.turned) {
        size_t angle = (size_t)a.pos[t] * (DH / 2) + at;
        load8(a.s.cos + angle, r.cos);
        load8(a.s.sin + angle, r.sin);
    }
    return r;
}

/* Head h of row t of qkv, from value `at` on; by all lanes of a warp together. */
template <int DH>
static __device__ __forceinline__ halves turned_head(const clime_rope_args &a, const head_turn &turn, int t, int h,
                                                     int at) {
    halves x = load_halves<DH>(a.qkv + ((size_t)t * (a.s.H + 2 * a.s.HK) + h) * DH, at);
    float r = halves_rstd<DH>(x, a.s.eps);
#pragma unroll
    for (int i = 0; i < 8 && turn.normed; i++) {
        x.a[i] = x.a[i] * r * turn.scale.a[i];
        x.b[i] = x.b[i] * r * turn.scale.b[i];
    }
#pragma unroll
    for (int i = 0; i < 8 && turn.turned; i++) {
        float left = x.a[i], right = x.b[i];
        x.a[i] = left * turn.cos[i] - right * turn.sin[i];
        x.b[i] = right * turn.cos[i] + left * turn.sin[i];
    }
    return x;
}

/* Destination of head kv of k or v of row t. */
static __device__ __forceinline__ size_t kv_at(const clime_rope_args &a, int t, int kv) {
    const qkv_shape &s = a.s;
    if (!a.slot) return ((size_t)t * s.HK + kv) * s.Dh;
    return (((size_t)(a.slot[t] / CLIME_PAGE) * s.HK + kv) * CLIME_PAGE + a.slot[t] % CLIME_PAGE) * s.Dh;
}

/* rope.cu: takes over the deferred rotation that writes q, k and v; false: none. */
bool clime_cuda_rope_take(struct clime_dev *d, const void *q, const void *k, const void *v, clime_rope_args *out);

#endif
