/* Weights that come tensor by tensor from another program, named and typed as Hugging Face's and torch's are, in any
 * order and over several calls, on their way into a staging buffer of the layout (host or device memory, the caller's).
 *
 * A gather knows what has come and what becomes of each tensor's bytes; it moves none. One owner.
 */
#ifndef CLIME_MODEL_WEIGHTS_WEIGHTS_GATHER_H
#define CLIME_MODEL_WEIGHTS_WEIGHTS_GATHER_H

#include "common/str.h"
#include "model/weights/weights.h"

struct clime_weights_gather;

struct clime_gather_tensor {
    const struct clime_slice *to; /* where it belongs; NULL: it is of no use here (a tied head) and to be dropped */
    size_t bytes;                 /* as it comes */
    enum clime_st_dtype type;     /* of these */
    bool as_it_is;                /* its bytes are those of the buffer at `to` */
};

struct clime_weights_gather *clime_weights_gather_new(const struct clime_config *c, const struct clime_layout *l);
void clime_weights_gather_free(struct clime_weights_gather *g);

/* The tensor counts as come. dtype: torch's word, "bfloat16" or "torch.bfloat16". CLIME_ERR_INPUT for an unknown name,
 * another shape, a type that is not read, or a second copy. */
enum clime_err clime_weights_gather_take(struct clime_weights_gather *g, const char *name, struct clime_str dtype,
                                         int n_dim, const int64_t *dim, struct clime_gather_tensor *out,
                                         struct clime_error *e);

/* h_out: [t->to->n] numbers of its type in the buffer, from the bytes of a tensor that is not as_it_is. */
void clime_weights_gather_convert(const struct clime_gather_tensor *t, const void *h_bytes, void *h_out);

int clime_weights_gather_count(const struct clime_weights_gather *g);        /* rows of the layout that are here */
const bool *clime_weights_gather_have(const struct clime_weights_gather *g); /* [n_slices] which */

#endif
