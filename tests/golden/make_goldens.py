#!/usr/bin/env python3
"""Reference vectors for tests/unit/model/test_golden.c, made with PyTorch and transformers on the CPU.

    python tests/golden/make_goldens.py [CASE ...]    rewrites tests/golden/<case>/
    python tests/golden/make_goldens.py --check       computes the references of the stored models and batches again and
                                                      compares, writes nothing

For each case a tiny random model is written as a Hugging Face folder (weights in bf16, so that fp32 and bf16 runs start
from the same numbers), with ref.safetensors beside it:

    ids, start        I32  a packed batch: sequence s is ids[start[s]:start[s+1]]
    row, target       I32  loss rows: row[i] predicts target[i]
    inv_temp          F32  1 / temperature of each loss row
    g_logp, g_ent     F32  the loss is sum g_logp * logp + g_ent * entropy
    logits            F32  [T, V] before temperature
    logp, entropy     F32  of the loss rows
    grad.NAME         F32  gradient of the loss
    eps               F32  AdamW's epsilon of the fp32 and of the bf16 comparison
    lr                F32  its learning rate; absent: LR
    losses.P          F64  before each of 10 AdamW steps and after the last, with the epsilon for P = fp32, bf16
    step10.P.NAME     F32  the parameter after 10 steps
    bf16.X            F32  relative error of torch's own bf16 run for X

All references are computed in float64 (with transformers' fp32 rotary angles) and stored in fp32. Errors are
norm(x - ref) / norm(ref). torch's bf16 run has bf16 weights and activations, one right-padded batch, fp32 master weights
and moments: the same set-up as clime's. Its error is the largest of two runs, with fused (sdpa) and with eager attention
(of models with experts, of six: each also with all experts' products in one batch and in one call):
for a vector of 16 elements a single run's distance is a matter of luck. So is that of an expert with few rows: none or
at least FEW are given to each, and the error of one expert's tensor is the largest of the same tensors of its layer.

Why two epsilons: with 1e-8 the first steps move every element by +-lr, so in bf16 the few elements whose gradient is
smaller than its rounding error decide the distance of a whole vector, in torch's run as in clime's, by chance. bf16 is
therefore compared with an epsilon of the gradients' own size, where the distance follows the gradients' error. GLM-4
with a key bias has elements whose true gradient is zero (the bias of dimensions that do not rotate adds the same to
all scores of a row), so its fp32 epsilon must be above fp32's rounding noise.

Which experts a row is given to is no smooth function of it, and rounding decides a near one. So ids of models with
experts are drawn such that no router's choice is near (MARGIN), and what comes out is only taken when every run in
bf16 chose in all steps what float64 chose. transformers 5 holds all experts in one tensor; here they have the names of
the files, an expert each.
"""

import argparse
import copy
import json
import math
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, DeepseekV3Config, Glm4Config, Glm4MoeConfig, Glm4MoeLiteConfig,
                          LlamaConfig, Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig)

HERE = Path(__file__).resolve().parent
BATCH = ["ids", "start", "row", "target", "inv_temp", "g_logp", "g_ent"]
LENGTHS = [5, 70, 1, 23]  # one crosses a 64-key block, one is a single token
STEPS = 10
ADAMW = dict(betas=(0.9, 0.95))
LR, LR_EXPERTS = 1e-3, 1e-4  # ten steps of the first move a choice or two
EPS = dict(fp32=1e-8, bf16=1e-2)
EPS_ZERO_GRADIENTS = 1e-6
WEIGHT_DECAY = 0.1
ROUTER = 2    # deviation of a router's logits, about
FEW = 8
MARGIN = 0.5  # of theirs, between the last expert that is chosen and the first that is not

SMALL = dict(hidden_size=32, intermediate_size=40, vocab_size=72, max_position_embeddings=128, bos_token_id=None,
             eos_token_id=1, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_theta=500.0,
              original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=4.0, beta_fast=2.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=0.7, rope_theta=500.0,
            original_max_position_embeddings=32)


