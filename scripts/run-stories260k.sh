#!/bin/sh
# Reinforcement learning of a real policy, small enough for any machine: the stories260K model (260 thousand parameters)
# learns to tell stories that name a given word.
#   scripts/run-stories260k.sh DIR [RUN]
# DIR is the Hugging Face folder of stories260K; RUN the run folder (default runs/stories260k). WORD names the word
# (default: dog). The reward is a command: JSON lines in, JSON lines out.
set -eu
case ${1:-} in '' | -*) sed -n '2,6s/^# *//p' "$0" >&2 && exit 2 ;; esac
dir=$1
here=$(cd "$(dirname "$0")/.." && pwd)
run=${2:-$here/runs/stories260k}
word=${WORD:-dog}
build=${CLIME_BUILD:-build}
case $build in /*) ;; *) build=$here/$build ;; esac
train=$build/clime-train
mkdir -p "$run"

# A few openings; none of them names the word.
for opening in "Once upon a time" "One day" "There was a little girl" "There was a little boy" "Tom and Lily" \
    "It was a sunny day" "Mom and Dad" "In the park"; do
    printf '{"prompt": "<s>%s"}\n' "$opening"
done >"$run/prompts.jsonl"

reward='while IFS= read -r line; do
    id=${line#*\"id\":}; id=${id%%,*}
    case $line in *" '$word'"[!a-z]*) r=1 ;; *) r=0 ;; esac
    printf "{\"id\":%s,\"reward\":%s}\n" "$id" "$r"
done'

"$train" rl --run "$run" --hf-checkpoint "$dir" --prompt-data "$run/prompts.jsonl" --input-key prompt \
    --rm-type command --rm-command "$reward" \
    --num-rollout "${NUM_ROLLOUT:-30}" --rollout-batch-size 8 --n-samples-per-prompt 16 --global-batch-size 128 \
    --rollout-max-response-len 80 --rollout-temperature 1 --lr 3e-4 --adam-beta2 0.98 \
    --use-kl-loss --kl-loss-coef 0.02 --kl-loss-type low_var_kl \
    --use-dynamic-batch-size --max-tokens-per-gpu 4096 --save-interval 10 --gap-must-be-zero

"$train" report "$run"
