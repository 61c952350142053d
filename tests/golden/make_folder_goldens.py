"""Writes folders.jsonl: small tokenizer folders as people have them, and how transformers 5.24 loads each.

    python make_folder_goldens.py          (transformers==5.24.0, jinja2)

A folder names its tokens in tokenizer.json, tokenizer_config.json (added_tokens_decoder, additional_special_tokens,
extra_special_tokens, eos_token and the like), special_tokens_map.json and added_tokens.json, and its chat templates in
chat_template.jinja, additional_chat_templates/ and tokenizer_config.json. The folders combine these at random from one
seed; a few are written out. tests/unit/text/test_folders.c loads the same folders, so that the tests need no
transformers. The first line has what all tokenizer.json share. A fifth of the folders have vocab.json and merges.txt
instead of it, so that the class in tokenizer_config.json says how text is cut.
"""

import json
import logging
import os
import random
import tempfile
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from transformers import AutoTokenizer  # noqa: E402

N_RANDOM = 150
SEED = 2026
LETTERS = "abcdefghijklmnopqrstuvwxyz<>|_/ĠĊ"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
MODEL = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
         "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
         "vocab": {c: i for i, c in enumerate(LETTERS)} | {"he": len(LETTERS)}, "merges": [["h", "e"]]}
SHARED = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": BYTE_LEVEL,
          "decoder": BYTE_LEVEL, "model": MODEL}
NAMES = ["<bos>", "<eos>", "<pad>", "<|im|>", "<a>", "<b>", "<tool>", "he"]
TEXT = "x <bos>a<eos> <pad> b<|im|> c <a>d <b> <tool>he hex <img>\n"


def token(r, content):
    special = r.random() < 0.6
    flag = lambda: r.random() < 0.1  # noqa: E731
    rules = {"single_word": flag(), "lstrip": flag(), "rstrip": flag()}
    return {"content": content, "normalized": r.random() < 0.2, "special": special} | {k: v for k, v in rules.items() if v}


def template(r, where):
    return "{# %s %d #}{{ bos_token }}" % (where, r.randint(0, 99))


def random_folder(r):
    files = {}
    some = lambda p: [n for n in NAMES if r.random() < p]  # noqa: E731
    known = some(0.4)
    added = [{"id": len(LETTERS) + 1 + i, **token(r, n)} for i, n in enumerate(n for n in known if n != "he")]
    if "he" in known:
        added.insert(0, {"id": len(LETTERS), **token(r, "he")})
    post = r.choice([None, None, BYTE_LEVEL, "bos"])
    if post == "bos":
        first = next((t for t in added if t["content"] == "<bos>"), None)
        post = first and {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [
            {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [first["id"]], "tokens": ["<bos>"]}}}
    plain = r.random() < 0.2
    if plain:
        known, added = [], []
        files["vocab.json"], files["merges.txt"] = None, "#version: 0.2\nh e\n"
    else:
        files["tokenizer.json"] = {"added_tokens": added, "post_processor": post}
    classes = ["PreTrainedTokenizerFast", "LlamaTokenizerFast", "TokenizersBackend", "SomeTokenizer"]
    config = {"tokenizer_class": r.choice(["Qwen2Tokenizer", "GPT2Tokenizer"] if plain else classes)}
    if r.random() < 0.4:
        more = added + [{"id": 50 + 3 * i, **token(r, n)} for i, n in enumerate(some(0.3)) if n not in known]
        if r.random() < 0.3:
            r.shuffle(more)
        config["added_tokens_decoder"] = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in more}
        if r.random() < 0.2 and more:
            config["added_tokens_decoder"][str(more[0]["id"])]["special"] = True
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        if r.random() < 0.5:
            name = r.choice(["<bos>", "<eos>", "<pad>", "<|im|>", "<a>", None])
            as_object = r.random() < 0.3 and name
            config[key] = {"__type": "AddedToken", **token(r, name)} if as_object else name
    if r.random() < 0.35:
        config[r.choice(["additional_special_tokens", "extra_special_tokens"])] = [
            {"__type": "AddedToken", **token(r, n)} if r.random() < 0.2 else n for n in some(0.3)]
    elif r.random() < 0.2:
        config["extra_special_tokens"] = {"tool_token": "<tool>", "b_token": "<b>"}
    if r.random() < 0.15:
        config["image_token"] = "<img>"
    if r.random() < 0.3:
        config["add_bos_token"] = r.random() < 0.5
    if r.random() < 0.2:
        config["add_eos_token"] = r.random() < 0.5
    kind = r.random()
    if kind < 0.3:
        config["chat_template"] = template(r, "config")
    elif kind < 0.5:
        config["chat_template"] = [{"name": n, "template": template(r, "config " + n)}
                                   for n in ["default", "tool_use", "rag"][: r.randint(1, 3)]]
    if plain or r.random() < 0.9:
        files["tokenizer_config.json"] = config
    if r.random() < 0.35:
        files["special_tokens_map.json"] = {
            key: r.choice(["<bos>", "<eos>", "<pad>", {"content": "<|im|>", "lstrip": r.random() < 0.5, "normalized": False,
                                                       "rstrip": False, "single_word": False}])
            for key in ("bos_token", "eos_token", "pad_token") if r.random() < 0.6}
        if r.random() < 0.4:
            files["special_tokens_map.json"]["additional_special_tokens"] = some(0.3)
    if r.random() < 0.15:
        files["added_tokens.json"] = {n: 60 + i for i, n in enumerate(some(0.3))}
    if r.random() < 0.3:
        files["chat_template.jinja"] = template(r, "file")
    for name in ("tool_use", "rag"):
        if r.random() < 0.15:
            files[f"additional_chat_templates/{name}.jinja"] = template(r, "file " + name)
    return files


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if name == "tokenizer.json":
            rules = {"single_word": False, "lstrip": False, "rstrip": False}
            content = {**SHARED, **content, "added_tokens": [rules | t for t in content["added_tokens"]]}
        content = MODEL["vocab"] if content is None else content
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def loaded(folder):
    try:
        t = AutoTokenizer.from_pretrained(folder)
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"[:200]}
    templates = t.chat_template if isinstance(t.chat_template, dict) else {"default": t.chat_template}
    ids = t.encode(TEXT, add_special_tokens=False)
    around = t.encode("a")
    return {"n": len(t), "ids": ids, "around": around, "skipped": t.decode(ids, skip_special_tokens=True), "bos": t.bos_token_id, "eos": t.eos_token_id,
            "pad": t.pad_token_id, "bos_text": t.bos_token, "eos_text": t.eos_token,
            "templates": {k: v for k, v in templates.items() if v is not None}}


def main():
    logging.disable(logging.WARNING)
    r = random.Random(SEED)
    lines = [{"shared": SHARED, "vocab": MODEL["vocab"], "text": TEXT}]
    while len(lines) <= N_RANDOM:
        files = random_folder(r)
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), files)
            lines.append({"files": files, "loaded": loaded(folder)})
    out = Path(__file__).with_name("folders.jsonl")
    out.write_text("".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")
    errors = [line["loaded"]["error"] for line in lines[1:] if "error" in line["loaded"]]
    print(f"{out}: {len(lines) - 1} folders, {len(errors)} that transformers refuses: {sorted(set(errors))}")


main()
