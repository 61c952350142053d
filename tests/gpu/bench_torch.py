#!/usr/bin/env python3
"""The same work in torch, measured in the same run as clime's, and the table of both.

    tests/gpu/bench_torch.py OUTPUT [--small]

OUTPUT is what bench_gpu printed. The peer is a plain torch model of the same shape with random weights: q, k and v in one
product, gate and up in one, attention by scaled_dot_product_attention, a decode step recorded as a CUDA graph, training
and prefill eager and by torch.compile. --small: a tiny shape on any device, not compiled, to see that the script works;
its figures say nothing. Needs torch; scripts/bench-gpu runs it.
"""

import math
import re
import sys
import time

import torch
import torch.nn.functional as F

SMALL = "--small" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
D, L, H, HK, DH, FF, V = (128, 2, 4, 2, 32, 256, 512) if SMALL else (2560, 36, 32, 8, 128, 9728, 151936)
CONTEXT, PREFILL = (64, 128) if SMALL else (1024, 8192)
BATCHES = (1, 64, 256)
PACKS = ((4, PREFILL // 4), (1, PREFILL))
ADAMW = 1 << (20 if SMALL else 28)
EPS = 1e-6


def sync():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds(turns, work, warm=2):
    for _ in range(warm):
        work()
    sync()
    start = time.perf_counter()
    for _ in range(turns):
        work()
    sync()
    return (time.perf_counter() - start) / turns


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        weight = lambda *shape: torch.nn.Parameter(torch.randn(*shape) * 0.02)  # noqa: E731
        ones = lambda n: torch.nn.Parameter(torch.ones(n))  # noqa: E731
        self.qkv, self.o = weight((H + 2 * HK) * DH, D), weight(D, H * DH)
        self.gu, self.down = weight(2 * FF, D), weight(D, FF)
        self.ln1, self.ln2, self.q_norm, self.k_norm = ones(D), ones(D), ones(DH), ones(DH)

    def forward(self, x, cos, sin, cache=None):
        """cache: keys and values [B, HK, CONTEXT, DH]; then x is the last of CONTEXT positions."""
        B, T, _ = x.shape
        qkv = F.linear(F.rms_norm(x, (D,), self.ln1, EPS), self.qkv).view(B, T, H + 2 * HK, DH).transpose(1, 2)
        q, k, v = qkv.split((H, HK, HK), 1)
        q = rotate(F.rms_norm(q, (DH,), self.q_norm, EPS), cos, sin)
        k = rotate(F.rms_norm(k, (DH,), self.k_norm, EPS), cos, sin)
        if cache is not None:
            cache[0][:, :, -1:], cache[1][:, :, -1:] = k, v
            k, v = cache
        out = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        x = x + F.linear(out.transpose(1, 2).reshape(B, T, H * DH), self.o)
        gate, up = F.linear(F.rms_norm(x, (D,), self.ln2, EPS), self.gu).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


def loss_of(x, embed, ids):
    return F.cross_entropy(F.linear(x, embed).float().view(-1, V), ids.view(-1))


class Model(torch.nn.Module):
    """Compiled layer by layer: one graph serves them all, and takes seconds where the whole model takes minutes."""

    def __init__(self):
        super().__init__()
        self.run_layer, self.run_loss = Layer.forward, loss_of
        self.embed = torch.nn.Parameter(torch.randn(V, D) * 0.02)
        self.norm = torch.nn.Parameter(torch.ones(D))
        self.layers = torch.nn.ModuleList(Layer() for _ in range(L))

    def hidden(self, ids, cos, sin, caches=None):
        x = F.embedding(ids, self.embed)
        for i, layer in enumerate(self.layers):
            x = self.run_layer(layer, x, cos, sin, caches[i] if caches else None)
        return F.rms_norm(x, (D,), self.norm, EPS)

    def last_logits(self, ids, cos, sin, caches=None):
        return F.linear(self.hidden(ids, cos, sin, caches)[:, -1], self.embed).float()

    def loss(self, ids, cos, sin):
        return self.run_loss(self.hidden(ids, cos, sin), self.embed, ids)


def angles(first, n):
    pos = torch.arange(first, first + n, device=DEVICE, dtype=torch.float32)
    angle = torch.outer(pos, 1e6 ** (-torch.arange(0, DH, 2, device=DEVICE).float() / DH)).repeat(1, 2)
    return angle.cos().bfloat16(), angle.sin().bfloat16()


def ceilings():
    n = 1 << (22 if SMALL else 32)
    a, b = torch.empty(n, dtype=torch.uint8, device=DEVICE), torch.empty(n, dtype=torch.uint8, device=DEVICE)
    copy = 2 * n / seconds(10, lambda: b.copy_(a))
    m = 256 if SMALL else 8192
    x = torch.randn(m, m, device=DEVICE).bfloat16()
    return copy, 2 * m**3 / seconds(10, lambda: x @ x)


@torch.no_grad()
def decode(model, batch):
    """Seconds a step of `batch` sequences at CONTEXT, drawn by temperature 1."""
    ids = torch.zeros(batch, 1, dtype=torch.long, device=DEVICE)
    caches = [torch.zeros(2, batch, HK, CONTEXT, DH, dtype=torch.bfloat16, device=DEVICE) for _ in range(L)]
    cos, sin = angles(CONTEXT - 1, 1)

    def step():
        probs = torch.softmax(model.last_logits(ids, cos, sin, caches), -1)
        ids.copy_((probs / torch.empty_like(probs).exponential_()).argmax(-1, keepdim=True))

    step()
    if DEVICE != "cuda":
        return seconds(3, step)
    sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return seconds(20, graph.replay)


def both_ways(model, work):
    """Seconds of `work` with the model as it is and compiled (None where it is not)."""
    plain = seconds(3, work)
    if SMALL:
        return plain, None
    torch._dynamo.reset()
    model.run_layer, model.run_loss = torch.compile(Layer.forward), torch.compile(loss_of)
    fast = seconds(3, work)
    model.run_layer, model.run_loss = Layer.forward, loss_of
    return plain, fast


def training(model, n, length):
    ids = torch.randint(0, V, (n, length), device=DEVICE)
    cos, sin = angles(0, length)

    def work():
        model.zero_grad(set_to_none=True)
        model.loss(ids, cos, sin).backward()

    found = both_ways(model, work)
    model.zero_grad(set_to_none=True)
    return found


@torch.no_grad()
def prefill(model):
    ids = torch.randint(0, V, (1, PREFILL), device=DEVICE)
    cos, sin = angles(0, PREFILL)
    return both_ways(model, lambda: model.last_logits(ids, cos, sin))


def adamw():
    """Bytes a second of the fused step over fp32 weights, gradients and moments: 28 a weight."""
    p = torch.zeros(ADAMW, device=DEVICE, requires_grad=True)
    p.grad = torch.zeros_like(p)
    optimizer = torch.optim.AdamW([p], lr=1e-6, fused=True)
    return 28 * ADAMW / seconds(5, optimizer.step)


def flops_of_training(weights, n, length):
    return 6 * weights * n * length + 3 * L * 2 * 2 * length * length * H * DH / 2 * n


def clime(text, pattern):
    found = re.search(pattern, text)
    return found.group(1) if found else "-"


def main():
    text = open(sys.argv[1]).read()
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = Model()
    weights = sum(p.numel() for p in model.parameters())
    rows = []

    def row(what, unit, ours, eager, fast, goal=""):
        shown = [x if isinstance(x, str) else "-" if x is None else f"{x:.0f}" for x in (ours, eager, fast)]
        rows.append((f"{what}, {unit}", *shown, goal))
        print("torch: " + " | ".join(rows[-1]), flush=True)

    with torch.no_grad():
        torch.set_default_dtype(torch.float32)
        copy, gemm = ceilings()
    row("copy", "GB/s", clime(text, r"copy (\d+) GB/s"), copy * 1e-9, None)
    row("GEMM 8192^3", "TFLOP/s", clime(text, r"8192\^3 (\d+) TFLOP"), gemm * 1e-12, None)
    for batch in BATCHES:
        ours = clime(text, rf"decode, recorded, batch {batch}, .* step, (\d+) tok/s")
        share = clime(text, rf"decode, recorded, batch {batch}, .* tok/s, (\d+)% of")
        queued = clime(text, rf"decode, overlapped, batch {batch}, .* step, (\d+) tok/s")
        row(f"decode, batch {batch}, context {CONTEXT}", "tok/s", f"{ours} ({share} % of the bytes' limit), queued {queued}",
            None, batch / decode(model, batch), "90 %" if batch == 1 else "80 %")  # fmt: skip
    work = 2 * (weights - V * D) * PREFILL + 2 * PREFILL * PREFILL * H * DH * L
    row(f"prefill of {PREFILL}", "TFLOP/s", clime(text, r"prefill of \d+: .* tok/s, (\d+) TFLOP/s"),
        *(None if s is None else work / s * 1e-12 for s in prefill(model)), "75 % of GEMM")  # fmt: skip
    for n, length in PACKS:
        ours = clime(text, rf"training {n}x{length}: .* (\d+) model TFLOP/s")
        flops = flops_of_training(weights, n, length)
        row(f"training {n} x {length}", "model TFLOP/s", ours,
            *(None if s is None else flops / s * 1e-12 for s in training(model, n, length)),
            "550, 1.1 x compiled")  # fmt: skip
    del model
    row("AdamW", "% of copy", clime(text, r"adamw: .*?(\d+)% of copy"), 100 * adamw() / copy, None, "85 %")

    print("\n| | clime | torch eager | torch compiled or recorded | goal |\n| --- | --- | --- | --- | --- |")
    for cells in rows:
        print("| " + " | ".join(cells) + " |")
    return int(any(not math.isfinite(float(x)) for r in rows for x in r[2:4] if x != "-"))


if __name__ == "__main__":
    sys.exit(main())
