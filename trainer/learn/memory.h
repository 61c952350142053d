/* Memory plan of a learner, computed before anything is allocated.
 *
 *   clime_memory_fit(...)             options that use memory only if there is enough: kept logits
 *   clime_memory_plan_make(...)       the parts, from shapes and options alone
 *   clime_memory_plan_check(...)      CLIME_ERR_LIMIT with the arithmetic and an alternative that fits
 *   clime_memory_plan_line / _table   for the log at start, and for --explain
 *   clime_memory_use                  actual use
 *
 * Pure except that it queries the device's free memory. A server on the same device has allocated its share by then
 * (the loop waits for its servers first); with --colocate it starts later and plans with a fraction of the rest.
 * --explain queries without servers. Main thread.
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
    CLIME_MEM_REFERENCE, /* reference model: weights and scoring buffers */
    CLIME_MEM_CRITIC,    /* critic, including its optimizer states on the device */
    CLIME_MEM_CODE,
    CLIME_MEM_TRIAL, /* one product's algorithm search: freed afterwards, but needed at any step */
    CLIME_MEM_N
};

struct clime_memory_plan {
    size_t part[CLIME_MEM_N]; /* bytes on the device */
    size_t need;              /* their sum */
    size_t host;              /* bytes of host memory: optimizer states with offload */
    size_t host_weights;      /* rank 0's copy of the whole weights, if they are sharded */
    size_t free_bytes, total_bytes;
    bool own_memory; /* as in struct clime_ops; then `need` above free_bytes is an error */
    enum clime_recompute recompute;
    bool keep_logits;
    int max_rows;
    char device[64];
};

/* The users of memory and their options. */
struct clime_memory_users {
    struct clime_train_options policy, reference, critic;
    bool has_reference, has_critic;
    bool offload;           /* optimizer states in host memory */
    bool servers;           /* servers may run on this device and allocate more later */
    struct clime_part part; /* the optimizer's part: whose rank's plan this is */
    int lanes;              /* gradient lanes */
};

/* Decides u->policy.keep_logits. m: as below. Without recomputation, on a device with its own memory, logits are kept
 * if the plan with them fits and leaves enough to others (memory.c has the amounts). Call once, before making the plan:
 * free memory changes with allocation. */
void clime_memory_fit(const struct clime_model *m, struct clime_memory_users *u);

/* m: prepared, on its final device; reference and critic have its shape. */
void clime_memory_plan_make(const struct clime_model *m, const struct clime_memory_users *u,
                            struct clime_memory_plan *out);

enum clime_err clime_memory_plan_check(const struct clime_model *m, const struct clime_memory_users *u,
                                       const struct clime_memory_plan *p, struct clime_error *e);

bool clime_memory_plan_fits(const struct clime_memory_plan *p);

/* "weights 7.5 + master weights 15.0 + ... = 102.0 GiB of 131.2 free ..." */
void clime_memory_plan_line(const struct clime_memory_plan *p, struct clime_buf *out);
void clime_memory_plan_table(const struct clime_memory_plan *p, struct clime_buf *out); /* one part per line */

/* Memory in use and as planned. A device without its own memory is the host: then host is 0 and `used` is the process's
 * memory, with unplanned code and files. */
struct clime_memory_use {
    size_t planned, used; /* device bytes: the plan's; decrease of free memory since the plan was made */
    size_t host_planned, host;
};
void clime_memory_use(const struct clime_model *m, const struct clime_memory_plan *p, struct clime_memory_use *out);

const char *clime_recompute_name(enum clime_recompute r); /* value of --recompute-granularity */

#endif
