/* A file written atomically: to a temporary name in the same folder, synced, then renamed.
 *
 *   struct clime_atomic_file f;
 *   if ((rc = clime_atomic_open(&f, path, e))) return rc;
 *   rc = clime_atomic_write(&f, data, len, e);
 *   rc = clime_atomic_close(&f, rc, e);     // commits when rc is CLIME_OK, else removes the temporary file
 *
 * One owner. A crash leaves at most "path.tmp.PID", which a later write by the same process id overwrites.
 */
#ifndef CLIME_COMMON_OS_ATOMIC_FILE_H
#define CLIME_COMMON_OS_ATOMIC_FILE_H

#include "common/err.h"

struct clime_atomic_file {
    int fd;
    char *path, *tmp; /* owned */
};

enum clime_err clime_atomic_open(struct clime_atomic_file *f, const char *path, struct clime_error *e);
enum clime_err clime_atomic_write(struct clime_atomic_file *f, const void *data, size_t len, struct clime_error *e);
/* so_far: the result of the writes. Returns it, or CLIME_ERR_IO when syncing or renaming fails. */
enum clime_err clime_atomic_close(struct clime_atomic_file *f, enum clime_err so_far, struct clime_error *e);

/* Open, write and close in one call. */
enum clime_err clime_atomic_save(const char *path, const void *data, size_t len, struct clime_error *e);

#endif
