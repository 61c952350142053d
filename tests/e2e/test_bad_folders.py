"""Model folders, options and lines that clime-server, clime-router and clime-tok must refuse, one case a row.

Each row says what goes in and what must come out: an exit status that is no crash, and a message that names the thing.
"""

import json
import shutil
import socket
import struct

import pytest
from programs import run, server, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("bad") / "model")


# ---- folders that are no model ---------------------------------------------------------------------------------------


def read_tensors(folder):
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def pack(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def change_config(**members):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        config.update(members)
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))

    return change


def write(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def remove(name):
    return lambda folder: (folder / name).unlink()


def change_header(edit):
    """Edits the header as a dict; the data stay."""

    def change(folder):
        header, data = read_tensors(folder)
        edit(header)
        (folder / "model.safetensors").write_bytes(pack(header, data))

    return change


def change_bytes(edit):
    def change(folder):
        path = folder / "model.safetensors"
        path.write_bytes(edit(path.read_bytes()))

    return change


def set_entry(name, **members):
    return change_header(lambda h: h[name].update(members))


def overlap(header):
    """The second tensor's bytes begin inside the first's."""
    first, second = sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])[:2]
    begin, end = header[second]["data_offsets"]
    header[second]["data_offsets"] = [begin - 64, end - 64]


NORM = "model.norm.weight"


def add_head(number, wide=False):
    """A head beside the embedding that it is tied to: its rows, the last number another one if it is given; as fp32."""

    def change(folder):
        header, data = read_tensors(folder)
        embedding = header["model.embed_tokens.weight"]
        head = bytearray(data[slice(*embedding["data_offsets"])])
        if number is not None:
            head[-2:] = struct.pack("<H", number)
        if wide:
            head = b"".join(bytes(2) + head[i : i + 2] for i in range(0, len(head), 2))
        dtype = "F32" if wide else embedding["dtype"]
        header["lm_head.weight"] = {**embedding, "dtype": dtype, "data_offsets": [len(data), len(data) + len(head)]}
        (folder / "model.safetensors").write_bytes(pack(header, data + head))

    return change


