"""Folders as people have them: tokens that only the small files name, ids that the embedding lacks, templates in a
folder of their own, adapters. How transformers loads such folders is in tests/unit/text/test_folders.c."""

import json
import shutil

import pytest
from programs import Program, run, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Its tokenizer has 261 ids and its embedding 272 rows."""
    folder = tmp_path_factory.mktemp("folders") / "model"
    tiny_model(folder)
    return folder


def changed(model, to, **members):
    """A copy with more members in tokenizer_config.json."""
    shutil.copytree(model, to)
    path = to / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | members))
    return to


def names(n):
    return {"additional_special_tokens": [f"<|more {i}|>" for i in range(n)]}


def encode(folder, text):
    status, out, err = run("clime-tok", "encode", folder, stdin=json.dumps({"text": text}).encode() + b"\n")
    assert status == 0, err
    return json.loads(out)["ids"], err


def test_tokens_that_only_the_configuration_names(model, tmp_path):
    n = max(encode(model, "<|im_end|>")[0]) + 1
    folder = changed(model, tmp_path / "m", eos_token="<|stop|>", **names(2))
    ids, err = encode(folder, "a<|more 0|>b<|more 1|><|stop|>")
    assert ids[0] == ord("a") and ids[2] == ord("b") and min(ids[1], *ids[3:]) >= n and len(ids) == 5
    assert "tokenizer.json lacks 3 tokens" in err and "<|stop|>" in err
    server = Program("clime-server", "--model-path", folder)
    try:
        assert "tokenizer.json lacks 3 tokens" in server.log()
        bias = {str(ids[4]): 100}
        choice = server.json("/v1/completions", {"prompt": "a", "max_tokens": 4, "logit_bias": bias})["choices"][0]
        assert choice["finish_reason"] == "stop" and choice["text"] == ""
    finally:
        server.stop()


@pytest.mark.parametrize("command, row, words", [
    ("sft", {"prompt": "a", "response": "b"}, []),
    ("sft", {"prompt": "a", "response": "%s"}, []),
    ("sft", {"prompt": "a %s", "response": "b"}, []),
    ("sft", {"m": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "b"}]}, ["--messages-key", "m"]),
    ("data", {"prompt": "a %s", "label": "b"}, []),
    ("dpo", {"prompt": "a %s", "chosen": "b", "rejected": "c"}, []),
    ("dpo", {"prompt": "a %s", "chosen": "b", "rejected": "c"}, ["--apply-chat-template"]),
])  # fmt: skip
def test_an_id_beyond_the_embedding_names_its_line(model, tmp_path, command, row, words):
    """At the start, before anything is trained."""
    folder = changed(model, tmp_path / "m", **names(20))
    text = json.dumps(row)
    good, bad = text.replace("%s", "x"), text.replace("%s", "<|more 19|>")
    (tmp_path / "rows.jsonl").write_text("".join(line + "\n" for line in (good, good, bad)))
    options = ["--prompt-data", tmp_path / "rows.jsonl", "--save-hf", tmp_path / "out", "--global-batch-size", 1]
    options = [tmp_path / "rows.jsonl", "--input-key", "prompt"] if command == "data" else options
    status, out, err = run("clime-train", command, *options, "--hf-checkpoint", folder, *(words or []))
    if good == bad or words is None:
        assert status == 0, err
        return
    assert status == 1 and not (tmp_path / "out").exists()
    assert "<|more 19|>" in err and "272 rows" in err and "rows.jsonl" in err and "3" in err.split("rows.jsonl")[1], err


def test_an_end_beyond_the_embedding(model, tmp_path):
    tokens = {str(300 + i): {"content": f"<|id {i}|>", "special": True} for i in range(20)}
    folder = changed(model, tmp_path / "m", eos_token="<|id 19|>", added_tokens_decoder=tokens)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    status, out, err = run("clime-train", "sft", "--hf-checkpoint", folder, "--prompt-data", tmp_path / "rows.jsonl",
                           "--save-hf", tmp_path / "out")  # fmt: skip
    assert status == 1 and "<|id 19|>" in err and "ends a turn" in err, err
    server = Program("clime-server", "--model-path", folder)
    try:
        assert "272 rows of embedding" in server.log() and "it never will" in server.log()
    finally:
        server.stop()


def test_templates_of_other_names_are_kept(model, tmp_path):
    """In what is saved; and a second save takes the folder's place."""
    folder = changed(model, tmp_path / "m")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    (folder / "chat_template.json").write_text('{"chat_template": "x"}')
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    for _ in range(2):
        status, _, err = run("clime-train", "sft", "--hf-checkpoint", folder, "--prompt-data", tmp_path / "rows.jsonl",
                             "--save-hf", tmp_path / "out", "--global-batch-size", 1)  # fmt: skip
        assert status == 0, err
        assert (tmp_path / "out/additional_chat_templates/tool_use.jinja").read_text() == "{{ tools }}"
        assert (tmp_path / "out/chat_template.json").exists()
    (tmp_path / "out/additional_chat_templates/notes.txt").write_text("mine")
    status, _, err = run("clime-train", "sft", "--hf-checkpoint", folder, "--prompt-data", tmp_path / "rows.jsonl",
                         "--save-hf", tmp_path / "out", "--global-batch-size", 1)  # fmt: skip
    assert status == 1 and "notes.txt" in err and (tmp_path / "out/additional_chat_templates/notes.txt").exists()


def test_an_adapter_is_no_model(model, tmp_path):
    folder = tmp_path / "adapter"
    shutil.copytree(model, folder)
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen3-0.6B", "peft_type": "LORA"}')
    (folder / "adapter_model.safetensors").write_bytes(b"")
    for command in (["clime-server", "--model-path"], ["clime-train", "sft", "--prompt-data", "x", "--save-hf",
                                                      tmp_path / "out", "--hf-checkpoint"]):  # fmt: skip
        status, _, err = run(*command, folder)
        assert status == 1 and "adapter of PEFT" in err and "Qwen/Qwen3-0.6B" in err and "merge" in err, err
