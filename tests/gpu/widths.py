"""At a model's real widths, trainers and servers over any number of GPUs: ranks with whole weights and with parts, beside
servers over one GPU each and over several. The gap must be 0 on every token of every pair, and the weights after two
steps the same.

    python3 tests/gpu/widths.py [BUILD [GPUS [SHAPE ...]]]    (default: build, 2 GPUs, qwen3-4b and glm4-9b)

Four GPUs: python3 tests/gpu/widths.py build 4. LAYERS=N (default 4) of each, which are one layer's weights N times. Needs
nothing but Python's standard library; with fewer GPUs, which the ranks share, or DEVICE=cpu: tiny shapes. Exit status 1 when something is wrong.
"""

import os
import re
import shutil
import sys
import time

import gap
from ranks import BUILD, DEVICE, deepen, same, train
from shared import SHAPES, checks, own_gpus

GPUS = int(sys.argv[2]) if len(sys.argv) > 2 else 2
LAYERS = int(os.environ.get("LAYERS", 4))
OWN = own_gpus(GPUS)
SIZES = (32, 8, 224, 400) if OWN else (4, 2, 12, 40)  # prompts, samples of each, new tokens, longest prompt in bytes
LEAST = 100000 if OWN else 1  # tokens of a pair


def powers():
    return [2**i for i in range(GPUS.bit_length()) if 2**i <= GPUS]


def pairs():
    """Every trainer beside every server; one of many ranks has all GPUs' servers."""
    for ranks in powers():
        for how in ("off", "on") if ranks > 1 else ("off",):
            for tp in powers():
                weights = "in parts" if how == "on" else "whole"
                yield (f"{ranks} rank{'s' * (ranks > 1)}, {weights}; servers TP {tp}", "--actor-num-gpus-per-node", ranks,
                       "--shard-weights", how, "--rollout-num-gpus", max(ranks, tp), "--rollout-num-gpus-per-engine", tp)  # fmt: skip


def widths(root, what):
    t0 = time.time()
    words = [str(w) for w in SHAPES[what]]
    at = words.index("--num-hidden-layers") + 1
    train("init", root / "one", *words[:at], 1, *words[at + 1 :], "--max-position-embeddings", 2048)
    deepen(root / "one", root / "model", LAYERS)
    shutil.rmtree(root / "one")
    print(f"{what}, {LAYERS} layers, made in {time.time() - t0:.1f} s", flush=True)
    shas = {}
    busy = SIZES[0] * SIZES[1]
    for name, *more in pairs():
        words = gap.rl(BUILD.resolve(), root, root / "model", DEVICE, *SIZES, "--gradient-lanes", GPUS, "--server-concurrency", busy,
                       "--server-max-running-requests", busy, "--server-max-total-tokens", busy * 1024, *more)  # fmt: skip
        shas[name], text = gap.no_gap(root, f"{what}, {name}", words, "--num-experts" in words, LEAST)
        print(f"        {set(re.findall(r'weights go to .*', text))}", flush=True)
    same(what, shas)
    shutil.rmtree(root / "model")


def main():
    with checks("widths") as root:
        for what in sys.argv[3:] or ("qwen3-4b", "glm4-9b"):
            widths(root, what)


if __name__ == "__main__":
    main()
