/* Backward of causal attention over a packed batch, head sizes 64 and 128. Launched by the context's owner.
 *
 * Two passes (Dao et al. 2022, algorithm 4, cut in two), P recomputed from the stored log-sum-exp in each: over blocks
 * of keys for dK and dV, over tiles of rows for dQ. That is 7 products where one pass needs 5, and in exchange every
 * gradient has one writer that adds in a fixed order: no atomics, the same bits in every run. */
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/ops.h"

enum { HALF = 32, THREADS = TILE_WARPS * 32 };
#define LOG2E 1.4426950408889634f

struct attn_grads {
    const bf16 *dout;
    const float *delta; /* [T, H] sum of dout * out over the head */
    bf16 *dq, *dk, *dv;
};

__global__ void delta_kernel(int n_rows, int Dh, const bf16 *out, const bf16 *dout, float *delta) {
    int row = blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (row >= n_rows) return;
    float sum = 0;
    for (int i = lane; i < Dh; i += 32)
        sum = __fmaf_rn(f_of(out[(size_t)row * Dh + i]), f_of(dout[(size_t)row * Dh + i]), sum);
    sum = warp_sum(sum);
    if (lane == 0) delta[row] = sum;
}

/* Two 16-row fragments of A for a product over 32 columns of fragments c. */
static __device__ __forceinline__ void pack_a(uint32_t a[2][4], const float c[4][4]) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        a[k][0] = pack2(c[2 * k][0], c[2 * k][1]);
        a[k][1] = pack2(c[2 * k][2], c[2 * k][3]);
        a[k][2] = pack2(c[2 * k + 1][0], c[2 * k + 1][1]);
        a[k][3] = pack2(c[2 * k + 1][2], c[2 * k + 1][3]);
    }
}

/* c[4] += a row(s)[HALF][DH]^T: scores of 16 rows of A with 32 rows of shared memory. */
template <int DH, class A> static __device__ __forceinline__ void scores(float c[4][4], A a, bf16 (*rows)[DH + 8]) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int kk = 0; kk < DH / 16; kk++) {
        uint32_t fa[4], b[4];
        a(kk, fa);
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            ldmatrix_x4(b, &rows[n * 8 + lane / 16 * 8 + lane % 8][kk * 16 + lane / 8 % 2 * 8]);
            mma_16816(c[n], fa, b);
            mma_16816(c[n + 1], fa, b + 2);
        }
    }
}

/* o[DH] += a[16, HALF] rows[HALF][DH]. */
template <int DH>
static __device__ __forceinline__ void add_rows(float o[DH / 8][4], const uint32_t a[2][4], bf16 (*rows)[DH + 8]) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int n = 0; n < DH / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, &rows[k * 16 + lane % 16][n * 8 + lane / 16 * 8]);
            mma_16816(o[n], a[k], b);
            mma_16816(o[n + 1], a[k], b + 2);
        }
}

/* ---- dK and dV: a block of 64 keys, the rows after it ---- */

template <int DH> struct row_stage { /* 64 rows of one query head */
    bf16 q[BLOCK][DH + 8], dout[BLOCK][DH + 8];
    float lse[BLOCK], delta[BLOCK];
};

template <int DH>
static __device__ __forceinline__ void fetch_rows(const attn_args &a, const attn_grads &g, int row0, int head,
                                                  int first, int len, row_stage<DH> *s) {
    constexpr int VECS = DH / 8;
#pragma unroll 4
    for (int e = threadIdx.x; e < BLOCK * VECS; e += THREADS) {
        int r = e / VECS, c = e % VECS * 8;
        bool in = first + r < len;
        size_t from = in ? ((size_t)(row0 + first + r) * a.H + head) * DH + c : 0;
        cp_async16(&s->q[r][c], a.q + from, in);
        cp_async16(&s->dout[r][c], g.dout + from, in);
    }
    int r = threadIdx.x % BLOCK;
    bool in = first + r < len;
    size_t from = in ? (size_t)(row0 + first + r) * a.H + head : 0;
    if (threadIdx.x < BLOCK)
        cp_async4(&s->lse[r], a.lse + from, in);
    else
        cp_async4(&s->delta[r], g.delta + from, in);
}

