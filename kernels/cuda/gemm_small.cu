/* y[T,N] = x[T,K] w[N,K]^T for few rows: streams the weights once, near the memory's speed. Launched by gemm.cu.
 *
 * The canonical chain (docs/numerics.md) forbids splitting K, so at narrow N there are few chains and each block must
 * keep many bytes in flight. A producer warp fills a ring of chunks of K with bulk copies; the other warps run the
 * chains and do nothing else, since a chain's own latency (25 cycles for 16 of K) is what they have no time beside. The
 * weights are the B operand, 8 rows a chain, so that N = 2560 still gives 320 chains for 132 multiprocessors. Bytes: (N
 * K + T K) 2 read, T N 2 or 4 written. */
#include "kernels/cuda/wgmma.cuh"

enum { GROUP = 128, MAX_STAGES = 16, SMEM = 220 << 10 };

/* A block: 8 NT rows of w, a warp each 8, and all rows of x (at most 16). KC: elements of a bulk copy; issuing one
 * costs a thread some 50 cycles, so they are long. */
template <int NT, int KC>
__global__ void __launch_bounds__((NT + 1) * 32)
    small_kernel(int T, int N, int K, int n_stages, const bf16 *x, const bf16 *w, void *y, bool f32) {
    constexpr int R = 8 * NT, LD = KC + 8;
    extern __shared__ __align__(128) bf16 ring[]; /* [n_stages][R + T][LD] */
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n0 = blockIdx.x * R, stage_size = (R + T) * LD;
    if (threadIdx.x == 0) {
        for (int s = 0; s < n_stages; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], NT);
        }
        barrier_init_done();
    }
    __syncthreads();

    if (warp == NT) { /* the producer */
        int n_w = min(R, N - n0), n_rows = n_w + T;
        for (int k0 = 0, s = 0, turn = 0; k0 < K; k0 += KC) {
            int bytes = min(KC, K - k0) * 2;
            if (turn > 0) barrier_wait(&empty[s], (turn - 1) & 1);
            if (lane == 0) barrier_expect(&full[s], bytes * n_rows);
            __syncwarp();
            for (int i = lane; i < n_rows; i += 32) {
                bool is_w = i < n_w;
                const bf16 *from = is_w ? w + (size_t)(n0 + i) * K : x + (size_t)(i - n_w) * K;
                bulk_copy(ring + (size_t)s * stage_size + (is_w ? i : R + i - n_w) * LD, from + k0, bytes, &full[s]);
            }
            if (++s == n_stages) s = 0, turn++;
        }
        return;
    }

    int x_row = R + min(lane % 16, T - 1); /* rows from T on repeat the last: their results are not stored */
    int a_at = x_row * LD + lane / 16 * 8, b_at = (warp * 8 + lane % 8) * LD + lane / 8 * 8;
    float c[4] = {};
    uint32_t a[2][GROUP / 16][4], b[2][GROUP / 32][4]; /* a group is loaded while the one before it is computed */
    auto load = [&](int buffer, const bf16 *from) {
#pragma unroll
        for (int k = 0; k < GROUP / 16; k++) ldmatrix_x4(a[buffer][k], from + a_at + k * 16);
#pragma unroll
        for (int k = 0; k < GROUP / 32; k++) ldmatrix_x4(b[buffer][k], from + b_at + k * 32);
    };
    auto multiply = [&](int buffer) {
#pragma unroll
        for (int k = 0; k < GROUP / 16; k++) mma_16816(c, a[buffer][k], &b[buffer][k / 2][k % 2 * 2]);
    };
    barrier_wait(&full[0], 0);
    load(0, ring);
    for (int k0 = 0, s = 0, turn = 0; k0 < K; k0 += KC) {
        const bf16 *stage = ring + (size_t)s * stage_size;
        uint64_t *done = &empty[s];
        if (++s == n_stages) s = 0, turn++;
        int n = min(KC, K - k0);
        for (int k = 0; k < n; k += 2 * GROUP) {
            bool second = k + GROUP < n;
            if (second) load(1, stage + k + GROUP);
            multiply(0);
            if (k + 2 * GROUP < n) {
                load(0, stage + k + 2 * GROUP);
            } else if (k0 + KC < K) {
                barrier_wait(&full[s], turn & 1);
                load(0, ring + (size_t)s * stage_size);
            }
            if (second) multiply(1);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(done);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int t = lane / 4 + e / 2 * 8, n = n0 + warp * 8 + lane % 4 * 2 + e % 2;
        if (t >= T || n >= N) continue;
        if (f32)
            ((float *)y)[(size_t)t * N + n] = c[e];
        else
            ((bf16 *)y)[(size_t)t * N + n] = b_of(c[e]);
    }
}

template <int NT, int KC>
static void launch(struct clime_dev *d, int T, int N, int K, const void *x, const void *w, void *y, bool f32) {
    constexpr int R = 8 * NT, LD = KC + 8, THREADS = (NT + 1) * 32;
    int n_blocks = (N + R - 1) / R, each = (n_blocks + d->n_sm - 1) / d->n_sm; /* blocks for a multiprocessor */
    int stage = (R + T) * LD * (int)sizeof(bf16), n_stages = SMEM / (each < 4 ? each : 4) / stage;
    int chunks = (K + KC - 1) / KC;
    n_stages = n_stages > MAX_STAGES ? MAX_STAGES : n_stages < 2 ? 2 : n_stages;
    if (n_stages > chunks) n_stages = chunks;
    small_kernel<NT, KC><<<n_blocks, THREADS, n_stages * stage, d->stream>>>(T, N, K, n_stages, (const bf16 *)x,
                                                                             (const bf16 *)w, y, f32);
    LAUNCHED(d);
}

void clime_cuda_gemm_small_open(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(small_kernel<1, 1024>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
    CU(d, cudaFuncSetAttribute(small_kernel<4, 512>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
}

bool clime_cuda_gemm_small(struct clime_dev *d, int T, int N, int K, const void *x, const void *w, void *y, bool f32) {
    bool deep = K > 2 * N; /* else, and with more rows, the library's kernels are as fast or faster */
    if (K % GROUP != 0 || T > 4 || !deep) return false;
    if (N <= d->n_sm * 64)
        launch<1, 1024>(d, T, N, K, x, w, y, f32);
    else
        launch<4, 512>(d, T, N, K, x, w, y, f32); /* blocks of 32 rows fill the device */
    return true;
}
