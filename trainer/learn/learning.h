/* How a policy is to learn, and what one step of it was: options and figures, known to the learner and to its parts. */
#ifndef CLIME_TRAINER_LEARN_LEARNING_H
#define CLIME_TRAINER_LEARN_LEARNING_H

#include "common/group/place.h"
#include "common/options/options.h"
#include "model/backward.h"
#include "trainer/algorithm/objective.h"

/* Whether ranks keep parts of the weights (model/model.h). AUTO: where whole ones do not fit. */
enum clime_shard_weights { CLIME_SHARD_AUTO, CLIME_SHARD_ON, CLIME_SHARD_OFF };

enum clime_schedule { CLIME_LR_CONSTANT, CLIME_LR_LINEAR, CLIME_LR_COSINE };

struct clime_learner_options { /* names are slime's options */
    const char *hf_checkpoint; /* weights at the start, config */
    const char *ref_load;      /* reference model; NULL = none needed */
    struct clime_model_options model;
    struct clime_objective objective;
    /* critic (an estimator that needs one) */
    const char *critic_load; /* Hugging Face folder; NULL = hf_checkpoint */
    double critic_lr, value_clip;
    /* optimizer */
    double lr, min_lr, adam_beta1, adam_beta2, adam_eps, weight_decay, clip_grad; /* clip_grad 0 = off */
    struct clime_opt_list only_train, freeze; /* patterns of tensors' names (trainer/learn/freeze.h); one at most */
    enum clime_schedule schedule;
    int64_t lr_warmup_iters, lr_decay_iters; /* steps */
    /* memory */
    int max_tokens_per_gpu; /* rows of a micro-batch, of all ranks that share it; longer samples get one of their own up
                               to max_seq_len */
    int max_seq_len;
    enum clime_recompute recompute;
    bool kept_sets;       /* every sample holds what its tokens were drawn from */
    bool replays_experts; /* samples may hold those that their rows are given (trainer/sample/experts.h) */
    bool read_whole;      /* servers get the weights from this rank's device memory, which must have all of them */
    int server_devices;  /* of each server on the ranks' devices: as many as there are ranks compute with parts that are
                            their shares, in place; 0 = there is none */
    bool beside_servers; /* sft: servers evaluate on the same device */
    bool optimizer_cpu_offload; /* master weights and moments in host memory where the device has its own */
    /* ranks (docs/devices.md) */
    int n_ranks, gradient_lanes; /* 0 = 1; 0 = as many lanes as ranks */
    int context_parallel;        /* cuts of a micro-batch, each of them a lane; 0 = 1 */
    int expert_parallel;         /* ranks that have some experts each, whole; 0 = 1: no expert stays with a rank */
    int base_gpu;                /* a host's first rank has this GPU, the next the next */
    enum clime_links_way rank_transport;
    enum clime_shard_weights shard_weights;
    struct clime_place place; /* of a launcher's group; world 0 or 1: this rank starts the others */
    int elastic;              /* ranks that it goes on with at least where devices are lost; 0 = with all */
    uint64_t left_out;        /* the host's devices that are lost, a bit each: no rank has them */
    const char *rank_logs;    /* folder of their logs; NULL = where this one's goes */
    int64_t rank_limit_us;    /* of every wait for another rank; 0 = 10 minutes */
};

struct clime_rank_times { /* of a rank's part in a step; what is left of whole_us it waits and exchanges */
    int64_t forward_us, backward_us, optimizer_us, whole_us;
    int64_t sent_bytes;
    int waits_for; /* the rank that it has waited for longest in exchanges; -1 = for nobody, or its device waits */
};

struct clime_step_stats {
    int64_t step;                           /* optimizer steps done, this one included */
    double loss, pg_loss, kl_loss, entropy; /* weighted as in the loss; entropy and kl are token means */
    double clipfrac, ppo_kl;                /* token means; ppo_kl = mean(behave - logp) */
    double grad_norm, lr;
    double ois;                                         /* token mean of exp(logp - old) */
    double tis, tis_abs, tis_clipfrac;                  /* token means of rho, |rho - 1|, share that was changed */
    double rs_masked, rs_veto;                          /* shares of tokens rejected, of samples vetoed */
    double pairs_right, reward_chosen, reward_rejected; /* of pairs: share told apart rightly, means of beta * s */
    double opsm_clipfrac;                               /* share of tokens masked */
    double value_loss, value_clipfrac, critic_norm;     /* of the critic; value_loss as in its loss */
    int64_t critic_us;
    bool critic_only, critic_skipped;
    double gap_max;     /* max |logp - behave| over the gap's tokens: train_rollout_logprob_abs_diff; exactly 0 */
    int64_t gap_tokens; /* 0 = no gap to report */
    int64_t gap_wrong;  /* tokens of these that are not equal; where there are any, gap_max is at: */
    struct {
        int sample;           /* of the step's input */
        int32_t token;        /* of its response, from 0 */
        double logp, sampled; /* the trainer's number and the server's */
    } gap_at;
    int64_t routing_tokens; /* of the gap's tokens those of which a server said which experts drew them */
    int64_t
        routing_wrong; /* of these those that other experts would have drawn here; where there are any, the first: */
    struct {
        int sample;
        int32_t token;
        int layer; /* -1 = not known (trainer/learn/routing.h) */
    } routing_at;
    int64_t replayed_tokens;    /* of samples whose rows are given their experts, those of which a server said a hash */
    int64_t replayed_otherwise; /* of these those that other experts drew than its row was given */
    int64_t tokens, trained_tokens, n_micro;
    int64_t forward_us, backward_us, ref_us, optimizer_us;
    int n_ranks; /* 0 = alone: the times are those above */
    struct clime_rank_times rank[CLIME_GROUP_MAX];
    int64_t updates; /* of the weights so far, over all starts */
    bool skipped;    /* the gradient was not finite: no update was made, and this says so */
};

#endif
