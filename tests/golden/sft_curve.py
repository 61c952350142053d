#!/usr/bin/env python3
"""Fine-tunes one small fp32 model twice on GSM8K text with the Qwen3 tokenizer: by clime-train sft, and by a plain
PyTorch loop over the same batches. Prints both loss curves and fails when they are over 1 % apart anywhere.

    python tests/golden/sft_curve.py QWEN3-TOKENIZER-FOLDER GSM8K.jsonl [steps]      (a line: prompt, solution)

Needs torch and transformers; build/clime-train is there. A test by hand: it takes minutes on two cores.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers

TRAIN = os.path.abspath(os.path.join(os.environ.get("CLIME_BUILD", "build"), "clime-train"))
BATCH, LR = 8, 2e-3


def run(*words):
    return subprocess.run([TRAIN, *map(str, words)], check=True, capture_output=True, text=True).stdout


def torch_curve(model_dir, samples, steps):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=LR,
                            betas=(0.9, 0.98), eps=1e-8)  # fmt: skip
    curve = []
    for step in range(steps):
        opt.zero_grad()
        total = 0.0
        for s in samples[step * BATCH : (step + 1) * BATCH]:
            ids, mask = torch.tensor([s["ids"]]), torch.tensor(s["mask"][1:], dtype=torch.float32)
            logp = torch.log_softmax(model(ids).logits[0, :-1].float(), -1).gather(1, ids[0, 1:, None])[:, 0]
            loss = -(logp * mask).sum() / mask.sum() / BATCH
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        curve.append(total)
    return curve


def main():
    tokenizer, data, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 24
    with tempfile.TemporaryDirectory() as d:
        torch.manual_seed(1)
        config = transformers.Qwen3Config(vocab_size=151936, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                          num_attention_heads=2, num_key_value_heads=1, head_dim=32,
                                          max_position_embeddings=2048, tie_word_embeddings=True)  # fmt: skip
        transformers.Qwen3ForCausalLM(config).save_pretrained(f"{d}/model")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(tokenizer, name), f"{d}/model/{name}")
        json.dump({"eos_token_id": [151645, 151643]}, open(f"{d}/model/generation_config.json", "w"))
        with open(data) as f, open(f"{d}/chat.jsonl", "w") as out:
            for line in list(f)[: steps * BATCH]:
                x = json.loads(line)
                out.write(json.dumps({"messages": [{"role": "user", "content": x["prompt"]},
                                                   {"role": "assistant", "content": x["solution"]}]}) + "\n")  # fmt: skip
        words = ["sft", "--hf-checkpoint", f"{d}/model", "--prompt-data", f"{d}/chat.jsonl", "--messages-key", "messages"]
        samples = [json.loads(line) for line in run(*words, "--print-samples", steps * BATCH).splitlines()]
        run(*words, "--save-hf", f"{d}/out", "--metrics", f"{d}/metrics", "--no-shuffle", "--global-batch-size", BATCH,
            "--lr", LR, "--dtype", "f32", "--max-tokens-per-gpu", 1024)  # fmt: skip
        ours = [json.loads(line)["train/loss"] for line in open(f"{d}/metrics")]
        theirs = torch_curve(f"{d}/model", samples, steps)
    assert len(ours) == len(theirs) == steps
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs))
    for i, (a, b) in enumerate(zip(ours, theirs)):
        print(f"step {i + 1:3d}  clime {a:.5f}  torch {b:.5f}")
    print(f"{sum(sum(s['mask']) for s in samples)} trained tokens; the curves are at most {100 * worst:.4f} % apart")
    sys.exit(worst > 0.01)


main()
