/* Tensor maps for wgmma.cuh's tensor copies. Called by the launchers of kernels that use them, on the context's thread.
 *
 * Encoding is host arithmetic (no device call) and a map is a kernel parameter, so nothing is cached. The driver's
 * function is looked up at run time: a program starts without a driver. */
#include "kernels/cuda/wgmma.cuh"

static bool encode(struct clime_dev *d, CUtensorMap *map, const bf16 *at, int rank, const uint64_t *size,
                   const uint64_t *stride, const uint32_t *box) {
    static decltype(&cuTensorMapEncodeTiled) driver; /* shared by all contexts */
    if (!driver) {
        void *found = NULL;
        cudaDriverEntryPointQueryResult result;
        if (!CU(d,
                cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result)))
            return false;
        if (result != cudaDriverEntryPointSuccess) return CU(d, cudaErrorSymbolNotFound);
        driver = (decltype(driver))found;
    }
    const cuuint32_t step[] = {1, 1, 1};
    CUresult rc =
        driver(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, (void *)at, (const cuuint64_t *)size,
               (const cuuint64_t *)stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return CU(d, rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue);
}

bool clime_cuda_tensor_map(struct clime_dev *d, CUtensorMap *map, const bf16 *at, uint64_t rows, uint64_t columns,
                           uint64_t ld, int box_rows) {
    const uint64_t size[2] = {columns, rows}, stride[1] = {ld * sizeof(bf16)};
    const uint32_t box[2] = {64, (uint32_t)box_rows};
    return encode(d, map, at, 2, size, stride, box);
}

bool clime_cuda_tensor_map_3d(struct clime_dev *d, CUtensorMap *map, const bf16 *at, const uint64_t size[3],
                              const uint64_t stride[2], const uint32_t box[3]) {
    return encode(d, map, at, 3, size, stride, box);
}
