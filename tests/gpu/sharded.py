"""Weights of which each rank keeps a part (--shard-weights), on two GPUs of one host through the real programs: the SHA-256
of whole weights and of one GPU, and the speed and memory of both. Then a model that does not fit whole: the plan takes
parts by itself.

    python3 tests/gpu/sharded.py [BUILD] [qwen3-4b [LAYERS]]    (default: build, and no speed; LAYERS of 32B's widths)

Needs what ranks.py needs. Exit status 1 when something is wrong.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import ranks
from ranks import BUILD, DEVICE, LIMIT, ON_GPUS, at_once, deepen, finish, hit, rows, same, sft, speed_of, train
from shared import SHAPES, check, checks, own_gpus, share_gpus, timed


def bits(root):
    own = own_gpus(2)
    small = ("--global-batch-size", 8, "--num-epoch", 1 if share_gpus() else 2, "--lr", 1e-3, "--save-interval", 10, "--max-tokens-per-gpu", 32, "--threads", 4)
    experts = ("--num-experts", 8, "--num-experts-per-tok", 2, "--moe-intermediate-size", 128)
    for family, *more in (("qwen3",), ("glm4",), ("qwen3_moe", *experts)):
        train("init", root / family, "--family", family, "--hidden-size", 512, "--intermediate-size", 1024, "--num-hidden-layers", 3,
              "--num-attention-heads", 4, "--num-key-value-heads", 2, "--head-dim", 64, "--dtype", "bf16", *more)  # fmt: skip
    rows(root / "data", 200, 12)

    def run(name, model, n, lanes, *more):
        return finish, root, name, sft(root, model, "data", name, n, *small, "--gradient-lanes", lanes, *more)

    on = ("--shard-weights", "on")
    ways = {f"{m}-{w}": run(f"{m}-{w}", m, n, 2, *more) for m in ("qwen3", "glm4", "qwen3_moe")
            for w, n, *more in (("alone", 1), ("whole", 2), ("parts", 2, *on))}  # fmt: skip
    ways |= {f"lanes-4-{w}": run(f"lanes-4-{w}", "qwen3", n, 4, *more) for w, n, *more in (("alone", 1), ("parts", 2, *on))}
    ways["qwen3-offload"] = run("qwen3-offload", "qwen3", 2, 2, "--optimizer-cpu-offload", *on)
    ways["qwen3-full"] = run("qwen3-full", "qwen3", 2, 2, "--recompute-granularity", "full", *on)
    if own:
        ways["qwen3-nccl"] = run("qwen3-nccl", "qwen3", 2, 2, "--rank-transport", "nccl", *on)
    shas = at_once(**ways)
    for what in ("qwen3-", "glm4-", "qwen3_moe-", "lanes-4-"):
        same(what, {k: v for k, v in shas.items() if k.startswith(what)})

    def words(name, n, *more):
        return sft(root, "qwen3", "data", name, n, *small, "--gradient-lanes", 2, *more)

    frozen = words("frozen", 2, "--distributed-timeout-minutes", 0.1, *on)
    shas = {"whole": shas["qwen3-alone"]} | at_once(
        follower=(hit, root, "follower", words("follower", 2, *on), 1, signal.SIGKILL),
        parts_then_one=(hit, root, "parts_then_one", words("parts_then_one", 2, *on), 0, signal.SIGKILL, words("parts_then_one", 1)),
        whole_then_parts=(hit, root, "whole_then_parts", words("whole_then_parts", 2), 0, signal.SIGKILL, words("whole_then_parts", 2, *on)),
        frozen=(hit, root, "frozen", frozen, 1, signal.SIGSTOP),
    )  # fmt: skip
    same("through losses", shas)


def rl(root):
    """A reference that is refreshed. Servers over any number of devices copy what they need out of the ranks' memory, beside the
    trainer's devices and on them, or get it over HTTP; of experts, which stay with a rank, rows of each or whole ones."""
    own_gpus(4)
    train("task", root / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 40, "--num-heldout", 20)

    rollouts, prompts, length = (2, 4, 16) if share_gpus() else (3, 8, 48)

    def words(name, model, n, *more):
        run = root / name
        return [str(w) for w in (BUILD / "clime-train", "rl", "--run", run, "--hf-checkpoint", root / model, "--prompt-data",
                root / "task" / "train.jsonl", "--input-key", "prompt", "--label-key", "label", "--rm-type", "random",
                "--num-rollout", rollouts, "--rollout-batch-size", prompts, "--n-samples-per-prompt", 4, "--rollout-max-response-len", length,
                "--lr", "1e-4", "--use-dynamic-batch-size", "--max-tokens-per-gpu", 512, "--apply-chat-template",
                "--use-kl-loss", "--kl-loss-coef", "0.01", "--use-tis", "--ref-update-interval", 1, "--gradient-lanes", 4,
                "--save-hf", run / "hf", "--device", DEVICE, "--server-max-total-tokens", 65536,
                "--actor-num-gpus-per-node", n, *more)]  # fmt: skip

    def over(tp, servers=1):
        return "--rollout-num-gpus-per-engine", tp, "--rollout-num-gpus", tp * servers

    on, by_copy, by_http = ("--shard-weights", "on"), ("--update-weight-transport", "ipc"), ("--update-weight-transport", "http")
    stay = ("--expert-model-parallel-size", 2)
    ways = {"qwen3-alone": (1, "in place", "--colocate"), "qwen3-http": (2, "over HTTP", *on, *by_http, *over(1)),
            "qwen3-2-to-1": (2, "by a copy", *on, *(() if ON_GPUS else by_copy), *over(1)),  # what auto takes
            "qwen3-2-to-4": (2, "by a copy", *on, *by_copy, *over(4)), "qwen3-4-to-2": (4, "by a copy", *on, *by_copy, *over(2)),
            "qwen3-2-on-1-and-1": (2, "by a copy", *on, "--colocate", *over(1, 2)),
            "qwen3_moe-alone": (1, "in place", "--colocate"), "qwen3_moe-rows": (2, "by a copy", *stay, *by_copy, *over(4)),
            "qwen3_moe-whole": (2, "by a copy", *stay, *by_copy, *over(2), "--server-ep-size", 2)}  # fmt: skip
    shas = at_once(**{f"rl-{name}": (finish, root, f"rl-{name}", words(f"rl-{name}", name.split("-")[0], n, *more))
                      for name, (n, _, *more) in ways.items()})  # fmt: skip
    for model in ("qwen3-", "qwen3_moe-"):
        same(f"rl, {model[:-1]}", {k: v for k, v in shas.items() if k.startswith(f"rl-{model}")})
    for name, (_, way, *_) in ways.items():
        log = (root / f"rl-{name}.log").read_text()
        steps = [m for m in map(json.loads, open(root / f"rl-{name}" / "metrics.jsonl")) if m["kind"] == "train"]
        gap, tokens = [m.get("train/train_rollout_logprob_abs_diff") for m in steps], sum(m["train/logprob_gap_tokens"] for m in steps)
        went = set(re.findall(r"weights go to \S+ (.*)", log))
        check(tokens > 0 and not any(gap) and all(w.startswith(way) for w in went), f"rl-{name}: gap {gap} over {tokens} tokens, weights {went}")


