/* Tensors in another process's GPU memory, as pickled by torch's ForkingPickler (torch.multiprocessing.reductions):
 * only what is needed to map the memory. Points into a pickle's tree (pickle.h). Any thread.
 */
#ifndef CLIME_SERVER_UPDATE_TORCH_TENSOR_H
#define CLIME_SERVER_UPDATE_TORCH_TENSOR_H

#include "kernels/kernels.h"
#include "model/weights/safetensors.h"
#include "server/update/pickle.h"

struct clime_torch_tensor {
    int n_dim;
    int64_t dim[CLIME_ST_MAX_DIMS];
    struct clime_str dtype; /* "bfloat16" */
    size_t n_bytes;
    struct clime_str unit;    /* UUID of its GPU; empty: unknown */
    const uint8_t *handle;    /* [CLIME_SHARE_BYTES] of its allocation, */
    size_t at;                /* offset in it */
    struct clime_str counter; /* shared memory of the owner's use counters, */
    int64_t counter_at;       /* offset of the tensor's */
    const uint8_t *event;     /* [CLIME_SHARE_BYTES] signals that the content is ready; NULL = it is */
};

/* CLIME_ERR_INPUT, with the reason, for anything but a contiguous tensor in cudaMalloc memory. */
enum clime_err clime_torch_tensor_read(const struct clime_pickle_value *v, struct clime_torch_tensor *out,
                                       struct clime_error *e);
/* A torch.Size or tuple of at most CLIME_ST_MAX_DIMS integers. */
enum clime_err clime_torch_shape(const struct clime_pickle_value *v, int64_t dim[CLIME_ST_MAX_DIMS], int *n,
                                 struct clime_error *e);
/* Name of a torch dtype such as torch.bfloat16, and its width in bytes; 0 = not supported. */
struct clime_str clime_torch_dtype(const struct clime_pickle_value *v);
size_t clime_torch_width(struct clime_str dtype);

/* Drops this process's reference to the tensor; without it the owner never frees the memory. Best effort, as in torch:
 * the owner may have exited. */
void clime_torch_tensor_release(const struct clime_torch_tensor *t);

#endif
