#!/bin/bash
# GLM-4-9B (0414, GLM-Z1) on one GPU, server and trainer colocated, the optimizer on the host: slime's
# scripts/run-glm4-9B.sh in clime's terms.
#   scripts/run-glm4-9B.sh MODEL PROMPTS [EVAL-PROMPTS] [more options of clime-train rl]
# MODEL is the Hugging Face folder; PROMPTS JSON lines with "prompt" and "label" (dapo-math-17k), EVAL-PROMPTS the same
# (aime-2024). RUN names the run folder (default runs/glm4-9B). Options given last win: --num-rollout 10, --explain.
#
# What it takes, by the plan's arithmetic (--explain prints it for the GPU at hand): 9.40e9 parameters. fp32 master
# weights and moments, 12 bytes a parameter, are 113 GB (105.1 GiB) and stay on the host, where the CPU updates them to
# the same bits. On the GPU: bf16 weights 17.51 GiB, which the server computes with in place; fp32 gradients 35.02;
# activations with whole layers recomputed 4.8 at most (micro-batches of 4,608 tokens; one longer answer runs alone),
# head 0.6: 58 GiB. Of what is left the server's KV gets 0.7, at 40 KiB a token (40 layers, 2 heads of 128, K and V,
# bf16): on a GPU with 139 GiB a million and a half.
#
# Saving a folder takes no more: weights pass through 32 MiB of host memory.
#
# --no-save-optim: no 113 GB checkpoints, only Hugging Face folders of 19 GB; a restart runs the recorded steps again.
set -eu
[ $# -ge 2 ] || { sed -n '2,6s/^# *//p' "$0" >&2; exit 2; }
model=$1 prompts=$2 eval=
shift 2
case ${1:-} in '' | -*) ;; *) eval=$1 && shift ;; esac
here=$(cd "$(dirname "$0")/.." && pwd)

CKPT_ARGS=(
    --hf-checkpoint "$model"
    --run "${RUN:-$here/runs/glm4-9B}"
    --save-interval 20
    --gap-must-be-zero
    --save-hf "${RUN:-$here/runs/glm4-9B}/hf-{rollout_id}"
    --no-save-optim
)
ROLLOUT_ARGS=(
    --prompt-data "$prompts"
    --input-key prompt
    --label-key label
    --apply-chat-template
    --rollout-shuffle
    --rm-type deepscaler
    --num-rollout 3000
    --rollout-batch-size 32
    --over-sampling-batch-size 64
    --dynamic-sampling-filter-path check_reward_nonzero_std
    --n-samples-per-prompt 8
    --rollout-max-response-len 8192
    --rollout-temperature 1
    --global-batch-size 256
    --balance-data
)
EVAL_ARGS=()
[ -z "$eval" ] || EVAL_ARGS=(
    --eval-interval 20
    --eval-prompt-data aime "$eval"
    --n-samples-per-eval-prompt 16
    --eval-max-response-len 16384
    --eval-top-p 1
)
PERF_ARGS=(
    --recompute-granularity full # slime's tensor, context and expert parallel sizes are 1 here
    --use-dynamic-batch-size
    --max-tokens-per-gpu 4608
    --optimizer-cpu-offload
)
GRPO_ARGS=(
    --advantage-estimator grpo
    --use-kl-loss
    --kl-loss-coef 0.00
    --kl-loss-type low_var_kl
    --entropy-coef 0.00
    --eps-clip 0.2
    --eps-clip-high 0.28
)
OPTIMIZER_ARGS=(
    --optimizer adam
    --lr 1e-6
    --lr-decay-style constant
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.98
)
SERVER_ARGS=(
    --colocate
    --server-mem-fraction-static 0.7
    --server-concurrency 256
    --server-max-running-requests 256
)

exec "${CLIME_BUILD:-$here/build}/clime-train" rl "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" \
    "${PERF_ARGS[@]}" "${GRPO_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${SERVER_ARGS[@]}" "$@"
