#!/usr/bin/env python3
"""Logits and every gradient of the trainer against torch, on random models of every family and sequences of 1 to 8192.

    tests/gpu/against_torch.py [--device cuda|cpu] [--lengths 1,7,64,257,2048,8192] [--small] [--only NAME,...]

Three computations of the same loss (sum g_logp * logp + g_ent * entropy over all rows, at two temperatures), from the
same bf16 weights: float64 with transformers and plain attention (its norms round to fp32 inside), torch's own bf16 run,
and clime's (dump_model, the trainer's forward and backward). For every tensor, with error = |x - ref| / |ref|:

    ratio = error of clime / error of torch in bf16, the larger of its eager and sdpa runs;  at most 1.5

Short sequences have vectors of few elements, where one draw's distance is luck: their errors are root mean squares over
several batches. A tensor whose true gradient is zero (a single key leaves nothing to q and k) must be zero to rounding.
Which experts are chosen is no smooth function: in bf16 everyone chooses a few near ones otherwise. test_experts compares
choices; here all experts are chosen, or a large bias decides which.
Needs torch, transformers, safetensors, build/gpu/dump_model. Exits 1 when a ratio is above 1.5.
"""

import argparse
import copy
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import (AttentionInterface, AutoModelForCausalLM, DeepseekV3Config, Glm4Config, Glm4MoeConfig,
                          LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig)
from transformers.utils import logging

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1.5
ZERO = 1e-4  # of the whole gradient's norm: what may be left of a gradient that is zero