FOLDERS = [
    ("config missing", remove("config.json"), ["config.json"]),
    ("an adapter", lambda d: (d / "config.json").rename(d / "adapter_config.json"), ["adapter_config.json", "merge"]),
    ("config broken", write("config.json", b'{"hidden_size": 64,'), ["config.json"]),
    ("config a list", write("config.json", b"[]"), ["config.json", "object"]),
    ("config not UTF-8", write("config.json", b'{"a": "\xff\xfe"}'), ["config.json"]),
    ("config deep", write("config.json", b"[" * 100000), ["config.json"]),
    ("architecture unknown", change_config(architectures=["MambaForCausalLM"]), ["MambaForCausalLM", "supported"]),
    ("architecture a number", change_config(architectures=[5]), ["architectures"]),
    ("architectures a string", change_config(architectures="Qwen3ForCausalLM"), ["architectures"]),
    ("hidden size a string", change_config(hidden_size="64"), ["hidden_size"]),
    ("hidden size 0", change_config(hidden_size=0), ["hidden_size"]),
    ("hidden size negative", change_config(hidden_size=-64), ["hidden_size"]),
    ("hidden size huge", change_config(hidden_size=1 << 40), ["hidden_size"]),
    ("layers a fraction", change_config(num_hidden_layers=1.5), ["num_hidden_layers"]),
    ("no vocabulary", change_config(vocab_size="absent"), ["vocab_size"]),
    ("heads do not divide", change_config(num_attention_heads=3, num_key_value_heads=2), ["num_attention_heads"]),
    ("odd head", change_config(head_dim=33), ["head_dim"]),
    ("epsilon negative", change_config(rms_norm_eps=-1), ["rms_norm_eps"]),
    ("tied a string", change_config(tie_word_embeddings="yes"), ["tie_word_embeddings"]),
    ("activation a number", change_config(hidden_act=5), ["hidden_act"]),
    ("activation unknown", change_config(hidden_act="gelu"), ["hidden_act", "gelu"]),
    ("dtype a number", change_config(torch_dtype=16), ["dtype"]),
    ("dtype unknown", change_config(torch_dtype="int4"), ["dtype", "int4"]),
    ("rope scaling unknown", change_config(rope_scaling={"rope_type": "dynamic", "factor": 4}), ["rope_scaling", "dynamic"]),
    ("rope scaling a string", change_config(rope_scaling="llama3"), ["rope_scaling"]),
    ("angles without end", change_config(rope_theta=1e-37), ["rope_theta 1e-37", "no finite number"]),
    ("quantized", change_config(quantization_config={"bits": 4}), ["quantization_config"]),
    ("eos a string", change_config(eos_token_id=["a"]), ["eos_token_id"]),
    ("larger than the file", change_config(intermediate_size=384), ["mlp", "shape"]),
    ("no weights", remove("model.safetensors"), ["model.safetensors"]),
    ("weights empty", write("model.safetensors", b""), ["model.safetensors", "truncated"]),
    ("five bytes", write("model.safetensors", b"\x00" * 5), ["model.safetensors", "truncated"]),
    ("header length 0", change_bytes(lambda b: struct.pack("<Q", 0) + b[8:]), ["header of 0 bytes"]),
    ("header length huge", change_bytes(lambda b: b"\xff" * 8 + b[8:]), ["model.safetensors", "limit"]),
    ("header past the end", change_bytes(lambda b: struct.pack("<Q", len(b)) + b[8:]), ["truncated"]),
    ("header cut", change_bytes(lambda b: b[:100]), ["truncated"]),
    ("data cut", change_bytes(lambda b: b[:-100]), ["truncated"]),
    ("bytes at the end", change_bytes(lambda b: b + b"x"), ["after the last tensor"]),
    ("header no JSON", write("model.safetensors", pack(b"{nonsense}", b"")), ["safetensors header"]),
    ("header a list", write("model.safetensors", pack(b"[1,2]", b"")), ["safetensors header"]),
    ("no tensors", write("model.safetensors", pack({}, b"")), ["missing"]),
    ("overlap", change_header(overlap), ["overlap"]),
    ("offsets backwards", set_entry(NORM, data_offsets=[128, 0]), [NORM]),
    ("offsets huge", set_entry(NORM, data_offsets=[0, 2**63]), [NORM]),
    ("offsets negative", set_entry(NORM, data_offsets=[-8, 120]), ["safetensors header"]),
    ("offsets three", set_entry(NORM, data_offsets=[0, 1, 2]), [NORM, "data_offsets"]),
    ("shape overflows", set_entry(NORM, shape=[2**62, 2**62]), [NORM]),
    ("shape of another", set_entry(NORM, shape=[32, 2]), [NORM, "shape"]),
    ("shape of strings", set_entry(NORM, shape=["64"]), ["safetensors header"]),
    ("type unknown", set_entry(NORM, dtype="Q4_0"), [NORM, "Q4_0"]),
    ("type not supported", set_entry(NORM, dtype="I16"), [NORM, "I16"]),
    ("a tied head of its own", add_head(0x3F80), ["tie_word_embeddings", "lm_head.weight"]),
    ("the same in fp32", add_head(0x3F80, wide=True), ["tie_word_embeddings", "lm_head.weight"]),
    ("tensor missing", change_header(lambda h: h.update({"extra": h.pop(NORM)})), ["extra"]),
    ("field unknown", set_entry(NORM, color="red"), [NORM, "color"]),
    ("shard missing", lambda d: (remove("model.safetensors")(d), write(
        "model.safetensors.index.json", b'{"weight_map": {"a": "one.safetensors"}}')(d)), ["one.safetensors"]),
    ("shard outside", lambda d: (remove("model.safetensors")(d), write(
        "model.safetensors.index.json", b'{"weight_map": {"a": "../x.safetensors"}}')(d)), ["weight_map"]),
    ("index broken", lambda d: (remove("model.safetensors")(d), write(
        "model.safetensors.index.json", b"{")(d)), ["index.json"]),
    ("no tokenizer", remove("tokenizer.json"), ["tokenizer"]),
    ("tokenizer of tiktoken, another class", lambda d: (d / "tokenizer.json").rename(d / "tiktoken.model"),
     ["PreTrainedTokenizerFast", "tiktoken.model"]),
    ("tokenizer of tiktoken, broken", lambda d: ((d / "tokenizer.json").rename(d / "tiktoken.model"), write(
        "tokenizer_config.json", b'{"tokenizer_class": "TikTokenTokenizer"}')(d)), ["tiktoken.model", "line 1"]),
    ("tokenizer broken", write("tokenizer.json", b'{"model": '), ["tokenizer.json"]),
    ("tokenizer another kind", write("tokenizer.json", b'{"model": {"type": "Unigram", "vocab": []}}'), ["Unigram"]),
    ("tokenizer's ids wrong", write("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'),
     ["tokenizer.json"]),
]  # fmt: skip


@pytest.mark.parametrize("change, says", [c[1:] for c in FOLDERS], ids=[c[0] for c in FOLDERS])
def test_server_refuses_a_folder(model, tmp_path, change, says):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    change(folder)
    status, _, err = run("clime-server", "--model-path", folder, "--port", 0)
    assert status == 1, err
    for word in says:
        assert word in err, err


@pytest.mark.parametrize("wide", [False, True])
def test_tied_head_that_is_the_embedding(model, tmp_path, wide):
    shutil.copytree(model, tmp_path / "model")
    add_head(None, wide)(tmp_path / "model")
    with server(model=tmp_path / "model") as s:
        assert s.json("/generate", {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}})["output_ids"]


