/* Text threads: tokenising and template rendering, away from the small stacks of HTTP workers.
 *
 * Each thread has an 8 MiB stack and its own tokenizer scratch. A task lives on its caller's stack; the caller sleeps
 * until it has run. A long task runs in slices, with other tasks in between. The queue is bounded.
 */
#ifndef CLIME_SERVER_JOB_TEXT_POOL_H
#define CLIME_SERVER_JOB_TEXT_POOL_H

#include "text/tokenizer.h"

struct clime_text_pool;

struct clime_text_pool *clime_text_pool_open(const struct clime_tokenizer *t, int n_threads, int max_queued);
void clime_text_pool_close(struct clime_text_pool *p); /* no caller may wait */

/* Runs one slice; true = more to do. */
typedef bool (*clime_text_fn)(void *arg, struct clime_tok_scratch *scratch);

/* Calls fn(arg, scratch) on text threads, one call at a time, until it returns false, and waits for that.
 * CLIME_ERR_BUSY when the queue is full. */
enum clime_err clime_text_pool_run(struct clime_text_pool *p, clime_text_fn fn, void *arg, struct clime_error *e);

#define CLIME_TEXT_SLICE_BYTES 65536 /* of text per slice */

#endif
