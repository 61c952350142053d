"""Speed of training with the optimizer at packs of 8,192 tokens, through the real programs, on one GPU and on several:
tokens/s and model TFLOP/s a GPU beside the products' ceiling, and a peer if one is given.

    python3 tests/gpu/training.py BUILD GPUS [CASE ...] [--peer PROGRAM]    (default: all cases)

  qwen3-4b         1 x 8,192 and 4 x 2,048 a rank; a pack of each rank a step, and four beside one GPU
  qwen3-32b        weights in parts, 1 x 8,192; layers of its widths
  qwen3-30b-a3b, moonlight
                   weights in parts and experts that stay with their rank, chosen evenly and with a favourite that has ten
                   times the mean

LAYERS=N cuts the models (default: what fits two H200s, see CASES); PACKS=N of a rank in a step and LENGTH=N of their samples instead of the case's. PROGRAM is started by torch.distributed.run on as many GPUs
and has its lines with "tok/s" printed. The ceiling needs torch, the rest does not; DEVICE=cpu with the cases of TINY. Model FLOPs are those of the forward pass and two of it for the backward pass, causal attention, nothing computed again.
Exit status 1 when something is wrong.
"""

import argparse
import concurrent.futures
import contextlib
import json
import mmap
import os
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import time

import ranks
from ranks import ON_GPUS, deepen, sft, steps_of
from shared import SHAPES, check, checks

