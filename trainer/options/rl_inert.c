/* Options of slime's recipes that have no effect here, and those that would need what clime does not have.
 *
 * Called by the parser of rl. Pure tables. Invariant: nothing is read and ignored in silence. A row says which values
 * are accepted and why that is enough; any other value is refused with the row's second reason.
 */
#include "trainer/options/rl_options.h"

#define SHAPE "the model's shape is read from config.json"
#define WHOLE "every rank computes rows of its own with whole layers"
#define ONE_WAY "rows go to experts in one way (--expert-model-parallel-size)"
#define HOOK                                                                                                           \
    "Python cannot be called; trainer/plugin/plugin.h says what a shared library can be, and a reward may be a "       \
    "command or a "                                                                                                    \
    "URL"
#define LATER "not implemented"
#define NO_DELTA "a delta has one form (--update-weight-transport pull)"
#define NO_DISK "versions in a folder are packets, which go when newer ones are there (--update-weight-transport pull)"
#define NO_BALANCE "there is no loss and no update that balances experts"
#define SAME_EXPERTS                                                                                                   \
    "server and trainer choose the same experts from the same bits: nothing is replayed, and every step checks it"
#define ROLLOUT_REPLAY "use-rollout-routing-replay"
#define NO_WANDB "only --use-wandb would use it"
#define NO_BUFFER "there is no rollout buffer server: groups and samples are in the run folder's ledger"
#define NO_MTP "there is no multi-token prediction"
#define IN_LEDGER "every sample is in the run folder's ledger (docs/ledger.md); --replay trains on it"
#define SAME_BITS "server and trainer compute the same bits in any case"

