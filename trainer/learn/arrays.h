/* Reads and writes device arrays as files, piece by piece through host memory: whole, or a rank's part of a shared
 * file. Main thread; owns nothing. */
#ifndef CLIME_TRAINER_LEARN_ARRAYS_H
#define CLIME_TRAINER_LEARN_ARRAYS_H

#include "kernels/kernels.h"
#include "model/weights/layout.h"

struct clime_array {
    const struct clime_ops *ops;
    struct clime_dev *dev;
    void *at;                         /* on dev */
    size_t size;                      /* bytes of an element; 1: offsets are bytes */
    const struct clime_range *ranges; /* [n] elements of the file; `at` holds them here; some are empty */
    int n, n_everywhere;              /* n_everywhere: the first ranges, which every rank has and rank 0 writes */
    int64_t n_all;                    /* elements of the file */
};

/* Creates path with n_all zero elements. Call before parts are written. */
enum clime_err clime_array_create(const struct clime_array *a, const char *path, struct clime_error *e);
/* Writes the ranges into path and syncs it. rank: this writer. CLIME_ERR_IO. */
enum clime_err clime_array_write(const struct clime_array *a, int rank, const char *path, struct clime_error *e);
/* Reads the ranges. CLIME_ERR_INTERNAL if a read fails midway. */
enum clime_err clime_array_read(const struct clime_array *a, const char *path, struct clime_error *e);

#endif
