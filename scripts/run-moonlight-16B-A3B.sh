#!/bin/bash
# Moonlight-16B-A3B on the GPUs of one host, trainer and server colocated, the optimizer on the host: slime's
# scripts/run-moonlight-16B-A3B.sh in clime's terms.
#   GPUS=4 scripts/run-moonlight-16B-A3B.sh MODEL PROMPTS [EVAL-PROMPTS] [more options of clime-train rl]
# MODEL is the Hugging Face folder; PROMPTS JSON lines with "prompt" and "label" (dapo-math-17k), EVAL-PROMPTS the same
# (aime-2024). GPUS is 8 unless it says 4. RUN names the run folder (default runs/moonlight-16B-A3B). Options given last win:
# --num-rollout 10, --explain.
#
# What it takes (clime-train plan says it for any number of devices, --explain for the GPU at hand): 15.96e9 parameters, of which
# a token meets 2.58e9. fp32 master weights and moments, 12 bytes a parameter,
# are 179 GiB and stay on the host, where the CPU updates them to the same bits. Keys and values: 30.4 KiB a token over
# all GPUs.
# On each GPU: bf16 weights 29.7 GiB, fp32 gradients 59.5 and a rank's part of their sum, activations with whole layers
# recomputed: 114 GiB of 4 GPUs, 107 of 8, of the 139 of an H200. The server has a share of the weights besides, 7.4 GiB of
# 4 and 3.7 of 8, and keeps every latent row on each of its GPUs: room for 490,000 tokens of 4 GPUs, 830,000 of 8.
#
# --no-save-optim: no checkpoints of 192 GB, only Hugging Face folders of 32 GB; a restart runs the recorded steps again.
set -eu
[ $# -ge 2 ] || { sed -n '2,7s/^# *//p' "$0" >&2; exit 2; }
model=$1 prompts=$2 eval=
shift 2
case ${1:-} in '' | -*) ;; *) eval=$1 && shift ;; esac
here=$(cd "$(dirname "$0")/.." && pwd)
gpus=${GPUS:-8}

CKPT_ARGS=(
    --hf-checkpoint "$model"
    --run "${RUN:-$here/runs/moonlight-16B-A3B}"
    --save-interval 20
    --gap-must-be-zero
    --save-hf "${RUN:-$here/runs/moonlight-16B-A3B}/hf-{rollout_id}"
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
    --rollout-batch-size 128
    --n-samples-per-prompt 8
    --num-steps-per-rollout 4
    --rollout-max-response-len 4096
    --over-sampling-batch-size 256
    --dynamic-sampling-filter-path check_reward_nonzero_std
    --rollout-temperature 1
    --balance-data
)
EVAL_ARGS=()
[ -z "$eval" ] || EVAL_ARGS=(
    --eval-interval 20
    --eval-prompt-data aime "$eval"
    --n-samples-per-eval-prompt 8
    --eval-max-response-len 4096
    --eval-top-p 1
)
PERF_ARGS=(
    --actor-num-gpus-per-node "$gpus" # slime's tensor, context and expert parallel sizes are 1 here
    --recompute-granularity full
    --use-dynamic-batch-size
    --max-tokens-per-gpu 8192
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
    --optimizer-cpu-offload
)
SERVER_ARGS=(
    --colocate
    --rollout-num-gpus-per-engine "$gpus"
    --server-mem-fraction-static 0.7
    --server-concurrency 256
    --server-max-running-requests 256
)

exec "${CLIME_BUILD:-$here/build}/clime-train" rl "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" \
    "${PERF_ARGS[@]}" "${GRPO_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${SERVER_ARGS[@]}" "$@"
