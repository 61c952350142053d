/* What a learner needs of memory, computed before any of it is allocated.
 *
 *   clime_memory_fit(...)          what takes memory only where there is enough: the logits, kept
 *   clime_memory_plan_make(...)       the parts, from shapes and options alone
 *   clime_memory_plan_check(...)      CLIME_ERR_LIMIT with the arithmetic, and with what would fit instead
 *   clime_memory_plan_line / _table   for the log at start, and for --explain
 *   clime_memory_use                  what came of it
 *
 * Pure but for one question to the device: how much is free. A server on the same device has taken its share by then,
 * and it shows as what is not free (the loop waits for its servers before it asks); with --colocate it comes after, and
 * plans with a fraction of what is left. --explain asks without servers. Main thread.
 */
#ifndef CLIME_TRAINER_LEARN_MEMORY_H
#define CLIME_TRAINER_LEARN_MEMORY_H

#include "common/buf.h"
#include "model/weights/layout.h"
#include "trainer/learn/learning.h"

enum clime_memory_part {
    CLIME_MEM_WEIGHTS,
    CLIME_MEM_MASTER,
    CLIME_MEM_MOMENTS,
    CLIME_MEM_GRADIENTS,
    CLIME_MEM_ACTIVATIONS,
    CLIME_MEM_HEAD,
    CLIME_MEM_SCRATCH,
    CLIME_MEM_REFERENCE, /* weights and scoring buffers of the reference model */
    CLIME_MEM_CRITIC,    /* all of the critic's, its optimizer's states on the device included */
    CLIME_MEM_CODE,
    CLIME_MEM_TRIAL, /* of one product's choice of an algorithm: free again after it, but needed at any step */
    CLIME_MEM_N
};

struct clime_memory_plan {
    size_t part[CLIME_MEM_N]; /* bytes on the device */
    size_t need;              /* their sum */
    size_t host;              /* bytes of host memory beside it: optimizer states with offload, and */
    size_t host_weights;      /* rank 0's copy of whole weights, where ranks keep parts, for whoever reads them */
    size_t free_bytes, total_bytes;
    bool own_memory; /* as in struct clime_ops: `need` above free_bytes is an error */
    enum clime_recompute recompute;
    bool keep_logits;
    int max_rows;
    char device[64];
};

/* Who takes memory, and how. */
struct clime_memory_users {
    struct clime_train_options policy, reference, critic;
    bool has_reference, has_critic;
    bool offload;           /* optimizer states in host memory */
    bool servers;           /* some may run on this device, and take more of it later */
    struct clime_part part; /* of the optimizer: which rank's plan this is */
    int lanes;              /* of gradients */
};

/* Decides u->policy.keep_logits. m: as below. Without recomputing, on a device of its own memory, logits are kept where
 * the plan fits with them and leaves enough to the others (memory.c says how much). Before the plan is made, and once:
 * what is free changes as it is taken. */
void clime_memory_fit(const struct clime_model *m, struct clime_memory_users *u);

/* m: prepared, and on the device where it will be; reference and critic have its shape. */
void clime_memory_plan_make(const struct clime_model *m, const struct clime_memory_users *u,
                            struct clime_memory_plan *out);

enum clime_err clime_memory_plan_check(const struct clime_model *m, const struct clime_memory_users *u,
                                       const struct clime_memory_plan *p, struct clime_error *e);

bool clime_memory_plan_fits(const struct clime_memory_plan *p);

/* "weights 7.5 + master weights 15.0 + ... = 102.0 GiB of 131.2 free ..." */
void clime_memory_plan_line(const struct clime_memory_plan *p, struct clime_buf *out);
void clime_memory_plan_table(const struct clime_memory_plan *p, struct clime_buf *out); /* a part a line */

/* What is in use, beside what was planned. A device without memory of its own is the host: then host is 0 and the
 * process's memory is `used`, with code and files that no plan has. */
struct clime_memory_use {
    size_t planned, used; /* bytes of the device: the plan's; what it has less free than when the plan was made */
    size_t host_planned, host;
};
void clime_memory_use(const struct clime_model *m, const struct clime_memory_plan *p, struct clime_memory_use *out);

const char *clime_recompute_name(enum clime_recompute r); /* as --recompute-granularity calls it */

#endif