def cases():
    heads = lambda n, k, d, layers, **kw: dict(SMALL, num_attention_heads=n, num_key_value_heads=k, head_dim=d,
                                               num_hidden_layers=layers, **kw)
    latent = lambda n, rank, nope, rope, v, layers, **kw: dict(
        SMALL, num_attention_heads=n, num_key_value_heads=n, kv_lora_rank=rank, qk_nope_head_dim=nope,
        qk_rope_head_dim=rope, v_head_dim=v, num_hidden_layers=layers, **kw)
    return {
        "qwen3": Qwen3Config(**heads(4, 2, 16, 2, tie_word_embeddings=True, rope_theta=1e6)),
        "qwen3_head64": Qwen3Config(**heads(2, 1, 64, 1, tie_word_embeddings=False)),
        "qwen3_bias": Qwen3Config(**heads(3, 3, 16, 1, tie_word_embeddings=False, attention_bias=True)),
        "qwen2": Qwen2Config(**heads(3, 1, 16, 2, tie_word_embeddings=True)),
        "llama": LlamaConfig(**heads(4, 4, 8, 2, tie_word_embeddings=False, rope_parameters=LLAMA3)),
        "llama_bias": LlamaConfig(**heads(2, 1, 64, 1, tie_word_embeddings=True, attention_bias=True)),
        "glm4": Glm4Config(**heads(4, 2, 16, 2, tie_word_embeddings=False, attention_bias=True)),
        "glm4_nobias": Glm4Config(**heads(2, 1, 64, 1, tie_word_embeddings=True, attention_bias=False)),
        "qwen3_moe": Qwen3MoeConfig(**heads(4, 2, 16, 2, tie_word_embeddings=False, num_experts=8, num_experts_per_tok=2,
                                            moe_intermediate_size=24, norm_topk_prob=True, rope_theta=1e6)),
        "qwen3_moe_dense": Qwen3MoeConfig(**heads(2, 1, 16, 4, tie_word_embeddings=True, num_experts=5,
                                                  num_experts_per_tok=3, moe_intermediate_size=12,
                                                  norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[1])),
        "qwen2_moe": Qwen2MoeConfig(**heads(3, 1, 16, 2, tie_word_embeddings=False, num_experts=4,
                                            num_experts_per_tok=2, moe_intermediate_size=24,
                                            shared_expert_intermediate_size=28, norm_topk_prob=False)),
        "glm4_moe": Glm4MoeConfig(**heads(4, 2, 16, 3, tie_word_embeddings=False, n_routed_experts=8,
                                          num_experts_per_tok=3, moe_intermediate_size=24, n_group=4, topk_group=2,
                                          routed_scaling_factor=2.5, first_k_dense_replace=1, attention_bias=True,
                                          use_qk_norm=True, num_mtp_layers=0)),
        "glm4_moe_air": Glm4MoeConfig(**heads(2, 1, 16, 2, tie_word_embeddings=True, n_routed_experts=5,
                                              num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=2,
                                              first_k_dense_replace=0, attention_bias=False, num_mtp_layers=0)),
        "deepseek_v3": DeepseekV3Config(**latent(4, 32, 16, 8, 12, 2, tie_word_embeddings=False, q_lora_rank=24,
                                                 n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24,
                                                 n_group=4, topk_group=2, routed_scaling_factor=2.5,
                                                 first_k_dense_replace=1, num_mtp_layers=0, rope_parameters=YARN)),
        "moonlight": DeepseekV3Config(**latent(3, 18, 9, 6, 11, 2, tie_word_embeddings=False, q_lora_rank=None,
                                               n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                                               n_shared_experts=2, n_group=1, topk_group=1, first_k_dense_replace=0,
                                               num_mtp_layers=0)),
        "glm4_moe_lite": Glm4MoeLiteConfig(**latent(2, 24, 8, 16, 24, 2, tie_word_embeddings=True, q_lora_rank=20,
                                                    n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=16,
                                                    mlp_layer_types=["sparse", "dense"], rope_interleave=False,
                                                    rms_norm_eps=1e-2)),
    }


