"""The gap between server and trainer over the ways a server may batch, at a model's real widths: one request at a time to 256,
prompts of mixed lengths, shared and cached prefixes, prompts in chunks, decode steps recorded and not, KV so scarce that
requests wait. The gap must be 0 on every token, and the weights after two steps the same whatever the way.

    python3 tests/gpu/gap.py [BUILD] [qwen3-0.6b|qwen3-4b|glm4-9b|qwen3-30b-a3b|moonlight|tiny|tiny-experts|tiny-latent]
    LAYERS=N cuts the model; DEVICE=cpu with the tiny ones; TP=N: a server over N devices, EP=N: with whole experts; where there
    are fewer GPUs its ranks share them

Exit status 1 when something is wrong.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

from shared import SHAPES, check, checks, own_gpus

# the rollouts of a shape: prompts, samples of each, most new tokens, longest prompt in bytes
SIZES = {name: (8, 4, 40, 300) for name in ("tiny", "tiny-experts", "tiny-latent")}
FEWER = (4, 4, 64, 300)  # for one request at a time, which would take minutes
FEWEST = (2, 2, 24, 300)  # and of ranks that share a GPU, which takes turns wherever they wait for each other
ALONE = "one at a time"
WAYS = {
    "256 at a time": ["--server-concurrency", "256", "--server-max-running-requests", "256"],
    "64, steps not recorded": ["--server-concurrency", "64", "--server-disable-cuda-graph"],
    "17, prompts in chunks of 48": ["--server-concurrency", "17", "--server-chunked-prefill-size", "48"],
    "256, nothing cached": ["--server-concurrency", "256", "--server-max-running-requests", "256",
                            "--server-disable-radix-cache"],
    "100, KV for 12 requests": ["--server-concurrency", "100", "--server-max-running-requests", "100",
                                "--server-max-total-tokens", "24576"],
    ALONE: ["--server-concurrency", "1"],
}  # fmt: skip


def prompts(path, n, longest):
    """Lengths from a few bytes to the longest; every other prompt begins as the one before it does."""
    rng = random.Random(7)
    before = ""
    with open(path, "w") as out:
        for i in range(n):
            length = int(4 * (longest / 4) ** rng.random())
            text = before[: length // 2] if i % 2 else ""
            text += "".join(rng.choice("abcdefghij ") for _ in range(length - len(text)))
            before = text
            out.write(json.dumps({"prompt": text, "label": "1"}) + "\n")


def rl(build, root, model, device, n_prompts, members, new, longest, *more):
    """Two rollouts and their steps with drawn rewards: the words of the command, whose run folder is root/run."""
    prompts(root / "prompts.jsonl", 2 * n_prompts, longest)
    return [str(w) for w in (build / "clime-train", "rl", "--run", root / "run", "--hf-checkpoint", model, "--device", device, "--dtype", "bf16",
            "--prompt-data", root / "prompts.jsonl", "--input-key", "prompt", "--label-key", "label", "--apply-chat-template",
            "--rm-type", "random", "--num-rollout", 2, "--rollout-batch-size", n_prompts, "--n-samples-per-prompt", members,
            "--rollout-max-response-len", new, "--lr", "1e-5", "--use-dynamic-batch-size", "--max-tokens-per-gpu", 4096,
            "--no-save-optim", "--recompute-granularity", "full", *more)]  # fmt: skip


def no_gap(root, name, words, experts=False, least=1):
    """Runs it to its end, over at least so many tokens: the SHA-256 of its weights, or None, and what was logged."""
    run, t0 = root / "run", time.time()
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    text = done.stdout + done.stderr
    sha = re.search(r"^done .*sha256 (\w{64})$", text, re.M)
    if done.returncode or not sha or "died" in text:
        check(False, f"{name}: {text[-2000:]}")
        for log in run.glob("logs/server*"):
            print(f"== {log.name}\n{log.read_text()[-2000:]}", flush=True)
        return None, text
    lines = [json.loads(line) for line in open(run / "metrics.jsonl")]
    steps = [m for m in lines if m["kind"] == "train"]
    gap = [m["train/train_rollout_logprob_abs_diff"] for m in steps]
    tokens = sum(m["train/logprob_gap_tokens"] for m in steps)
    speed = [f"{m['perf/tokens_per_gpu_per_sec']:.0f}" for m in lines if m["kind"] == "perf"]
    mean = [m for m in lines if m["kind"] == "rollout"][-1]["rollout/response_len/mean"]
    check(tokens >= least and not any(gap), f"{name}: gap {gap} over {tokens} tokens (mean response {mean:.0f}; "
          f"{' '.join(speed)} tok/s; {time.time() - t0:.1f} s)")  # fmt: skip
    if experts:
        routed = [sum(m.get(f"train/routing_{x}", 0) for m in steps) for x in ("tokens", "wrong")]
        check(routed == [tokens, 0], f"{name}: other experts drew {routed[1]} of {routed[0]} tokens")
    subprocess.run(["rm", "-rf", run])
    return sha.group(1), text


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
    what = sys.argv[2] if len(sys.argv) > 2 else "qwen3-0.6b"
    device = os.environ.get("DEVICE", "cuda")
    n = int(os.environ.get("EP", os.environ.get("TP", 1)))
    over = ["--rollout-num-gpus-per-engine", n, *(["--sglang-ep-size", n] if "EP" in os.environ else [])]
    own = n == 1 or own_gpus(n)
    with checks("gap") as root:
        words = ["init", root / "init", *SHAPES[what], "--max-position-embeddings", 2048]
        made = subprocess.run([build / "clime-train", *map(str, words)], check=True, capture_output=True, text=True)
        print(f"{what}, {os.environ.get('LAYERS', 'all')} layers: {made.stdout.strip().split(': ', 1)[-1]}", flush=True)
        stops = ["--rollout-stop-token-ids", *range(300, 364)]
        shas = {}
        for name, more in WAYS.items():
            sizes = (FEWER if own else FEWEST) if name == ALONE else SIZES.get(what, (32, 8, 192, 1500))
            loop = rl(build, root, root / "init", device, *sizes, *stops, "--colocate", "--server-mem-fraction-static", 0.5 if own else 0.5 / n, *over, *more)
            shas[name], _ = no_gap(root, name, loop, "--num-experts" in SHAPES[what])
            if not shas[name]:
                break
        shas.pop(ALONE, None)
        check(len(set(shas.values())) == 1 and len(shas) == len(WAYS) - 1, f"one SHA-256 of the weights: {set(shas.values())}")


if __name__ == "__main__":
    main()
