/* Options of slime's recipes that have no effect here, or need features that clime lacks.
 *
 * Called by the parser of rl. Pure tables. Invariant: nothing is ignored silently. A row lists the accepted values and
 * why they suffice; any other value is refused with the row's second reason. */
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
#define NO_WANDB "only --use-wandb would use it"
#define NO_BUFFER "there is no rollout buffer server: groups and samples are in the run folder's ledger"
#define NO_MTP "there is no multi-token prediction"
#define IN_LEDGER "every sample is in the run folder's ledger (docs/ledger.md); --replay trains on it"
#define SAME_BITS "server and trainer compute the same bits in any case"

static const struct clime_inert rows[] = {
    /* parallel sizes and placement */
    {WORDS("expert-tensor-parallel-size", "virtual-pipeline-model-parallel-size"), false, "1", WHOLE},
    {WORDS("sequence-parallel"), true, NULL, WHOLE},
    {WORDS("num-gpus-per-node"), false, NULL, "servers are counted with --num-servers"},
    {WORDS("offload"), true, NULL,
     "the trainer stays in memory; --offload-rollout releases the servers' KV while it trains"},
    {WORDS("offload-train"), true, NULL, "the trainer stays in memory beside the servers"},
    {WORDS("decoder-last-pipeline-num-layers"), false, NULL, WHOLE},
    {WORDS("allgather-cp"), true, NULL,
     "with --context-parallel-size ranks exchange rows for heads; no keys are gathered"},
    {WORDS("distributed-backend"), false, NULL, "the kind of device says how ranks exchange bytes"},
    {WORDS("train-backend"), false, "megatron", "there is one trainer"},
    {WORDS("train-env-vars"), false, "{}", "the trainer is this process: set them in its environment"},
    {WORDS("release-train"), true, "",
     "the trainer's process holds the run; --optimizer-cpu-offload and --recompute-granularity leave more memory"},
    {WORDS("megatron-config-path"), false, "", "options are given on the command line; the critic's are --critic-*"},
    {WORDS("megatron-to-hf-mode"), false, NULL, "Hugging Face folders are read and written as they are"},
    /* numerics that always hold */
    {WORDS("bf16"), true, NULL, "the type follows the checkpoint (--dtype)"},
    {WORDS("deterministic-mode"), true, NULL, "training is deterministic in any case"},
    {WORDS("accumulate-allreduce-grads-in-fp32"), true, NULL, "gradients are fp32 in any case"},
    {WORDS("attention-softmax-in-fp32"), true, NULL, "softmax is fp32 in any case"},
    {WORDS("variable-seq-lengths"), true, NULL, "samples are packed in any case"},
    {WORDS("attention-backend", "sglang-attention-backend"), false, NULL,
     "there is one attention for server and trainer"},
    {WORDS("attention-dropout", "hidden-dropout"), false, "0", "there is no dropout"},
    {WORDS("seed"), false, NULL, "nothing but sampling and shuffling is random (--rollout-seed)"},
    {WORDS("optimizer"), false, "adam", "AdamW is the optimizer"},
    {WORDS("overlap-cpu-optimizer-d2h-h2d"), true, NULL, "with --optimizer-cpu-offload copies overlap in any case"},
    {WORDS("use-precision-aware-optimizer"), true, NULL, "master weights and moments are fp32"},
    {WORDS("use-distributed-optimizer"), true, NULL, "each rank has the states of its part in any case"},
    {WORDS("recompute-method"), false, NULL, "--recompute-granularity decides"},
    {WORDS("recompute-num-layers"), false, NULL, "--recompute-granularity decides, for all layers"},
    {WORDS("recompute-loss-function"), true, NULL,
     "logits are made in chunks, kept where memory is plenty and else made again; the bits are the same"},
    {WORDS("log-probs-chunk-size"), false, NULL, "logits are made in chunks that the memory plan chooses"},
    {WORDS("log-probs-max-tokens-per-gpu"), false, NULL, "no extra forward computes log-probabilities"},
    {WORDS("data-pad-size-multiplier"), false, NULL, "packed rows are not padded"},
    {WORDS("async-save"), true, NULL, "a checkpoint is complete before the next step"},
    {WORDS("start-rollout-id"), false, "", "a run resumes by itself from its run folder"},
    {WORDS("ref-ckpt-step"), false, "", "--ref-load names a folder"},
    /* weight updates */
    {WORDS("update-weight-mode"), false, "full",
     "every update is a full one, but those of --update-weight-transport pull"},
    {WORDS("update-weight-buffer-size"), false, NULL, "weights are sent from where they lie, there is no bucket"},
    {WORDS("update-weight-disk-keep-files"), true, "", NO_DISK},
    {WORDS("update-weight-local-checkpoint-dir"), false, "", NO_DISK},
    {WORDS("update-weight-delta-encoding", "update-weight-delta-checksum"), false, NULL, NO_DELTA},
    {WORDS("custom-update-weight-post-write-path", "rollout-sample-hook-path", "rollout-all-samples-process-path",
           "rollout-data-postprocess-path", "custom-convert-samples-to-train-data-path",
           "custom-rollout-log-function-path", "custom-eval-rollout-log-function-path", "custom-megatron-init-path",
           "custom-megatron-before-log-prob-hook-path", "custom-megatron-before-train-step-hook-path",
           "custom-model-provider-path"),
     false, "", HOOK},
    {WORDS("check-weight-update-equal"), true, NULL, "every update is verified before it takes effect"},
    /* algorithms */
    {WORDS("use-rollout-entropy"), true, NULL, "entropy is measured in the step"},
    {WORDS("opd-type"), false, "sglang|vllm", "the teacher is a server: --opd-teacher-url"},
    {WORDS("opd-teacher-load", "opd-teacher-ckpt-step"), false, "",
     "the teacher is a server: start one on that folder and give --opd-teacher-url"},
    {WORDS("use-routing-replay"), true, NULL, SAME_EXPERTS},
    {WORDS("freeze-indexer"), true, NULL, "no model here has an indexer"},
    {WORDS("qwen-gdn-backend"), false, NULL, "no model here has linear attention"},
    {WORDS("keep-old-actor"), true, NULL, "the old log-probabilities are those of the weights that sampled"},
    {WORDS("disable-compute-advantages-and-returns"), true, "", "supervised training is clime-train sft"},
    {WORDS("reset-optimizer-states", "use-stateless-adam", "variable-global-batch-size", "log-multi-turn"), true, "",
     LATER},
    {WORDS("enable-mtp-training"), true, "", NO_MTP},
    {WORDS("mtp-num-layers"), false, "0", NO_MTP},
    {WORDS("mtp-loss-scaling-factor"), false, NULL, NO_MTP},
    /* rollout */
    {WORDS("rollout-function-path"), false, "slime.rollout.sglang_rollout.generate_rollout",
     "Python cannot be called; what slime has beside its default is --fully-async and clime-train sft"},
    {WORDS("data-source-path"), false, "slime.rollout.data_source.RolloutDataSourceWithBuffer",
     "prompts come from --prompt-data, left-over groups from the ledger"},
    {WORDS("custom-pg-loss-reducer-function-path"), false, "",
     "a constant divisor is --loss-token-divisor, another loss --custom-loss-function-path"},
    {WORDS("eval-function-path"), false, "slime.rollout.sglang_rollout.generate_rollout",
     "Python cannot be called; evaluations run as rollouts do"},
    {WORDS("megatron-deepgemm-forward-layers", "megatron-deepgemm-forward-modules",
           "megatron-deepgemm-moe-forward-layers", "megatron-deepgemm-moe-forward-modules"),
     false, NULL, SAME_BITS},
    {WORDS("rollout-data-transport"), false, NULL, "rollout and training are one process"},
    {WORDS("rollout-buffer-url"), false, "", NO_BUFFER},
    {WORDS("fetch-trajectory-retry-times", "rollout-task-type"), false, NULL, NO_BUFFER},
    {WORDS("min-batch-collection-ratio"), false, "1", NO_BUFFER},
    {WORDS("loss-mask-type"), false, NULL, "masks are exact for every chat template (clime-train sft)"},
    {WORDS("balance-by-flops"), true, NULL, "packs go to the ranks in their order, which decides the sums"},
    {WORDS("variable-global-batch-size-schedule", "load-debug-rollout-data-subsample"), false, "", LATER},
    {WORDS("pg-loss-type"), false, "", LATER ": the policy term is that of --advantage-estimator"},
    {WORDS("custom-config-path"), false, "", "options are given on the command line"},
    {WORDS("disable-rollout-global-dataset"), true, "", "prompts come from --prompt-data"},
    {WORDS("multimodal-keys"), false, "", "text models only"},
    {WORDS("use-fault-tolerance"), true, NULL, "dead servers are replaced in any case"},
    {WORDS("rollout-health-check-first-wait"), false, NULL,
     "a server is asked from its start on: --server-start-timeout"},
    {WORDS("rollout-external-engine-addrs"), false, "", "put a router in front and name it with --router-url"},
    {WORDS("sglang-router-ip", "sglang-router-port", "vllm-router-ip", "vllm-router-port"), false, "",
     "name an external router with --router-url"},
    {WORDS("vllm-server-concurrency"), false, "", "use --server-concurrency"},
    {WORDS("sglang-router-request-timeout-secs", "router-request-timeout-secs"), false, "",
     "use --rollout-request-timeout"},
    {WORDS("vllm-weight-transfer-timeout-sec"), false, NULL, "every transfer has a limit of its own"},
    {WORDS("vllm-weight-sync-packed"), true, NULL, "weights are sent from where they lie, there is no bucket"},
    {WORDS("sglang-config", "vllm-config"), false, "", "servers are alike: --server-* options"},
    {WORDS("prefill-num-servers"), false, "", "prefill and decode run on the same servers"},
    {WORDS("sglang-enable-deterministic-inference", "vllm-enable-deterministic-inference", "no-masked-softmax-fusion",
           "no-rope-fusion", "moe-permute-fusion", "moe-grouped-gemm"),
     true, NULL, SAME_BITS},
    {WORDS("sglang-enable-metrics"), true, NULL, "a server has /metrics in any case"},
    {WORDS("sglang-decode-log-interval"), false, NULL, "a server has /metrics in any case"},
    {WORDS("sglang-watchdog-timeout"), false, NULL, "servers that do not answer are replaced in any case"},
    {WORDS("sglang-dp-size", "sglang-pp-size"), false, "1", "a server's devices share every layer's matrices"},
    {WORDS("sglang-enable-dp-attention"), true, "", "a server's devices share every layer's matrices"},
    {WORDS("sglang-speculative-num-steps"), false, NULL,
     "--sglang-speculative-num-draft-tokens bounds how far a guess goes"},
    {WORDS("sglang-speculative-eagle-topk"), false, NULL, "a guess is one chain of tokens"},
    {WORDS("vllm-gpu-memory-utilization"), false, "",
     "use --server-mem-fraction-static, a part of what is free at start"},
    /* logging */
    {WORDS("use-wandb"), true, "",
     "metrics go to metrics.jsonl, TensorBoard (--use-tensorboard) and MLflow (--mlflow-url)"},
    {WORDS("wandb-mode", "wandb-dir", "wandb-key", "wandb-host", "wandb-team", "wandb-group", "wandb-project",
           "wandb-run-id"),
     false, NULL, NO_WANDB},
    {WORDS("disable-wandb-random-suffix", "wandb-always-use-train-step"), true, NULL, NO_WANDB},
    {WORDS("log-passrate"), true, "", LATER ": evaluations log pass@k (--n-samples-per-eval-prompt)"},
    {WORDS("log-reward-category"), false, "", LATER ": the parts of a weighted sum are logged (--rm-type a:0.9,b:0.1)"},
    {WORDS("log-correct-samples"), true, "", IN_LEDGER},
    {WORDS("save-debug-rollout-data"), false, "",
     "the run folder's ledger holds every rollout: give the folder to --load-debug-rollout-data"},
    {WORDS("load-forge-rollout-data", "save-debug-train-data", "dump-details"), false, "", IN_LEDGER},
    {WORDS("profile-target"), false, "", LATER ": times by stage are in metrics.jsonl"},
    {WORDS("record-memory-history"), true, "", "memory is planned: --explain and the log print every part"},
    {WORDS("memory-snapshot-dir", "memory-snapshot-num-steps", "memory-recorder"), false, NULL,
     "only --record-memory-history would use it"},
    {WORDS("ci-test", "ci-disable-kl-checker"), true, NULL, "the gap is measured in every step"},
    {WORDS("ci-train-rollout-logprob-abs-diff-threshold"), false, NULL,
     "the gap is exactly 0, and is measured in every step"},
    {WORDS("ci-save-grad-norm", "ci-load-grad-norm"), false, "",
     "the ledger has every step's norm, and --replay compares it"},
    {WORDS("http-proxy"), false, "", "the programs of a run talk to each other directly"},
    {WORDS("use-distributed-post"), true, NULL, "requests go out from the trainer's threads"},
    /* model shape, repeated in slime's scripts */
    {WORDS("swiglu", "group-query-attention", "qk-layernorm", "rotary-interleaved", "use-rotary-position-embeddings",
           "use-rope-scaling", "disable-bias-linear", "add-qkv-bias", "untie-embeddings-and-output-weights",
           "post-self-attn-layernorm", "post-mlp-layernorm", "multi-latent-attention", "moe-router-pre-softmax",
           "moe-router-enable-expert-bias"),
     true, NULL, SHAPE},
    {WORDS("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels",
           "normalization", "norm-epsilon", "rotary-base", "rotary-percent", "rope-scaling-factor", "vocab-size",
           "padded-vocab-size", "model-name", "max-position-embeddings", "make-vocab-size-divisible-by",
           "position-embedding-type", "q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim",
           "rotary-scaling-factor", "mscale", "mscale-all-dim", "num-experts", "moe-ffn-hidden-size",
           "moe-shared-expert-intermediate-size", "moe-layer-freq", "moe-router-topk", "moe-router-score-function",
           "moe-router-num-groups", "moe-router-group-topk", "moe-router-topk-scaling-factor"),
     false, NULL, SHAPE},
    /* experts */
    {WORDS("moe-router-dtype"), false, NULL, "a router's logits are fp32 in any case"},
    {WORDS("moe-router-load-balancing-type"), false, NULL, NO_BALANCE},
    {WORDS("moe-aux-loss-coeff", "moe-router-bias-update-rate"), false, "0", NO_BALANCE},
    {WORDS("moe-token-drop-policy"), false, NULL, "no token is dropped"},
    {WORDS("moe-token-dispatcher-type"), false, NULL, ONE_WAY},
    {WORDS("moe-enable-deepep"), true, NULL, ONE_WAY},
    {WORDS("seq-length"), false, NULL, "samples are packed, never padded"},
};

int clime_rl_inert_rows(struct clime_rl_options *o, struct clime_opt *out) {
    return clime_inert_options(rows, CLIME_COUNT(rows), true, CLIME_MAX_INERT, o->inert, out);
}

enum clime_err clime_rl_inert_check(const struct clime_rl_options *o, struct clime_error *e) {
    return clime_inert_check(rows, CLIME_COUNT(rows), o->inert, e);
}

void clime_rl_inert_explain(const struct clime_rl_options *o, struct clime_buf *out) {
    clime_inert_list(rows, CLIME_COUNT(rows), o->inert, out);
}
