"""clime-tok against the `tiktoken` package on folders with tiktoken.model: the same ids, the same text.

The vocabularies are those of Qwen3 and Llama 3, whose ranks are their ids, and a small random one. What the packages do
not do, Moonlight's and Kimi K2's Python class does, which tiktoken_folder.py says again; random input has a fixed seed.
"""

import json
import os
import random
import subprocess

import pytest
from programs import partly
from test_tokenizer import (BUILD, CLIME_TOK, N_RANDOM, chunks_of_code_points, decode, encode, first_difference,
                            random_texts)  # fmt: skip
from tiktoken_folder import (ALTERNATIVES, N_SPECIAL, SORTS_TOOLS, Reference, python_file, ranks_text,
                             small_vocabulary, write_folder)  # fmt: skip
from tokenizer_data import unpack_tokenizers

tiktoken = pytest.importorskip("tiktoken")

VOCABULARIES = ["small", "qwen3", "llama3"]
HAN = ["世界", "漢字 kanji", "abc中文def", "ABC中文", "中's", "〇1", "\u2e80x", "々", "カタカナ", "한국어", "ไทย", "عربى", "\U00020000",
       "\U00031350", "\U0002ebf0", "\U0002b739", "\u3021", "\u01c5a", "\u1c89\u1c8a", "\U00010d50\U00010d70", "。中", "\u3000中"]  # fmt: skip


def byte_of():
    """GPT-2's byte alphabet, in which tokenizer.json spells bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)}


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """name: the folder and what the class does with it."""
    cache = {}

    def get(name):
        if name not in cache:
            if name == "small":
                tokens = small_vocabulary()
            else:
                source = unpack_tokenizers(tmp_path_factory.mktemp("tokenizers")) / name / "tokenizer.json"
                vocabulary = json.loads(source.read_text(encoding="utf-8"))["model"]["vocab"]
                byte = byte_of()
                tokens = [bytes(byte[c] for c in t) for t in sorted(vocabulary, key=vocabulary.get)]
            folder = write_folder(tmp_path_factory.mktemp("tiktoken") / name, tokens)
            cache[name] = folder, Reference(tokens, tiktoken.Encoding)
        return cache[name]

    return get


def check_encode(model, texts):
    folder, reference = model
    theirs = [reference.encode(t) for t in texts]
    problem = first_difference(texts, encode(folder, texts), theirs)
    assert problem is None, problem[:2000]
    assert encode(folder, texts[:50], True) == theirs[:50]  # the class adds nothing around a text
    return theirs


def check_decode(model, lists):
    folder, reference = model
    for skip in (False, True):
        problem = first_difference(lists, decode(folder, lists, skip), [reference.decode(i, skip) for i in lists])
        assert problem is None, problem[:2000]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_random_unicode(name, models):
    model = models(name)
    special = list(model[1].special)
    pieces = [*special[:20], special[254], special[-1], "<|reserved_token_", "<|im_", "|>", "[BOS", *HAN * 3]
    check_decode(model, check_encode(model, random_texts(1, N_RANDOM, pieces)))


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_code_point(name, models):
    texts = []
    for points in chunks_of_code_points(64):
        texts += [between.join(points) for between in ("", "a", "A", "中", "'s")]
    check_encode(models(name), texts)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_random_ids(name, models):
    """Bytes in any order: what is no UTF-8 becomes U+FFFD as Python does it."""
    rng = random.Random(2)
    n_vocab = models(name)[1].model.n_vocab
    pools = [range(n_vocab), range(256), range(n_vocab - N_SPECIAL, n_vocab)]
    check_decode(models(name), [[rng.choice(rng.choice(pools)) for _ in range(rng.randint(0, 40))] for _ in range(N_RANDOM)])


@pytest.mark.parametrize("name", partly(["small", "llama3"]))
def test_long_texts(name, models):
    """Cut after 400,000 characters and in runs of more than 25,000, wherever special tokens stand."""
    rng = random.Random(3)
    role, reserved = "<|im_end|>", list(models(name)[1].special)[-5]
    units = ["a", "A", "世", "한", "ก", "กA", "a\u0301", " ", "\n", " \n", "\x1c", "\U0001f600", "1", "=-", "'S", "don't'LL"]
    texts = [unit * (60000 // len(unit)) + end for unit in units for end in ("", "x")]
    texts += ["x" * 24990 + token + "y" * 25010 for token in (role, reserved)]
    texts += ["b c" * 133333 + role + "zz" + reserved + " tail " * 30000, "ab " * 133332 + "abcdefgh" + "zzz " * 100000]
    texts.append("".join(rng.choice("ab 世 \n1.A'é") for _ in range(450000)))
    texts.append("".join(rng.choice("ab世") * rng.choice([1, 24999, 25001]) + rng.choice(["", " ", role]) for _ in range(60)))
    check_encode(models(name), texts)


def test_other_spellings_of_the_files(models, tmp_path):
    """Windows' line ends, no last one, ranks in any order, no Python file: all the same to the class."""
    tokens = small_vocabulary()
    texts = random_texts(4, 200, HAN)
    want = encode(models("small")[0], texts)
    lines = ranks_text(tokens).split(b"\n")[:-1]
    random.Random(5).shuffle(lines)
    for i, data in enumerate([b"\r\n".join(lines), b"\n\n".join(lines) + b"\n"]):
        folder = write_folder(tmp_path / str(i), tokens, python=None)
        (folder / "tiktoken.model").write_bytes(data)
        assert encode(folder, texts) == want


