/* Hopper's asynchronous units: wgmma (a warpgroup of 128 threads multiplies 64 rows), mbarriers, bulk and tensor copies
 * into shared memory. sm_90a only.
 *
 * One layout of operands in shared memory, the 128-byte swizzle: a tile of R rows is cut into panels of 64 bf16
 * columns; a panel is R rows of 128 bytes, and the 16-byte chunk c of row r is at chunk c ^ r % 8. Panels are
 * contiguous, R * 128 bytes each, and start at multiples of 1024 bytes. tensor_copy writes a panel this way; threads
 * that write one themselves use swizzled() and then fence_async().
 *
 * wgmma reads an operand in either direction. k-major: the sum is over the columns, as of Q and K in Q K^T (both
 * operands are [rows][k]). mn-major: over the rows, as of V in P V; TRANS 1 in wgmma's template arguments.
 *
 * A warp's accumulator is that of mma.sync: d[n] is the m16n8 fragment of columns 8 n and of the warp's 16 rows; so is
 * A in registers. A chain of k16 steps has the bits of the same chain of mma.sync. */
#ifndef CLIME_KERNELS_CUDA_WGMMA_CUH
#define CLIME_KERNELS_CUDA_WGMMA_CUH

#include <cuda.h>

#include "kernels/cuda/cuda_int.cuh"

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Keeps an address in a register: the compiler would recompute it at each use, which a chain waits for. */
static __device__ __forceinline__ uint32_t kept(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* Values i .. i + 7 of a single row, in the order in which a lane finds its part of two steps of a chain of mma.sync in
 * 16 bytes: of each 32 values, lane i % 4 has 0, 1, 8, 9, 16, 17, 24, 25, plus twice its number. */
static __device__ __forceinline__ void put_row(uint32_t *row, int i, uint4 v) {
    uint32_t *to = row + i / 32 * 16 + i / 8 % 4;
    to[0] = v.x, to[4] = v.y, to[8] = v.z, to[12] = v.w;
}

/* ---- mbarriers ---- */

static __device__ __forceinline__ void barrier_init(uint64_t *b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}

/* After the last barrier_init and before the __syncthreads that lets others use them. */
static __device__ __forceinline__ void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t b) { /* b: an address in shared memory */
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(b) : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    barrier_arrive(shared_address(b));
}

/* Arrives, and makes the phase also wait for that many bytes of copies. */
static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}

/* Waits for the end of the phase of this parity; phases count from 0. */
static __device__ __forceinline__ void barrier_wait(uint32_t b, int parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}\n" ::"r"(b),
                 "r"(parity)
                 : "memory");
}
static __device__ __forceinline__ void barrier_wait(uint64_t *b, int parity) {
    barrier_wait(shared_address(b), parity);
}

/* Whether that phase has ended. */
static __device__ __forceinline__ bool barrier_passed(uint32_t b, int parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n}\n"
                 : "=r"(done)
                 : "r"(b), "r"(parity)
                 : "memory");
    return done;
}

/* Arrives when the thread's earlier cp_async16 and cp_async4 have completed. */
static __device__ __forceinline__ void barrier_arrive_copies(uint64_t *b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(shared_address(b)) : "memory");
}

/* A barrier of some warps of the block; id 1 to 15 (0 is __syncthreads), threads a multiple of 32. */
static __device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/* Position in a ring: the stage, and the parity of the phase that fills it. */
template <int STAGES> struct ring_at {
    int stage, parity;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

/* Each warp of a warpgroup signals that it has read a stage. */
static __device__ __forceinline__ void release(uint64_t *empty) {
    if ((threadIdx.x & 31) == 0) barrier_arrive(empty);
}

/* ---- copies ---- */

/* bytes: a multiple of 16; both addresses too. */
static __device__ __forceinline__ void bulk_copy(void *to, const void *from, int bytes, uint64_t *b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}

/* One panel: columns column .. + 63 of rows row .. of a matrix, as many rows as in its map. Rows past the matrix's end
 * are zeros; the barrier counts the bytes of the whole panel in any case. */
static __device__ __forceinline__ void tensor_copy(void *to, const CUtensorMap *map, int column, int row, uint64_t *b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];\n" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(b)), "r"(column), "r"(row)
                 : "memory");
}

/* The same for data not read again soon: it is evicted from the L2 before what the next kernels wait for: rows,
 * constants and their own instructions. policy: leaves_first(). */
