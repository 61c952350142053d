#!/usr/bin/env python3
"""Do two Hugging Face folders hold the same model? Loads both with transformers and compares logits on random ids.

    python tests/golden/same_logits.py SOURCE EXPORTED

For folders that clime wrote (clime-train init, export, rl --save-hf) beside the ones they came from. Needs torch and
transformers, so it is run by hand. Exit 1 when a tensor was missing, left over, or a logit differs.
"""

import sys

import torch
from transformers import AutoModelForCausalLM


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    for what, names in info.items():
        if names:
            sys.exit(f"{folder}: {what}: {names}")
    return model.float().eval()


def main():
    source, exported = load(sys.argv[1]), load(sys.argv[2])
    torch.manual_seed(0)
    ids = torch.randint(source.config.vocab_size, (2, min(100, source.config.max_position_embeddings)))
    with torch.no_grad():
        worst = (source(ids).logits - exported(ids).logits).abs().max().item()
    print(f"largest difference of a logit: {worst}")
    sys.exit(worst != 0)


if __name__ == "__main__":
    main()
