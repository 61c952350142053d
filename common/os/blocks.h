/* Pipelined reading of a file's tensors: threads read and convert blocks while the owner consumes earlier ones, so that
 * disk, cores and device copies overlap.
 *
 * The owner gets blocks in order, so its work and the first error do not depend on the threads.
 */
#ifndef CLIME_COMMON_OS_BLOCKS_H
#define CLIME_COMMON_OS_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct clime_blocks;

/* Converts block i into `to`; false: the data is unusable. Runs on any of the threads. */
typedef bool clime_block_make(void *arg, int64_t i, void *to);
/* Consumes converted block i on the owner's thread. An error ends the run. */
typedef enum clime_err clime_block_take(void *arg, int64_t i, bool good, const void *block, struct clime_error *e);

/* n_threads 0: chosen for this machine. block_bytes: size of each block. */
struct clime_blocks *clime_blocks_new(int n_threads, size_t block_bytes);
void clime_blocks_free(struct clime_blocks *b); /* joins the threads; NULL is fine */

/* Processes blocks 0 .. n-1; returns when no thread reads the source any more. */
enum clime_err clime_blocks_run(struct clime_blocks *b, int64_t n, clime_block_make *make, clime_block_take *take,
                                void *arg, struct clime_error *e);

#endif
