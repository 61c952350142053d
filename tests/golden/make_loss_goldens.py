"""Writes loss.json: GRPO advantages, the clipped policy loss with KL and entropy, and learning rates, from PyTorch.

Run again with any Python that has torch:  python3 tests/golden/make_loss_goldens.py
An independent implementation of the published formulas (DeepSeekMath eq. 4; Schulman et al. 2017 eq. 7 with DAPO's
separate bounds; Schulman's k1, k2, k3), with autograd for the derivatives, in float64.
"""
import json
import math
import os
import random

import torch

torch.manual_seed(7)
random.seed(7)


def advantages(groups, rewards, divide):
    out = [0.0] * len(rewards)
    for g in set(groups):
        at = [i for i, x in enumerate(groups) if x == g]
        r = torch.tensor([rewards[i] for i in at], dtype=torch.float64)
        a = r - r.mean()
        if divide and len(at) > 1:
            a = a / (r.std() + 1e-6)
        for i, v in zip(at, a.tolist()):
            out[i] = v
    return out


def kl_of(kind, logp, ref):
    d = logp - ref
    if kind == "k1":
        return d
    if kind == "k2":
        return d * d / 2
    k3 = torch.exp(-d) - 1 + d
    return torch.clamp(k3, -10, 10) if kind == "low_var_kl" else k3


def loss_case(kl_type, per_token, kl_coef, ent_coef, lo, hi):
    lengths = [3, 1, 5, 0, 4]  # the fourth sample is fully masked
    f = lambda n, s=1.0: [random.gauss(0, s) for _ in range(n)]
    n = sum(lengths)
    adv = f(len(lengths))
    behave = [-abs(x) - 0.1 for x in f(n)]
    logp = [b + x for b, x in zip(behave, f(n, 0.4))]
    ref = [b + x for b, x in zip(behave, f(n, 0.8))]
    entropy = [abs(x) for x in f(n)]
    lp = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    en = torch.tensor(entropy, dtype=torch.float64, requires_grad=True)
    a = torch.cat([torch.full((k,), v, dtype=torch.float64) for k, v in zip(lengths, adv)])
    ratio = torch.exp(lp - torch.tensor(behave, dtype=torch.float64))
    pg = torch.max(-ratio * a, -torch.clamp(ratio, 1 - lo, 1 + hi) * a)
    tok = pg + kl_coef * kl_of(kl_type, lp, torch.tensor(ref, dtype=torch.float64)) - ent_coef * en
    global_batch = 8
    if per_token:
        loss = tok.sum() / sum(max(k, 1) for k in lengths)
    else:
        loss = sum(t.mean() for t in torch.split(tok, lengths) if len(t)) / global_batch
    loss.backward()
    return dict(kl_type=kl_type, per_token=per_token, kl_coef=kl_coef, ent_coef=ent_coef, eps_clip=lo,
                eps_clip_high=hi, global_batch=global_batch, lengths=lengths, adv=adv, behave=behave, logp=logp,
                ref=ref, entropy=entropy, loss=loss.item(), g_logp=lp.grad.tolist(), g_entropy=en.grad.tolist())


def adam_case():
    p = torch.nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float64))
    opt = torch.optim.AdamW([p], lr=0.01, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1)
    out = []
    for step in range(4):
        p.grad = torch.sin(torch.arange(5, dtype=torch.float64) + step)
        opt.step()
        out.append(p.tolist())
    return out


groups = [3, 3, 5, 3, 9, 5, 5, 5, 5]
rewards = [0, 1, 0, 1, 2.5, 1, 0, 0, -1]
cases = [
    loss_case("k1", False, 0.0, 0.0, 0.2, 0.28),
    loss_case("k1", False, 0.3, 0.0, 0.2, 0.2),
    loss_case("k2", True, 0.1, 0.05, 0.2, 0.28),
    loss_case("k3", False, 0.1, 0.01, 0.1, 0.3),
    loss_case("low_var_kl", True, 0.001, 0.0, 0.2, 0.28),
]
doc = dict(groups=groups, rewards=rewards, grpo=advantages(groups, rewards, True),
           centred=advantages(groups, rewards, False), cases=cases, adamw=adam_case())
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "loss.json"), "w") as f:
    json.dump(doc, f, indent=0)
