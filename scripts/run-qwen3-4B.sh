#!/bin/bash
# Qwen3-4B on one GPU, server and trainer colocated: slime's scripts/run-qwen3-4B.sh in clime's terms.
#   scripts/run-qwen3-4B.sh MODEL PROMPTS [EVAL-PROMPTS] [more options of clime-train rl]
# MODEL is the Hugging Face folder; PROMPTS JSON lines with "prompt" and "label" (dapo-math-17k), EVAL-PROMPTS the same
# (aime-2024). RUN names the run folder (default runs/qwen3-4B). Options given last win: --num-rollout 10, --explain.
#
# What it takes, by the plan's arithmetic (--explain prints it for the GPU at hand): 4.02e9 parameters. bf16 weights
# 7.49 GiB, which the server computes with in place; fp32 master weights 14.98, moments 29.97, gradients 14.98;
# activations of a micro-batch of 9,216 tokens 3.1 with whole layers recomputed (35.2 without), head 0.5: 71 GiB.
# Of what is left the server's KV gets 0.7, at 144 KiB a token (36 layers, 8 heads of 128, K and V, bf16): on a GPU with
# 139 GiB some 345,000 tokens, so the 256 answers of a rollout run as many at a time as fit. With 80 GB
# --optimizer-cpu-offload keeps master weights and moments on the host: 26 GiB of the GPU remain, 45 of the host's.
set -eu
[ $# -ge 2 ] || { sed -n '2,5s/^# *//p' "$0" >&2; exit 2; }
model=$1 prompts=$2 eval=
shift 2
case ${1:-} in '' | -*) ;; *) eval=$1 && shift ;; esac
here=$(cd "$(dirname "$0")/.." && pwd)

CKPT_ARGS=(
    --hf-checkpoint "$model"
    --run "${RUN:-$here/runs/qwen3-4B}"
    --save-interval 20
    --gap-must-be-zero
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
    --max-tokens-per-gpu 9216
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
