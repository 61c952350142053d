/* y[T,N] = x[T,K] w[N,K]^T for few rows: streams the weights once, near the memory's speed. Launched by gemm.cu.
 *
 * The canonical chain (docs/numerics.md) forbids splitting K, so at narrow N there are few chains and each block must
 * keep many bytes in flight: a ring of cp.async stages, of which one is computed while the others load. The weights are
 * the B operand (8 rows a chain) so that N = 2560 still gives 320 chains for 132 multiprocessors.
 * Bytes: (N K + T K) 2 read, T N 2 or 4 written; at T <= 16 the weights are all that matters. */
#include "kernels/cuda/cuda_int.cuh"

enum { WARPS = 4, THREADS = WARPS * 32, KC = 128, LD = KC + 8 };

/* A block: R rows of w, MT tiles of 16 rows of x. Pair p = (tile of x, 8 rows of w) belongs to warp p % WARPS. */
template <int MT, int R, int STAGES>
__global__ void __launch_bounds__(THREADS)
    small_kernel(int T, int N, int K, const bf16 *x, const bf16 *w, void *y, bool f32) {
    constexpr int NT = R / 8, PAIRS = MT * NT, EACH = (PAIRS + WARPS - 1) / WARPS;
    extern __shared__ __align__(16) char smem[];
    typedef bf16 stage_rows[R + 16 * MT][LD];
    stage_rows *ring = (stage_rows *)smem;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n0 = blockIdx.x * R;
    int n_chunks = (K + KC - 1) / KC;

    auto fetch = [&](int chunk) {
        if (chunk < n_chunks) {
            stage_rows &s = ring[chunk % STAGES];
            for (int e = threadIdx.x; e < (R + T) * (KC / 8); e += THREADS) {
                int row = e / (KC / 8), k = chunk * KC + e % (KC / 8) * 8;
                bool is_w = row < R, in = k < K && (!is_w || n0 + row < N);
                const bf16 *from = is_w ? w + (size_t)(n0 + row) * K + k : x + (size_t)(row - R) * K + k;
                cp_async16(&s[row][e % (KC / 8) * 8], in ? from : w, in);
            }
        }
        cp_async_commit();
    };

    float c[EACH][4] = {};
    for (int s = 0; s < STAGES - 1; s++) fetch(s);
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); /* the chunk is there, and everyone has left the stage that is fetched next */
        fetch(chunk + STAGES - 1);
        stage_rows &s = ring[chunk % STAGES];
#pragma unroll
        for (int k = 0; k < KC; k += 32) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                int pair = i * WARPS + warp;
                if (PAIRS % WARPS != 0 && pair >= PAIRS) break;
                uint32_t a[2][4], b[4]; /* rows >= T of a hold anything: they end in rows that are not stored */
                bf16 *xr = &s[R + pair % MT * 16 + lane % 16][k + lane / 16 * 8];
                ldmatrix_x4(a[0], xr);
                ldmatrix_x4(a[1], xr + 16);
                ldmatrix_x4(b, &s[pair / MT * 8 + lane % 8][k + lane / 8 * 8]);
                mma_16816(c[i], a[0], b);
                mma_16816(c[i], a[1], b + 2);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int pair = i * WARPS + warp;
        if (pair >= PAIRS) break;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int t = pair % MT * 16 + lane / 4 + e / 2 * 8, n = n0 + pair / MT * 8 + lane % 4 * 2 + e % 2;
            if (t >= T || n >= N) continue;
            if (f32)
                ((float *)y)[(size_t)t * N + n] = c[i][e];
            else
                ((bf16 *)y)[(size_t)t * N + n] = b_of(c[i][e]);
        }
    }
}

template <int MT, int R, int STAGES>
static void launch(struct clime_dev *d, int T, int N, int K, const void *x, const void *w, void *y, bool f32) {
    size_t bytes = (size_t)STAGES * (R + 16 * MT) * LD * sizeof(bf16);
    CU(d, cudaFuncSetAttribute(small_kernel<MT, R, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    small_kernel<MT, R, STAGES>
        <<<(N + R - 1) / R, THREADS, bytes, d->stream>>>(T, N, K, (const bf16 *)x, (const bf16 *)w, y, f32);
    LAUNCHED(d);
}

bool clime_cuda_gemm_small(struct clime_dev *d, int T, int N, int K, const void *x, const void *w, void *y, bool f32) {
    bool narrow = N <= d->n_sm * 40;
    if (T > 64 || (T > 16 && !narrow)) return false;
    if (T <= 16 && narrow)
        launch<1, 8, 10>(d, T, N, K, x, w, y, f32);
    else if (T <= 16)
        launch<1, 32, 5>(d, T, N, K, x, w, y, f32);
    else if (T <= 32)
        launch<2, 16, 6>(d, T, N, K, x, w, y, f32);
    else
        launch<4, 16, 5>(d, T, N, K, x, w, y, f32);
    return true;
}