def test_number_of_special_tokens(tmp_path):
    """The class of later folders has two less."""
    tokens = small_vocabulary()
    last = [f"<|reserved_token_{len(tokens) + i}|>" for i in (253, 256, 257)]
    older = write_folder(tmp_path / "older", tokens)
    later = write_folder(tmp_path / "later", tokens, python_file(reserved="self.num_reserved_special_tokens"))
    assert [len(ids) for ids in encode(older, last)] == [1, 1, 1]
    assert [len(ids) > 1 for ids in encode(later, last)] == [False, True, True]


def test_tokenizer_json_goes_first(tmp_path):
    folder = write_folder(tmp_path / "both", small_vocabulary())
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 7}, "merges": []},
                                                       "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}))  # fmt: skip
    assert encode(folder, ["aa"]) == [[7, 7]]


def test_chat_template(models):
    folder, _ = models("small")
    messages = [{"role": "system", "content": "世界"}, {"role": "user", "content": "1 + 1 <|im_end|>?"}]
    line = json.dumps({"messages": messages, "add_generation_prompt": True})
    done = subprocess.run([CLIME_TOK, "render", folder], input=line, capture_output=True, text=True)
    text = json.loads(done.stdout)["text"]
    assert text == ("<|im_system|>system<|im_middle|>世界<|im_end|><|im_user|>user<|im_middle|>1 + 1 <|im_end|>?<|im_end|>"
                    "<|im_assistant|>assistant<|im_middle|>")  # fmt: skip
    check_encode(models("small"), [text])


# ---- tools ----

KEYS = ["", "a", "ab", "aB", "A", "a.b", "Z", "_", "0", "9", "10", "é", "e\u0301", "世界", "\x00", "\x7f", "\ue000", "\uffff",
        "\U00010000", "\U0001f600", '"', "\\", "type", "properties", "function", "x" * 300]  # fmt: skip


def random_json(rng, depth=0):
    """A value as a client may write it, keys twice and in any order."""
    kind = rng.randrange(8) if depth < 6 else rng.randrange(4)
    if kind < 4:
        return json.dumps(rng.choice([None, True, 0, -7, 10**25, 1.0, 2.5e-7, "b", "a", "世\n"]), ensure_ascii=rng.random() < 0.5)
    inner = [random_json(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 3, 5, 12]) if depth < 3 else 2)]
    if kind == 4:
        return "[" + ", ".join(inner) + "]"
    return "{" + ",".join(json.dumps(rng.choice(KEYS), ensure_ascii=rng.random() < 0.5) + ":" + v for v in inner) + "}"


