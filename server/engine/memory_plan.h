/* The server's device memory budget, computed before any allocation.
 *
 * --mem-fraction-static is SGLang's: the part of the memory free at start that weights and KV pool take together. The
 * rest must hold scratch, kernel code and temporary allocations: the staging of an update over the device, and the
 * trial run of a matrix product's first use. KV shrinks where they would not fit. Staging holds the whole weights. If
 * that leaves no KV, several devices stage one share each; if that leaves none either, or on one device (weights of
 * half its memory), nothing is staged and updates go over HTTP. On a device that shares host memory (CPU) only the
 * fraction and a cap of 4 GiB apply. Main thread, at start.
 */
#ifndef CLIME_SERVER_ENGINE_MEMORY_PLAN_H
#define CLIME_SERVER_ENGINE_MEMORY_PLAN_H

#include "common/buf.h"
#include "model/model.h"
#include "server/schedule/scheduler.h"

struct clime_memory_want {
    double fraction;
    int64_t max_total_tokens; /* KV in tokens; 0 = by the fraction */
    int context;              /* the longest sequence */
    int n_ranks;              /* ranks that share the model; on CPUs they share one memory; 0 = 1 */
    bool own_weights;         /* false: they arrive later, mapped from their owner or by an update */
};

struct clime_server_memory {
    size_t free_bytes, total_bytes; /* at start */
    size_t weights, kv, scratch, code;
    size_t staging, trial;            /* temporary */
    int n_pages, n_pages_for_staging; /* KV pages, and how many staging costs */
    bool own_memory;
};

/* m: prepared, not loaded. sched: n_pages is not read. CLIME_ERR_LIMIT, with the arithmetic, when it does not fit. */
enum clime_err clime_server_memory_make(const struct clime_model *m, const struct clime_sched_options *sched,
                                        const struct clime_memory_want *want, struct clime_server_memory *out,
                                        struct clime_error *e);

/* "weights 7.49 + KV 55.40 (5904 pages of 64 tokens) + ... = 63.9 GiB of 139.3 free; ..." */
void clime_server_memory_line(const struct clime_server_memory *p, struct clime_buf *out);

#endif
