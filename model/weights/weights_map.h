/* Shared by import and upload: maps a checkpoint's tensor to its slice of the flat buffer. Internal to model/. */
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
    struct clime_slice *fused; /* [n_fused] slices for tensors that hold all experts of a layer, which some files have;
                                * owned */
    int n_fused;
    bool *have;                            /* [l->n_slices], owned */
    const struct clime_fp8_scales *scales; /* of an FP8 folder; NULL: FP8 tensors are refused. Borrowed */
    int n_half;                            /* tensors read as fp16 */
    int n_fp8;                             /* read as FP8 with scales */
    int n_narrowed;                        /* fp32 tensors rounded to bf16 */
    bool tied_head;                        /* lm_head.weight was present though the head is the embedding */
};
void clime_weights_seen_init(struct clime_weights_seen *s, const struct clime_config *c, const struct clime_layout *l);
void clime_weights_seen_free(struct clime_weights_seen *s);

/* Finds the slice of t and checks its shape and type; a tensor with all experts of a layer gets one slice of them all.
 * *out is NULL for an ignored tensor (a tied head, rotary tables, layers that predict further tokens, scales read
 * before). CLIME_ERR_INPUT for an unknown tensor, another shape, an unreadable type, or a second copy. */
enum clime_err clime_weights_place(struct clime_weights_seen *s, const struct clime_st_tensor *t,
                                   const struct clime_slice **out, struct clime_error *e);

/* CLIME_ERR_INPUT, naming the first slice that was not placed. */
enum clime_err clime_weights_complete(const struct clime_weights_seen *s, struct clime_error *e);

/* CLIME_ERR_INPUT when the head in DIR's files differs from the embedding (model/weights/tied_head.c). */
enum clime_err clime_tied_head_check(const char *dir, struct clime_error *e);

/* Logs the conversions made on import. */
void clime_weights_tell(const struct clime_weights_seen *s);

/* clime_weights_import with a callback: put(arg, offset, data, bytes) gets every byte of the buffer once, in blocks of
 * converted elements, slices in file order, then the padding. *sum (may be NULL): a checksum of the slices' bytes,
 * independent of the files' layout. */
enum clime_err clime_weights_import_blocks(const char *dir, const struct clime_config *c, const struct clime_layout *l,
                                           void (*put)(void *arg, int64_t offset, const void *data, int64_t bytes),
                                           void *arg, uint64_t *sum, struct clime_error *e);

/* name is of a layer after the last, one that predicts further tokens, which clime does not compute. */
bool clime_weights_beyond(const struct clime_config *c, const char *name);
bool clime_weights_ends_with(const char *name, const char *end);

/* Calls each with the path of every file of a checkpoint, in index order; stops at the first error. */
enum clime_err clime_weights_files(const char *dir,
                                   enum clime_err (*each)(void *arg, const char *path, struct clime_error *e),
                                   void *arg, struct clime_error *e);

/* Zeroes the padding between slices. */
void clime_weights_zero_padding(const struct clime_layout *l, void *flat);

static inline void *clime_weights_at(const void *flat, int64_t offset) {
    return (char *)(uintptr_t)flat + offset;
}

#endif
