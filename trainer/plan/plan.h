/* What a run would take on so many devices: memory and time, before there are any. A model of both, from the shapes of
 * the model (work.h) and measured rates (rates.h); tests/unit/trainer/test_plan.c holds it against the runs that were
 * made. The trainer's memory is not modelled but the learner's own plan (trainer/learn/memory.h). Pure; main thread.
 *
 * The run is colocated: every device trains and serves. Servers beside no way of training that fits have the devices
 * alone. */
#ifndef CLIME_TRAINER_PLAN_PLAN_H
#define CLIME_TRAINER_PLAN_PLAN_H

#include "model/model.h"
#include "trainer/learn/memory.h"
#include "trainer/plan/work.h"

struct clime_plan_wish {
    const struct clime_device_rates *device;
    int devices, hosts;      /* devices in all */
    int tp;                  /* devices of a server; 0 = those of a host */
    double prompts, samples; /* of a rollout; answers to each */
    double prompt_len, answer_len;
    int rows;         /* of a micro-batch; with cp each rank's */
    int cp;           /* neighbours that share one, a power of two that divides the ranks; 0 = 1 */
    int experts_over; /* neighbours that have all experts between them, where they stay; 0 = the most that there can be
                       */
    enum clime_recompute recompute;
    bool offload; /* master weights and moments in host memory */
};

/* How weights and gradients lie over the trainer's ranks. */
enum clime_plan_way {
    CLIME_PLAN_REPLICATED, /* each has all */
    CLIME_PLAN_SHARDED,    /* each has a part, and gathers a layer while it computes the one before */
    CLIME_PLAN_EXPERTS,    /* that, but experts stay where they are and rows travel to them */
    CLIME_PLAN_WAYS
};
extern const char *const clime_plan_way_names[CLIME_PLAN_WAYS];

struct clime_plan_training {
    bool possible;        /* else nothing is planned: there are no experts that could stay, or they do not divide */
    double gib, host_gib; /* of a device, of a host */
    bool fits;
    double compute_s;  /* of a micro-batch */
    double gather_s;   /* of its weights, and of rows: what goes over links for a micro-batch */
    double rows_s;     /* of that the rows, which hide behind nothing: to experts, and to other ranks' heads */
    double exchange_s; /* of its gradients */
    double step_s;     /* the rollout's training: as many micro-batches as there are, then the optimizer */
};

struct clime_run_plan {
    struct clime_model_work work;
    struct clime_memory_plan memory[CLIME_PLAN_WAYS]; /* of rank 0 */
    double micro_batches;                             /* of a rank */
    double optimizer_s;
    struct clime_plan_training training[CLIME_PLAN_WAYS];
    int experts_over; /* as is wished; 1 = they cannot stay */
    int way;          /* the first that fits; -1 = none */
    int tp, servers;
    double kv_tokens, running; /* of a server; answers at a time */
    double generate_s;
    double tokens_per_s; /* answered tokens of a device, generation and training together */
};

/* m: prepared on the CPU in bf16, and cut as the last way is when it returns. */
void clime_run_plan(struct clime_model *m, const struct clime_plan_wish *wish, struct clime_run_plan *out);

/* Seconds of a decode step of `rows` sequences with `context` keys each, over tp devices. */
double clime_plan_decode_s(const struct clime_model_work *w, const struct clime_device_rates *d, double rows,
                           double context, int tp);
double clime_plan_prefill_s(const struct clime_model_work *w, const struct clime_device_rates *d, double rows,
                            double length, int tp);
/* Of a rank that trains on `rows` rows of sequences of a length, of which loss_share have a loss. */
double clime_plan_train_s(const struct clime_model_work *w, const struct clime_device_rates *d, double rows,
                          double length, double loss_share, enum clime_recompute recompute);

#endif