static const struct clime_inert rows[] = {
    /* parallel sizes and placement */
    {"expert-tensor-parallel-size", false, "1", WHOLE},
    {"sequence-parallel", true, NULL, WHOLE},
    {"num-gpus-per-node", false, NULL, "servers are counted with --num-servers"},
    {"offload", true, NULL, "the trainer stays in memory; --offload-rollout releases the servers' KV while it trains"},
    {"offload-train", true, NULL, "the trainer stays in memory beside the servers"},
    {"virtual-pipeline-model-parallel-size", false, "1", WHOLE},
    {"decoder-last-pipeline-num-layers", false, NULL, WHOLE},
    {"allgather-cp", true, NULL, "with --context-parallel-size ranks exchange rows for heads; no keys are gathered"},
    {"distributed-backend", false, NULL, "the kind of device says how ranks exchange bytes"},
    {"train-backend", false, "megatron", "there is one trainer"},
    {"train-env-vars", false, "{}", "the trainer is this process: set them in its environment"},
    {"release-train", true, "",
     "the trainer's process holds the run; --optimizer-cpu-offload and --recompute-granularity leave more memory"},
    {"megatron-config-path", false, "", "options are given on the command line; the critic's are --critic-*"},
    {"megatron-to-hf-mode", false, NULL, "Hugging Face folders are read and written as they are"},
    /* numerics that hold in any case */
    {"bf16", true, NULL, "the type follows the checkpoint (--dtype)"},
    {"deterministic-mode", true, NULL, "training is deterministic in any case"},
    {"accumulate-allreduce-grads-in-fp32", true, NULL, "gradients are fp32 in any case"},
    {"attention-softmax-in-fp32", true, NULL, "softmax is fp32 in any case"},
    {"variable-seq-lengths", true, NULL, "samples are packed in any case"},
    {"attention-backend", false, NULL, "there is one attention for server and trainer"},
    {"attention-dropout", false, "0", "there is no dropout"},
    {"hidden-dropout", false, "0", "there is no dropout"},
    {"seed", false, NULL, "nothing but sampling and shuffling is random (--rollout-seed)"},
    {"optimizer", false, "adam", "AdamW is the optimizer"},
    {"overlap-cpu-optimizer-d2h-h2d", true, NULL, "with --optimizer-cpu-offload copies overlap in any case"},
    {"use-precision-aware-optimizer", true, NULL, "master weights and moments are fp32"},
    {"use-distributed-optimizer", true, NULL, "each rank has the states of its part in any case"},
    {"recompute-method", false, NULL, "--recompute-granularity decides"},
    {"recompute-num-layers", false, NULL, "--recompute-granularity decides, for all layers"},
    {"recompute-loss-function", true, NULL,
     "logits are made in chunks, kept where memory is plenty and else made again; the bits are the same"},
    {"log-probs-chunk-size", false, NULL, "logits are made in chunks that the memory plan chooses"},
    {"log-probs-max-tokens-per-gpu", false, NULL, "no extra forward computes log-probabilities"},
    {"data-pad-size-multiplier", false, NULL, "packed rows are not padded"},
    {"async-save", true, NULL, "a checkpoint is complete before the next step"},
    {"start-rollout-id", false, "", "a run resumes by itself from its run folder"},
    {"ref-ckpt-step", false, "", "--ref-load names a folder"},
    /* weight updates */
    {"update-weight-mode", false, "full", "every update is a full one, but those of --update-weight-transport pull"},
    {"update-weight-buffer-size", false, NULL, "weights are sent from where they lie, there is no bucket"},
    {"update-weight-disk-keep-files", true, "", NO_DISK},
    {"update-weight-local-checkpoint-dir", false, "", NO_DISK},
    {"update-weight-delta-encoding", false, NULL, NO_DELTA},
    {"update-weight-delta-checksum", false, NULL, NO_DELTA},
    {"custom-update-weight-post-write-path", false, "", HOOK},
    {"check-weight-update-equal", true, NULL, "every update is verified before it takes effect"},
    /* algorithms */
    {"use-rollout-entropy", true, NULL, "entropy is measured in the step"},
    {"opd-type", false, "sglang|vllm", "the teacher is a server: --opd-teacher-url"},
    {"opd-teacher-load", false, "", "the teacher is a server: start one on that folder and give --opd-teacher-url"},
    {"opd-teacher-ckpt-step", false, "",
     "the teacher is a server: start one on that folder and give --opd-teacher-url"},
    {"use-routing-replay", true, NULL, SAME_EXPERTS},
    {ROLLOUT_REPLAY, true, NULL, SAME_EXPERTS},
    {"freeze-indexer", true, NULL, "no model here has an indexer"},
    {"qwen-gdn-backend", false, NULL, "no model here has linear attention"},
    {"keep-old-actor", true, NULL, "the old log-probabilities are those of the weights that sampled"},
    {"disable-compute-advantages-and-returns", true, "", "supervised training is clime-train sft"},
    {"reset-optimizer-states", true, "", LATER},
    {"use-stateless-adam", true, "", LATER},
    {"enable-mtp-training", true, "", NO_MTP},
    {"mtp-num-layers", false, "0", NO_MTP},
    {"mtp-loss-scaling-factor", false, NULL, NO_MTP},
    /* rollout */
    {"rollout-function-path", false, "slime.rollout.sglang_rollout.generate_rollout",
     "Python cannot be called; what slime has beside its default is --fully-async and clime-train sft"},
    {"data-source-path", false, "slime.rollout.data_source.RolloutDataSourceWithBuffer",
     "prompts come from --prompt-data, left-over groups from the ledger"},
    {"custom-pg-loss-reducer-function-path", false, "",
     "a constant divisor is --loss-token-divisor, another loss --custom-loss-function-path"},
    {"rollout-sample-hook-path", false, "", HOOK},
    {"rollout-all-samples-process-path", false, "", HOOK},
    {"rollout-data-postprocess-path", false, "", HOOK},
    {"eval-function-path", false, "slime.rollout.sglang_rollout.generate_rollout",
     "Python cannot be called; evaluations run as rollouts do"},
    {"custom-convert-samples-to-train-data-path", false, "", HOOK},
    {"custom-rollout-log-function-path", false, "", HOOK},
    {"custom-eval-rollout-log-function-path", false, "", HOOK},
    {"custom-megatron-init-path", false, "", HOOK},
    {"custom-megatron-before-log-prob-hook-path", false, "", HOOK},
    {"custom-megatron-before-train-step-hook-path", false, "", HOOK},
    {"megatron-deepgemm-forward-layers", false, NULL, SAME_BITS},
    {"megatron-deepgemm-forward-modules", false, NULL, SAME_BITS},
    {"megatron-deepgemm-moe-forward-layers", false, NULL, SAME_BITS},
    {"megatron-deepgemm-moe-forward-modules", false, NULL, SAME_BITS},
    {"rollout-data-transport", false, NULL, "rollout and training are one process"},
    {"rollout-buffer-url", false, "", NO_BUFFER},
    {"fetch-trajectory-retry-times", false, NULL, NO_BUFFER},
    {"min-batch-collection-ratio", false, "1", NO_BUFFER},
    {"rollout-task-type", false, NULL, NO_BUFFER},
    {"loss-mask-type", false, NULL, "masks are exact for every chat template (clime-train sft)"},
    {"balance-by-flops", true, NULL, "packs go to the ranks in their order, which decides the sums"},
    {"variable-global-batch-size", true, "", LATER},
    {"variable-global-batch-size-schedule", false, "", LATER},
    {"pg-loss-type", false, "", LATER ": the policy term is that of --advantage-estimator"},
    {"custom-config-path", false, "", "options are given on the command line"},
    {"custom-model-provider-path", false, "", HOOK},
    {"disable-rollout-global-dataset", true, "", "prompts come from --prompt-data"},
    {"multimodal-keys", false, "", "text models only"},
    {"use-fault-tolerance", true, NULL, "dead servers are replaced in any case"},
    {"rollout-health-check-first-wait", false, NULL, "a server is asked from its start on: --server-start-timeout"},
    {"rollout-external-engine-addrs", false, "", "put a router in front and name it with --router-url"},
    {"sglang-router-ip", false, "", "name an external router with --router-url"},
    {"sglang-router-port", false, "", "name an external router with --router-url"},
    {"vllm-server-concurrency", false, "", "use --server-concurrency"},
    {"sglang-router-request-timeout-secs", false, "", "use --rollout-request-timeout"},
    {"vllm-router-ip", false, "", "name an external router with --router-url"},
    {"vllm-router-port", false, "", "name an external router with --router-url"},
    {"router-request-timeout-secs", false, "", "use --rollout-request-timeout"},
    {"vllm-weight-transfer-timeout-sec", false, NULL, "every transfer has a limit of its own"},
    {"vllm-weight-sync-packed", true, NULL, "weights are sent from where they lie, there is no bucket"},
    {"sglang-config", false, "", "servers are alike: --server-* options"},
    {"vllm-config", false, "", "servers are alike: --server-* options"},
    {"prefill-num-servers", false, "", "prefill and decode run on the same servers"},
    {"sglang-enable-deterministic-inference", true, NULL, SAME_BITS},
    {"vllm-enable-deterministic-inference", true, NULL, SAME_BITS},
    {"sglang-attention-backend", false, NULL, "there is one attention for server and trainer"},
    {"sglang-enable-metrics", true, NULL, "a server has /metrics in any case"},
    {"sglang-decode-log-interval", false, NULL, "a server has /metrics in any case"},
    {"sglang-watchdog-timeout", false, NULL, "servers that do not answer are replaced in any case"},
    {"sglang-dp-size", false, "1", "a server's devices share every layer's matrices"},
    {"sglang-pp-size", false, "1", "a server's devices share every layer's matrices"},
    {"sglang-enable-dp-attention", true, "", "a server's devices share every layer's matrices"},
    {"sglang-speculative-num-steps", false, NULL, "--sglang-speculative-num-draft-tokens bounds how far a guess goes"},
    {"sglang-speculative-eagle-topk", false, NULL, "a guess is one chain of tokens"},
    {"vllm-gpu-memory-utilization", false, "", "use --server-mem-fraction-static, a part of what is free at start"},
    /* logging */
    {"use-wandb", true, "", "metrics go to metrics.jsonl, TensorBoard (--use-tensorboard) and MLflow (--mlflow-url)"},
    {"wandb-mode", false, NULL, NO_WANDB},
    {"wandb-dir", false, NULL, NO_WANDB},
    {"wandb-key", false, NULL, NO_WANDB},
    {"wandb-host", false, NULL, NO_WANDB},
    {"wandb-team", false, NULL, NO_WANDB},
    {"wandb-group", false, NULL, NO_WANDB},
    {"wandb-project", false, NULL, NO_WANDB},
    {"wandb-run-id", false, NULL, NO_WANDB},
    {"disable-wandb-random-suffix", true, NULL, NO_WANDB},
    {"wandb-always-use-train-step", true, NULL, NO_WANDB},
    {"log-multi-turn", true, "", LATER},
    {"log-passrate", true, "", LATER ": evaluations log pass@k (--n-samples-per-eval-prompt)"},
    {"log-reward-category", false, "", LATER ": the parts of a weighted sum are logged (--rm-type a:0.9,b:0.1)"},
    {"log-correct-samples", true, "", IN_LEDGER},
    {"save-debug-rollout-data", false, "",
     "the run folder's ledger holds every rollout: give the folder to --load-debug-rollout-data"},
    {"load-debug-rollout-data-subsample", false, "", LATER},
    {"load-forge-rollout-data", false, "", IN_LEDGER},
    {"save-debug-train-data", false, "", IN_LEDGER},
    {"dump-details", false, "", IN_LEDGER},
    {"profile-target", false, "", LATER ": times by stage are in metrics.jsonl"},
    {"record-memory-history", true, "", "memory is planned: --explain and the log print every part"},
    {"memory-snapshot-dir", false, NULL, "only --record-memory-history would use it"},
    {"memory-snapshot-num-steps", false, NULL, "only --record-memory-history would use it"},
    {"memory-recorder", false, NULL, "only --record-memory-history would use it"},
    {"ci-test", true, NULL, "the gap is measured in every step"},
    {"ci-disable-kl-checker", true, NULL, "the gap is measured in every step"},
    {"ci-train-rollout-logprob-abs-diff-threshold", false, NULL, "the gap is exactly 0, and is measured in every step"},
    {"ci-save-grad-norm", false, "", "the ledger has every step's norm, and --replay compares it"},
    {"ci-load-grad-norm", false, "", "the ledger has every step's norm, and --replay compares it"},
    {"http-proxy", false, "", "the programs of a run talk to each other directly"},
    {"use-distributed-post", true, NULL, "requests go out from the trainer's threads"},
    /* model shape, repeated in slime's scripts */
    {"swiglu", true, NULL, SHAPE},
    {"num-layers", false, NULL, SHAPE},
    {"hidden-size", false, NULL, SHAPE},
    {"ffn-hidden-size", false, NULL, SHAPE},
    {"num-attention-heads", false, NULL, SHAPE},
    {"group-query-attention", true, NULL, SHAPE},
    {"num-query-groups", false, NULL, SHAPE},
    {"kv-channels", false, NULL, SHAPE},
    {"qk-layernorm", true, NULL, SHAPE},
    {"normalization", false, NULL, SHAPE},
    {"norm-epsilon", false, NULL, SHAPE},
    {"rotary-base", false, NULL, SHAPE},
    {"rotary-percent", false, NULL, SHAPE},
    {"rotary-interleaved", true, NULL, SHAPE},
    {"use-rotary-position-embeddings", true, NULL, SHAPE},
    {"use-rope-scaling", true, NULL, SHAPE},
    {"rope-scaling-factor", false, NULL, SHAPE},
    {"disable-bias-linear", true, NULL, SHAPE},
    {"add-qkv-bias", true, NULL, SHAPE},
    {"vocab-size", false, NULL, SHAPE},
    {"padded-vocab-size", false, NULL, SHAPE},
    {"untie-embeddings-and-output-weights", true, NULL, SHAPE},
    {"post-self-attn-layernorm", true, NULL, SHAPE},
    {"post-mlp-layernorm", true, NULL, SHAPE},
    {"model-name", false, NULL, SHAPE},
    {"max-position-embeddings", false, NULL, SHAPE},
    {"make-vocab-size-divisible-by", false, NULL, SHAPE},
    {"position-embedding-type", false, NULL, SHAPE},
    {"no-masked-softmax-fusion", true, NULL, SAME_BITS},
    /* latent attention */
    {"multi-latent-attention", true, NULL, SHAPE},
    {"q-lora-rank", false, NULL, SHAPE},
    {"kv-lora-rank", false, NULL, SHAPE},
    {"qk-head-dim", false, NULL, SHAPE},
    {"qk-pos-emb-head-dim", false, NULL, SHAPE},
    {"v-head-dim", false, NULL, SHAPE},
    {"rotary-scaling-factor", false, NULL, SHAPE},
    {"mscale", false, NULL, SHAPE},
    {"mscale-all-dim", false, NULL, SHAPE},
    {"no-rope-fusion", true, NULL, SAME_BITS},
    /* experts */
    {"num-experts", false, NULL, SHAPE},
    {"moe-ffn-hidden-size", false, NULL, SHAPE},
    {"moe-shared-expert-intermediate-size", false, NULL, SHAPE},
    {"moe-layer-freq", false, NULL, SHAPE},
    {"moe-router-topk", false, NULL, SHAPE},
    {"moe-router-score-function", false, NULL, SHAPE},
    {"moe-router-pre-softmax", true, NULL, SHAPE},
    {"moe-router-enable-expert-bias", true, NULL, SHAPE},
    {"moe-router-num-groups", false, NULL, SHAPE},
    {"moe-router-group-topk", false, NULL, SHAPE},
    {"moe-router-topk-scaling-factor", false, NULL, SHAPE},
    {"moe-router-dtype", false, NULL, "a router's logits are fp32 in any case"},
    {"moe-router-load-balancing-type", false, NULL, NO_BALANCE},
    {"moe-aux-loss-coeff", false, "0", NO_BALANCE},
    {"moe-router-bias-update-rate", false, "0", NO_BALANCE},
    {"moe-token-drop-policy", false, NULL, "no token is dropped"},
    {"moe-token-dispatcher-type", false, NULL, ONE_WAY},
    {"moe-enable-deepep", true, NULL, ONE_WAY},
    {"moe-permute-fusion", true, NULL, SAME_BITS},
    {"moe-grouped-gemm", true, NULL, SAME_BITS},
    {"seq-length", false, NULL, "samples are packed, never padded"},
};