def sort_keys(value):
    if isinstance(value, list):
        return [sort_keys(v) for v in value]
    return {k: sort_keys(value[k]) for k in sorted(value)} if isinstance(value, dict) else value


def shown_tools(folder, raw):
    """What the template shows of each JSON text."""
    lines = "".join('{"messages": [], "tools": %s}\n' % tools for tools in raw)
    done = subprocess.run([CLIME_TOK, "render", folder], input=lines, capture_output=True, text=True, encoding="utf-8")
    texts = [json.loads(line)["text"] for line in done.stdout.splitlines()]
    return [t.removeprefix("<|im_system|>tool_declare<|im_middle|>").removesuffix("<|im_end|>") for t in texts]


def test_tools(tmp_path):
    """Newer classes of Kimi K2 sort the keys of tools before the template sees them, the older ones leave them."""
    rng = random.Random(8)
    raw = ["[" + ",".join(random_json(rng) for _ in range(rng.randint(1, 4))) + "]" for _ in range(400)]
    raw += ['{"b":[{"d":1,"c":2}],"a":0}', '"b a"', "7", "[" * 60 + '{"b":1,"a":2}' + "]" * 60]
    values = [json.loads(r) for r in raw]
    older = write_folder(tmp_path / "older", small_vocabulary())
    newer = write_folder(tmp_path / "newer", small_vocabulary(), python_file(rendering=SORTS_TOOLS))
    assert shown_tools(older, raw) == [json.dumps(v, ensure_ascii=False) for v in values]
    assert shown_tools(newer, raw) == [json.dumps(sort_keys(v), ensure_ascii=False) for v in values]
    none = ["null", "[]", "{}"]
    assert shown_tools(older, none) == shown_tools(newer, none) == ["", "", ""]


def test_a_wide_tool(tmp_path):
    """100,000 keys that differ at their ends."""
    keys = ["k" * 100 + str(i) for i in range(100000)]
    newer = write_folder(tmp_path / "newer", small_vocabulary(), python_file(rendering=SORTS_TOOLS))
    (shown,) = shown_tools(newer, [json.dumps([dict.fromkeys(keys, 0)])])
    assert shown == json.dumps([dict.fromkeys(sorted(keys), 0)])


def test_other_layouts_of_the_class(tmp_path):
    """White space, line breaks and commas before a bracket are the formatter's."""
    begin, arguments, end = SORTS_TOOLS.partition("conversation, tools=tools, tokenize=tokenize, ")
    for i, (before, between, after) in enumerate([("", ",  \n\t", ""), ("\r\n    ", ",\r\n  ", ",\r\n")]):
        rendering = begin.rstrip() + before + arguments.replace(", ", between) + end.replace("**kwargs,\n", "**kwargs" + after)
        folder = write_folder(tmp_path / str(i), small_vocabulary(), python_file(rendering=rendering))
        assert shown_tools(folder, ['[{"b":1,"a":2}]']) == ['[{"a": 2, "b": 1}]']


# ---- folders that are refused ----

MAKES_TEXT = """
    def apply_chat_template(self, conversation, tools=None, tokenize=False, add_generation_prompt=True, **kwargs):
        tools = deep_sort_dict(tools)
        kwargs["tools_ts_str"] = encode_tools_to_typescript_style(tools)
        return super().apply_chat_template(conversation, tools=tools, tokenize=tokenize, **kwargs)
"""
TOKENS = small_vocabulary()
LINES = ranks_text(TOKENS).split(b"\n")[:-1]


def model(data):
    return lambda folder: (folder / "tiktoken.model").write_bytes(data)


def changed(number, line):
    """The file with another line of that number, counted from 1."""
    return model(b"\n".join([*LINES[: number - 1], line, *LINES[number:]]))


def config(**members):
    return lambda folder: write_folder(folder, TOKENS, **members)


