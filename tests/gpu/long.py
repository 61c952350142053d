"""Rows of micro-batches over ranks (--context-parallel-size), on GPUs of one host through the real programs: the SHA-256 of one
GPU; and training on sequences that are too long for one.

    python3 tests/gpu/long.py [BUILD [RANKS]]                     the bits (default: build, 2 ranks)
    python3 tests/gpu/long.py BUILD RANKS TOKENS [qwen3-4b|...]   long sequences

65,536 tokens on two GPUs, with Qwen3-4B's shape: python3 tests/gpu/long.py build 2 65536; 131,072 on four: build 4 131072

Needs what ranks.py needs; DEVICE=cpu runs what needs no GPU. Exit status 1 when something is wrong.
"""

import re
import shutil
import sys
import time

from ranks import at_once, deepen, finish, rows, same, sft, steps_of, train
from shared import SHAPES, check, checks, own_gpus, timed

RANKS = int(sys.argv[2]) if len(sys.argv) > 2 else 2
LIMIT, LONG_LIMIT = 120, 480


def bits(root):
    """Several sequences in a micro-batch and longer ones alone, cut wherever that may be; key/value heads for every rank and
    for some; experts, and latent attention of the width that has kernels of its own."""
    small = ("--global-batch-size", 8, "--num-epoch", 2, "--lr", 1e-3, "--save-interval", 1000, "--max-tokens-per-gpu", 96, "--threads", 4)
    experts = ("--num-experts", 16, "--num-experts-per-tok", 4, "--moe-intermediate-size", 256)
    latent = ("--kv-lora-rank", 512, "--qk-nope-head-dim", 64, "--qk-rope-head-dim", 64, "--v-head-dim", 64)
    families = {"qwen3": (4,), "qwen2": (4,), "llama": (2,), "glm4": (2,), "qwen3_moe": (4, *experts), "deepseek_v3": (8, *experts, *latent)}
    for family, (heads, *more) in families.items():
        train("init", root / family, "--family", family, "--hidden-size", 512, "--intermediate-size", 1024, "--num-hidden-layers", 3,
              "--num-attention-heads", 8, "--num-key-value-heads", heads, "--head-dim", 64, "--dtype", "bf16", *more)  # fmt: skip
    rows(root / "short", 40, 70)
    rows(root / "long", 16, 900)
    (root / "data").write_text((root / "short").read_text() + "\n" + (root / "long").read_text())

    def run(name, model, n, *more):
        share = ("--context-parallel-size", RANKS, "--gradient-lanes", RANKS)
        return finish, root, name, sft(root, model, "data", name, n, *small, *share, *more), LIMIT

    on, full = ("--shard-weights", "on"), ("--recompute-granularity", "full")
    ways = {f"{m}-{w}": run(f"{m}-{w}", m, n, *more) for m in families
            for w, n, *more in (("alone", 1), ("ranks", RANKS))}  # fmt: skip
    ways |= {f"{m}-{w}": run(f"{m}-{w}", m, RANKS, *more) for m in ("qwen3", "deepseek_v3")
             for w, *more in (("parts", *on), ("full", *full), ("both", *on, *full))}  # fmt: skip
    if own_gpus(RANKS):
        ways["qwen3-nccl"] = run("qwen3-nccl", "qwen3", RANKS, "--rank-transport", "nccl")
    shas = at_once(**ways)
    for what in families:
        same(what, {k: v for k, v in shas.items() if k.startswith(what + "-")})


def long(root):
    tokens, name = int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "qwen3-4b"
    t0 = time.time()
    words = [str(w) for w in SHAPES[name]]
    at = words.index("--num-hidden-layers") + 1
    train("init", root / "one", *words[:at], 1, *words[at + 1 :], "--max-position-embeddings", tokens)
    deepen(root / "one", root / "whole", int(words[at]))
    shutil.rmtree(root / "one")
    rows(root / "data", 3, tokens - 64)
    print(f"        {name}, {words[at]} layers, made in {time.time() - t0:.1f} s", flush=True)
    run = sft(root, "whole", "data", "run", RANKS, "--global-batch-size", 1, "--num-epoch", 1, "--lr", 1e-5, "--save-interval", 1000,
              "--max-tokens-per-gpu", tokens // RANKS, "--max-len", tokens, "--context-parallel-size", RANKS,
              "--recompute-granularity", "full")  # fmt: skip
    done, n, text = steps_of(root, "run", run, 3, LONG_LIMIT)
    check(len(done) == 3, f"three sequences of {tokens} tokens on {RANKS} devices {text[-1500:] if len(done) < 3 else ''}")
    took = [(b - a) / 1e6 for a, b in zip(done, done[1:])]
    print(f"        trained tokens of the steps {n}, of the later ones {[round(x, 2) for x in took]} s, {[round(tokens / x) for x in took]} tok/s")
    print("        " + "\n        ".join(re.findall(r".*memory:.*", text)))


def main():
    with checks("long") as root:
        timed(long if len(sys.argv) > 3 else bits, root)


if __name__ == "__main__":
    main()
