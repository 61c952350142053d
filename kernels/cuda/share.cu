/* Memory shared with other processes of the host by CUDA IPC, and the checksum that both sides of a copy compare.
 *
 * Called by the context's owner thread. Owns nothing: allocations and mappings are the caller's. Allocations are
 * rounded up to 2 MiB, because smaller ones share a block with others, which would be exported too. A mapping reads the
 * exporter's memory in place: the exporter must not free or rewrite it while others compute with it, which the handover
 * protocol ensures (docs/protocol.md).
 */
#include <stdio.h>
#include <string.h>

#include "kernels/checksum.h"
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

extern "C" {
#include "common/clock.h"
}

enum { BLOCK = 2 << 20, THREADS = 256 };

void clime_cuda_unit(const cudaDeviceProp *prop, char out[64]) {
    const unsigned char *u = (const unsigned char *)prop->uuid.bytes;
    int n = snprintf(out, 64, "GPU-");
    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, 64 - (size_t)n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
}

void clime_cuda_bind(struct clime_dev *d) {
    CU(d, cudaSetDevice(d->gpu));
}

enum clime_err clime_cuda_alloc_shared(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                       struct clime_error *e) {
    return clime_cuda_alloc(d, (bytes + BLOCK - 1) / BLOCK * BLOCK, what, out, e);
}

enum clime_err clime_cuda_share_export(struct clime_dev *d, const void *p, uint8_t handle[CLIME_SHARE_BYTES],
                                       struct clime_error *e) {
    static_assert(sizeof(cudaIpcMemHandle_t) == CLIME_SHARE_BYTES, "the handle's size is CUDA's");
    (void)d;
    cudaError_t rc = cudaIpcGetMemHandle((cudaIpcMemHandle_t *)handle, (void *)p);
    if (rc == cudaSuccess) return CLIME_OK;
    cudaGetLastError(); /* no device failure: the memory stays usable here */
    return clime_fail(e, CLIME_ERR_UNAVAILABLE, "CUDA IPC exports no memory here: %s", cudaGetErrorString(rc));
}

/* Start and size of the allocation that contains p; false where the driver does not report it. */
static bool range_of(const void *p, unsigned long long *base, size_t *size) {
    typedef int (*get_range)(unsigned long long *base, size_t *size, unsigned long long at);
    void *fn = NULL;
    cudaDriverEntryPointQueryResult found;
    return cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &fn, 12000, cudaEnableDefault, &found) ==
               cudaSuccess &&
           found == cudaDriverEntryPointSuccess && ((get_range)fn)(base, size, (unsigned long long)p) == 0;
}

enum clime_err clime_cuda_share_base(struct clime_dev *d, void *p, char **base, struct clime_error *e) {
    unsigned long long at;
    size_t size;
    (void)d;
    if (!range_of(p, &at, &size))
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the driver does not say where an allocation begins");
    *base = (char *)p - ((unsigned long long)p - at);
    return CLIME_OK;
}

/* The handle has no size; the driver knows what was mapped (SIZE_MAX if it does not report it). */
static size_t mapped_bytes(const void *p) {
    unsigned long long base = 0;
    size_t size = 0;
    return range_of(p, &base, &size) ? size - (size_t)((unsigned long long)p - base) : SIZE_MAX;
}

enum clime_err clime_cuda_share_open(struct clime_dev *d, const uint8_t handle[CLIME_SHARE_BYTES], size_t bytes,
                                     bool *same_unit, void **out, struct clime_error *e) {
    cudaIpcMemHandle_t h;
    memcpy(&h, handle, sizeof h);
    *out = NULL;
    cudaError_t rc = cudaIpcOpenMemHandle(out, h, cudaIpcMemLazyEnablePeerAccess);
    cudaPointerAttributes at;
    if (rc == cudaSuccess && (rc = cudaPointerGetAttributes(&at, *out)) != cudaSuccess) clime_cuda_share_close(d, *out);
    if (rc != cudaSuccess) {
        *out = NULL;
        cudaGetLastError();
        return clime_fail(e, CLIME_ERR_INPUT, "the handle does not map: %s", cudaGetErrorString(rc));
    }
    size_t there = mapped_bytes(*out);
    if (there < bytes) {
        clime_cuda_share_close(d, *out);
        *out = NULL;
        return clime_fail(e, CLIME_ERR_INPUT, "the handle maps %zu bytes of %zu", there, bytes);
    }
    *same_unit = at.device == d->gpu;
    return CLIME_OK;
}

