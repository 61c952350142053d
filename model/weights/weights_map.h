/* What import and upload share: which slice of the flat buffer a checkpoint's tensor fills. Internal to model/. */
#ifndef CLIME_MODEL_WEIGHTS_WEIGHTS_MAP_H
#define CLIME_MODEL_WEIGHTS_WEIGHTS_MAP_H

#include "kernels/kernels.h"
#include "model/config/config.h"
#include "model/weights/layout.h"
#include "model/weights/safetensors.h"

struct clime_fp8_scales; /* model/weights/fp8.h */

/* Tensors seen so far, over all files of a checkpoint. */
struct clime_weights_seen {
    const struct clime_layout *l;
    const struct clime_config *c;
    struct clime_slice *fused; /* [n_fused] rows for tensors of all experts of a layer, which some files hold; owned */
    int n_fused;
    bool *have;                            /* [l->n_slices], owned */
    const struct clime_fp8_scales *scales; /* of a folder in FP8; NULL: no tensor may be FP8. Borrowed */
    int n_half;                            /* tensors that came as fp16 */
    int n_fp8;                             /* as FP8 with scales */
    int n_narrowed;                        /* fp32 tensors that were rounded to bf16 */
    bool tied_head;                        /* lm_head.weight was there though the head is the embedding */
};
void clime_weights_seen_init(struct clime_weights_seen *s, const struct clime_config *c, const struct clime_layout *l);
void clime_weights_seen_free(struct clime_weights_seen *s);

/* Finds the slice of t and checks its shape and type; for all experts of a layer in one tensor, one slice of them all.
 * *out is NULL for a tensor that is rightly ignored (a tied head, rotary tables, layers that predict further tokens,
 * scales that were read before). CLIME_ERR_INPUT for an unknown tensor, another shape, a type that cannot be read, or a
 * second copy.
 */
enum clime_err clime_weights_place(struct clime_weights_seen *s, const struct clime_st_tensor *t,
                                   const struct clime_slice **out, struct clime_error *e);

/* Every slice was placed? Names the first that was not. */
enum clime_err clime_weights_complete(const struct clime_weights_seen *s, struct clime_error *e);

/* The head in DIR's files is the embedding again: CLIME_ERR_INPUT where it is not (model/weights/tied_head.c). */
enum clime_err clime_tied_head_check(const char *dir, struct clime_error *e);

/* Says in the log when numbers were converted on the way in. */
void clime_weights_tell(const struct clime_weights_seen *s);

/* clime_weights_import to anywhere: put(arg, offset, data, bytes) receives every byte of the buffer once, some
 * converted elements at a time, slices in the order of the files, then the padding. *sum (may be NULL): a checksum of
 * what put was given for the slices, whatever files they came from. */
enum clime_err clime_weights_import_blocks(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                           void (*put)(void *arg, int64_t offset, const void *data, int64_t bytes),
                                           void *arg, uint64_t *sum, struct clime_error *e);

/* name is of a layer after the last, which predicts further tokens: nothing here computes it. */
bool clime_weights_beyond(const struct clime_config *c, const char *name);
bool clime_weights_ends_with(const char *name, const char *end);

/* Calls each with the path of every file of a checkpoint, in the order of the index; ends at the first error. */
enum clime_err clime_weights_files(const char *dir,
                                   enum clime_err (*each)(void *arg, const char *path, struct clime_error *e),
                                   void *arg, struct clime_error *e);

/* Zeroes what lies between slices. */
void clime_weights_zero_padding(const struct clime_layout *l, void *flat);

static inline void *clime_weights_at(const void *flat, int64_t offset) {
    return (char *)(uintptr_t)flat + offset;
}

#endif
