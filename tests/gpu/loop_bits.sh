#!/bin/sh
# The whole loop of clime-train rl, the same weights by every way: other batching in the server, weights in place,
# optimizer states on the host with recomputed layers, cut samples, and kill -9 in the middle. Prints the SHA-256 of each.
#   tests/gpu/loop_bits.sh [DEVICE] [FAMILY]      programs from $O (build); 2 small runs a minute on a CPU, seconds on a GPU
set -eu
cd "$(dirname "$0")/../.."
device=${1:-cuda}
family=${2:-qwen3}
bin=${O:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
train=$bin/clime-train
run=
small=1
[ "$device" = cpu ] || small=4
$train init "$work/init" --family "$family" --hidden-size $((small * 128)) --intermediate-size $((small * 384)) \
    --num-hidden-layers 4 --num-attention-heads $((small * 2)) --num-key-value-heads $small --head-dim 64 \
    --vocab-size $((small * 1024)) --max-position-embeddings 1024 --init-std 0.05
$train task "$work/task" --kind add --max-operand 99 --num-warmup 100 --num-heldout 100 >/dev/null

# rl NAME OPTION...: one run, in the foreground
rl() {
    name=$1
    shift
    $run $train rl --run "$work/$name" --hf-checkpoint "$work/init" --device "$device" --prompt-data "$work/task/train.jsonl" \
        --input-key prompt --label-key label --apply-chat-template --rm-type random --num-rollout 4 \
        --rollout-batch-size 16 --n-samples-per-prompt 4 --rollout-max-response-len $((small * 48)) --lr 1e-4 \
        --use-dynamic-batch-size --max-tokens-per-gpu $((small * 512)) --save-interval 3 \
        --server-mem-fraction-static 0.2 "$@" >>"$work/$name.log" 2>&1
}
sha() {
    sed -n 's/.*sha256 \([0-9a-f]*\)$/\1/p' "$work/$1.log" | tail -n 1
}
field() {
    sed -n "s|.*\"$2\":\([-0-9.e+]*\).*|\1|p" "$work/$1/metrics.jsonl"
}
failed=0
# report NAME [LIKE]: it must end as LIKE did, by default the plain run
report() {
    got=$(sha "$1")
    gap=$(field "$1" train/train_rollout_logprob_abs_diff | sort -u | tr '\n' ' ')
    tokens=$(field "$1" train/logprob_gap_tokens | awk '{ n += $1 } END { print n }')
    norm=$(field "$1" train/grad_norm | tr '\n' ' ')
    echo "$1: ${got:-no end} gap $gap over $tokens tokens, gradient norms $norm"
    if [ -z "$got" ] || [ "$got" != "$(sha "${2:-plain}")" ] || [ "$gap" != "0.0 " ]; then
        failed=$((failed + 1))
        tail -n 5 "$work/$1.log"
        tail -n 3 "$work/$1"/logs/*.log
    fi
}

rl plain || true
report plain
rl batching --server-max-running-requests 7 --server-concurrency 40 --server-chunked-prefill-size 5 || true
report batching
rl in-place --colocate || true
report in-place
rl offload --optimizer-cpu-offload --colocate || true
report offload

# the loss over what top_p left
rl cut --rollout-top-p 0.9 || true
report cut cut
rl cut-batching --rollout-top-p 0.9 --server-max-running-requests 7 --server-chunked-prefill-size 5 --colocate || true
report cut-batching cut

# kill -9 after the first and after the second recorded step, each time somewhere in what follows
steps() {
    grep -s -c '"kind":"train"' "$work/killed/metrics.jsonl" || true
}
for after in 1 2; do
    (run=exec && rl killed) & # so that $! is the trainer itself
    pid=$!
    n=$(steps)
    while [ "${n:-0}" -lt $after ] && kill -0 $pid 2>/dev/null; do
        sleep 0.05
        n=$(steps)
    done
    sleep 0.$((after * 13))
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    echo "killed with $(steps) steps in the log"
done
rl killed || true
report killed
[ $failed = 0 ] && echo "all the same" || { echo "$failed differ"; exit 1; }
