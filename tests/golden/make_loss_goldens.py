"""Writes loss.json: advantages of every estimator, and every loss, KL and correction with its derivatives, from PyTorch.

Run again with any Python that has torch:  python3 tests/golden/make_loss_goldens.py
An independent implementation of the published formulas (docs/algorithms.md names the papers), on padded tensors with
masks, with autograd for the derivatives, in float64. Inputs are rounded to float32 first, so that a comparison with a
bound falls the same way on both sides.
"""
import json
import math
import os
import random

import torch

random.seed(7)
D = torch.float64


def f32(x):
    return torch.tensor(x, dtype=torch.float32).to(D)


# ---- samples: ragged groups, in no order of groups; member 1 of group 5 fanned out into three samples; one sample is
# fully masked; masks with holes; tokens of older versions, where old and behave differ ----

SHAPE = [  # group, member, tokens of the response, reward
    (3, 0, 6, 1.0), (5, 1, 4, 0.0), (3, 1, 1, 0.0), (9, 0, 5, 2.5), (5, 0, 7, 1.0), (3, 2, 4, 1.0),
    (5, 1, 3, 1.0), (5, 2, 5, -1.0), (5, 1, 2, 0.5), (7, 0, 3, 0.25), (7, 1, 6, 0.75),
]  # fmt: skip
MASKED = 5  # index of the sample without a trained token
VERSION = 8  # of the weights that training on the rollout begins with