def random_model(config, seed):
    """Weights of a size that makes every part matter (transformers' default of 0.02 leaves attention uniform)."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    exact_norms(model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2:
                p.normal_(0, (ROUTER if name.endswith(".gate.weight") else 1) / math.sqrt(p.shape[-1]))
            elif name.endswith("bias"):
                p.normal_(0, 0.5)
            else:
                p.normal_(1, 0.1)
        for name, bias in model.named_buffers():  # fp32 in every checkpoint, and far from any bf16
            if name.endswith("e_score_correction_bias"):
                bias.normal_(0, 0.1)
                if config.n_group == 1:  # all rows go to the first expert, none to the second
                    bias[:2] = torch.tensor([2.1, -2.1])
    return cast(model, torch.bfloat16)


def exact_norms(model):
    """transformers has 1e-6 in latent attention's own norms, whatever the configuration says."""
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = model.config.rms_norm_eps


def cast(model, dtype):
    """Parameters only: model.to() would round the rotary frequencies too, which from_pretrained keeps in fp32."""
    for p in model.parameters():
        p.data = p.data.to(dtype)
    return model


class Choices:
    """What the routers of a model chose, call by call, and how near each choice was."""

    def __init__(self, model):
        self.ids, self.margin = [], []
        for module in model.modules():
            if type(module).__name__.endswith(("TopKRouter", "TopkRouter")):
                module.register_forward_hook(self.see)

    def see(self, module, args, out):
        x, _, ids = out
        x = x.detach()
        if not hasattr(module, "e_score_correction_bias"):
            margin = gap(x, module.top_k)
        else:
            x = 4 * (x.sigmoid() + module.e_score_correction_bias)  # a sigmoid's slope is up to 1 / 4
            groups = x.view(len(x), module.num_group, -1)
            sums = groups.topk(2, -1)[0].sum(-1)
            kept = torch.zeros_like(sums).scatter_(1, sums.topk(module.topk_group)[1], 1).bool()
            margin = gap(groups.masked_fill(~kept[..., None], -100).flatten(1), module.top_k)
            if module.topk_group < module.num_group:
                margin = torch.minimum(margin, gap(sums, module.topk_group))
        self.margin.append(margin)
        self.ids.append(ids.sort(-1)[0])


def gap(x, k):
    best = x.sort(-1, descending=True)[0]
    return best[:, k - 1] - best[:, k]


def far_ids(model, config, g):
    """Token by token, the first of a random order with which every router's choice is clear."""
    choices, ids = Choices(model), []
    for length in LENGTHS:
        seq = torch.zeros(0, dtype=torch.long)
        for _ in range(length):
            order = torch.randperm(config.vocab_size, generator=g)
            choices.margin.clear()
            with torch.no_grad():
                model(input_ids=torch.cat([seq.expand(len(order), -1), order[:, None]], 1), use_cache=False)
            margins = torch.stack([m.view(len(order), -1)[:, -1] for m in choices.margin]).min(0)[0]
            far = (margins > MARGIN).nonzero()
            if not len(far):
                raise Unfit("no id leaves all choices clear")
            seq = torch.cat([seq, order[far[0]]])
        ids.append(seq)
    return torch.cat(ids)


