/* Blocks of a file's tensors, read and converted by threads of their own while the owner puts the ones before where
 * they belong: the disk, the cores and a device's copies work at the same time.
 *
 * Blocks come to the owner in their order, so what it does and which error it meets first do not depend on the threads.
 */
#ifndef CLIME_COMMON_OS_BLOCKS_H
#define CLIME_COMMON_OS_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct clime_blocks;

/* Converts block i into `to`; false: what is there is not to be used. On any of the threads. */
typedef bool clime_block_make(void *arg, int64_t i, void *to);
/* The owner's turn: block i, converted. An error ends the run. */
typedef enum clime_err clime_block_take(void *arg, int64_t i, bool good, const void *block, struct clime_error *e);

/* n_threads 0: as many as are of use on this machine. block_bytes: of each block. */
struct clime_blocks *clime_blocks_new(int n_threads, size_t block_bytes);
void clime_blocks_free(struct clime_blocks *b); /* joins the threads; NULL is fine */

/* Blocks 0 .. n-1; returns when nobody reads the source any more. */
enum clime_err clime_blocks_run(struct clime_blocks *b, int64_t n, clime_block_make *make, clime_block_take *take,
                                void *arg, struct clime_error *e);

#endif
