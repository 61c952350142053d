/* Arrays of a device in files, in pieces of host memory: whole, or a rank's part of a file that several ranks write.
 * Main thread; owns nothing. */
#ifndef CLIME_TRAINER_LEARN_ARRAYS_H
#define CLIME_TRAINER_LEARN_ARRAYS_H

#include "kernels/kernels.h"
#include "model/weights/layout.h"

struct clime_array {
    const struct clime_ops *ops;
    struct clime_dev *dev;
    void *at;                         /* on dev */
    size_t size;                      /* bytes of an element; 1: places are bytes */
    const struct clime_range *ranges; /* [n] elements of the file, which begin at element `at` here; some are empty */
    int n, n_everywhere;              /* the first are on every rank: rank 0 writes them */
    int64_t n_all;                    /* elements of the file */
};

/* Makes path, of n_all elements, all zero: before its parts are written. */
enum clime_err clime_array_create(const struct clime_array *a, const char *path, struct clime_error *e);
/* Writes the ranges into path and syncs it; rank: of those that write. CLIME_ERR_IO. */
enum clime_err clime_array_write(const struct clime_array *a, int rank, const char *path, struct clime_error *e);
/* Reads them. CLIME_ERR_INTERNAL when reading breaks off. */
enum clime_err clime_array_read(const struct clime_array *a, const char *path, struct clime_error *e);

#endif