PACK = 8192 if ON_GPUS else 64
PARTS = ("--shard-weights", "on")
# layers, packs of a rank a step, lengths of the samples, options
CASES = {
    "qwen3-4b": (36, (1, 4), (PACK, PACK // 4), ()),
    "qwen3-32b": (16, (4,), (PACK,), PARTS),
    "qwen3-30b-a3b": (18, (4,), (PACK,), PARTS),
    "moonlight": (18, (4,), (PACK,), PARTS),
}
TINY = {"tiny": (2, (1, 2), (PACK, PACK // 4), ()), "tiny-experts": (2, (2,), (PACK,), PARTS), "tiny-latent": (2, (2,), (PACK,), PARTS)}
ALL = CASES | TINY
STEPS = 4  # of which the first does not count

CEILING = """
import torch, time, threading
def run(i):
    a, b = (torch.randn(8192, 8192, device=f"cuda:{i}", dtype=torch.bfloat16) for _ in range(2))
    for turns in (5, 40):
        torch.cuda.synchronize(i); t = time.time()
        for _ in range(turns): a @ b
        torch.cuda.synchronize(i); s = (time.time() - t) / turns
    rates[i] = round(2 * 8192**3 / s / 1e12)
rates = {}
threads = [threading.Thread(target=run, args=(i,)) for i in range(torch.cuda.device_count())]
for t in threads: t.start()
for t in threads: t.join()
print(min(rates.values()))
"""


def ceiling():
    """bf16 8192^3 of the slower GPU while all compute, TFLOP/s; 0 without torch."""
    got = subprocess.run([sys.executable, "-c", CEILING], capture_output=True, text=True).stdout.strip()
    rate = int(got) if got.isdigit() else 0
    print(f"ceiling: bf16 GEMM 8192^3, all GPUs at once: {rate or 'no torch'} TFLOP/s on the slower", flush=True)
    return rate


def flops(config, length):
    """Of a token, forward and backward: of the model as it is written, and as it is computed where attention is latent."""
    c = config
    D, H, L, k = c["hidden_size"], c["num_attention_heads"], c["num_hidden_layers"], c.get("num_experts_per_tok", 0)
    E = c.get("num_experts") or c.get("n_routed_experts") or 0
    if "kv_lora_rank" in c:
        latent, rope, nope, value = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
        weights = D * H * (nope + rope) + D * (latent + rope) + latent * H * (nope + value) + H * value * D
        pairs = 2 * (nope + rope + value), 2 * (latent + rope + latent)
    else:
        Dh = c["head_dim"]
        weights = 2 * D * H * Dh + 2 * D * c["num_key_value_heads"] * Dh
        pairs = 4 * Dh, 4 * Dh
    weights += 3 * D * c["moe_intermediate_size"] * (k + c.get("n_shared_experts", 0)) + D * E if E else 3 * D * c["intermediate_size"]
    return [6 * (L * weights + c["vocab_size"] * D) + 3 * L * pair * length / 2 * H for pair in pairs]


@contextlib.contextmanager
def tensors(folder):
    """The model's file to be written to, and where each tensor begins and ends."""
    with open(folder / "model.safetensors", "r+b") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        begin = f.tell()
        with mmap.mmap(f.fileno(), 0) as m:
            yield m, {name: [begin + x for x in t["data_offsets"]] for name, t in head.items() if name != "__metadata__"}


def bf16(x):
    return struct.pack("<f", x)[2:]


def times_power_of_4(words, power):
    """bf16 values times 4^power: their exponents lie in the upper byte but for its lowest bit."""
    table = bytes((b & 0x80) | min(0x7F, (b & 0x7F) + power) if 8 < b & 0x7F < 0x7F - power else b for b in range(256))
    words[1::2] = words[1::2].translate(table)
    return words


def embed_alone(folder, config):
    """The residual stream becomes a token's embedding in all layers (4^6 times as large; a layer adds some hundredths), so that
    a token's experts are its own and many random tokens choose evenly. Its first column is the same for all."""
    with tensors(folder) as (m, at):
        a, b = at["model.embed_tokens.weight"]
        row, one = 2 * config["hidden_size"], bf16(0.02 * 4**6)
        for i in range(a, b, 4096 * row):
            part = times_power_of_4(bytearray(m[i : min(b, i + 4096 * row)]), 6)
            for j in range(2):
                part[j::row] = one[j : j + 1] * (len(part) // row)
            m[i : i + len(part)] = part


def favour(folder, config):
    """Each router's first expert is chosen by ten times the mean, by the tokens' common column: its row is four times the others',
    and the column's weight puts its logit as far above the least that is chosen as that share of rows asks."""
    normal = statistics.NormalDist()
    D, k = config["hidden_size"], config["num_experts_per_tok"]
    E = config.get("num_experts") or config["n_routed_experts"]
    share = min(0.95, 10 * k / E)
    sigma = 0.02 * D**0.5
    common = normal.inv_cdf(1 - k / E) * sigma + normal.inv_cdf(share) * 4 * sigma
    with tensors(folder) as (m, at):
        routers = [a for name, (a, _) in at.items() if name.endswith("mlp.gate.weight")]
        for a in routers:
            m[a : a + 2 * D] = bytes(times_power_of_4(bytearray(m[a : a + 2 * D]), 1))
            m[a : a + 2] = bf16(common)
    return len(routers), share * E / k


def data(path, n, length, vocab):
    """Samples of random tokens, all of them trained."""
    draw = random.Random(1)
    one = "[" + ",".join(["0"] + ["1"] * (length - 1)) + "]"
    with open(path, "w") as out:
        for _ in range(n):
            out.write(f'{{"ids": {json.dumps(draw.choices(range(vocab), k=length))}, "mask": {one}}}\n')


def speed(root, model, config, name, n, packs, length, most, more):
    """Tokens/s of so many ranks; the best of the steps that count."""
    samples = n * packs * (PACK // length)
    data(root / "data", samples * (STEPS + 1), length, config["vocab_size"])
    words = sft(root, model, "data", "run", n, "--ids-key", "ids", "--global-batch-size", samples, "--num-epoch", 1, "--lr", 1e-9,
                "--max-tokens-per-gpu", PACK, "--max-len", PACK, "--save-interval", 1000, *more)  # fmt: skip
    done, tokens, text = steps_of(root, "run", words, STEPS)
    whole = len(done) == STEPS and tokens == [samples * (length - 1)] * STEPS
    if not whole:
        check(False, f"{name}: {len(done)} steps, {tokens} tokens: {text[-2500:]}")
        return 0
    rates = [samples * length * 1e6 / (b - a) for a, b in zip(done, done[1:])]
    rate = max(rates)
    written, computed = [rate / n * f / 1e12 for f in flops(config, length)]
    also = f" ({computed:.0f} as it is computed)" if computed > 1.01 * written else ""
    memory = re.search(r"memory: .*= ([\d.]+ GiB)", text)
    share = f", {100 * computed / most:.0f} % of the ceiling" if most else ""
    print(f"{name}, {packs} x {PACK // length} x {length} a rank and step: {rate:.0f} tok/s ({' '.join(f'{x:.0f}' for x in rates)}), "
          f"{written:.0f} model TFLOP/s a GPU{also}{share}; {memory.group(1) if memory else '?'} of a device planned", flush=True)  # fmt: skip
    return rate


def make(root, what):
    t0 = time.time()
    words = [str(w) for w in SHAPES[what]]
    at = words.index("--num-hidden-layers") + 1
    layers = int(os.environ.get("LAYERS", ALL[what][0]))
    one = root / f"one-{what}"
    ranks.train("init", one, *words[:at], 1, *words[at + 1 :], "--max-position-embeddings", 8192)
    if "--num-experts" in words:
        embed_alone(one, json.loads((one / "config.json").read_text()))
    deepen(one, root / what, layers)
    shutil.rmtree(one)
    return f"{what}, {layers} layers, made in {time.time() - t0:.1f} s"


def case(root, what, n, most):
    layers, packs, lengths, more = ALL[what]
    if "PACKS" in os.environ:
        packs = (int(os.environ["PACKS"]),)
    if "LENGTH" in os.environ:
        lengths = (int(os.environ["LENGTH"]),)
    config = json.loads((root / what / "config.json").read_text())

    def of(name, n, packs, length=lengths[0], more=more):
        return speed(root, what, config, f"{what}, {name}", n, packs, length, most, more)

    if "--num-experts" in SHAPES[what]:
        ways = {"gathered": more, "experts stay": ("--expert-model-parallel-size", n)}
        even = {name: of(f"even, {name}", n, packs[0], more=way) for name, way in ways.items()}
        routers, times = favour(root / what, config)
        check(routers == config["num_hidden_layers"], "a favourite in every layer")
        for name, way in ways.items():
            skewed = of(f"a favourite with {times:.1f} times the mean, {name}", n, packs[0], more=way)
            print(f"{what}, {name}: {skewed / max(1, even[name]):.3f} of even", flush=True)
        return
    for length in lengths:
        rate = [of(f"{n} GPUs", n, p, length) for p in packs][-1]
        if "--shard-weights" not in more:
            alone = of("one GPU", 1, packs[-1], length)
            print(f"{what}: {rate / max(1, n * alone):.3f} of {n} times one GPU", flush=True)


def peer(program, n):
    """What a program of torch's makes of as many GPUs."""
    t0 = time.time()
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n), program]
    done = subprocess.run(words, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if "tok/s" in line]
    check(done.returncode == 0 and lines, f"peer {program} in {time.time() - t0:.0f} s {'' if lines else done.stderr[-1500:]}")
    print("\n".join("peer    " + line for line in lines), flush=True)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("build")
    a.add_argument("gpus", type=int)
    a.add_argument("case", nargs="*", default=list(CASES))
    a.add_argument("--peer")
    o = a.parse_args()
    ranks.LIMIT = 120
    most = ceiling() if ON_GPUS else 0
    with checks("training") as root, concurrent.futures.ThreadPoolExecutor(1) as pool:  # while the peer is compiled
        made = {what: pool.submit(make, root, what) for what in o.case}
        if o.peer:
            peer(o.peer, o.gpus)
        for what in o.case:
            print(f"        {made[what].result()}", flush=True)
            case(root, what, o.gpus, most)
            shutil.rmtree(root / what)


if __name__ == "__main__":
    main()