static __device__ __forceinline__ uint64_t leaves_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
    return policy;
}
static __device__ __forceinline__ void tensor_copy_once(void *to, const CUtensorMap *map, int column, int row,
                                                        uint64_t *b, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%3, %4}], [%2], %5;\n" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(b)), "r"(column), "r"(row), "l"(policy)
                 : "memory");
}

/* A box of a three-dimensional tensor from there on; otherwise as above. */
static __device__ __forceinline__ void tensor_copy_3d(void *to, const CUtensorMap *map, int i0, int i1, int i2,
                                                      uint64_t *b) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];\n" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(b)), "r"(i0), "r"(i1), "r"(i2)
        : "memory");
}

static __device__ __forceinline__ void tensor_copy_3d_once(void *to, const CUtensorMap *map, int i0, int i1, int i2,
                                                           uint64_t *b, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%3, %4, %5}], [%2], %6;\n" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(b)), "r"(i0), "r"(i1), "r"(i2), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ void tensor_map_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

/* ---- blocks of a cluster ---- */

static __device__ __forceinline__ int cluster_rank() {
    int r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(r));
    return r;
}

static __device__ __forceinline__ void cluster_sync() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

/* Arrives at the same barrier of block `rank`. */
static __device__ __forceinline__ void barrier_arrive_at(uint64_t *b, int rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(shared_address(b)),
                 "r"(rank)
                 : "memory");
}

/* tensor_copy to the same place in each of the cluster's C blocks, counted by the barrier of each. */
template <int C>
static __device__ __forceinline__ void tensor_copy_to_all(void *to, const CUtensorMap *map, int column, int row,
                                                          uint64_t *b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%3, %4}], [%2], %5;\n" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(b)), "r"(column), "r"(row), "h"((uint16_t)((1 << C) - 1))
                 : "memory");
}

/* ---- maps ---- */

/* tma.cu: describes a row-major bf16 matrix whose rows are ld elements apart, for copies of panels of box_rows rows (at
 * most 256). The kernel takes it as a const __grid_constant__ CUtensorMap parameter. at: 16-byte aligned; ld: a
 * multiple of 8. */
bool clime_cuda_tensor_map(struct clime_dev *d, CUtensorMap *map, const bf16 *at, uint64_t rows, uint64_t columns,
                           uint64_t ld, int box_rows);
/* A three-dimensional tensor: its sizes and the copies' box in elements, strides of the last two in bytes (multiples of
 * 16); box[0] is 64. */
bool clime_cuda_tensor_map_3d(struct clime_dev *d, CUtensorMap *map, const bf16 *at, const uint64_t size[3],
                              const uint64_t stride[2], const uint32_t box[3]);

/* Makes threads' writes to shared memory visible to wgmma and copies: by each writer, before the barrier. */
static __device__ __forceinline__ void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

/* Byte in a panel of chunk c (8 columns) of row r. */
static __device__ __forceinline__ int swizzled(int r, int c) {
    return r * 128 + ((c ^ (r & 7)) << 4);
}

/* ---- wgmma ---- */

/* Tells the compiler that all lanes have the same value: wgmma in code that might diverge is serialized. */
static __device__ __forceinline__ int uniform(int x) {
    return __shfl_sync(0xffffffffu, x, 0);
}

/* A tile as an operand. panel: bytes between panels; used when the sum is not over columns. */
static __device__ __forceinline__ uint64_t wgmma_tile(const void *tile, int panel) {
    return (uint64_t)(shared_address(tile) >> 4 & 0x3fff) | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* The tile from its kk-th step of 16 on: along columns (k-major), along rows (mn-major). */
static __device__ __forceinline__ uint64_t wgmma_columns(uint64_t tile, int kk, int panel) {
    return tile + ((kk / 4 * panel + kk % 4 * 32) >> 4);
}
static __device__ __forceinline__ uint64_t wgmma_rows(uint64_t tile, int kk) {
    return tile + (kk * 16 * 128 >> 4);
}

/* Before the first wgmma that reads registers (A or D) written by the thread. */
static __device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
/* Waits until at most N groups are in flight. */
template <int N> static __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}

/* Stops the compiler from moving accesses to these registers across: put before the fence and after the wait. */
template <int N> static __device__ __forceinline__ void wgmma_hold(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[n][e])::"memory");
}

/* clang-format off */
#define WGMMA_D16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define WGMMA_D32 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define WGMMA_D64 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, " \
    "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, " \
    "%61, %62, %63}"
#define WGMMA_D128 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, " \
    "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, " \
    "%61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
    "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, " \
    "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, " \
    "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"
