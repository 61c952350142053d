#!/bin/bash
# GSM8K from a base model: supervised fine-tuning on its conversations, then reinforcement learning with nothing but
# right or wrong.
#   scripts/run-gsm8k-sft-rl.sh MODEL TRAIN TEST [more options of clime-train rl]
# MODEL is a Hugging Face folder with a chat template. TRAIN and TEST are GSM8K's JSON lines: "question" and "answer", a
# solution that ends in "#### 72" (INPUT_KEY and SOLUTION_KEY name other members). RUN names the run folder (default
# runs/gsm8k); SFT_EPOCHS passes over TRAIN come first (default 2). Options given last win: --num-rollout 10.
# --rm-type deepscaler instead of gsm8k looks for \boxed{} after </think>, as slime's recipes do.
set -eu
[ $# -ge 3 ] || { sed -n '2,8s/^# *//p' "$0" >&2; exit 2; }
model=$1 train=$2 test=$3
shift 3
here=$(cd "$(dirname "$0")/.." && pwd)
clime=${CLIME_BUILD:-$here/build}/clime-train
run=${RUN:-$here/runs/gsm8k}

DATA_ARGS=(
    --input-key "${INPUT_KEY:-question}"
    --label-key "${SOLUTION_KEY:-answer}"
    --apply-chat-template
)
SFT_ARGS=(
    --hf-checkpoint "$model"
    --prompt-data "$train"
    --num-epoch "${SFT_EPOCHS:-2}"
    --global-batch-size 64
    --lr 1e-5
    --min-lr 1e-6
    --lr-decay-style cosine
    --lr-warmup-iters 10
    --adam-beta2 0.98
    --max-tokens-per-gpu 8192
    --recompute-granularity selective
    --run "$run/sft-run"
    --save-hf "$run/sft"
)
CKPT_ARGS=(
    --hf-checkpoint "$run/sft"
    --run "$run"
    --save-interval 20
    --gap-must-be-zero
)
ROLLOUT_ARGS=(
    --prompt-data "$train"
    --rollout-shuffle
    --rm-type gsm8k
    --num-rollout 200
    --rollout-batch-size 64
    --n-samples-per-prompt 8
    --rollout-max-response-len 512
    --rollout-temperature 1
    --global-batch-size 512
)
EVAL_ARGS=(
    --eval-interval 20
    --eval-prompt-data gsm8k "$test"
    --eval-temperature 0
)
PERF_ARGS=(
    --recompute-granularity selective
    --use-dynamic-batch-size
    --max-tokens-per-gpu 8192
)
GRPO_ARGS=(
    --advantage-estimator grpo
    --eps-clip 0.2
    --eps-clip-high 0.28
)
OPTIMIZER_ARGS=(
    --lr 1e-6
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.98
)
SERVER_ARGS=(
    --colocate
    --server-concurrency 256
    --server-max-running-requests 256
)

mkdir -p "$run"
# a run that goes on after a stop has its policy already
[ -e "$run/sft/config.json" ] || "$clime" sft "${DATA_ARGS[@]}" "${SFT_ARGS[@]}"
exec "$clime" rl "${DATA_ARGS[@]}" "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" "${PERF_ARGS[@]}" \
    "${GRPO_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${SERVER_ARGS[@]}" "$@"