enum clime_err clime_cuda_share_wait(struct clime_dev *d, const uint8_t event[CLIME_SHARE_BYTES], int64_t limit_us,
                                     struct clime_error *e) {
    static_assert(sizeof(cudaIpcEventHandle_t) == CLIME_SHARE_BYTES, "the handle's size is CUDA's");
    cudaIpcEventHandle_t h;
    cudaEvent_t theirs;
    (void)d;
    memcpy(&h, event, sizeof h);
    cudaError_t rc = cudaIpcOpenEventHandle(&theirs, h);
    if (rc == cudaSuccess) {
        int64_t until_us = clime_now_us() + limit_us;
        while ((rc = cudaEventQuery(theirs)) == cudaErrorNotReady && clime_now_us() < until_us) clime_sleep_us(20);
        cudaEventDestroy(theirs);
    }
    if (rc == cudaSuccess) return CLIME_OK;
    cudaGetLastError();
    if (rc == cudaErrorNotReady)
        return clime_fail(e, CLIME_ERR_TIMEOUT, "the memory's owner did not finish writing it within the time limit");
    return clime_fail(e, CLIME_ERR_INPUT, "the handle is of no event: %s", cudaGetErrorString(rc));
}

void clime_cuda_share_close(struct clime_dev *d, void *p) {
    clime_cuda_wait(d);
    CU(d, cudaIpcCloseMemHandle(p));
}

/* Integer sums do not depend on their order, so atomics are exact. */
static __global__ void checksum_kernel(const uint64_t *x, uint64_t first, size_t bytes, unsigned long long *out) {
    const size_t n = bytes / 8;
    uint64_t sum = 0;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS)
        sum += clime_checksum_term(x[i], first + i);
    if (blockIdx.x == 0 && threadIdx.x == 0 && bytes % 8) {
        uint64_t word = 0;
        for (size_t k = 0; k < bytes % 8; k++) word |= (uint64_t)((const uint8_t *)(x + n))[k] << 8 * k;
        sum += clime_checksum_term(word, first + n);
    }
    for (int m = 16; m > 0; m >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if ((threadIdx.x & 31) == 0) atomicAdd(out, (unsigned long long)sum);
}

/* Blocks to read n pieces with all multiprocessors busy. */
static unsigned blocks_for(const struct clime_dev *d, size_t n) {
    size_t blocks = (n + THREADS - 1) / THREADS, most = (size_t)d->n_sm * 8;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* X: uint16_t, and x is one bf16 or two; uint32_t: one fp32. */
template <class X> static __device__ __forceinline__ bool not_finite(uint32_t x) {
    return (sizeof(X) == 2 && (x & 0x7f80u) == 0x7f80u) || (x & 0x7f800000u) == 0x7f800000u;
}

/* head: numbers before the first 16-byte boundary, since a tensor may begin anywhere. */
template <class X> static __global__ void finite_kernel(const X *x, size_t head, size_t n, int *bad) {
    const size_t each = 16 / sizeof(X);
    const uint4 *whole = (const uint4 *)(x + head);
    size_t n_whole = (n - head) / each;
    bool any = false;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n_whole; i += (size_t)gridDim.x * THREADS) {
        uint4 v = whole[i];
        any |= not_finite<X>(v.x) || not_finite<X>(v.y) || not_finite<X>(v.z) || not_finite<X>(v.w);
    }
    if (blockIdx.x == 0 && threadIdx.x < each) {
        size_t tail = head + n_whole * each + threadIdx.x;
        if (threadIdx.x < head) any |= not_finite<X>(x[threadIdx.x]);
        if (tail < n) any |= not_finite<X>(x[tail]);
    }
    if (any) *bad = 1;
}

bool clime_cuda_finite(struct clime_dev *d, enum clime_dtype type, size_t n, const void *x) {
    int *d_bad = (int *)clime_cuda_scratch(d, sizeof *d_bad), bad = 0;
    const size_t width = clime_dtype_bytes(type);
    size_t head = (16 - (uintptr_t)x % 16) % 16 / width;
    if (!d_bad) return false;
    CU(d, cudaMemsetAsync(d_bad, 0, sizeof *d_bad, d->stream));
    if (head > n) head = n;
    if (type == CLIME_BF16)
        launch_after(d, finite_kernel<uint16_t>, blocks_for(d, n / 8), THREADS, 0, (const uint16_t *)x, head, n, d_bad);
    else
        launch_after(d, finite_kernel<uint32_t>, blocks_for(d, n / 4), THREADS, 0, (const uint32_t *)x, head, n, d_bad);
    clime_cuda_copy_out(d, &bad, d_bad, sizeof bad);
    return !bad;
}

uint64_t clime_cuda_checksum(struct clime_dev *d, uint64_t first, size_t bytes, const void *p) {
    unsigned long long *sum = (unsigned long long *)clime_cuda_scratch(d, sizeof *sum), out = 0;
    if (!sum) return 0;
    CU(d, cudaMemsetAsync(sum, 0, sizeof *sum, d->stream));
    launch_after(d, checksum_kernel, blocks_for(d, bytes / 8), THREADS, 0, (const uint64_t *)p, first, bytes, sum);
    clime_cuda_copy_out(d, &out, sum, sizeof out);
    return out;
}