OPTIONS = [
    ("clime-server", [], "--model-path"),
    ("clime-server", ["--model-path", "/nowhere"], "/nowhere"),
    ("clime-server", ["--model-path", "MODEL", "--port", "70000"], "port"),
    ("clime-server", ["--model-path", "MODEL", "--max-runing-requests", "3"], "max-running-requests"),
    ("clime-server", ["--model-path", "MODEL", "--threads", "two"], "threads"),
    ("clime-server", ["--model-path", "MODEL", "--isa", "mmx"], "mmx"),
    ("clime-server", ["--model-path", "MODEL", "--chat-template", "/nowhere.jinja"], "/nowhere.jinja"),
    ("clime-server", ["--model-path", "MODEL", "--context-length"], "context-length"),
    ("clime-server", ["--model-path", "MODEL", "--host", "999.1.1.1"], "999.1.1.1"),
    ("clime-server", ["--model-path", "MODEL", "--port-file", "/nowhere/port"], "/nowhere/port"),
    ("clime-router", ["--policy", "best"], "policy"),
    ("clime-router", ["--worker-urls", "localhost:3"], "http://host:port"),
    ("clime-router", ["--max-retry", "3"], "max-retries"),
    ("clime-router", ["--port", "x"], "port"),
    ("clime-router", ["extra"], "extra"),
    ("clime-router", ["--port-file", "/nowhere/port", "--port", "0"], "/nowhere/port"),
]


@pytest.mark.parametrize("name, words, says", OPTIONS, ids=[f"{n} {w[-1:]}" for n, w, _ in OPTIONS])
def test_options(model, name, words, says):
    status, _, err = run(name, *[model if w == "MODEL" else w for w in words])
    assert status in (1, 2) and says in err, (status, err)


def test_port_taken(model):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        for words in (["clime-server", "--model-path", model], ["clime-router"]):
            status, _, err = run(*words, "--port", port)
            assert status == 1 and str(port) in err, err


# ---- clime-tok -------------------------------------------------------------------------------------------------------


def tok_lines(command, folder, lines):
    status, out, err = run("clime-tok", command, folder, stdin=b"".join(line + b"\n" for line in lines))
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()]


BAD_LINES = [b"nope", b"[]", b"5", b"{", b'{"text": 5}', b'{"ids": "a"}', b'{"ids": [1.5]}', b'{"ids": [-1]}',
             b'{"other": 1}', b'{"text": "\xff"}', b'{"text": "\\ud800"}', b"\xff\xfe", b"[" * 10000, b'{"messages": 5}',
             b'{"ids": [99999999999]}', b"\x00"]  # fmt: skip


@pytest.mark.parametrize("command, good, key", [
    ("encode", b'{"text": "hi"}', "ids"),
    ("decode", b'{"ids": [104, 105]}', "text"),
    ("render", b'{"messages": [{"role": "user", "content": "hi"}]}', "text"),
])  # fmt: skip
def test_tok_answers_each_bad_line_and_goes_on(model, command, good, key):
    first = tok_lines(command, model, [good])
    lines = [x for bad in BAD_LINES for x in (bad, good)]
    answers = tok_lines(command, model, lines)
    assert len(answers) == len(lines)
    assert answers[1::2] == first * len(BAD_LINES) and key in first[0]
    for line, answer in zip(BAD_LINES, answers[::2]):
        harmless = command == "render" and line == b'{"other": 1}'  # an unused variable; messages is undefined
        assert harmless or set(answer) == {"error"} and answer["error"] or command == "render", (line, answer)


@pytest.mark.parametrize("words, status, says", [
    ([], 2, "usage"),
    (["translate"], 2, "usage"),
    (["encode"], 2, "usage"),
    (["encode", "/nowhere"], 1, "/nowhere"),
    (["decode", "/nowhere"], 1, "/nowhere"),
    (["render", "/nowhere"], 1, "/nowhere"),
    (["render", "--template", "/nowhere.jinja"], 1, "/nowhere.jinja"),
    (["render", "--date", "yesterday", "x"], 2, "usage"),
])  # fmt: skip
def test_tok_words(words, status, says):
    got, _, err = run("clime-tok", *words)
    assert got == status and says in err


def test_tok_template_with_an_error(tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text("line one\n{% if %}")
    status, _, err = run("clime-tok", "render", "--template", path)
    assert status == 1 and "line 2" in err, err
