#!/bin/bash
# GLM-4.5-Air (106B), experts and long answers over the GPUs of one host, the optimizer on the host, servers elsewhere: the
# shape of slime's scripts/models/glm4.5-106B-A12B.sh with the options of its scripts/run-glm4.7-355B-A32B.sh.
#   GPUS=4 scripts/run-glm4.5-Air.sh MODEL PROMPTS [EVAL-PROMPTS] [more options of clime-train rl]
# MODEL is the Hugging Face folder; PROMPTS JSON lines with "prompt" and "label" (dapo-math-17k), EVAL-PROMPTS the same
# (aime-2024). GPUS is 8 unless it says 4. RUN names the run folder (default runs/glm4.5-Air). Options given last win:
# --num-rollout 10, --explain.
#
# What it takes (clime-train plan says it for any number of devices, --explain for the GPU at hand): 106.85e9 parameters, of which
# a token meets 12.80e9. fp32 master weights and moments, 12 bytes a parameter, and rank 0's copy of the weights for the servers,
# are 1394 GiB and stay on the host, where the CPU updates them to the same bits. Keys and values: 184.0 KiB a token over
# all GPUs.
# bf16 weights are 199.0 GiB and fp32 gradients 398.1. Experts stay with a rank each, whose rows travel to it, other weights lie in
# parts, and two ranks share a micro-batch, of which each has 16,384 tokens, so an answer of 32,768 has room: 112 GiB of each of 8
# H200s, of 139, and 189 of 4, which are too few (whole they were 677 GiB of 8, with experts in parts too 137).
# A server over the same 8 would need 24.9 GiB of each for its share and more for keys and values: too tight beside the
# trainer. So 8 GPUs train and 8 others serve: start there clime-router and clime-server --tp-size 8, and say where:
# ROUTER=http://HOST:PORT.
#
# --no-save-optim: no checkpoints of 1282 GB, only Hugging Face folders of 214 GB; a restart runs the recorded steps again.
set -eu
[ $# -ge 2 ] || { sed -n '2,7s/^# *//p' "$0" >&2; exit 2; }
model=$1 prompts=$2 eval=
shift 2
case ${1:-} in '' | -*) ;; *) eval=$1 && shift ;; esac
here=$(cd "$(dirname "$0")/.." && pwd)
gpus=${GPUS:-8}

CKPT_ARGS=(
    --hf-checkpoint "$model"
    --run "${RUN:-$here/runs/glm4.5-Air}"
    --save-interval 20
    --gap-must-be-zero
    --save-hf "${RUN:-$here/runs/glm4.5-Air}/hf-{rollout_id}"
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
    --rollout-max-response-len 32768
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
    --eval-max-response-len 32768
    --eval-top-p 1
)
PERF_ARGS=(
    --actor-num-gpus-per-node "$gpus" # slime's tensor and pipeline parallel sizes are 1 here
    --context-parallel-size 2
    --expert-model-parallel-size "$gpus"
    --recompute-granularity full
    --use-dynamic-batch-size
    --max-tokens-per-gpu 16384
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
    --rollout-num-gpus-per-engine "$gpus"
    --server-mem-fraction-static 0.4
    --server-concurrency 256
    --server-max-running-requests 256
)
[ -z "${ROUTER:-}" ] || SERVER_ARGS=(--router-url "$ROUTER")

exec "${CLIME_BUILD:-$here/build}/clime-train" rl "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" \
    "${PERF_ARGS[@]}" "${GRPO_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${SERVER_ARGS[@]}" "$@"
