/* Options of slime's recipes that have no effect here, and those that would need what clime does not have.
 *
 * Called by the parser of rl. Pure tables. Invariant: nothing is read and ignored in silence. A row says which values
 * are accepted and why that is enough; any other value is refused with the row's second reason.
 */
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "trainer/rl_options.h"

struct inert {
    const char *name;
    bool flag;       /* takes no value */
    const char *ok;  /* accepted values "a|b"; NULL = any; "" = none */
    const char *why; /* it has no effect, or is refused */
};

#define SHAPE "the model's shape is read from config.json"
#define ONE_RANK "the trainer is one rank"
#define HOOK                                                                                                           \
    "Python hooks cannot be called; rewards can be a command or a URL (--rm-type command, remote_rm), and "            \
    "trainer/plugin.h says what a shared library can be"
#define LATER "not implemented"

static const struct inert rows[] = {
    /* parallel sizes and placement */
    {"tensor-model-parallel-size", false, "1", ONE_RANK},
    {"pipeline-model-parallel-size", false, "1", ONE_RANK},
    {"context-parallel-size", false, "1", ONE_RANK},
    {"expert-model-parallel-size", false, "1", ONE_RANK},
    {"expert-tensor-parallel-size", false, "1", ONE_RANK},
    {"sequence-parallel", true, NULL, ONE_RANK},
    {"actor-num-nodes", false, "1", ONE_RANK},
    {"actor-num-gpus-per-node", false, "1", ONE_RANK},
    {"rollout-num-gpus-per-engine", false, "1", "a server uses one device"},
    {"rollout-num-gpus", false, "", "say how many servers to start with --num-servers"},
    {"num-gpus-per-node", false, NULL, "servers are counted with --num-servers"},
    {"offload", true, NULL, "the trainer stays in memory; --offload-rollout releases the servers' KV while it trains"},
    {"offload-train", true, NULL, "the trainer stays in memory beside the servers"},
    {"distributed-backend", false, NULL, ONE_RANK},
    {"distributed-timeout-minutes", false, NULL, ONE_RANK},
    {"train-backend", false, "megatron", "there is one trainer"},
    /* numerics that hold in any case */
    {"bf16", true, NULL, "the type follows the checkpoint (--dtype)"},
    {"deterministic-mode", true, NULL, "training is deterministic in any case"},
    {"accumulate-allreduce-grads-in-fp32", true, NULL, "gradients are fp32 in any case"},
    {"attention-softmax-in-fp32", true, NULL, "softmax is fp32 in any case"},
    {"attention-backend", false, NULL, "there is one attention for server and trainer"},
    {"attention-dropout", false, "0", "there is no dropout"},
    {"hidden-dropout", false, "0", "there is no dropout"},
    {"seed", false, NULL, "nothing but sampling and shuffling is random (--rollout-seed)"},
    {"optimizer", false, "adam", "AdamW is the optimizer"},
    {"overlap-cpu-optimizer-d2h-h2d", true, NULL, "with --optimizer-cpu-offload copies overlap in any case"},
    {"use-precision-aware-optimizer", true, NULL, "master weights and moments are fp32"},
    {"use-distributed-optimizer", true, NULL, ONE_RANK},
    {"recompute-method", false, NULL, "--recompute-granularity decides"},
    {"recompute-num-layers", false, NULL, "--recompute-granularity decides, for all layers"},
    {"recompute-loss-function", true, NULL, "logits are made in chunks and never kept"},
    {"log-probs-chunk-size", false, NULL, "logits are made in chunks that the memory plan chooses"},
    {"log-probs-max-tokens-per-gpu", false, NULL, "no extra forward computes log-probabilities"},
    {"data-pad-size-multiplier", false, NULL, "packed rows are not padded"},
    {"async-save", true, "", LATER ": a checkpoint is complete before the next step"},
    {"start-rollout-id", false, "", "a run resumes by itself from its run folder"},
    {"ref-ckpt-step", false, "", "--ref-load names a folder"},
    /* weight updates */
    {"update-weight-mode", false, "full", "deltas are not implemented"},
    {"update-weight-buffer-size", false, NULL, "weights are streamed, there is no bucket"},
    /* algorithms */
    {"use-rollout-entropy", true, NULL, "entropy is measured in the step"},
    {"opd-type", false, "sglang|vllm", "the teacher is a server: --opd-teacher-url"},
    {"opd-teacher-load", false, "", "the teacher is a server: start one on that folder and give --opd-teacher-url"},
    {"opd-teacher-ckpt-step", false, "",
     "the teacher is a server: start one on that folder and give --opd-teacher-url"},
    {"use-routing-replay", true, "", "no mixture of experts"},
    {"use-rollout-routing-replay", true, "", "no mixture of experts"},
    {"keep-old-actor", true, "", LATER},
    {"reset-optimizer-states", true, "", LATER},
    {"use-stateless-adam", true, "", LATER},
    {"enable-mtp-training", true, "", LATER},
    {"mtp-num-layers", false, "0", LATER},
    {"only-train-params-name-list", false, "", LATER},
    {"freeze-params-name-list", false, "", LATER},
    /* rollout */
    {"rollout-function-path", false, "", HOOK},
    {"data-source-path", false, "", HOOK},
    {"custom-generate-function-path", false, "", HOOK},
    {"custom-pg-loss-reducer-function-path", false, "",
     "a constant divisor is --loss-token-divisor, another loss --custom-loss-function-path"},
    {"rollout-sample-hook-path", false, "", HOOK},
    {"rollout-sample-filter-path", false, "", HOOK},
    {"rollout-all-samples-process-path", false, "", HOOK},
    {"rollout-data-postprocess-path", false, "", HOOK},
    {"eval-function-path", false, "", HOOK},
    {"custom-config-path", false, "", "options are given on the command line"},
    {"custom-model-provider-path", false, "", HOOK},
    {"disable-rollout-global-dataset", true, "", "prompts come from --prompt-data"},
    {"multimodal-keys", false, "", "text models only"},
    {"use-fault-tolerance", true, NULL, "dead servers are replaced in any case"},
    {"rollout-health-check-interval", false, NULL, "the router probes its servers"},
    {"rollout-health-check-timeout", false, NULL, "the router probes its servers"},
    {"rollout-health-check-first-wait", false, NULL, "the router probes its servers"},
    {"rollout-external-engine-addrs", false, "", "put a router in front and name it with --router-url"},
    {"sglang-router-ip", false, "", "name an external router with --router-url"},
    {"sglang-router-port", false, "", "name an external router with --router-url"},
    {"vllm-server-concurrency", false, "", "use --server-concurrency"},
    {"eval-config", false, "", LATER ": use --eval-prompt-data and the --eval-* options"},
    /* logging */
    {"use-wandb", true, "", "metrics go to metrics.jsonl in the run folder"},
    {"use-tensorboard", true, "", "metrics go to metrics.jsonl in the run folder"},
    {"save-debug-rollout-data", false, "",
     "the run folder's ledger holds every rollout: give the folder to --load-debug-rollout-data"},
    {"ci-test", true, NULL, "the gap is measured in every step"},
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
};

