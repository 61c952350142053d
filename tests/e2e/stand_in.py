"""A stand-in for the shared data's stories260K where that is absent: the same shape and kind of tokenizer (pieces of a
SentencePiece BPE with byte fallback, learned from this repository's README), random weights of a fixed seed."""

import collections
import json
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPE = {"family": "llama", "hidden-size": 64, "intermediate-size": 172, "num-hidden-layers": 5, "num-attention-heads": 8,
         "num-key-value-heads": 4, "head-dim": 8, "vocab-size": 512, "max-position-embeddings": 512, "dtype": "f32",
         "init-std": 0.1, "seed": 260}  # fmt: skip


def learn_pieces(text, n):
    """(single characters, merges) that give n pieces: at each step the most frequent pair of neighbours is joined."""
    words = collections.Counter("\u2581" + w for w in text.split() if w.isascii())
    letters = sorted({c for w in words for c in w})
    split = {w: list(w) for w in words}
    merges = []
    while len(letters) + len(merges) < n:
        pairs = collections.Counter()
        for w, parts in split.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[w]
        a, b = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append((a, b))
        for w, parts in split.items():
            i = 0
            while i < len(parts) - 1:
                if parts[i : i + 2] == [a, b]:
                    parts[i : i + 2] = [a + b]
                i += 1
    return letters, merges


def tokenizer():
    """tokenizer.json of 512 ids: <unk>, <s>, </s>, 256 bytes, 253 pieces."""
    letters, merges = learn_pieces((ROOT / "README.md").read_text(), 253)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *(a + b for a, b in merges), *letters]
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = lambda name, kind: {"Sequence": {"id": name, "type_id": kind}}
    special = [{"id": i, "content": s, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
               for i, s in enumerate(pieces[:3])]  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "pre_tokenizer": None,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                                                           {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "post_processor": {"type": "TemplateProcessing", "single": [begin, text("A", 0)], "pair": [begin, text("A", 0), begin, text("B", 0)],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"},
                                                     {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "vocab": {p: i for i, p in enumerate(pieces)}, "merges": [list(m) for m in merges]},
    }  # fmt: skip


def folder(build):
    """The stand-in's folder under the build folder, made by the first test that asks for it."""
    made = pathlib.Path(build) / "stand-in"
    if not made.is_dir():
        with tempfile.TemporaryDirectory(dir=build) as d:
            words, out = pathlib.Path(d) / "words", pathlib.Path(d) / "model"
            words.mkdir()
            (words / "tokenizer.json").write_text(json.dumps(tokenizer()))
            names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True, "tokenizer_class": "LlamaTokenizer"}
            (words / "tokenizer_config.json").write_text(json.dumps(names))
            options = [w for k, v in SHAPE.items() for w in (f"--{k}", str(v))]
            subprocess.run([pathlib.Path(build) / "clime-train", "init", out, "--tokenizer", words, *options], check=True, capture_output=True)
            try:
                os.rename(out, made)
            except OSError:  # another process was first
                assert made.is_dir()
    return made
