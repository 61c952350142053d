/* Chooses the table of operations by the --device option. Called once by each program's main before any thread starts.
 * Holds nothing. Only this file depends on whether the CUDA table was linked.
 */
#include <string.h>

#include "kernels/kernels.h"

#ifdef CLIME_CUDA
extern const struct clime_ops clime_cuda_ops;
enum clime_err clime_cuda_probe(int gpu, struct clime_error *e);
#endif

enum clime_err clime_ops_choose(const char *device, const struct clime_ops **out, struct clime_error *e) {
    *out = &clime_cpu_ops;
    if (strcmp(device, "cpu") == 0) return CLIME_OK;
    bool automatic = strcmp(device, "auto") == 0;
    if (!automatic && strcmp(device, "cuda") != 0) {
        return clime_fail(e, CLIME_ERR_INPUT, "unknown device \"%s\" (auto, cpu or cuda)", device);
    }
#ifdef CLIME_CUDA
    if (!automatic || clime_cuda_probe(0, e) == CLIME_OK) *out = &clime_cuda_ops; /* if named: open reports the error */
    return CLIME_OK;
#else
    if (automatic) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                      "this build has no CUDA (make cuda-check says what it found); use --device cpu");
#endif
}