template <int DH> __global__ void __launch_bounds__(THREADS, 2) dkv_kernel(attn_args a, attn_grads g) {
    extern __shared__ __align__(16) char smem[];
    kv_stage<DH> *kv = (kv_stage<DH> *)smem;
    row_stage<DH> *ring = (row_stage<DH> *)(smem + sizeof *kv);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = blockIdx.y, group = a.H / a.HK, seq, block;
    attn_find_tile(a, blockIdx.x, BLOCK, 1, &seq, &block); /* the first block has the most rows */
    int row0 = a.q_start[seq], len = a.q_start[seq + 1] - row0, n_tiles = (len + BLOCK - 1) / BLOCK - block;
    int key = block * BLOCK + warp * 16 + lane / 4; /* and key + 8 */

    fetch_block<DH, THREADS>(a, seq, head, block, len, kv);
    fetch_rows<DH>(a, g, row0, head * group, block * BLOCK, len, &ring[0]);
    cp_async_commit();
    float dk[DH / 8][4] = {}, dv[DH / 8][4] = {};
    for (int i = 0; i < n_tiles * group; i++) { /* heads in order, their tiles ascending */
        cp_async_wait<0>();
        __syncthreads();
        int next = i + 1;
        if (next < n_tiles * group)
            fetch_rows<DH>(a, g, row0, head * group + next / n_tiles, (block + next % n_tiles) * BLOCK, len,
                           &ring[next % 2]);
        cp_async_commit();
        row_stage<DH> &s = ring[i % 2];
        int first = (block + i % n_tiles) * BLOCK;
#pragma unroll 1
        for (int h = 0; h < BLOCK; h += HALF) {
            float p[4][4] = {}, ds[4][4] = {};
            auto keys = [&](int kk, uint32_t *f) {
                ldmatrix_x4(f, &kv->k[warp * 16 + lane % 16][kk * 16 + lane / 16 * 8]);
            };
            auto values = [&](int kk, uint32_t *f) {
                ldmatrix_x4(f, &kv->v[warp * 16 + lane % 16][kk * 16 + lane / 16 * 8]);
            };
            scores<DH>(p, keys, &s.q[h]);
            scores<DH>(ds, values, &s.dout[h]);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int r = h + n * 8 + lane % 4 * 2 + e % 2;
                    bool seen = key + e / 2 * 8 <= first + r;
                    p[n][e] = seen ? exp2f(__fmaf_rn(p[n][e], a.scale2, -LOG2E * s.lse[r])) : 0.0f;
                    ds[n][e] = p[n][e] * (ds[n][e] - s.delta[r]) * a.scale;
                }
            uint32_t f[2][4];
            pack_a(f, p);
            add_rows<DH>(dv, f, &s.dout[h]);
            pack_a(f, ds);
            add_rows<DH>(dk, f, &s.q[h]);
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
        if (key + e * 4 >= len) continue;
        size_t at = ((size_t)(row0 + key + e * 4) * a.HK + head) * DH + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < DH / 8; n++) {
            *(uint32_t *)(g.dk + at + n * 8) = pack2(dk[n][e], dk[n][e + 1]);
            *(uint32_t *)(g.dv + at + n * 8) = pack2(dv[n][e], dv[n][e + 1]);
        }
    }
}

/* ---- dQ: a tile of (position, query head) rows, the keys before it ---- */

