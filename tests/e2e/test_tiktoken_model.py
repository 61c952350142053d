"""A model of Moonlight's architecture whose tokenizer is tiktoken.model: chats, grammars, stop strings, streams, a run."""

import json
import re
import shutil
import sys

import pytest
from programs import ROOT, run, server

sys.path.insert(0, str(ROOT / "tests" / "conformance"))
from tiktoken_folder import NAMES, python_file, small_vocabulary, write_folder  # noqa: E402

FIRST = len(small_vocabulary())
ID = {name: FIRST + i for i, name in NAMES.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """As many rows as the later class has ids, and the older class: so are Moonlight's 163,840, two less than its ids."""
    folder = tmp_path_factory.mktemp("tiktoken")
    later = write_folder(folder / "tokenizer", small_vocabulary(), python_file(reserved="self.num_reserved_special_tokens"))
    status, _, err = run("clime-train", "init", folder / "model", "--family", "deepseek_v3", "--hidden-size", 64,
                         "--intermediate-size", 96, "--num-hidden-layers", 2, "--num-attention-heads", 2,
                         "--max-position-embeddings", 512, "--tokenizer", later, "--vocab-size", FIRST + 256)  # fmt: skip
    assert status == 0, err
    (folder / "model" / "tokenization_moonshot.py").write_text(python_file())
    return folder / "model"


@pytest.fixture(scope="module")
def s(model):
    with server(model=model) as s:
        yield s


def tok(command, folder, line):
    status, out, err = run("clime-tok", command, folder, stdin=json.dumps(line).encode())
    assert status == 0, err
    return json.loads(out)


def test_chat(s, model):
    messages = [{"role": "system", "content": "世界"}, {"role": "user", "content": "1 + 1 = ?"}]
    text = tok("render", model, {"messages": messages, "add_generation_prompt": True})["text"]
    ids = tok("encode", model, {"text": text})["ids"]
    assert ids[0] == ID["<|im_system|>"] and ids.count(ID["<|im_middle|>"]) == 3 and ID["<|im_end|>"] in ids
    assert s.json("/tokenize", {"messages": messages})["tokens"] == ids
    assert s.json("/detokenize", {"tokens": ids, "skip_special_tokens": False})["prompt"] == text
    reply = s.json("/v1/chat/completions", {"messages": messages, "max_tokens": 8, "seed": 1})
    assert reply["usage"]["prompt_tokens"] == len(ids)


def test_grammar(s):
    params = {"regex": "([a-z]{1,9} ){3}世[0-9]+!", "max_new_tokens": 200, "temperature": 1}
    for seed in range(5):
        reply = s.json("/generate", {"text": "a", "sampling_params": params | {"sampling_seed": seed}})
        assert re.fullmatch("([a-z]{1,9} ){3}世[0-9]+!?", reply["text"]), reply["text"]
        assert max(reply["output_ids"][:-1]) < FIRST


def test_stop_and_stream(s):
    params = {"max_new_tokens": 60, "temperature": 1, "sampling_seed": 3, "ignore_eos": True, "skip_special_tokens": False}
    body = {"text": "世界 [BOS]", "sampling_params": params}
    whole = s.json("/generate", body)["text"]
    events = [json.loads(e) for e in s.events("/generate", body | {"stream": True}) if e != "[DONE]"]
    assert events[-1]["text"] == whole
    stop = whole[10:13]
    cut = s.json("/generate", body | {"sampling_params": params | {"stop": [stop]}})
    assert cut["text"] == whole[: whole.index(stop)] and cut["meta_info"]["finish_reason"]["type"] == "stop"


def test_an_id_without_a_row(s):
    params = {"sampling_params": {"max_new_tokens": 1}}
    assert s.json("/generate", {"text": f"<|reserved_token_{FIRST + 253}|>"} | params)["meta_info"]["prompt_tokens"] == 1
    answer = s.json("/generate", {"text": f"<|reserved_token_{FIRST + 256}|>"} | params, 400)
    assert str(FIRST + 256) in json.dumps(answer)


def test_trained(tmp_path, model):
    """A run takes the folder, writes one of the same files, and refuses to go on with another tiktoken.model."""
    folder, prompts = tmp_path / "model", tmp_path / "prompts.jsonl"
    shutil.copytree(model, folder)
    prompts.write_text("".join(json.dumps({"q": f"{i} 世界", "a": str(i)}) + "\n" for i in range(8)))
    words = ["rl", "--run", tmp_path / "run", "--hf-checkpoint", folder, "--prompt-data", prompts, "--input-key", "q",
             "--label-key", "a", "--apply-chat-template", "--rm-type", "exact", "--rollout-batch-size", 4,
             "--n-samples-per-prompt", 2, "--rollout-max-response-len", 8, "--global-batch-size", 8, "--device", "cpu"]  # fmt: skip
    status, out, err = run("clime-train", *words, "--num-rollout", 1, "--save-hf", tmp_path / "hf")
    assert status == 0 and "gap 0 over" in out, out + err
    for name in ("tiktoken.model", "tokenizer_config.json", "tokenization_moonshot.py"):
        assert (tmp_path / "hf" / name).read_bytes() == (folder / name).read_bytes()
    with open(folder / "tiktoken.model", "ab") as file:
        file.write(b"\n")
    status, out, err = run("clime-train", *words, "--num-rollout", 2)
    assert status != 0 and "--hf-checkpoint" in out + err, out + err