def configs(small):
    d64 = dict(hidden_size=512, intermediate_size=1536, num_attention_heads=8, num_key_value_heads=2, head_dim=64)
    d128 = dict(hidden_size=768, intermediate_size=1536, num_attention_heads=6, num_key_value_heads=2, head_dim=128)
    latent = dict(hidden_size=768, intermediate_size=1536, num_attention_heads=6, num_key_value_heads=6, q_lora_rank=384,
                  kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    if small:
        latent.update(hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=24,
                      kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)
        d64.update(hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1)
        d128.update(hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1)
    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_theta=500000.0,
                  original_max_position_embeddings=1024)

    def of(kind, heads, tied, layers=2 if small else 4, **more):
        return kind(**heads, vocab_size=200 if small else 3000, num_hidden_layers=layers,
                    max_position_embeddings=8192, tie_word_embeddings=tied, bos_token_id=None, eos_token_id=1,
                    pad_token_id=None, **more)

    return {
        "qwen3 128": of(Qwen3Config, d128, True, rope_theta=1e6),
        "qwen3 64": of(Qwen3Config, d64, False, rope_theta=1e6),
        "qwen2 128": of(Qwen2Config, d128, False, rope_theta=1e6),
        "qwen2 64": of(Qwen2Config, d64, True, rope_theta=1e6),
        "llama 128": of(LlamaConfig, d128, False, rope_parameters=llama3),
        "llama 64": of(LlamaConfig, d64, True, rope_parameters=llama3),
        "glm4 128": of(Glm4Config, d128, False, attention_bias=True),
        "glm4 64": of(Glm4Config, d64, False, attention_bias=False),
        "qwen3_moe 64": of(Qwen3MoeConfig, d64, False, 2, rope_theta=1e6, num_experts=4, num_experts_per_tok=4,
                           norm_topk_prob=True, moe_intermediate_size=d64["intermediate_size"] // 2),
        "glm4_moe 128": of(Glm4MoeConfig, d128, False, 2, n_routed_experts=16, num_experts_per_tok=4, n_shared_experts=1,
                           routed_scaling_factor=1.5, first_k_dense_replace=1, n_group=1, topk_group=1, use_qk_norm=True,
                           moe_intermediate_size=d128["intermediate_size"] // 4),
        "deepseek_v3 576": of(DeepseekV3Config, latent, False, 2, n_routed_experts=16, num_experts_per_tok=4,
                              n_shared_experts=1, routed_scaling_factor=1.5, first_k_dense_replace=1, n_group=1,
                              topk_group=1, moe_intermediate_size=latent["intermediate_size"] // 4),
    }


def plain_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Causal attention in the type of its inputs, nothing rounded in between."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scaling
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    p = scores.masked_fill(later, -math.inf).softmax(-1)
    return (p @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("plain", plain_attention)


def cast(model, dtype):
    """Parameters only: model.to() would round the rotary frequencies too, which from_pretrained keeps in fp32."""
    for p in model.parameters():
        p.data = p.data.to(dtype)
    return model


def random_model(config, device):
    """Weights of a size that makes every part matter (transformers' default of 0.02 leaves attention uniform)."""
    torch.manual_seed(1)
    more = {"experts_implementation": "eager"} if hasattr(config, "num_experts_per_tok") else {}
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **more).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 1 / math.sqrt(p.shape[-1]))
            elif name.endswith("bias"):
                p.normal_(0, 0.5)
            else:
                p.normal_(1, 0.1)
        for name, b in model.named_buffers():
            if name.endswith("correction_bias"):
                b.normal_(0, 100)
    return cast(model, torch.bfloat16)


def random_batch(config, length, seed, device):
    g = torch.Generator().manual_seed(seed)
    b = dict(
        ids=torch.randint(config.vocab_size, (length,), generator=g, dtype=torch.int32),
        target=torch.randint(config.vocab_size, (length,), generator=g, dtype=torch.int32),
        inv_temp=torch.tensor([1.0, 0.75])[torch.randint(2, (length,), generator=g)],
        g_logp=torch.randn(length, generator=g) / length,
        g_ent=0.1 * torch.randn(length, generator=g) / length,
    )
    return {k: v.to(device) for k, v in b.items()}


def write_batch(b, folder):
    folder.mkdir(parents=True)
    with open(folder / "batch.bin", "wb") as f:
        np.array([len(b["ids"])], dtype=np.int32).tofile(f)
        for k in ("ids", "target", "inv_temp", "g_logp", "g_ent"):
            b[k].cpu().numpy().tofile(f)


def torch_run(model, b, attention):
    model.set_attn_implementation(attention)
    model.zero_grad(set_to_none=True)
    wide = torch.float64 if model.dtype == torch.float64 else torch.float32
    logits = model(input_ids=b["ids"].long()[None], use_cache=False).logits[0]
    logp_all = (logits.to(wide) * b["inv_temp"].to(wide)[:, None]).log_softmax(-1)
    logp = logp_all.gather(1, b["target"].long()[:, None])[:, 0]
    entropy = -(logp_all.exp() * logp_all).sum(-1)
    ((b["g_logp"].to(wide) * logp).sum() + (b["g_ent"].to(wide) * entropy).sum()).backward()
    out = dict(logits=logits.detach(), logp=logp.detach(), entropy=entropy.detach())
    out.update({"grad." + k: p.grad for k, p in model.named_parameters()})
    return out


def clime_run(folder, config, device):
    read = lambda name: torch.from_numpy(np.fromfile(folder / f"{name}.f32", dtype=np.float32)).to(device)
    out = dict(logits=read("logits").view(-1, config.vocab_size), logp=read("logp"), entropy=read("entropy"))
    grads = load_file(folder / "model.safetensors", device=device)
    for k in [k for k in grads if ".experts.0.gate_proj." in k]:  # all of a layer in one tensor, as transformers has them
        each = lambda name: [grads.pop(k.replace(".0.gate_proj.", f".{e}.{name}.")) for e in range(n_experts)]
        n_experts = sum(o.startswith(k.split("0.gate_proj")[0]) for o in grads) // 3
        gate, up, down = each("gate_proj"), each("up_proj"), each("down_proj")
        at = "grad." + k.split("0.gate_proj")[0]
        out[at + "gate_up_proj"] = torch.stack([torch.cat(two) for two in zip(gate, up)])
        out[at + "down_proj"] = torch.stack(down)
    for k, v in grads.items():
        if not k.endswith("correction_bias"):  # it chooses, and is not learned
            out["grad." + k] = v
    return out


class Errors:
    """Squares of the errors of each way and tensor, summed over batches."""

    def __init__(self):
        self.squares, self.n, self.left = {}, {}, {}

    def add(self, way, x, ref):
        assert x.keys() == ref.keys(), x.keys() ^ ref.keys()
        whole = math.sqrt(sum(v.double().norm().item() ** 2 for k, v in ref.items() if k.startswith("grad.")))
        for k, r in ref.items():
            norm = r.double().norm().item()
            error = (x[k].double() - r.double()).norm().item()
            if norm < 1e-9 * whole:
                self.left[way, k] = max(self.left.get((way, k), 0), error / whole)
                continue
            self.squares[way, k] = self.squares.get((way, k), 0) + (error / norm) ** 2
            self.n[way, k] = self.n.get((way, k), 0) + 1

    def of(self, way, k):
        return math.sqrt(self.squares[way, k] / self.n[way, k])

    def ratios(self):
        """(ratio to the larger of torch's runs, to its eager run, clime's error, tensor), the worst first."""
        out = []
        for way, k in self.squares:
            if way != "clime":
                continue
            mine, eager, sdpa = self.of("clime", k), self.of("eager", k), self.of("sdpa", k)
            out.append((mine / max(eager, sdpa, 1e-30), mine / max(eager, 1e-30), mine, k))
        return sorted(out, reverse=True)


def compare(name, config, args, work):
    """Rows of the table: one a length."""
    device = args.device
    model = random_model(config, device)
    model.save_pretrained(work / "model")
    batches = []
    for length in args.lengths:
        for i in range(max(2, min(32, 512 // length))):
            folder = work / f"{length}_{i}"
            batches.append((length, folder, random_batch(config, length, 1000 * length + i, device)))
            write_batch(batches[-1][2], folder)
    command = [args.program, work / "model", device, max(args.lengths)] + [f for _, f, _ in batches]
    subprocess.run([str(c) for c in command], check=True)
    wide = cast(copy.deepcopy(model), torch.float64)
    rows = []
    for length in args.lengths:
        errors = Errors()
        for at, folder, b in batches:
            if at != length:
                continue
            ref = torch_run(wide, b, "plain")
            for way in ("eager", "sdpa"):
                errors.add(way, torch_run(model, b, way), ref)
            errors.add("clime", clime_run(folder, config, device), ref)
            shutil.rmtree(folder)
        rows.append((name, length, errors))
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lengths", type=lambda s: [int(x) for x in s.split(",")], default=[1, 7, 64, 257, 2048, 8192])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--program", default=ROOT / "build/gpu/dump_model", type=Path)
    parser.add_argument("--verbose", action="store_true", help="the ten worst tensors of every length")
    args = parser.parse_args()
    logging.disable_progress_bar()
    if args.device == "cuda":
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    rows, t0 = [], time.time()
    room = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    for name, config in configs(args.small).items():
        if args.only and name not in args.only.split(","):
            continue
        with tempfile.TemporaryDirectory(dir=room) as work:
            rows += compare(name, config, args, Path(work))
        print(f"{name}: done after {time.time() - t0:.0f} s", flush=True)

    bad = 0
    print("model      length  worst ratio  (to eager)  its error    median   logits   logp  tensor")
    for name, length, errors in rows:
        r = errors.ratios()
        by_name = {k: ratio for ratio, _, _, k in r}
        worst = r[0]
        bad += worst[0] > LIMIT
        print(f"{name:10} {length:6}  {worst[0]:11.3f}  {worst[1]:10.3f}  {worst[2]:9.2e}  {r[len(r) // 2][0]:8.3f}"
              f" {by_name['logits']:8.3f} {by_name['logp']:6.3f}  {worst[3]}{'   ABOVE' if worst[0] > LIMIT else ''}")
        left = max([v for (way, _), v in errors.left.items() if way == "clime"], default=0)
        if left > 0:
            bad += left > ZERO
            print(f"{'':10} {'':6}  of gradients that are zero {left:.1e} of the whole is left"
                  f"{'   ABOVE' if left > ZERO else ''}")
        if args.verbose:
            for ratio, eager, error, k in r[:10]:
                print(f"    {ratio:6.3f} {eager:6.3f} {error:9.2e}  {k}")
    n = sum(len(e.ratios()) for _, _, e in rows)
    print(f"{n} tensors compared, {bad} of {len(rows)} rows above the limit of {LIMIT}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
