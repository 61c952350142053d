"""Experts that stay with their rank (--expert-model-parallel-size) on two GPUs of one host, through the real programs: the
SHA-256 of one GPU for every family, also where the GPUs share micro-batches, and through losses. With a shape, so many layers of it: the speed and memory of experts
that are gathered and of experts that stay; `skewed`: that alone, of routers that choose the first rank's experts for every row.

    python3 tests/gpu/experts_stay.py [BUILD] [qwen3-30b-a3b LAYERS [skewed]]    (default: build, and no speed)

Needs what ranks.py needs. Exit status 1 when something is wrong.
"""

import json
import signal
import struct
import subprocess
import sys

import ranks
from ranks import BUILD, LIMIT, at_once, deepen, finish, hit, rows, same, sft, speed_of, train
from shared import SHAPES, check, checks, own_gpus, share_gpus, timed

FAMILIES = {"qwen3_moe": (), "glm4_moe": ("--num-dense-layers", 1), "deepseek_v3": ("--num-dense-layers", 1, "--kv-lora-rank", 512,
            "--qk-nope-head-dim", 128, "--qk-rope-head-dim", 64, "--v-head-dim", 128)}  # fmt: skip


def bits(root):
    own = own_gpus(2)
    small = ("--global-batch-size", 8, "--num-epoch", 1 if share_gpus() else 2, "--lr", 1e-3, "--save-interval", 10, "--max-tokens-per-gpu", 32, "--threads", 4,
             "--gradient-lanes", 2)  # fmt: skip
    for family, more in FAMILIES.items():
        heads = ("--num-key-value-heads", 4) if family == "deepseek_v3" else ("--num-key-value-heads", 2, "--head-dim", 64)
        train("init", root / family, "--family", family, "--hidden-size", 256, "--intermediate-size", 512, "--num-hidden-layers", 3,
              "--num-attention-heads", 4, *heads, "--dtype", "bf16", "--init-std", 0.05, "--num-experts", 16, "--num-experts-per-tok", 4,
              "--moe-intermediate-size", 128, *more)  # fmt: skip
    rows(root / "data", 200, 12)

    def words(name, model, n, *more):
        return sft(root, model, "data", name, n, *small, *more)

    stay, share = ("--expert-model-parallel-size", 2), ("--context-parallel-size", 2)
    ways = {f"{m}-{w}": (finish, root, f"{m}-{w}", words(f"{m}-{w}", m, n, *more)) for m in FAMILIES
            for w, n, *more in (("alone", 1), ("stay", 2, *stay), ("full", 2, *stay, "--recompute-granularity", "full"))}  # fmt: skip
    also = {"offload": ("--optimizer-cpu-offload",)} | ({"nccl": ("--rank-transport", "nccl")} if own else {})
    ways |= {f"qwen3_moe-{w}": (finish, root, f"qwen3_moe-{w}", words(f"qwen3_moe-{w}", "qwen3_moe", 2, *stay, *more)) for w, more in also.items()}
    shared = {f"shared-{m}-{w}": (finish, root, f"shared-{m}-{w}", words(f"shared-{m}-{w}", m, n, *share, *more)) for m in FAMILIES
              for w, n, *more in (("alone", 1), ("stay", 2, *stay), ("full", 2, *stay, "--recompute-granularity", "full"))}  # fmt: skip
    shas = at_once(**ways) | at_once(**shared)
    for m in (*FAMILIES, *(f"shared-{m}" for m in FAMILIES)):
        same(m, {k: v for k, v in shas.items() if k.startswith(m)})

    run = lambda name, n, *more: words(name, "qwen3_moe", n, *more)
    shas = {"whole": shas["qwen3_moe-alone"]} | at_once(
        follower=(hit, root, "follower", run("follower", 2, *stay), 1, signal.SIGKILL),
        stay_then_one=(hit, root, "stay_then_one", run("stay_then_one", 2, *stay), 0, signal.SIGKILL, run("stay_then_one", 1)),
        frozen=(hit, root, "frozen", run("frozen", 2, "--distributed-timeout-minutes", 0.1, *stay), 1, signal.SIGSTOP),
    )  # fmt: skip
    same("through losses", shas)


def skew(folder):
    """Of a router's first half each row has its opposite, so half of these are above 0 for any row of numbers; the second half
    is 0, and never chosen."""
    with open(folder / "model.safetensors", "r+b") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        begin = f.tell()
        for name, tensor in head.items():
            if not name.endswith("mlp.gate.weight"):
                continue
            (experts, width), at = tensor["shape"], begin + tensor["data_offsets"][0]
            assert tensor["dtype"] == "BF16"
            quarter = experts // 4 * width
            f.seek(at)
            own = struct.unpack(f"<{quarter}H", f.read(2 * quarter))
            f.write(struct.pack(f"<{quarter}H", *(h ^ 0x8000 for h in own)) + bytes(4 * quarter))


def speed(root, name, layers, one, skewed):
    check(one.wait(LIMIT) == 0, f"a layer of {name}'s widths")
    if skewed:
        skew(root / "one")
    deepen(root / "one", root / "some", layers)
    rows(root / "long", 8 * 8 * 4 + 64, 1000)
    two = ("--gradient-lanes", 2, "--recompute-granularity", "full")
    ways = {"gathered": ("--shard-weights", "on"), "staying": ("--expert-model-parallel-size", 2)}
    rate = {way: speed_of(root, "some", "long", f"{way} experts", 2, 8, *two, *more) for way, more in ways.items()}
    check(min(rate.values()) > 0, f"{layers} layers of {name}'s widths on two GPUs{', skewed' * skewed}: {rate} tok/s")


def main():
    ranks.LIMIT = 90
    name, layers = (sys.argv[2], int(sys.argv[3])) if len(sys.argv) > 3 else (None, 0)
    skewed = sys.argv[4:] == ["skewed"]
    words = [str(w) for w in SHAPES[name]] if name else []
    if name:
        words[words.index("--num-hidden-layers") + 1] = "1"
    with checks("experts-stay") as root:
        one = name and subprocess.Popen([BUILD / "clime-train", "init", root / "one", *words, "--max-position-embeddings", "4096"],
                                        stdout=subprocess.DEVNULL)  # fmt: skip
        for part in (*(() if skewed else (bits,)), *((lambda root: speed(root, name, layers, one, skewed),) if name else ())):
            timed(part, root)


if __name__ == "__main__":
    main()
