#!/usr/bin/env python3
"""Rows that are given their experts, for tests/unit/model/test_given.c: made with PyTorch and transformers on the CPU.

    python tests/golden/make_given_goldens.py            rewrites tests/golden/<case>/given.safetensors
    python tests/golden/make_given_goldens.py --check    compares with what is stored, writes nothing

A golden model with its batch (make_goldens.py), whose first sequence chooses its experts itself; of each other one all rows
but the last are given experts drawn at random, whatever their routers would choose. given.safetensors has what
ref.safetensors has of a first step, torch's errors in bf16 too, and

    given    I16  [L, T, k] those ids, ascending; -1: the row's router chooses

Nothing here knows what a family makes of the chosen scores: the router runs as transformers has it, and only its call of
torch.topk that chooses among all experts is answered with the given ids and its own input at them.
"""

import argparse
from unittest import mock

import torch
from make_goldens import BATCH, HERE, Choices, bf16_errors, forward, stored_model, tensors_of, ways
from safetensors.torch import load_file, save_file

CASES = ["qwen3_moe", "qwen2_moe", "glm4_moe", "deepseek_v3"]
CLEAR = 1e-3  # margin of a row that chooses itself, far above fp32's rounding


def give(router, rows):
    """rows [n, k] of the padded batch: what it is given, -1 where it chooses."""
    forward, topk = router.forward, torch.topk

    def chosen(x, k, **options):
        values, ids = topk(x, k, **options)
        if x.shape[-1] != router.num_experts:  # among groups of them
            return values, ids
        ids = torch.where(rows >= 0, rows, ids)
        return x.gather(1, ids), ids

    def given_forward(*args):
        with mock.patch.object(torch, "topk", chosen):
            return forward(*args)

    router.forward = given_forward


def padded(rows, start):
    """rows [T, k] as the padded batch has them."""
    spans = list(zip(start[:-1], start[1:]))
    out = rows.new_full((len(spans), max(e - s for s, e in spans), rows.shape[1]), -1)
    for i, (s, e) in enumerate(spans):
        out[i, : e - s] = rows[s:e]
    return out.flatten(0, 1)


def draw(router, start, g):
    """[T, k] for one layer."""
    rows = torch.rand(start[-1], router.num_experts, generator=g).argsort(-1)[:, : router.top_k].sort(-1)[0]
    rows[: start[1]] = -1
    rows[[end - 1 for end in start[1:]]] = -1
    return rows


def first_step(model, batch):
    """What is compared, and its gradients."""
    model.zero_grad()
    _, logp, entropy, loss = forward(model, batch)
    loss.backward()
    grads = tensors_of({name: p.grad.clone() for name, p in model.named_parameters()})
    values = dict(logp=logp, entropy=entropy, **{"grad." + name: grad for name, grad in grads.items()})
    return {k: v.detach().to(torch.float64) for k, v in values.items()}


def routers(model):
    return {i: layer.mlp.gate for i, layer in enumerate(model.model.layers) if hasattr(layer.mlp, "gate")}


def reference(name):
    model, narrow = stored_model(name), stored_model(name, torch.bfloat16)
    out = {k: v for k, v in load_file(HERE / name / "ref.safetensors").items() if k in BATCH}
    batch = {k: v if v.is_floating_point() else v.long() for k, v in out.items()}
    start = out["start"].tolist()
    k = model.config.num_experts_per_tok
    given = torch.full((model.config.num_hidden_layers, start[-1], k), -1)
    g = torch.Generator().manual_seed(sum(map(ord, name)))
    choices, same = Choices(model), Choices(narrow)
    for i, router in routers(model).items():
        given[i] = draw(router, start, g)
        give(router, padded(given[i], start))
        give(routers(narrow)[i], padded(given[i], start))
    ref = first_step(model, {k: v.double() if v.is_floating_point() else v for k, v in batch.items()})
    real = padded(torch.zeros(start[-1], 1), start)[:, 0] == 0
    for i, margin in zip(routers(model), choices.margin, strict=True):
        assert margin[real][given[i, :, 0] < 0].min() > CLEAR, f"{name}: layer {i} has a near choice"
    runs = [first_step(way, batch) for way in ways(narrow)]
    for i, ids in enumerate(same.ids):
        wanted = choices.ids[i % len(choices.ids)]
        assert torch.equal(ids[real], wanted[real]), f"{name}: a run in bf16 chose other experts"
    out.update(given=given.short(), **{k: v.float().contiguous() for k, v in ref.items()}, **bf16_errors(ref, runs))
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in CASES:
        tensors, file = reference(name), HERE / name / "given.safetensors"
        if args.check:
            stored = load_file(file)
            assert stored.keys() == tensors.keys() and torch.equal(stored["given"], tensors["given"])
            worst = max(((stored[k].double() - v.double()).norm() / (v.double().norm() + 1e-300)).item()
                        for k, v in tensors.items() if not k.startswith("bf16."))
            print(f"{name}: largest difference {worst:.2e}")
            assert worst < 1e-5, name
        else:
            save_file(tensors, file)
            file.chmod(0o644)


if __name__ == "__main__":
    main()