def tensors_of(named):
    """Each expert's tensors by the names of the files."""
    out = {}
    for name, x in named.items():
        stem, end = name.rsplit(".", 1)
        if end not in ("gate_up_proj", "down_proj") or x.dim() != 3:
            out[name] = x
            continue
        for e, each in enumerate(x):
            parts = {"gate_proj": each[: len(each) // 2], "up_proj": each[len(each) // 2:]}
            for part, rows in (parts if end == "gate_up_proj" else {end: each}).items():
                out[f"{stem}.{e}.{part}.weight"] = rows
    return out


def has_experts(config):
    return hasattr(config, "num_experts_per_tok")


def random_batch(model, config, seed):
    g = torch.Generator().manual_seed(seed)
    total = sum(LENGTHS)
    start = torch.tensor([0] + LENGTHS).cumsum(0)
    row = torch.arange(total)
    row = row[torch.rand(total, generator=g) < 0.8]
    n = len(row)
    return dict(
        ids=far_ids(model, config, g) if has_experts(config) else torch.randint(config.vocab_size, (total,), generator=g),
        start=start,
        row=row,
        target=torch.randint(config.vocab_size, (n,), generator=g),
        inv_temp=torch.tensor([1.0, 0.75, 1.25])[torch.randint(3, (n,), generator=g)],
        g_logp=-(0.5 + torch.rand(n, generator=g)) / n,
        g_ent=-0.1 * torch.rand(n, generator=g) / n,
    )


def forward(model, b):
    """Logits [T, V] of the packed batch, through one right-padded batch."""
    start, dtype = b["start"].tolist(), next(model.parameters()).dtype
    spans = list(zip(start[:-1], start[1:]))
    ids = torch.zeros(len(spans), max(e - s for s, e in spans), dtype=torch.long)
    for i, (s, e) in enumerate(spans):
        ids[i, : e - s] = b["ids"][s:e]
    out = model(input_ids=ids, use_cache=False).logits
    out = torch.cat([out[i, : e - s] for i, (s, e) in enumerate(spans)])
    z = out[b["row"]].to(torch.float64 if dtype == torch.float64 else torch.float32) * b["inv_temp"][:, None]
    logp_all = z.log_softmax(-1)
    logp = logp_all.gather(1, b["target"][:, None])[:, 0]
    entropy = -(logp_all.exp() * logp_all).sum(-1)
    loss = (b["g_logp"] * logp).sum() + (b["g_ent"] * entropy).sum()
    return out, logp, entropy, loss


def run(model, b, precision, eps, lr):
    """Everything that is compared, from one model in its own precision."""
    model = copy.deepcopy(model)
    wide = torch.float64 if model.dtype == torch.float64 else torch.float32
    params = dict(model.named_parameters())
    master = {k: p.detach().to(wide).clone().requires_grad_() for k, p in params.items()}
    groups = [dict(params=[p for p in master.values() if p.dim() >= 2], weight_decay=WEIGHT_DECAY),
              dict(params=[p for p in master.values() if p.dim() < 2], weight_decay=0.0)]
    adamw = torch.optim.AdamW(groups, eps=eps, lr=lr, **ADAMW)
    choices = Choices(model)
    out, losses = {}, []
    for step in range(STEPS + 1):
        logits, logp, entropy, loss = forward(model, b)
        losses.append(loss.item())
        if step == 0:
            out.update(logits=logits.detach(), logp=logp.detach(), entropy=entropy.detach())
        if step == STEPS:
            break
        model.zero_grad()
        loss.backward()
        if step == 0:
            out.update({"grad." + k: p for k, p in tensors_of({k: p.grad.clone() for k, p in params.items()}).items()})
        for k, p in params.items():
            master[k].grad = p.grad.to(wide)
        adamw.step()
        with torch.no_grad():
            for k, p in params.items():
                p.copy_(master[k])
    out["losses." + precision] = torch.tensor(losses, dtype=torch.float64)
    out.update({f"step10.{precision}.{k}": p.detach() for k, p in tensors_of(master).items()})
    real = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).flatten()  # the rest pads
    return {k: v.to(torch.float64) for k, v in out.items()}, [ids[real] for ids in choices.ids]


def reference(name, config):
    """From the first seed that will do."""
    for seed in range(sum(map(ord, name)), 60000, 1000):
        try:
            return reference_of(config, seed)
        except Unfit as why:
            print(f"{name}: seed {seed}: {why}")
    raise SystemExit(f"{name}: no seed will do")


class Unfit(Exception):
    pass


def steps_of(config):
    """The epsilon of either comparison, the learning rate."""
    eps = dict(EPS)
    if config.model_type.startswith("glm4") and config.attention_bias:
        eps["fp32"] = EPS_ZERO_GRADIENTS
    return eps, LR_EXPERTS if has_experts(config) else LR


def wide_reference(wide_model, batch):
    """All that is compared, from float64, and what its routers chose."""
    wide_batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    eps, lr = steps_of(wide_model.config)
    ref = {}
    for precision in eps:
        values, chosen = run(wide_model, wide_batch, precision, eps[precision], lr)
        ref.update(values)
    return ref, chosen


def ways(model):
    """The model, set up to compute in each of torch's ways."""
    for experts in ("eager", "batched_mm", "grouped_mm") if has_experts(model.config) else ("eager",):
        for attention in ("sdpa", "eager"):
            model.set_attn_implementation(attention)
            model.set_experts_implementation(experts)
            yield model


def bf16_errors(ref, runs):
    """Of torch's runs in bf16, as bf16.X: the largest, of an expert's tensor the largest of its layer's."""
    out, of_layer = {}, {}
    for k in runs[0]:
        error = max((run[k] - ref[k]).norm() / ref[k].norm() for run in runs)
        out["bf16." + k] = error.nan_to_num(0).float().reshape(1)  # 0 / 0: an expert without rows
        if ".experts." in k:
            of_layer.setdefault(re.sub(r"experts\.\d+", "experts", k), []).append("bf16." + k)
    for same in of_layer.values():
        worst = max(out[k] for k in same)
        out.update({k: worst.clone() for k in same})
    return out


def reference_of(config, seed):
    model = random_model(config, seed)
    model.set_experts_implementation("eager")
    eps, lr = steps_of(config)
    wide_model = cast(copy.deepcopy(model), torch.float64)
    batch = random_batch(copy.deepcopy(wide_model), config, seed + 1)
    ref, chosen = wide_reference(wide_model, batch)
    for ids in chosen:
        rows = ids.flatten().bincount()
        if ((rows > 0) & (rows < FEW)).any():
            raise Unfit(f"experts are given {rows.tolist()} rows")
    runs = []
    for _ in ways(model):
        values, same = run(model, batch, "bf16", eps["bf16"], lr)
        if not all(torch.equal(a, b) for a, b in zip(chosen, same)):
            raise Unfit("a run in bf16 chose other experts")
        runs.append(values)
    tensors = {k: (v.float() if v.is_floating_point() else v.int()).contiguous() for k, v in batch.items()}
    tensors["eps"] = torch.tensor([eps["fp32"], eps["bf16"]])
    if has_experts(config):
        tensors["lr"] = torch.tensor([lr])
    tensors.update({k: v.contiguous() if k.startswith("losses") else v.float().contiguous() for k, v in ref.items()})
    tensors.update(bf16_errors(ref, runs))
    return model, tensors


def write_config(folder):
    """transformers 5 writes its own spelling; keep every second case as published checkpoints have it."""
    path = folder / "config.json"
    c = json.loads(path.read_text())
    rope = c.pop("rope_parameters")
    c["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        c["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    c["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    path.write_text(json.dumps(c, indent=1) + "\n")


def stored_model(name, dtype=torch.float64):
    model = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32).eval()
    exact_norms(model)
    model.set_experts_implementation("eager")
    return cast(model, dtype)


def check(name):
    stored = load_file(HERE / name / "ref.safetensors")
    batch = {k: stored[k] if stored[k].is_floating_point() else stored[k].long() for k in BATCH}
    values, _ = wide_reference(stored_model(name), batch)
    steps = [k for k in stored if k.startswith(("logits", "logp", "entropy", "grad.", "losses.", "step10."))]
    assert sorted(steps) == sorted(values), set(steps) ^ set(values)
    worst = max(((stored[k].double() - v).norm() / (v.norm() + 1e-300)).item() for k, v in values.items())
    print(f"{name}: largest difference {worst:.2e}")
    assert worst < 1e-5, name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", nargs="*", help="those to make; all")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for i, (name, config) in enumerate(cases().items()):
        if args.case and name not in args.case:
            continue
        if args.check:
            check(name)
            continue
        model, tensors = reference(name, config)
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        if i % 2:
            write_config(folder)
        save_file(tensors, folder / "ref.safetensors")
        for file in folder.iterdir():
            file.chmod(0o644)
        size = sum(f.stat().st_size for f in folder.iterdir())
        worst = max((tensors[k].item(), k) for k in tensors if k.startswith("bf16."))
        print(f"{name}: {size} bytes, torch's largest bf16 error {worst[0]:.3f} in {worst[1][5:]}")


if __name__ == "__main__":
    main()
