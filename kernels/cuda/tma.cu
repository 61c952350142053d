/* Tensor maps for wgmma.cuh's tensor copies. Called by the launchers of kernels that use them, on the context's thread.
 *
 * Encoding is host arithmetic (no call to the device) and a map is a kernel parameter, so nothing is cached. The
 * driver's function is looked up at run time: a program built here starts where there is no driver. */
#include "kernels/cuda/wgmma.cuh"

bool clime_cuda_tensor_map(struct clime_dev *d, CUtensorMap *map, const bf16 *at, uint64_t rows, uint64_t columns,
                           uint64_t ld, int box_rows) {
    static decltype(&cuTensorMapEncodeTiled) encode; /* the same for every context */
    if (!encode) {
        void *found = NULL;
        cudaDriverEntryPointQueryResult result;
        if (!CU(d,
                cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result)))
            return false;
        if (result != cudaDriverEntryPointSuccess) return CU(d, cudaErrorSymbolNotFound);
        encode = (decltype(encode))found;
    }
    const cuuint64_t size[2] = {columns, rows}, stride[1] = {ld * sizeof(bf16)};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, step[2] = {1, 1};
    CUresult rc = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)at, size, stride, box, step,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return CU(d, rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue);
}
