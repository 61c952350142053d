#!/bin/bash
# Qwen3-30B-A3B on the GPUs of one host, a trainer in parts and a server beside it, the optimizer on the host: slime's
# scripts/run-qwen3-30B-A3B.sh in clime's terms.
#   GPUS=4 scripts/run-qwen3-30B-A3B.sh MODEL PROMPTS [EVAL-PROMPTS] [more options of clime-train rl]
# MODEL is the Hugging Face folder; PROMPTS JSON lines with "prompt" and "label" (dapo-math-17k), EVAL-PROMPTS the same
# (aime-2024). GPUS is 8 unless it says 4. RUN names the run folder (default runs/qwen3-30B-A3B). Options given last win:
# --num-rollout 10, --explain.
#
# What it takes (clime-train plan says it for any number of devices, --explain for the GPU at hand): 30.53e9 parameters, of which
# a token meets 3.04e9. fp32 master weights and moments, 12 bytes a parameter, and rank 0's copy of the weights for the servers,
# are 398 GiB and stay on the host, where the CPU updates them to the same bits. Keys and values: 96.0 KiB a token over
# all GPUs.
# bf16 weights are 56.9 GiB and fp32 gradients 113.7. A rank that holds both whole needs 214 GiB of 4 GPUs, 200 of 8, and an H200
# has 139: both lie in parts on the ranks (--shard-weights, by itself), 67 GiB of each of 4 and 46 of 8. The server
# has its own share, 14.2 and 7.1 GiB of a GPU, gets new weights over HTTP, and takes 0.4 of each GPU before the trainer opens.
# Colocated it would compute with the trainer's parts in place (docs/devices.md): nobody has run that at this size.
#
# --no-save-optim: no checkpoints of 366 GB, only Hugging Face folders of 61 GB; a restart runs the recorded steps again.
set -eu
[ $# -ge 2 ] || { sed -n '2,7s/^# *//p' "$0" >&2; exit 2; }
model=$1 prompts=$2 eval=
shift 2
case ${1:-} in '' | -*) ;; *) eval=$1 && shift ;; esac
here=$(cd "$(dirname "$0")/.." && pwd)
gpus=${GPUS:-8}

CKPT_ARGS=(
    --hf-checkpoint "$model"
    --run "${RUN:-$here/runs/qwen3-30B-A3B}"
    --save-interval 20
    --gap-must-be-zero
    --save-hf "${RUN:-$here/runs/qwen3-30B-A3B}/hf-{rollout_id}"
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
    --n-samples-per-prompt 8
    --rollout-max-response-len 8192
    --global-batch-size 256
    --rollout-temperature 1
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
    --actor-num-gpus-per-node "$gpus" # slime's tensor, context and expert parallel sizes are 1 here
    --recompute-granularity full
    --use-dynamic-batch-size
    --max-tokens-per-gpu 20480
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

exec "${CLIME_BUILD:-$here/build}/clime-train" rl "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" \
    "${PERF_ARGS[@]}" "${GRPO_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${SERVER_ARGS[@]}" "$@"