def speed(root, name, one):
    layers = int(SHAPES[name][SHAPES[name].index("--num-hidden-layers") + 1])
    check(one.wait(LIMIT) == 0, f"a layer of {name}'s widths")
    deepen(root / "one", root / "whole", layers)
    rows(root / "long", 8 * 8 * 4 + 64, 1000)
    for lanes in (2, 8):
        rate = {how: speed_of(root, "whole", "long", f"{how}, {lanes} lanes", 2, 8, "--gradient-lanes", lanes, "--shard-weights", how,
                              "--recompute-granularity", "selective") for how in ("off", "on")}  # fmt: skip
        print(f"        {name}, {lanes} lanes on two GPUs: {rate['on']} tok/s in parts, {rate['on'] / max(1, rate['off']):.3f} of whole weights'")
    shutil.rmtree(root / "whole")


def too_large(root, layers, wide):
    """Layers of Qwen3-32B's widths whose weights, gradients and states are too many for one GPU each."""
    check(wide.wait(2 * LIMIT) == 0, "a layer of 32B's widths")
    t0 = time.time()
    deepen(root / "wide", root / "large", layers)
    shutil.rmtree(root / "wide")
    print(f"        {layers} layers of 32B's widths made in {time.time() - t0:.0f} s", flush=True)
    more = ("--gradient-lanes", 2, "--recompute-granularity", "full")
    rate = speed_of(root, "large", "long", "large", 2, 4, *more)
    log = (root / "large.log").read_text()
    print("        " + "\n        ".join(re.findall(r".*(?:memory:|ranks|loaded).*", log)))
    check(rate > 0, f"{layers} layers of 32B's widths: {rate} tok/s in parts on two GPUs")


def main():
    ranks.LIMIT = 90
    name = sys.argv[2] if len(sys.argv) > 2 else None
    layers = int(sys.argv[3]) if len(sys.argv) > 3 else 0

    def init(root, out, words):
        words = [str(w) for w in words]
        words[words.index("--num-hidden-layers") + 1] = "1"
        return subprocess.Popen([BUILD / "clime-train", "init", root / out, *words, "--max-position-embeddings", "4096"],
                                stdout=subprocess.DEVNULL)  # fmt: skip

    with checks("sharded") as root:
        one, wide = name and init(root, "one", SHAPES[name]), layers and init(root, "wide", SHAPES["qwen3-32b"])
        for part in (bits, rl, *((lambda root: speed(root, name, one),) if name else ()),
                     *((lambda root: too_large(root, layers, wide),) if layers else ())):  # fmt: skip
            timed(part, root)


if __name__ == "__main__":
    main()
