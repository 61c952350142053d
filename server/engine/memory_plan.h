/* What a server takes of its device's memory, decided before any of it is allocated.
 *
 * --mem-fraction-static means what it means in SGLang: the part of the memory that is free at start which weights and
 * KV pool take together. The rest must hold scratch, kernels' code and what is taken for a moment: the staging of an
 * update that comes by the device, and the trial of a product's first use. KV is cut down where it would not. Of a
 * server over several devices, where the staging of whole weights leaves no room, it is that of a device's share; where
 * that leaves none either, or on one device, as of weights that take half of it, there is none: updates go over HTTP.
 * On a device whose memory is the machine's (CPU) only the fraction and a cap of 4 GiB decide. Main thread, at start.
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
    int n_ranks;              /* over which the model is shared: on CPUs they have one memory; 0 = 1 */
    bool own_weights;         /* false: they come later, shared with their owner or by an update */
};

struct clime_server_memory {
    size_t free_bytes, total_bytes; /* at start */
    size_t weights, kv, scratch, code;
    size_t staging, trial;            /* for a moment */
    int n_pages, n_pages_for_staging; /* of KV; so many more there would be without staging */
    bool own_memory;
};

/* m: prepared, not loaded. sched: all but n_pages. CLIME_ERR_LIMIT with the arithmetic when it does not fit. */
enum clime_err clime_server_memory_make(const struct clime_model *m, const struct clime_sched_options *sched,
                                        const struct clime_memory_want *want, struct clime_server_memory *out,
                                        struct clime_error *e);

/* "weights 7.49 + KV 55.40 (5904 pages of 64 tokens) + ... = 63.9 GiB of 139.3 free; ..." */
void clime_server_memory_line(const struct clime_server_memory *p, struct clime_buf *out);

#endif
