/* Tensors of another process's GPU memory, as torch's ForkingPickler writes them (torch.multiprocessing.reductions):
 * what is needed to map the memory, and no more. Read from a pickle's tree (pickle.h), in which everything lives. Any
 * thread.
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
    struct clime_str unit;    /* UUID of the GPU that has it; empty: not said */
    const uint8_t *handle;    /* [CLIME_SHARE_BYTES] of the allocation that it lies in, */
    size_t at;                /* at this byte */
    struct clime_str counter; /* shared memory with the owner's counters of those who use it, */
    int64_t counter_at;       /* the tensor's */
    const uint8_t *event;     /* [CLIME_SHARE_BYTES] when its content is there; NULL = it is */
};

/* CLIME_ERR_INPUT, saying what, for all but a contiguous tensor in memory that cudaMalloc gave. */
enum clime_err clime_torch_tensor_read(const struct clime_pickle_value *v, struct clime_torch_tensor *out,
                                       struct clime_error *e);
/* A size, or a tuple, of at most CLIME_ST_MAX_DIMS whole numbers. */
enum clime_err clime_torch_shape(const struct clime_pickle_value *v, int64_t dim[CLIME_ST_MAX_DIMS], int *n,
                                 struct clime_error *e);
/* torch.bfloat16 and the like; its bytes: 0 = none that is read. */
struct clime_str clime_torch_dtype(const struct clime_pickle_value *v);
size_t clime_torch_width(struct clime_str dtype);

/* Tells the owner that this process uses the tensor no more, without which its memory is never free again. Best effort,
 * as torch's own: the owner may be gone. */
void clime_torch_tensor_release(const struct clime_torch_tensor *t);

#endif
