/* Memory at fixed addresses whose bytes can be released: the driver's virtual-memory calls. For a server's KV pool and
 * its own weights; recorded graphs hold the addresses and stay valid.
 *
 * Called by the context's owner thread, which owns the list. The driver is not linked: its functions are looked up at
 * first use, so a program starts without a driver. Each piece is one physical allocation, rounded up to the driver's
 * granularity (2 MiB).
 */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <stdlib.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

struct clime_cuda_fixed {
    CUdeviceptr at;
    size_t bytes;
    CUmemGenericAllocationHandle handle; /* valid while backed */
    bool backed;
    struct clime_cuda_fixed *next;
};

static struct {
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 unreserve;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
} vm; /* shared by all contexts of the process */

static bool find_driver(void) {
    struct {
        const char *name;
        void **at;
    } const names[] = {{"cuMemAddressReserve", (void **)&vm.reserve},
                       {"cuMemAddressFree", (void **)&vm.unreserve},
                       {"cuMemCreate", (void **)&vm.create},
                       {"cuMemRelease", (void **)&vm.release},
                       {"cuMemMap", (void **)&vm.map},
                       {"cuMemUnmap", (void **)&vm.unmap},
                       {"cuMemSetAccess", (void **)&vm.set_access},
                       {"cuMemGetAllocationGranularity", (void **)&vm.granularity}};
    for (size_t i = 0; i < CLIME_COUNT(names); i++) {
        cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion(names[i].name, names[i].at, 10020, cudaEnableDefault, &found) !=
                cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            return false;
    }
    return true;
}

static CUmemAllocationProp property(const struct clime_dev *d) {
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = d->gpu;
    return p;
}

static bool vm_ok(struct clime_dev *d, CUresult rc, const char *what) {
    if (rc == CUDA_SUCCESS) return true;
    if (d->failure.code == CLIME_OK)
        clime_fail(&d->failure, CLIME_ERR_DEVICE, "the driver failed in %s: %d", what, (int)rc);
    return false;
}
#define VM(d, call) vm_ok((d), (call), #call)

/* Maps physical memory at f's address; when there is none, nothing has changed. */
static bool put_bytes(struct clime_dev *d, struct clime_cuda_fixed *f) {
    CUmemAllocationProp p = property(d);
    CUmemAccessDesc access = {};
    access.location = p.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (vm.create(&f->handle, f->bytes, &p, 0) != CUDA_SUCCESS) return false;
    f->backed = VM(d, vm.map(f->at, f->bytes, 0, f->handle, 0)) && VM(d, vm.set_access(f->at, f->bytes, &access, 1));
    if (!f->backed) vm.release(f->handle);
    return f->backed;
}

static void take_bytes(struct clime_dev *d, struct clime_cuda_fixed *f) {
    if (!f->backed) return;
    clime_cuda_wait(d);
    VM(d, vm.unmap(f->at, f->bytes));
    VM(d, vm.release(f->handle));
    f->backed = false;
}

static struct clime_cuda_fixed *find(const struct clime_dev *d, const void *p) {
    struct clime_cuda_fixed *f = d->fixed;
    while (f && f->at != (CUdeviceptr)p) f = f->next;
    return f;
}

enum clime_err clime_cuda_alloc_fixed(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                      struct clime_error *e) {
    CUmemAllocationProp p = property(d);
    size_t unit = 0, free_bytes = 0, total = 0;
    *out = NULL;
    if (!find_driver())
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the GPU's driver has no virtual-memory calls; it is too old");
    if (vm.granularity(&unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS || unit == 0)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "this GPU has no virtual-memory calls");
    struct clime_cuda_fixed *f = (struct clime_cuda_fixed *)xcalloc(1, sizeof *f);
    f->bytes = (bytes + unit - 1) / unit * unit;
    if (vm.reserve(&f->at, f->bytes, 0, 0, 0) == CUDA_SUCCESS) {
        if (put_bytes(d, f)) {
            f->next = d->fixed;
            d->fixed = f;
            *out = (void *)f->at;
            return CLIME_OK;
        }
        vm.unreserve(f->at, f->bytes);
    }
    free(f);
    cudaMemGetInfo(&free_bytes, &total);
    return clime_fail(e, CLIME_ERR_LIMIT, "%s needs %.2f GiB of GPU memory and %.2f of %.2f GiB are free", what,
                      (double)bytes / (1 << 30), (double)free_bytes / (1 << 30), (double)total / (1 << 30));
}

bool clime_cuda_free_fixed(struct clime_dev *d, void *p) {
    struct clime_cuda_fixed *f = find(d, p), **at = &d->fixed;
    if (!f) return false;
    take_bytes(d, f);
    VM(d, vm.unreserve(f->at, f->bytes));
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    free(f);
    return true;
}

void clime_cuda_give_back(struct clime_dev *d, void *p) {
    struct clime_cuda_fixed *f = find(d, p);
    CHECK(f);
    take_bytes(d, f);
}

enum clime_err clime_cuda_take_back(struct clime_dev *d, void *p, struct clime_error *e) {
    struct clime_cuda_fixed *f = find(d, p);
    size_t free_bytes = 0, total = 0;
    CHECK(f);
    if (f->backed || put_bytes(d, f)) return CLIME_OK;
    cudaMemGetInfo(&free_bytes, &total);
    return clime_fail(e, CLIME_ERR_LIMIT, "%.2f GiB of GPU memory are to come back and %.2f of %.2f GiB are free",
                      (double)f->bytes / (1 << 30), (double)free_bytes / (1 << 30), (double)total / (1 << 30));
}
