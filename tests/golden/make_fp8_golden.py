#!/usr/bin/env python3
"""A checkpoint in DeepSeek's FP8 (e4m3, a scale for each 128 x 128) beside what torch makes of it, for tests/unit/model/test_fp8.c.

    python tests/golden/make_fp8_golden.py    rewrites tests/golden/fp8/

fp8/model.safetensors holds the matrices of a tiny Qwen3 in FP8, each with its weight_scale_inv; fp8/torch.safetensors the same
in bf16, dequantised as DeepSeek's own inference code does: fp32 product with the block's scale, rounded once. Sizes are no
multiples of 128, and every code but the two of NaN is there.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent / "fp8"
D, F, H, DH, V, BLOCK = 136, 150, 2, 16, 40, 128


def scales_of(w):
    n, k = (-(-x // BLOCK) for x in w.shape)
    out = torch.empty(n, k)
    for i in range(n):
        for j in range(k):
            out[i, j] = w[i * BLOCK:(i + 1) * BLOCK, j * BLOCK:(j + 1) * BLOCK].abs().max() / 448
    return out


def spread(scales, shape):
    return scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: shape[0], : shape[1]]


def main():
    torch.manual_seed(0)
    stem = "model.layers.0."
    plain = {"model.embed_tokens.weight": torch.randn(V, D), "model.norm.weight": torch.rand(D) + 0.5,
             stem + "input_layernorm.weight": torch.rand(D) + 0.5, stem + "post_attention_layernorm.weight": torch.rand(D) + 0.5,
             stem + "self_attn.q_norm.weight": torch.rand(DH) + 0.5, stem + "self_attn.k_norm.weight": torch.rand(DH) + 0.5}
    matrices = {"self_attn.q_proj": (H * DH, D), "self_attn.k_proj": (DH, D), "self_attn.v_proj": (DH, D),
                "self_attn.o_proj": (D, H * DH), "mlp.gate_proj": (F, D), "mlp.up_proj": (F, D), "mlp.down_proj": (D, F)}
    files, wide = {}, {}
    for name, w in plain.items():
        files[name] = wide[name] = w.bfloat16()
    for name, shape in matrices.items():
        w = torch.randn(shape) * torch.logspace(-3, 1, shape[1])
        scales = scales_of(w)
        codes = (w / spread(scales, shape)).clamp(-448, 448).to(torch.float8_e4m3fn)
        if name == "mlp.down_proj":
            all_codes = torch.arange(256, dtype=torch.uint8)
            codes.view(torch.uint8).flatten()[:254] = all_codes[(all_codes & 0x7F) != 0x7F]
        files[stem + name + ".weight"], files[stem + name + ".weight_scale_inv"] = codes, scales
        wide[stem + name + ".weight"] = (codes.float() * spread(scales, shape)).bfloat16()
    HERE.mkdir(exist_ok=True)
    save_file(files, HERE / "model.safetensors")
    save_file(wide, HERE / "torch.safetensors")
    config = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=D, intermediate_size=F, head_dim=DH,
                  num_hidden_layers=1, num_attention_heads=H, num_key_value_heads=1, vocab_size=V, tie_word_embeddings=True,
                  max_position_embeddings=64, torch_dtype="bfloat16",
                  quantization_config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8",
                                           weight_block_size=[BLOCK, BLOCK]))  # fmt: skip
    (HERE / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
