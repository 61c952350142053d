/* Options of the learner and statistics of a training step, shared by the learner and its parts. */
#ifndef CLIME_TRAINER_LEARN_LEARNING_H
#define CLIME_TRAINER_LEARN_LEARNING_H

#include "common/group/place.h"
#include "common/options/options.h"
#include "model/backward.h"
#include "trainer/algorithm/objective.h"

/* Whether ranks shard the weights (model/model.h). AUTO: if whole weights do not fit. */
enum clime_shard_weights { CLIME_SHARD_AUTO, CLIME_SHARD_ON, CLIME_SHARD_OFF };

enum clime_schedule { CLIME_LR_CONSTANT, CLIME_LR_LINEAR, CLIME_LR_COSINE };

struct clime_learner_options { /* names are slime's options */
    const char *hf_checkpoint; /* initial weights, config */
    const char *ref_load;      /* reference model; NULL = none needed */
    struct clime_model_options model;
    struct clime_objective objective;
    /* critic (for estimators that need one) */
    const char *critic_load; /* Hugging Face folder; NULL = hf_checkpoint */
    double critic_lr, value_clip;
    /* optimizer */
    double lr, min_lr, adam_beta1, adam_beta2, adam_eps, weight_decay, clip_grad; /* clip_grad 0 = off */
    struct clime_opt_list only_train, freeze; /* patterns of tensor names (trainer/learn/freeze.h); at most one list */
    enum clime_schedule schedule;
    int64_t lr_warmup_iters, lr_decay_iters; /* steps */
    /* memory */
    int max_tokens_per_gpu; /* rows of a micro-batch over all ranks that share it; a longer sample, up to max_seq_len,
                               gets its own */
    int max_seq_len;
    enum clime_recompute recompute;
    bool kept_sets;       /* every sample has the sets its tokens were drawn from */
    bool replays_experts; /* samples may hold the experts to replay (trainer/sample/experts.h) */
    bool read_whole;      /* servers read all weights from this rank's device memory */
    int server_devices;   /* devices per server on the ranks' devices; 0 = no such server. Equal to the ranks: servers
                             compute with the ranks' parts in place */
    bool beside_servers;  /* sft: evaluation servers run on the same device */
    bool optimizer_cpu_offload; /* master weights and moments in host memory if the device has its own */
    /* ranks (docs/devices.md) */
    int n_ranks, gradient_lanes; /* 0 = 1 rank; 0 = one lane per rank */
    int context_parallel;        /* cuts of a micro-batch, a lane each; 0 = 1 */
    int expert_parallel; /* ranks that experts are distributed over, whole; 0 = 1: no expert stays with a rank */
    int base_gpu;        /* GPU of a host's first rank; the next ranks follow */
    enum clime_links_way rank_transport;
    enum clime_shard_weights shard_weights;
    struct clime_place place; /* in a launcher's group; world 0 or 1: this rank starts the others */
    int elastic;              /* minimum ranks to continue with when devices are lost; 0 = all */
    uint64_t left_out;        /* bit mask of the host's lost devices, which no rank uses */
    const char *rank_logs;    /* folder of the other ranks' logs; NULL = this rank's log */
    int64_t rank_limit_us;    /* limit of every wait for another rank; 0 = 10 minutes */
};

struct clime_rank_times { /* a rank's times in a step; the rest of whole_us is waiting and exchange */
    int64_t forward_us, backward_us, optimizer_us, whole_us;
    int64_t sent_bytes;
    int waits_for; /* rank it waited for longest in exchanges; -1 = none, or its device waits */
};

struct clime_step_stats {
    int64_t step;                           /* optimizer steps done, including this one */
    double loss, pg_loss, kl_loss, entropy; /* weighted as in the loss; entropy and kl are token means */
    double clipfrac, ppo_kl;                /* token means; ppo_kl = mean(behave - logp) */
    double grad_norm, lr;
    double ois;                                         /* token mean of exp(logp - old) */
    double tis, tis_abs, tis_clipfrac;                  /* token means of rho, |rho - 1|, share changed */
    double rs_masked, rs_veto;                          /* share of tokens rejected, share of samples vetoed */
    double pairs_right, reward_chosen, reward_rejected; /* pairs: share ranked correctly, means of beta * s */
    double opsm_clipfrac;                               /* share of tokens masked */
    double value_loss, value_clipfrac, critic_norm;     /* critic; value_loss as in its loss */
    int64_t critic_us;
    bool critic_only, critic_skipped;
    double gap_max; /* train_rollout_logprob_abs_diff: max |logp - behave| over the gap's tokens; must be exactly 0 */
    int64_t gap_tokens; /* 0 = no gap to report */
    int64_t gap_wrong;  /* unequal tokens among these; if any, gap_max is at: */
    struct {
        int sample;           /* index in the step's input */
        int32_t token;        /* index in its response */
        double logp, sampled; /* log-probability of the trainer and of the server */
    } gap_at;
    int64_t routing_tokens; /* the gap's tokens whose expert hash the server reported */
    int64_t routing_wrong;  /* of these, tokens routed to other experts here; if any, the first: */
    struct {
        int sample;
        int32_t token;
        int layer; /* -1 = unknown (trainer/learn/routing.h) */
    } routing_at;
    int64_t replayed_tokens;    /* tokens of samples with replayed experts whose hash a server reported */
    int64_t replayed_otherwise; /* of these, tokens sampled with other experts than were replayed */
    int64_t tokens, trained_tokens, n_micro;
    int64_t forward_us, backward_us, ref_us, optimizer_us;
    int n_ranks; /* 0 = alone: the times are those above */
    struct clime_rank_times rank[CLIME_GROUP_MAX];
    int64_t updates; /* updates of the weights so far, over all starts */
    bool skipped;    /* the gradient was not finite: no update was made */
};

#endif