def make_samples():
    out = []
    for i, (group, member, n, reward) in enumerate(SHAPE):
        mask = [0 if i == MASKED or (k % 3 == 1 and n > 3) else 1 for k in range(n)]
        versions = [VERSION if k >= n // 2 or i % 2 else VERSION - 2 for k in range(n)]
        behave = [-abs(random.gauss(0, 1)) - 0.05 for _ in range(n)]
        old = [b if v == VERSION else b + random.gauss(0, 0.5) for b, v in zip(behave, versions)]
        out.append(dict(group=group, member=member, n=n, reward=reward, mask=mask, versions=versions,
                        behave=f32(behave).tolist(), old=f32(old).tolist(),
                        logp=f32([o + random.gauss(0, 0.3) for o in old]).tolist(),
                        ref=f32([o + random.gauss(0, 0.8) for o in old]).tolist(),
                        entropy=f32([abs(random.gauss(0, 1)) for _ in range(n)]).tolist(),
                        adv=f32([random.gauss(0, 1)] * n).tolist()))  # fmt: skip
    for s in out:
        s["value"] = f32([random.gauss(0, 1) for _ in range(s["n"])]).tolist()
        s["new_value"] = f32([v + random.gauss(0, 0.3) for v in s["value"]]).tolist()
        s["ret"] = f32([random.gauss(0, 1) for _ in range(s["n"])]).tolist()
    old_token = out[4]["versions"].index(VERSION - 2)
    for i, s in enumerate(out):
        rng = random.Random(100 + i)  # apart, so that the other numbers stay what they were
        s["teacher"] = f32([o + rng.gauss(0, 0.8) for o in s["old"]]).tolist()
    out[4]["old"][old_token] = f32(out[4]["behave"][old_token] - 9.5).item()  # below any veto
    return out


SAMPLES = make_samples()
LONGEST = max(s["n"] for s in SAMPLES)


def padded(key):
    return torch.stack([torch.cat([torch.tensor(s[key], dtype=D), torch.zeros(LONGEST - s["n"], dtype=D)])
                        for s in SAMPLES])  # fmt: skip


def flat(x, mask):
    return [x[i, k].item() for i in range(len(SAMPLES)) for k in range(LONGEST) if mask[i, k]]


MASK = padded("mask")


def kl_term(kind, logp, ref, ratio=None):
    """Schulman's k1, k2, k3; low_var_kl is k3, clamped last; ratio: the unbiased form of DeepSeek-V3.2."""
    x = ref - logp  # log of the other's probability over ours
    kl = {"k1": -x, "k2": x.square() / 2}.get(kind)
    if kl is None:
        kl = torch.expm1(x) - x
    if ratio is not None:
        kl = ratio * kl
    return kl.clamp(-10, 10) if kind == "low_var_kl" else kl


# ---- advantages ----


def gae(reward, kl, value, gamma, lambd, kl_coef):
    """Over the trained tokens alone: kl and value are theirs; A_t is the sum of (gamma lambd)^l delta_{t+l}."""
    n = len(value)
    r = -kl_coef * kl
    if n:
        r[-1] += reward
    delta = r + gamma * torch.cat([value[1:], torch.zeros(1, dtype=D)])[:n] - value
    return torch.stack([sum((gamma * lambd) ** l * delta[t + l] for l in range(n - t)) for t in range(n)]) if n else value


def advantages(estimator, gamma=1.0, lambd=1.0, kl_coef=0.0, kl_type="k1", no_std=False, raw=False, whiten=False,
               opd_coef=0.0):  # fmt: skip
    case = dict(estimator=estimator, gamma=gamma, lambd=lambd, kl_coef=kl_coef, kl_type=kl_type, no_std=no_std, raw=raw,
                whiten=whiten, opd_coef=opd_coef)  # fmt: skip
    reward = torch.tensor([s["reward"] for s in SAMPLES], dtype=D)
    kl = kl_term(kl_type, padded("old"), padded("ref")) * MASK
    per_token = estimator == "ppo" or estimator.startswith("reinforce")
    if not per_token:
        reward = reward - kl_coef * kl.sum(1)  # the return of the whole sample
    # of each group the rewards of its members; a member's is the mean over what it fanned out into
    members = {}
    for s, r in zip(SAMPLES, reward.tolist()):
        members.setdefault(s["group"], {}).setdefault(s["member"], []).append(r)
    parts = members
    members = {g: {m: sum(r) / len(r) for m, r in ms.items()} for g, ms in members.items()}
    adv = torch.zeros_like(MASK)
    for i, s in enumerate(SAMPLES):
        group = torch.tensor(list(members[s["group"]].values()), dtype=D)
        r = reward[i]
        if estimator in ("grpo", "gspo", "cispo"):
            a = r if raw else r - group.mean()
            if not raw and not no_std and len(group) > 1:
                squares = [((torch.tensor(p, dtype=D) - group.mean()) ** 2).mean() for p in parts[s["group"]].values()]
                a = a / (torch.sqrt(sum(squares) / (len(group) - 1)) + 1e-6)
            adv[i] = a
        elif estimator == "rloo":
            others = [x for m, x in members[s["group"]].items() if m != s["member"]]
            adv[i] = r - sum(others) / len(others) if others else 0.0
        elif estimator == "ppo":
            trained = MASK[i].bool()
            adv[i, trained] = gae(r, kl[i, trained], padded("value")[i, trained], gamma, lambd, kl_coef)
        elif estimator == "reinforce_plus_plus_baseline":
            adv[i] = (r if raw else r - group.mean()) - kl_coef * kl[i]
        else:
            assert estimator == "reinforce_plus_plus"
            token_reward = -kl_coef * kl[i]
            trained = MASK[i].nonzero().flatten()
            if len(trained):
                token_reward[trained[-1]] += r
            for t in range(LONGEST):
                adv[i, t] = sum(gamma ** (u - t) * token_reward[u] for u in range(t, LONGEST))
    # on-policy distillation: off each token's advantage its log-ratio of policy to teacher (Thinking Machines 2025)
    if opd_coef:
        adv = adv - opd_coef * torch.log(torch.exp(padded("old")) / torch.exp(padded("teacher")))
    if whiten:
        values = adv[MASK.bool()]
        adv = (adv - values.mean()) * torch.rsqrt(values.var(unbiased=True) + 1e-8)
    return dict(case, adv=flat(adv, MASK))


# ---- loss ----


def surrogate(ratio, adv, lo, hi, c):
    loss = torch.maximum(-adv * ratio, -adv * torch.clamp(ratio, 1.0 - lo, 1.0 + hi))
    return loss if c is None else torch.where(adv < 0, torch.minimum(-adv * c, loss), loss)


def at_level(level, log_rho, mask):
    """The ratio of each token at its level, with the logarithm bounded by 20."""
    total = (log_rho * mask).sum(1, keepdim=True)
    count = mask.sum(1, keepdim=True).clamp(min=1)
    x = {"token": log_rho, "sequence": total.expand_as(log_rho), "geometric": (total / count).expand_as(log_rho)}[level]
    return torch.exp(x.clamp(-20, 20))


def loss(estimator="grpo", eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=None, kl_coef=0.0, kl_type="k1", unbiased=False,
         ent_coef=0.0, reduction="member", divisor=0, global_batch=8, tis=False, tis_mode="truncate", tis_level="token",
         tis_low=0.0, tis_high=2.0, tis_normalize=False, rs=False, rs_level="token", rs_low=0.5, rs_high=2.0, veto=0.0,
         opsm=False, opsm_delta=1e-4, mask_offpolicy=False):  # fmt: skip
    case = dict(locals())
    mask = MASK
    if mask_offpolicy:
        mask = mask * (padded("versions") >= VERSION)
    adv, behave, old, ref = padded("adv"), padded("behave"), padded("old"), padded("ref")
    corrected = tis or rs or veto > 0
    if not corrected:
        old = behave
    lp = padded("logp").requires_grad_()
    en = padded("entropy").requires_grad_()
    log_ratio = lp - old
    count = mask.sum(1).clamp(min=1)

    if estimator == "gspo":
        s = torch.exp((log_ratio * mask).sum(1) / count)
        pg = surrogate(s[:, None].expand_as(lp), adv, eps_clip, eps_clip_high, eps_clip_c)
    elif estimator == "cispo":
        pg = -torch.clamp(torch.exp(log_ratio), 1 - eps_clip, 1 + eps_clip_high).detach() * adv * lp
    else:
        pg = surrogate(torch.exp(log_ratio), adv, eps_clip, eps_clip_high, eps_clip_c)

    keep = mask.clone()  # tokens that are in the numerators
    pg_weight = torch.ones_like(mask)
    log_rho = old - behave
    if tis:
        rho = at_level(tis_level, log_rho, mask)
        inside = (rho >= tis_low) & (rho <= tis_high)
        pg_weight = {"truncate": rho.clamp(tis_low, tis_high), "icepop": rho * inside, "mask": rho}[tis_mode]
        if tis_mode == "mask":
            keep = keep * inside
        if tis_normalize:
            pg_weight = pg_weight / ((pg_weight * mask).sum() / mask.sum())
    if rs:
        rho = at_level(rs_level, log_rho, mask)
        keep = keep * ((rho >= rs_low) & (rho <= rs_high))
    if veto > 0:
        bad = ((log_rho < math.log(veto)) & mask.bool()).any(1)
        keep = keep * (~bad)[:, None]
    if opsm:
        seq_kl = (-(log_ratio.detach()) * mask).sum(1) / count
        pg_weight = pg_weight * ~((adv < 0) & (seq_kl > opsm_delta)[:, None])

    token = pg * pg_weight - ent_coef * en
    if kl_coef:
        token = token + kl_coef * kl_term(kl_type, lp, ref, torch.exp(log_ratio) if unbiased else None)
    sums = (token * keep).sum(1)
    if reduction == "token":
        total = sums.sum() / mask.sum(1).clamp(min=1).sum()
    elif reduction == "constant":
        total = sums.sum() / (divisor * global_batch)
    else:  # the mean over the trained tokens of a member, all that it fanned out into, then over the global batch
        tokens = {}
        for i, s in enumerate(SAMPLES):
            key = (s["group"], s["member"])
            tokens[key] = tokens.get(key, 0) + mask[i].sum().item()
        total = sum(sums[i] / max(tokens[(s["group"], s["member"])], 1) for i, s in enumerate(SAMPLES)) / global_batch
    total.backward()
    case["eps_clip_c"] = eps_clip_c or 0.0
    return dict(case, corrected=corrected, loss=total.item(), rejected=(mask.sum() - keep.sum()).item(),
                g_logp=flat(lp.grad, mask), g_entropy=flat(en.grad, mask))  # fmt: skip


def value_loss(clip):
    """The mean over members as in the policy's loss, of the worse of the two squared errors."""
    v = padded("new_value").requires_grad_()
    old, ret = padded("value"), padded("ret")
    near = old + (v - old).clamp(-clip, clip)
    token = torch.stack([(near - ret).square(), (v - ret).square()]).amax(0) * MASK
    members = {}
    for i, s in enumerate(SAMPLES):
        members.setdefault((s["group"], s["member"]), []).append(i)
    total = sum(token[m].sum() / MASK[m].sum().clamp(min=1) for m in members.values()) / 8
    total.backward()
    clipped = (((v - old).abs() > clip) * MASK).sum()
    return dict(value_clip=clip, global_batch=8, loss=total.item(), clipped=clipped.item(), g=flat(v.grad, MASK))


ADVANTAGES = [
    advantages("grpo"),
    advantages("grpo", no_std=True),
    advantages("grpo", raw=True),
    advantages("grpo", kl_coef=0.1, kl_type="k3"),
    advantages("grpo", whiten=True),
    advantages("gspo"),
    advantages("cispo", no_std=True, kl_coef=0.02, kl_type="low_var_kl"),
    advantages("rloo"),
    advantages("rloo", kl_coef=0.05, kl_type="k1"),
    advantages("ppo"),
    advantages("ppo", gamma=0.99, lambd=0.95, kl_coef=0.1, kl_type="k2"),
    advantages("ppo", gamma=0.9, lambd=0.0, whiten=True),
    advantages("reinforce_plus_plus"),
    advantages("reinforce_plus_plus", gamma=0.9, kl_coef=0.1, kl_type="k2"),
    advantages("reinforce_plus_plus", gamma=0.95, kl_coef=0.05, kl_type="low_var_kl", whiten=True),
    advantages("reinforce_plus_plus_baseline", kl_coef=0.1, kl_type="k1"),
    advantages("reinforce_plus_plus_baseline", kl_coef=0.1, kl_type="k3", whiten=True),
    advantages("reinforce_plus_plus_baseline", raw=True, whiten=True),
    advantages("grpo", opd_coef=1.0),
    advantages("reinforce_plus_plus", gamma=0.9, kl_coef=0.1, kl_type="k3", opd_coef=0.3, whiten=True),
]
KL = dict(kl_coef=0.3)
TIS = dict(tis=True, kl_coef=0.1, kl_type="k3", ent_coef=0.02)
LOSSES = [
    loss(),
    loss(eps_clip=0.1, eps_clip_high=0.1),
    loss(eps_clip_c=1.1, eps_clip=0.05, eps_clip_high=0.05),
    loss("gspo", eps_clip=0.05, eps_clip_high=0.08, ent_coef=0.01),
    loss("gspo", eps_clip=0.01, eps_clip_high=0.01, eps_clip_c=1.05, reduction="token"),
    loss("cispo"),
    loss("cispo", eps_clip=1.0, eps_clip_high=0.1, reduction="token", **KL),
    loss("rloo", reduction="constant", divisor=16),
    loss(reduction="token", ent_coef=0.05, **KL),
    loss(kl_type="k1", **KL),
    loss(kl_type="k2", reduction="constant", divisor=7, **KL),
    loss(kl_type="k3", **KL),
    loss(kl_type="low_var_kl", ent_coef=0.01, **KL),
    loss(kl_type="k1", unbiased=True, **KL),
    loss(kl_type="k2", unbiased=True, **KL),
    loss(kl_type="k3", unbiased=True, reduction="token", **KL),
    loss(kl_type="low_var_kl", unbiased=True, **KL),
    loss(**TIS),
    loss(tis_low=0.8, tis_high=1.2, **TIS),
    loss(tis_mode="icepop", tis_low=0.7, tis_high=1.3, **TIS),
    loss(tis_mode="mask", tis_low=0.7, tis_high=1.3, **TIS),
    loss(tis_level="sequence", tis_high=3.0, **TIS),
    loss(tis_level="geometric", tis_low=0.9, tis_high=1.1, reduction="token", **TIS),
    loss(tis_mode="mask", tis_level="geometric", tis_low=0.9, tis_high=1.1, **TIS),
    loss("cispo", tis_normalize=True, **TIS),
    loss("gspo", tis_level="sequence", tis_low=0.2, tis_high=4.0, eps_clip=0.1, eps_clip_high=0.1, **TIS),
    loss(rs=True, rs_low=0.7, rs_high=1.4, kl_coef=0.1, ent_coef=0.01),
    loss(rs=True, rs_level="sequence", rs_low=0.5, rs_high=2.0, **TIS),
    loss(rs=True, rs_level="geometric", rs_low=0.9, rs_high=1.1, reduction="constant", divisor=5),
    loss(veto=1e-4, kl_coef=0.2),
    loss(veto=1e-3, rs=True, tis_normalize=True, **TIS),
    loss(opsm=True),
    loss(opsm=True, opsm_delta=0.1, ent_coef=0.01, **KL),
    loss("gspo", opsm=True, opsm_delta=0.05, **TIS),
    loss(mask_offpolicy=True),
    loss("gspo", mask_offpolicy=True, reduction="token", **TIS),
]


# ---- pairs: DPO and its kin (docs/algorithms.md), sums over ragged answers; the derivative by autograd ----


def preference(kind, beta=0.1, smoothing=0.0, gamma=0.0, scale=1.0):
    rng = random.Random(900)
    pairs = []
    for chosen, rejected in ((3, 5), (1, 7), (6, 2), (4, 4)):
        pairs.append([[(f32(-abs(rng.gauss(0, scale)) - 0.05).item(), f32(-abs(rng.gauss(0, scale)) - 0.05).item())
                       for _ in range(n)] for n in (chosen, rejected)])  # fmt: skip
    logp = [[torch.tensor([a for a, _ in side], dtype=D, requires_grad=True) for side in p] for p in pairs]
    ref = [[torch.tensor([b for _, b in side], dtype=D) for side in p] for p in pairs]
    total, right, rewards = 0, 0, [0.0, 0.0]
    for lp, rf in zip(logp, ref):
        s = [a.sum() if kind == "simpo" else (a - b).sum() for a, b in zip(lp, rf)]
        if kind != "sigmoid":
            s = [x / len(a) for x, a in zip(s, lp)]
        h = s[0] - s[1]
        if kind == "ipo":
            each = (h - 1 / (2 * beta)) ** 2
        else:
            x = beta * h - (gamma if kind == "simpo" else 0)
            each = -torch.nn.functional.logsigmoid(x) * (1 - smoothing) - torch.nn.functional.logsigmoid(-x) * smoothing
        total = total + each / len(pairs)
        right += (h > 0).item() / len(pairs)
        rewards = [r + beta * x.item() / len(pairs) for r, x in zip(rewards, s)]
    total.backward()
    return dict(kind=kind, beta=beta, label_smoothing=smoothing, simpo_gamma=gamma, loss=total.item(), right=right,
                chosen=rewards[0], rejected=rewards[1],
                pairs=[[dict(logp=a.detach().tolist(), ref=b.tolist(), g=a.grad.tolist()) for a, b in zip(lp, rf)]
                       for lp, rf in zip(logp, ref)])  # fmt: skip


PAIRS = [
    preference("sigmoid"),
    preference("sigmoid", beta=0.5, smoothing=0.1),
    preference("sigmoid", beta=30.0, scale=20.0),  # far into both tails
    preference("dpo_norm", beta=5.0),
    preference("ipo", beta=0.2),
    preference("simpo", beta=2.0, gamma=1.0),
    preference("simpo", beta=2.5, gamma=0.5, smoothing=0.05),
]
doc = dict(version=VERSION, pairs=PAIRS, samples=SAMPLES, advantages=ADVANTAGES, losses=LOSSES, values=[value_loss(0.2), value_loss(0.05), value_loss(10.0)])


def short(x):
    """Nine significant digits: what float32 needs."""
    if isinstance(x, dict):
        return {k: short(v) for k, v in x.items()}
    if isinstance(x, list):
        return [short(v) for v in x]
    return float(f"{x:.9g}") if isinstance(x, float) else x


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "loss.json"), "w") as f:
    json.dump(short(doc), f, indent=0)