template <int DH> __global__ void __launch_bounds__(THREADS, 2) dq_kernel(attn_args a, attn_grads g) {
    constexpr int ROWS = TILE_WARPS * 16;
    extern __shared__ __align__(16) char smem[];
    kv_stage<DH> *ring = (kv_stage<DH> *)smem;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = blockIdx.y, group = a.H / a.HK, seq, tile;
    attn_find_tile(a, gridDim.x - 1 - blockIdx.x, ROWS, group, &seq, &tile);
    int len = a.q_start[seq + 1] - a.q_start[seq], n_rows = len * group;
    int last = (min((tile + 1) * ROWS, n_rows) - 1) / group, n_blocks = last / BLOCK + 1;

    int pos[2];
    size_t row[2];
    float lse[2], delta[2];
    uint32_t q[DH / 16][4], dout[DH / 16][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = tile * ROWS + warp * 16 + lane / 4 + h * 8;
        pos[h] = r < n_rows ? r / group : -1;
        row[h] = row_of(a, seq, head, r < n_rows ? r : 0);
        lse[h] = LOG2E * a.lse[row[h]];
        delta[h] = g.delta[row[h]];
    }
#pragma unroll
    for (int kk = 0; kk < DH / 16; kk++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            size_t at = row[e % 2] * DH + kk * 16 + e / 2 * 8 + lane % 4 * 2;
            q[kk][e] = *(const uint32_t *)(a.q + at);
            dout[kk][e] = *(const uint32_t *)(g.dout + at);
        }
    fetch_block<DH, THREADS>(a, seq, head, 0, len, &ring[0]);
    cp_async_commit();
    float dq[DH / 8][4] = {};
    for (int b = 0; b < n_blocks; b++) {
        cp_async_wait<0>();
        __syncthreads();
        if (b + 1 < n_blocks) fetch_block<DH, THREADS>(a, seq, head, b + 1, len, &ring[(b + 1) % 2]);
        cp_async_commit();
        kv_stage<DH> &s = ring[b % 2];
#pragma unroll 1
        for (int h = 0; h < BLOCK; h += HALF) {
            float p[4][4] = {}, ds[4][4] = {};
            scores<DH>(
                p, [&](int kk, uint32_t *f) { f[0] = q[kk][0], f[1] = q[kk][1], f[2] = q[kk][2], f[3] = q[kk][3]; },
                &s.k[h]);
            scores<DH>(
                ds,
                [&](int kk, uint32_t *f) {
                    f[0] = dout[kk][0], f[1] = dout[kk][1], f[2] = dout[kk][2], f[3] = dout[kk][3];
                },
                &s.v[h]);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    bool seen = b * BLOCK + h + n * 8 + lane % 4 * 2 + e % 2 <= pos[e / 2];
                    float w = seen ? exp2f(__fmaf_rn(p[n][e], a.scale2, -lse[e / 2])) : 0.0f;
                    ds[n][e] = w * (ds[n][e] - delta[e / 2]) * a.scale;
                }
            uint32_t f[2][4];
            pack_a(f, ds);
            add_rows<DH>(dq, f, &s.k[h]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (pos[h] < 0) continue;
#pragma unroll
        for (int n = 0; n < DH / 8; n++)
            *(uint32_t *)(g.dq + row[h] * DH + n * 8 + lane % 4 * 2) = pack2(dq[n][h * 2], dq[n][h * 2 + 1]);
    }
}

template <int DH> struct smem_bytes {
    static constexpr int dkv = sizeof(kv_stage<DH>) + 2 * sizeof(row_stage<DH>), dq = 2 * sizeof(kv_stage<DH>);
};

template <int DH> static void set_attributes(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(dkv_kernel<DH>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes<DH>::dkv));
    CU(d, cudaFuncSetAttribute(dq_kernel<DH>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes<DH>::dq));
}

void clime_cuda_attn_bwd_open(struct clime_dev *d) {
    set_attributes<64>(d);
    set_attributes<128>(d);
}

template <int DH>
static void launch(struct clime_dev *d, const struct clime_attn *batch, const attn_args &a, const attn_grads &g) {
    int key_blocks = attn_n_tiles(batch, BLOCK, 1), row_tiles = attn_n_tiles(batch, TILE_WARPS * 16, a.H / a.HK);
    dkv_kernel<DH><<<dim3(key_blocks, a.HK), THREADS, smem_bytes<DH>::dkv, d->stream>>>(a, g);
    LAUNCHED(d);
    dq_kernel<DH><<<dim3(row_tiles, a.HK), THREADS, smem_bytes<DH>::dq, d->stream>>>(a, g);
    LAUNCHED(d);
}

CUDA_OP void clime_cuda_attn_bwd(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                                 const void *q, const void *k, const void *v, const void *out, const float *lse,
                                 const void *dout, void *dq, void *dk, void *dv) {
    if (T == 0) return;
    attn_args args = attn_args_of(h, a, q, k, v, (void *)out, (float *)lse);
    if (h->Dh != 64 && h->Dh != 128) {
        clime_cuda_attn_bwd_plain(d, args, T, (const bf16 *)dout, (bf16 *)dq, (bf16 *)dk, (bf16 *)dv);
        return;
    }
    float *delta = (float *)clime_cuda_scratch(d, (size_t)T * h->H * sizeof(float));
    if (!delta) return;
    delta_kernel<<<(T * h->H + 7) / 8, 256, 0, d->stream>>>(T * h->H, h->Dh, (const bf16 *)out, (const bf16 *)dout,
                                                            delta);
    LAUNCHED(d);
    attn_grads g = {(const bf16 *)dout, delta, (bf16 *)dq, (bf16 *)dk, (bf16 *)dv};
    if (h->Dh == 64)
        launch<64>(d, a, args, g);
    else
        launch<128>(d, a, args, g);
}
