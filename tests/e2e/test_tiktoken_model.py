"""A model of Moonlight's architecture whose tokenizer is tiktoken.model: chats, grammars, stop strings, streams, a run."""

import json
import re
import shutil
import sys

import pytest
from programs import ROOT, run, server

sys.path.insert(0, str(ROOT / "tests" / "conformance"))
from tiktoken_folder import NAMES, SORTS_TOOLS, python_file, small_vocabulary, write_folder  # noqa: E402

FIRST = len(small_vocabulary())
ID = {name: FIRST + i for i, name in NAMES.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """As many rows as the later class has ids, and the older class: so are Moonlight's 163,840, two less than its ids.
    The class sorts tools, as Kimi K2's does."""
    folder = tmp_path_factory.mktemp("tiktoken")
    later = write_folder(folder / "tokenizer", small_vocabulary(), python_file(reserved="self.num_reserved_special_tokens"))
    status, _, err = run("clime-train", "init", folder / "model", "--family", "deepseek_v3", "--hidden-size", 64,
                         "--intermediate-size", 96, "--num-hidden-layers", 2, "--num-attention-heads", 2,
                         "--max-position-embeddings", 512, "--tokenizer", later, "--vocab-size", FIRST + 256)  # fmt: skip
    assert status == 0, err
    (folder / "model" / "tokenization_moonshot.py").write_text(python_file(rendering=SORTS_TOOLS))
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


def test_tools_are_sorted_wherever_a_chat_is_rendered(s, model, tmp_path):
    schema = {"type": "object", "required": ["b", "a"], "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}, {"type": "function", "function": {"name": "c"}}]
    shown = ('[{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, '
             '"required": ["b", "a"], "type": "object"}}, "type": "function"}, {"function": {"name": "c"}, "type": "function"}]')  # fmt: skip
    messages = [{"role": "user", "content": "1"}]
    text = (f"<|im_system|>tool_declare<|im_middle|>{shown}<|im_end|><|im_user|>user<|im_middle|>1<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>")  # fmt: skip
    body = {"messages": messages, "tools": tools}
    assert tok("render", model, body | {"add_generation_prompt": True})["text"] == text
    ids = tok("encode", model, {"text": text})["ids"]
    assert s.json("/apply_template", body)["text"] == text
    assert s.json("/tokenize", body)["tokens"] == ids
    few = {"max_tokens": 1, "return_token_ids": True}
    assert s.json("/v1/chat/completions", body | few)["prompt_token_ids"] == ids
    first = s.json("/apply_template", {"messages": messages, "tools": tools[:1]})["tokens"]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}}
    assert s.json("/v1/chat/completions", body | few | {"tool_choice": choice})["prompt_token_ids"] == first != ids
    kwargs = {"messages": messages, "chat_template_kwargs": {"tools": tools}}
    assert s.json("/v1/chat/completions", kwargs | few)["prompt_token_ids"] == ids
    flat = [{"type": t["type"]} | t["function"] for t in tools]
    assert s.json("/v1/responses/input_tokens", {"input": messages, "tools": flat[:1]})["input_tokens"] == len(first)
    (tmp_path / "p.jsonl").write_text(json.dumps({"q": "1", "tools": tools}) + "\n")
    status, out, err = run("clime-train", "data", tmp_path / "p.jsonl", "--input-key", "q", "--hf-checkpoint", model,
                           "--apply-chat-template", "--print", 1)  # fmt: skip
    assert status == 0 and shown in out, out + err


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