_Static_assert(CLIME_COUNT(rows) <= CLIME_MAX_INERT, "raise CLIME_MAX_INERT");

int clime_rl_inert_rows(struct clime_rl_options *o, struct clime_opt *out) {
    for (size_t i = 0; i < CLIME_COUNT(rows); i++)
        out[i] = (struct clime_opt){.name = rows[i].name,
                                    .type = rows[i].flag ? CLIME_OPT_BOOL : CLIME_OPT_STRING,
                                    .value = rows[i].flag ? (void *)&o->inert_given[i] : (void *)&o->inert_values[i],
                                    .choices = rows[i].ok && rows[i].ok[0] ? rows[i].ok : NULL,
                                    .help = rows[i].why};
    return (int)CLIME_COUNT(rows);
}

static bool same_number(const char *a, const char *b) {
    char *end_a, *end_b;
    double x = strtod(a, &end_a), y = strtod(b, &end_b);
    return end_a != a && end_b != b && !*end_a && (!*end_b || *end_b == '|') && x == y;
}

static bool accepted(const char *ok, const char *value) {
    if (!ok) return true;
    size_t n = strlen(value);
    for (const char *at = ok; *at;) {
        size_t len = strcspn(at, "|");
        if ((len == n && !memcmp(at, value, n)) || same_number(value, at)) return true;
        at += len + (at[len] == '|');
    }
    return false;
}

enum clime_err clime_rl_inert_check(const struct clime_rl_options *o, struct clime_error *e) {
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        const struct inert *r = &rows[i];
        if (r->flag && o->inert_given[i] && r->ok)
            return clime_fail(e, CLIME_ERR_INPUT, "--%s cannot be honoured: %s", r->name, r->why);
        if (!r->flag && o->inert_values[i] && !accepted(r->ok, o->inert_values[i]))
            return clime_fail(e, CLIME_ERR_INPUT, "--%s %s cannot be honoured: %s", r->name, o->inert_values[i],
                              r->why);
    }
    return CLIME_OK;
}

void clime_rl_inert_explain(const struct clime_rl_options *o, struct clime_buf *out) {
    for (size_t i = 0; i < CLIME_COUNT(rows); i++)
        if (rows[i].flag ? o->inert_given[i] : o->inert_values[i] != NULL)
            clime_buf_printf(out, "  --%s%s%s: %s\n", rows[i].name, rows[i].flag ? "" : " ",
                             rows[i].flag ? "" : o->inert_values[i], rows[i].why);
}