#define WGMMA_OUT(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define WGMMA_OUT4(d, n) WGMMA_OUT(d, n), WGMMA_OUT(d, n + 1), WGMMA_OUT(d, n + 2), WGMMA_OUT(d, n + 3)
#define WGMMA_NEW(d, n) "=f"(d[n][0]), "=f"(d[n][1]), "=f"(d[n][2]), "=f"(d[n][3])
#define WGMMA_NEW4(d, n) WGMMA_NEW(d, n), WGMMA_NEW(d, n + 1), WGMMA_NEW(d, n + 2), WGMMA_NEW(d, n + 3)
/* clang-format on */

/* d = add * d + A B, one step of 16. ss: A and B tiles in shared memory; rs: A fragments in registers. TRANS_A,
 * TRANS_B: 1 when that tile is mn-major. Neither d nor a may be accessed until wgmma_wait. */
template <int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma_ss(float (&d)[4][4], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " WGMMA_D16 ", %16, %17, p, 1, 1, %19, %20;\n}\n"
                 : WGMMA_OUT4(d, 0)
                 : "l"(a), "l"(b), "r"(add), "n"(TRANS_A), "n"(TRANS_B));
}

template <int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma_ss(float (&d)[8][4], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_D32 ", %32, %33, p, 1, 1, %35, %36;\n}\n"
                 : WGMMA_OUT4(d, 0), WGMMA_OUT4(d, 4)
                 : "l"(a), "l"(b), "r"(add), "n"(TRANS_A), "n"(TRANS_B));
}

template <int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma_ss(float (&d)[16][4], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " WGMMA_D64
                 ", %64, %65, p, 1, 1, %67, %68;\n}\n"
                 : WGMMA_OUT4(d, 0), WGMMA_OUT4(d, 4), WGMMA_OUT4(d, 8), WGMMA_OUT4(d, 12)
                 : "l"(a), "l"(b), "r"(add), "n"(TRANS_A), "n"(TRANS_B));
}

template <int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma_ss(float (&d)[32][4], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " WGMMA_D128
                 ", %128, %129, p, 1, 1, %131, %132;\n}\n"
                 : WGMMA_OUT4(d, 0), WGMMA_OUT4(d, 4), WGMMA_OUT4(d, 8), WGMMA_OUT4(d, 12), WGMMA_OUT4(d, 16),
                   WGMMA_OUT4(d, 20), WGMMA_OUT4(d, 24), WGMMA_OUT4(d, 28)
                 : "l"(a), "l"(b), "r"(add), "n"(TRANS_A), "n"(TRANS_B));
}

/* d = A B, the step of 16 that begins a sum. d is not read: with add = 0 instead, d would be live from its definition
 * on, and with other products then in flight, ptxas makes each one wait for the previous. */
template <int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma_ss_first(float (&d)[4][4], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " WGMMA_D16 ", %16, %17, 0, 1, 1, %18, %19;\n"
                 : WGMMA_NEW4(d, 0)
                 : "l"(a), "l"(b), "n"(TRANS_A), "n"(TRANS_B));
}

template <int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma_ss_first(float (&d)[8][4], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_D32 ", %32, %33, 0, 1, 1, %34, %35;\n"
                 : WGMMA_NEW4(d, 0), WGMMA_NEW4(d, 4)
                 : "l"(a), "l"(b), "n"(TRANS_A), "n"(TRANS_B));
}

template <int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma_ss_first(float (&d)[16][4], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " WGMMA_D64 ", %64, %65, 0, 1, 1, %66, %67;\n"
                 : WGMMA_NEW4(d, 0), WGMMA_NEW4(d, 4), WGMMA_NEW4(d, 8), WGMMA_NEW4(d, 12)
                 : "l"(a), "l"(b), "n"(TRANS_A), "n"(TRANS_B));
}

template <int TRANS_B>
static __device__ __forceinline__ void wgmma_rs(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_D32
                 ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
                 : WGMMA_OUT4(d, 0), WGMMA_OUT4(d, 4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANS_B));
}

template <int TRANS_B>
static __device__ __forceinline__ void wgmma_rs(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " WGMMA_D64
                 ", {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
                 : WGMMA_OUT4(d, 0), WGMMA_OUT4(d, 4), WGMMA_OUT4(d, 8), WGMMA_OUT4(d, 12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANS_B));
}

/* Registers per thread of the calling warpgroup from here on: a multiple of 8, 24 to 240. All warpgroups together may
 * have what the block was launched with (168 per thread for 384 threads); with more, registers_up hangs. */
template <int N> static __device__ __forceinline__ void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
}

#endif
