/* Run planner: estimates memory and time of a run from its configuration, without the devices. A model from the model's
 * shapes (work.h) and measured rates (rates.h); tests/unit/trainer/test_plan.c checks it against real runs. The
 * trainer's memory is the learner's own plan (trainer/learn/memory.h), not an estimate. Pure; main thread.
 *
 * The run is colocated: every device trains and serves. If no way of training fits, servers are planned with the
 * devices to themselves. */
#ifndef CLIME_TRAINER_PLAN_PLAN_H
#define CLIME_TRAINER_PLAN_PLAN_H

#include "model/model.h"
#include "trainer/learn/memory.h"
#include "trainer/plan/work.h"

struct clime_plan_wish {
    const struct clime_device_rates *device;
    int devices, hosts;      /* devices in all */
    int tp;                  /* devices per server; 0 = those of a host */
    double prompts, samples; /* prompts per rollout; answers per prompt */
    double prompt_len, answer_len;
    int rows;         /* per micro-batch; with cp per rank */
    int cp;           /* neighbouring ranks that share a micro-batch, a power of two that divides the ranks; 0 = 1 */
    int experts_over; /* neighbouring ranks that hold all experts between them, if experts stay; 0 = the maximum */
    enum clime_recompute recompute;
    bool offload; /* master weights and moments in host memory */
};

/* Distribution of weights and gradients over the trainer's ranks. */
enum clime_plan_way {
    CLIME_PLAN_REPLICATED, /* each rank has all */
    CLIME_PLAN_SHARDED,    /* each rank has a part, and gathers a layer while it computes the one before */
    CLIME_PLAN_EXPERTS,    /* sharded, but experts stay in place and rows are sent to them */
    CLIME_PLAN_WAYS
};
extern const char *const clime_plan_way_names[CLIME_PLAN_WAYS];

struct clime_plan_training {
    bool possible;        /* else nothing is planned: no experts to keep in place, or they do not divide */
    double gib, host_gib; /* per device, per host */
    bool fits;
    double compute_s;  /* per micro-batch */
    double gather_s;   /* link time per micro-batch: weights and rows */
    double rows_s;     /* of gather_s, rows to experts and to other ranks' heads, which nothing overlaps */
    double exchange_s; /* gradients of a micro-batch */
    double step_s;     /* training of a rollout: all its micro-batches, then the optimizer */
};

struct clime_run_plan {
    struct clime_model_work work;
    struct clime_memory_plan memory[CLIME_PLAN_WAYS]; /* of rank 0 */
    double micro_batches;                             /* per rank */
    double optimizer_s;
    struct clime_plan_training training[CLIME_PLAN_WAYS];
    int experts_over; /* as requested; 1 = they cannot stay */
    int way;          /* first way that fits; -1 = none */
    int tp, servers;
    double kv_tokens, running; /* per server; concurrent answers */
    double generate_s;
    double tokens_per_s; /* answer tokens per device, over generation and training */
};

/* m: prepared on the CPU in bf16; on return it is sharded for the last way. */
void clime_run_plan(struct clime_model *m, const struct clime_plan_wish *wish, struct clime_run_plan *out);

/* Seconds of a decode step of `rows` sequences with `context` keys each, over tp devices. */
double clime_plan_decode_s(const struct clime_model_work *w, const struct clime_device_rates *d, double rows,
                           double context, int tp);
double clime_plan_prefill_s(const struct clime_model_work *w, const struct clime_device_rates *d, double rows,
                            double length, int tp);
/* Seconds of a rank that trains on `rows` rows of sequences of `length`, of which loss_share have a loss. */
double clime_plan_train_s(const struct clime_model_work *w, const struct clime_device_rates *d, double rows,
                          double length, double loss_share, enum clime_recompute recompute);

#endif