_Static_assert(CLIME_COUNT(rows) <= CLIME_MAX_INERT, "raise CLIME_MAX_INERT");

int clime_rl_inert_rows(struct clime_rl_options *o, struct clime_opt *out) {
    clime_inert_options(rows, CLIME_COUNT(rows), o->inert, out);
    return (int)CLIME_COUNT(rows);
}

enum clime_err clime_rl_inert_check(const struct clime_rl_options *o, struct clime_error *e) {
    enum clime_err rc = clime_inert_check(rows, CLIME_COUNT(rows), o->inert, e);
    const bool keeps = o->pause_generation_mode == CLIME_PAUSE_IN_PLACE; /* keys and values, of older weights */
    for (size_t i = 0; i < CLIME_COUNT(rows) && !rc && keeps; i++)
        if (o->inert[i].flag && strcmp(rows[i].name, ROLLOUT_REPLAY) == 0)
            rc =
                clime_fail(e, CLIME_ERR_INPUT,
                           "--" ROLLOUT_REPLAY " cannot be honoured with --pause-generation-mode in_place: the experts "
                           "of samples that keep their keys and values over an update are not replayed; with retract "
                           "server and trainer choose the same");
    return rc;
}

void clime_rl_inert_explain(const struct clime_rl_options *o, struct clime_buf *out) {
    clime_inert_list(rows, CLIME_COUNT(rows), o->inert, out);
}
