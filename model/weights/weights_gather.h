/* Weights that arrive tensor by tensor from another program, with Hugging Face names and torch types, in any order and
 * over several calls, to be stored in a staging buffer of the layout (host or device memory, the caller's).
 *
 * A gather tracks which tensors have arrived and where each one's bytes go; it copies none. One owner.
 */
#ifndef CLIME_MODEL_WEIGHTS_WEIGHTS_GATHER_H
#define CLIME_MODEL_WEIGHTS_WEIGHTS_GATHER_H

#include "common/str.h"
#include "model/weights/weights.h"

struct clime_weights_gather;

struct clime_gather_tensor {
    const struct clime_slice *to; /* its slice; NULL: unused (a tied head), drop it */
    size_t bytes;                 /* as received */
    enum clime_st_dtype type;     /* type of the received bytes */
    bool as_it_is;                /* the received bytes need no conversion */
};

struct clime_weights_gather *clime_weights_gather_new(const struct clime_config *c, const struct clime_layout *l);
void clime_weights_gather_free(struct clime_weights_gather *g);

/* Marks the tensor as received. dtype: torch's name, "bfloat16" or "torch.bfloat16". CLIME_ERR_INPUT for an unknown
 * name, another shape, an unreadable type, or a second copy. */
enum clime_err clime_weights_gather_take(struct clime_weights_gather *g, const char *name, struct clime_str dtype,
                                         int n_dim, const int64_t *dim, struct clime_gather_tensor *out,
                                         struct clime_error *e);

/* h_out: [t->to->n] numbers of the buffer's type, from the bytes of a tensor that is not as_it_is. */
void clime_weights_gather_convert(const struct clime_gather_tensor *t, const void *h_bytes, void *h_out);

int clime_weights_gather_count(const struct clime_weights_gather *g);        /* rows of the layout received */
const bool *clime_weights_gather_have(const struct clime_weights_gather *g); /* [n_slices] which */

#endif