def python(text):
    return lambda folder: (folder / "tokenization_moonshot.py").write_text(text, encoding="utf-8")


def decoder(**tokens):
    return config(added_tokens_decoder={str(len(TOKENS) + int(k[1:])): v for k, v in tokens.items()})


REFUSED = {
    "empty": (model(b""), ["tiktoken.model", "no tokens"]),
    "blank": (model(b"\r\n\n"), ["tiktoken.model", "no tokens"]),
    "not base64": (changed(700, b"ab!= 699"), ["tiktoken.model", "line 700", "base64"]),
    "base64 cut": (changed(300, b"YWJj= 299"), ["line 300", "base64"]),
    "a NUL byte": (changed(300, b"YW\0j 299"), ["line 300", "base64"]),
    "NUL bytes": (model(bytes(5000)), ["line 1"]),
    "another kind of file": (model(b'{"model": {}}'), ["line 1"]),
    "no rank": (changed(300, b"YWJj"), ["line 300", "rank"]),
    "an empty rank": (changed(300, b"YWJj "), ["line 300", "rank"]),
    "a rank with a sign": (changed(300, b"YWJj -1"), ["line 300", "rank"]),
    "a rank with a point": (changed(300, b"YWJj 1.0"), ["line 300", "rank"]),
    "a rank of hexadecimal": (changed(300, b"YWJj 0x1"), ["line 300", "rank"]),
    "a huge rank": (changed(300, b"YWJj 4194304"), ["line 300", "rank", "4194303"]),
    "a rank past every number": (changed(300, b"YWJj " + b"9" * 30), ["line 300", "rank"]),
    "a word more": (changed(300, b"YWJj 299 x"), ["line 300", "rank"]),
    "an empty token": (changed(300, b" 299"), ["line 300", "empty token"]),
    "the same token": (changed(700, LINES[3].split()[0] + b" 699"), ["line 700", "already, 3"]),
    "the same rank": (changed(700, LINES[699].split()[0] + b" 3"), ["line 700", "rank 3"]),
    "a long token": (changed(700, b"YWJj" * 400 + b" 699"), ["line 700", "1023 bytes"]),
    "a hole": (model(b"\n".join([*LINES[:500], *LINES[501:]])), ["no token has rank 500"]),
    "a byte missing": (changed(1, b"eHh4eHh4eHg= 0"), [f"byte 0x{TOKENS[0][0]:02X}"]),
    "cut in a line": (model(ranks_text(TOKENS)[:-7]), [f"line {len(TOKENS)}"]),
    "another class": (config(auto_map={"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}), ["tokenization_qwen.QWenTokenizer"]),
    "another module": (config(auto_map={"AutoTokenizer": "../x.TikTokenTokenizer"}), ["../x.TikTokenTokenizer"]),
    "no class": (config(auto_map=None, tokenizer_class=None), ['class ""']),
    "no configuration": (lambda f: (f / "tokenizer_config.json").unlink(), ["tokenizer_config.json"]),
    "another pattern": (python(python_file([a.replace("{1,3}", "{1,2}") for a in ALTERNATIVES])), ["tokenization_moonshot.py", "pat_str"]),
    "a pattern more": (python(python_file([*ALTERNATIVES, "x"])), ["pat_str"]),
    "a pattern less": (python(python_file(ALTERNATIVES[:-1])), ["pat_str"]),
    "an empty Python file": (python(""), ["pat_str"]),
    "another number of tokens": (python(python_file(reserved="self.num_reserved_special_tokens + 20")), ["number of special tokens"]),
    "a text of tools": (python(python_file(rendering=MAKES_TEXT)), ["tokenization_moonshot.py", "apply_chat_template"]),
    "tools that are shortened": (python(python_file(rendering=SORTS_TOOLS.replace("(tools)", "(tools[:9])"))), ["apply_chat_template"]),
    "messages that are changed": (python(python_file(rendering=SORTS_TOOLS.replace("):\n        tools", "):\n        conversation = fix(conversation)\n        tools"))), ["apply_chat_template"]),
    "one more variable": (python(python_file(rendering=SORTS_TOOLS.replace("**kwargs,", "thinking=True, **kwargs,"))), ["apply_chat_template"]),
    "another order of keys": (python(python_file(rendering=SORTS_TOOLS.replace("obj.items())", "obj.items(), reverse=True)"))), ["apply_chat_template"]),
    "a method without an end": (python(python_file(rendering="    def apply_chat_template(")), ["apply_chat_template"]),
    "other cuts": (python(python_file(run="30_000")), ["MAX_NO_WHITESPACES_CHARS"]),
    "no pad_token": (config(pad_token=None), ["pad_token"]),
    "eos_token unknown": (config(eos_token="<|over|>"), ["<|over|>", "none of"]),
    "an additional token unknown": (config(additional_special_tokens=["<|x|>"]), ["<|x|>"]),
    "an additional token that is none": (config(additional_special_tokens=[5]), ["additional_special_tokens"]),
    "the class's own additional tokens": (config(additional_special_tokens=None), ["<|start_header_id|>"]),
    "too many tokens with a role": (config(additional_special_tokens=["[EOS]"] * 2000), ["more than 1000"]),
    "a special token beyond": (decoder(_900={"content": "<|x|>"}), ["[BOS]"]),
    "a name twice": (decoder(_0={"content": "[BOS]"}, _1={"content": "[BOS]"}), ["[BOS]", "too"]),
    "a name that is a token": (decoder(_0={"content": "a"}), ['"a"', "too"]),
    "a name in other letters": (decoder(_0={"content": "é"}), ["ASCII"]),
    "a name with a space": (decoder(_0={"content": "a b"}), ["ASCII"]),
    "an empty name": (decoder(_0={"content": ""}), ["ASCII"]),
    "a token that takes spaces": (decoder(_0={"content": "[BOS]", "lstrip": True}), ["lstrip"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path):
    folder = write_folder(tmp_path / "model", TOKENS)
    change, says = REFUSED[name]
    change(folder)
    done = subprocess.run([CLIME_TOK, "encode", folder], input="", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    for word in says:
        assert word in done.stderr, done.stderr


def test_special_token_of_another_id(tmp_path):
    names = json.loads((write_folder(tmp_path / "model", TOKENS) / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    folder = write_folder(tmp_path / "model", TOKENS, added_tokens_decoder=names | {"9000": {"content": "<|x|>"}, "x": {}})
    done = subprocess.run([CLIME_TOK, "encode", folder], input="", capture_output=True, text=True)
    assert done.returncode == 1 and f"2 of its {len(names) + 2} tokens" in done.stderr, done.stderr


def test_gigantic(tmp_path):
    folder = write_folder(tmp_path / "model", TOKENS)
    os.truncate(folder / "tiktoken.model", 1 << 40)
    done = subprocess.run([CLIME_TOK, "encode", folder], input="", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "tiktoken.model" in done.stderr, done.stderr


def test_too_many_merges(tmp_path):
    """All substrings of one text: 70,000 tokens with nine million cuts."""
    text = random.Random(9).randbytes(380)
    parts = {text[i:j] for i in range(380) for j in range(i + 2, 381)}
    folder = write_folder(tmp_path / "model", [*(bytes([b]) for b in range(256)), *parts])
    done = subprocess.run([CLIME_TOK, "encode", folder], input="", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "in more than 8388608 ways" in done.stderr, done.stderr


# ---- a model folder that is written ----


def test_folder_goes_along(models, tmp_path):
    """What clime writes holds what its tokenizer needs, in Python too."""
    folder, _ = models("small")
    done = subprocess.run([BUILD / "clime-train", "init", tmp_path / "new", "--tokenizer", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for file in ["tiktoken.model", "tokenizer_config.json", "tokenization_moonshot.py"]:
        assert (tmp_path / "new" / file).read_bytes() == (folder / file).read_bytes()
    texts = random_texts(7, 100, HAN)
    assert encode(tmp_path / "new", texts) == encode(folder, texts)
