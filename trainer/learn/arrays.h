/* Arrays of a device in files, in pieces of host memory: whole, or a rank's part of a file that several ranks write.
 * Main thread; owns nothing. */
#ifndef CLIME_TRAINER_LEARN_ARRAYS_H
#define CLIME_TRAINER_LEARN_ARRAYS_H

#include "kernels/kernels.h"

struct clime_extent { /* elements [from, from + n) of the file, which begin at element `at` of the array */
    int64_t from, n, at;
};

struct clime_array {
    const struct clime_ops *ops;
    struct clime_dev *dev;
    void *at;    /* on dev */
    size_t size; /* bytes of an element */
    const struct clime_extent *extents;
    int n;         /* extents; some may have no elements */
    int64_t n_all; /* elements of the file */
};

/* Makes path, of n_all elements, all zero: before its parts are written. */
enum clime_err clime_array_create(const struct clime_array *a, const char *path, struct clime_error *e);
/* Writes the extents into path and syncs it. CLIME_ERR_IO. */
enum clime_err clime_array_write(const struct clime_array *a, const char *path, struct clime_error *e);
/* Reads them. CLIME_ERR_INTERNAL when reading breaks off. */
enum clime_err clime_array_read(const struct clime_array *a, const char *path, struct clime_error *e);

#endif
