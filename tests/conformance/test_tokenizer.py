"""clime-tok against the `tokenizers` package: the same ids, the same text.

Real tokenizers (Qwen3, Llama 3, GLM-4, stories260K) on published cases, on GSM8K whole and on random Unicode; small
synthetic tokenizer.json files for every option that clime accepts. Random input comes from a fixed seed.
"""

import json
import os
import random
import subprocess
import unicodedata

import pytest
from programs import DATA, FULL, ROOT
from tiktoken_folder import ALTERNATIVES
from tokenizer_data import NAMES, unpack_tokenizers

tokenizers = pytest.importorskip("tokenizers")

BUILD = ROOT / os.environ.get("CLIME_BUILD", "build")
CLIME_TOK = BUILD / "clime-tok"
REAL = [*NAMES, "stories260K"]
N_RANDOM = int(os.environ.get("CLIME_TOKENIZER_CASES", 3000 if FULL else 600))


def run_bytes(command, folder, data):
    done = subprocess.run([CLIME_TOK, command, folder], input=data, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def run(command, folder, requests):
    answers = run_bytes(command, folder, "".join(json.dumps(r) + "\n" for r in requests).encode())
    assert len(answers) == len(requests)
    return answers


def encode(folder, texts, add_special_tokens=False):
    answers = run("encode", folder, [{"text": t, "add_special_tokens": add_special_tokens} for t in texts])
    return [a.get("ids", a) for a in answers]


def decode(folder, lists, skip_special_tokens=False):
    answers = run("decode", folder, [{"ids": i, "skip_special_tokens": skip_special_tokens} for i in lists])
    return [a.get("text", a) for a in answers]


def first_difference(inputs, ours, theirs):
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            return f"case {i}: {inputs[i]!r}\n clime      {a!r}\n tokenizers {b!r}"
    return None


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    to = unpack_tokenizers(tmp_path_factory.mktemp("tokenizers"))
    return {name: to / name for name in NAMES} | {"stories260K": DATA / "stories260K"}


@pytest.fixture(scope="session")
def reference(folders):
    cache = {}

    def get(name):
        if name not in cache:
            cache[name] = tokenizers.Tokenizer.from_file(str(folders[name] / "tokenizer.json"))
        return cache[name]

    return get


def reference_encode(tokenizer, texts, add_special_tokens=False):
    ids = []
    for start in range(0, len(texts), 1000):
        batch = tokenizer.encode_batch(texts[start : start + 1000], add_special_tokens=add_special_tokens)
        ids += [e.ids for e in batch]
    return ids


# ---- random text ----

FRAGMENTS = [
    "'s", "'T", "'re", "'LL", "'\u017f", "don't", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n \n", "\u00a0", "\u180e",
    "\u2028", "\u3000", "123", "4567890", "x=1;", "==>", "...", "hello", " world", "The", "ABC", "e\u0301", "\u00e9",
    "A\u030a", "\u1e69", "s\u0323\u0307", "s\u0307\u0323", "\u212b", "\ufb01", "\u0344", "\u0958", "\u1100\u1161\u11a8",
    "\uac00\u11a8", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u6f22\u5b57", "\u304b\u3099",
    "\u2581", "\u2581the", "<0x0A>", "<0x", "\0", "\x7f", "\ufeff", "\ufffd", "\U0010ffff", "\U000e0001", "\u00ad",
    "\U00011935\U00011930", "\U000105d2\u0307", "\u0300", "\u0327\u0301", "\u0301\u0327", "\u0334", "\u1cf2", "\u20dd",
]  # fmt: skip
RANGES = [
    (0x20, 0x7E), (0x80, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x8FF), (0x900, 0xDFF),
    (0xE00, 0x11FF), (0x1800, 0x1CFF), (0x1D00, 0x20FF), (0x2100, 0x2FFF), (0x3000, 0x4DBF), (0x4E00, 0x9FFF),
    (0xA000, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x13FFF), (0x14000, 0x1FFFF), (0x20000, 0x323AF),
    (0x323B0, 0xDFFFF), (0xE0000, 0xFFFFF), (0x100000, 0x10FFFF),
]  # fmt: skip


def random_text(rng, specials):
    parts = []
    for _ in range(rng.randint(1, 24)):
        kind = rng.random()
        if kind < 0.40:
            parts.append(rng.choice(FRAGMENTS))
        elif kind < 0.48 and specials:
            parts.append(rng.choice(specials))
        elif kind < 0.75:
            low, high = rng.choice(RANGES)
            for _ in range(rng.randint(1, 4)):
                c = rng.randint(low, high)
                if not 0xD800 <= c < 0xE000:
                    parts.append(chr(c))
        elif kind < 0.9:
            parts.append("".join(rng.choice("abcdefghij XYZ019.,!?-\n") for _ in range(rng.randint(1, 12))))
        else:
            parts.append(rng.choice([" ", "a", "\n", "\u0301", "1", "=", "\u5b57"]) * rng.randint(1, 90))
    return "".join(parts)


def random_texts(seed, n, specials=()):
    rng = random.Random(seed)
    return [random_text(rng, list(specials)) for _ in range(n)]


def chunks_of_code_points(size):
    """Every code point up to the last assigned ideograph, and one chunk in 32 of the rest; in the fast tier one chunk in 8 from
    the first ideograph on."""
    for start in range(0, 0x110000, size):
        each = 32 if start >= 0x32400 else 1 if FULL or start < 0x3400 else 8
        if start // size % each == 0:
            yield [chr(c) for c in range(start, start + size) if not 0xD800 <= c < 0xE000]


def special_texts(tokenizer):
    return [t.content for t in tokenizer.get_added_tokens_decoder().values()][:40]


def check_encode(folder, tokenizer, texts):
    for special in (False, True):
        theirs = reference_encode(tokenizer, texts, special)
        problem = first_difference(texts, encode(folder, texts, special), theirs)
        assert problem is None, problem
    return theirs


def check_decode(folder, tokenizer, lists):
    for skip in (False, True):
        theirs = [tokenizer.decode(ids, skip_special_tokens=skip) for ids in lists]
        problem = first_difference(lists, decode(folder, lists, skip), theirs)
        assert problem is None, problem


# ---- real tokenizers ----


def test_published_cases(folders):
    cases = [json.loads(line) for line in open(folders["qwen3"] / "encode_cases.jsonl", encoding="utf-8")]
    assert len(cases) == 47
    problem = first_difference([c["text"] for c in cases], encode(folders["qwen3"], [c["text"] for c in cases]),
                               [c["ids"] for c in cases])  # fmt: skip
    assert problem is None, problem


@pytest.mark.parametrize("name", REAL)
def test_gsm8k(name, folders, reference):
    texts = []
    for part in ["train", "test"]:
        for line in open(DATA / "datasets" / f"gsm8k_{part}.jsonl", encoding="utf-8"):
            row = json.loads(line)
            prompt = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][-1]["content"]
            texts.append(prompt + "\n" + str(row.get("solution", row["label"])))
    texts = texts if FULL else texts[::5]
    theirs = reference_encode(reference(name), texts)
    problem = first_difference(texts, encode(folders[name], texts), theirs)
    assert problem is None, problem
    assert decode(folders[name], theirs) == texts


@pytest.mark.parametrize("name", REAL)
def test_random_unicode(name, folders, reference):
    tokenizer = reference(name)
    texts = random_texts(1, N_RANDOM, special_texts(tokenizer))
    ids = check_encode(folders[name], tokenizer, texts)
    check_decode(folders[name], tokenizer, ids)


@pytest.mark.parametrize("name", REAL)
def test_every_code_point(name, folders, reference):
    texts = []
    for points in chunks_of_code_points(64):
        texts += ["".join(points), "a".join(points)]
    tokenizer = reference(name)
    problem = first_difference(texts, encode(folders[name], texts), reference_encode(tokenizer, texts))
    assert problem is None, problem


@pytest.mark.parametrize("name", REAL)
def test_random_ids(name, folders, reference):
    rng = random.Random(2)
    tokenizer = reference(name)
    n_vocab = tokenizer.get_vocab_size() + 50
    few = [rng.randrange(n_vocab) for _ in range(30)]
    low = list(range(min(n_vocab, 300)))
    lists = []
    for _ in range(N_RANDOM):
        pool = rng.choice([range(n_vocab), low, few])
        lists.append([rng.choice(pool) for _ in range(rng.randint(0, 40))])
    check_decode(folders[name], tokenizer, lists)


def test_round_trip_nfc(folders):
    texts = random_texts(3, N_RANDOM)
    normal = tokenizers.normalizers.NFC()
    got = decode(folders["qwen3"], encode(folders["qwen3"], texts))
    problem = first_difference(texts, got, [normal.normalize_str(t) for t in texts])
    assert problem is None, problem
    # The package's tables are those of Unicode 9; on older characters every NFC is the same.
    old = [t for t in texts if unicodedata.normalize("NFC", t) == normal.normalize_str(t)]
    assert len(old) > 0.9 * len(texts)


@pytest.mark.parametrize("name", ["llama3", "glm4"])
def test_round_trip_exact(name, folders):
    texts = random_texts(4, N_RANDOM)
    problem = first_difference(texts, decode(folders[name], encode(folders[name], texts)), texts)
    assert problem is None, problem


def test_vocab_and_merges(folders, reference, tmp_path):
    for file in ["vocab.json", "merges.txt", "tokenizer_config.json"]:
        (tmp_path / file).symlink_to(folders["qwen3"] / file)
    texts = random_texts(5, 500, special_texts(reference("qwen3")))
    problem = first_difference(texts, encode(tmp_path, texts), reference_encode(reference("qwen3"), texts))
    assert problem is None, problem


# ---- synthetic tokenizers: every option ----

ALPHABET = tokenizers.pre_tokenizers.ByteLevel.alphabet()
NO_OPTIONS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


def token(content, **options):
    return {"id": 0, "content": content} | NO_OPTIONS | options


def byte_model(**options):
    vocab = sorted(ALPHABET)
    merges = [("a", "b"), ("ab", "ab"), ("Ġ", "w"), ("l", "l"), ("e", "ll"), ("h", "ell"), ("b", "a"), ("Ġ", "Ġ"), ("1", "1")]
    vocab += [a + b for a, b in merges] + ["Ċhello"]
    return {"type": "BPE", "vocab": {v: i for i, v in enumerate(vocab)}, "merges": merges} | options


def char_model(**options):
    vocab = ["<unk>"] + [f"<0x{i:02X}>" for i in range(256)] * options.pop("with_bytes", True)
    vocab += list("▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJ 0123456789.,!?-=\n\u5b57\u00e9")
    merges = [("▁", "h"), ("l", "l"), ("e", "ll"), ("▁h", "ell"), ("▁hell", "o"), ("▁", "▁"), ("▁▁", "▁▁"), ("1", "1"), ("a", "b")]
    vocab += [a + b for a, b in merges]
    return {"type": "BPE", "unk_token": "<unk>", "vocab": {v: i for i, v in enumerate(vocab)}, "merges": merges} | options


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(key, *items):
    return {"type": "Sequence", key: list(items)}


def metaspace(**options):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True} | options


LLAMA_DECODER = sequence(
    "decoders",
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
)

SYNTHETIC = {
    "plain bytes": {"model": byte_model(), "pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL},
    "gpt2": {"model": byte_model(), "pre_tokenizer": BYTE_LEVEL | {"use_regex": True}, "decoder": BYTE_LEVEL},
    "prefix space": {
        "model": byte_model(ignore_merges=True),
        "pre_tokenizer": BYTE_LEVEL | {"use_regex": True, "add_prefix_space": True},
        "decoder": BYTE_LEVEL,
    },
    "digits": {
        "model": byte_model(),
        "pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, BYTE_LEVEL),
        "decoder": BYTE_LEVEL,
    },
    "digit runs": {
        "model": byte_model(),
        "pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, BYTE_LEVEL),
        "decoder": BYTE_LEVEL,
    },
    "deepseek": {
        "model": byte_model(),
        "pre_tokenizer": sequence(
            "pretokenizers",
            split({"Regex": "\\p{N}{1,3}"}),
            split({"Regex": "[一-龥\u3040-ゟ゠-ヿ]+"}),
            split({"Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
                            "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}),  # fmt: skip
            BYTE_LEVEL,
        ),
        "decoder": BYTE_LEVEL,
    },
    "o200k": {
        "model": byte_model(),
        "pre_tokenizer": sequence(
            "pretokenizers",
            split({"Regex": "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
                            "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+"
                            "|\\s+(?!\\S)|\\s+"}, "Removed", True),  # fmt: skip
            BYTE_LEVEL,
        ),
        "decoder": BYTE_LEVEL,
    },
    "kimi": {
        "model": byte_model(),
        "pre_tokenizer": sequence("pretokenizers", split({"Regex": "|".join(ALTERNATIVES)}), BYTE_LEVEL),
        "decoder": BYTE_LEVEL,
    },
    "intersections": {
        "model": byte_model(),
        "pre_tokenizer": sequence(
            "pretokenizers", split({"Regex": "[ab&&[b1]]|[\\w&&[^\\d_]]{2,}|[^\\p{Han}a][\\p{N}\\s&&[^\\r1]]?"}), BYTE_LEVEL
        ),
        "decoder": BYTE_LEVEL,
    },
    "words and lines": {
        "model": byte_model(),
        "pre_tokenizer": sequence("pretokenizers", split({"Regex": "\\w+|^\\S|\\d$|\\W"}), BYTE_LEVEL),
        "decoder": BYTE_LEVEL,
    },
    "added": {
        "model": byte_model(),
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
        "added_tokens": [
            token("<s>", special=True), token("<l>", lstrip=True), token("<r>", rstrip=True, special=True),
            token("<lr>", lstrip=True, rstrip=True), token("ab", single_word=True), token("abab", normalized=True),
            token("\ufb01", normalized=True), token("fl", single_word=True, normalized=True), token("<s>x"), token("é"),
            token("hell"), token(" "  "x", lstrip=True), token("b", special=True, single_word=True),
        ],  # fmt: skip
        "post_processor": sequence(
            "processors",
            BYTE_LEVEL,
            {"type": "TemplateProcessing", "pair": [],
             "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                        {"SpecialToken": {"id": "two", "type_id": 0}}],
             "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["x"]},
                                "two": {"id": "two", "ids": [5, 6], "tokens": ["x", "y"]}}},  # fmt: skip
        ),
    },
    "nfd": {"model": byte_model(), "normalizer": {"type": "NFD"}, "pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL},
    "nfkd strip": {
        "model": byte_model(),
        "normalizer": sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": True},
                               {"type": "NFKD"}, {"type": "Prepend", "prepend": "ab"}),  # fmt: skip
        "pre_tokenizer": BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
    },
    "replace": {
        "model": byte_model(),
        "normalizer": sequence("normalizers", {"type": "Replace", "pattern": {"Regex": " {2,}|\\d"}, "content": "ab"},
                               {"type": "Replace", "pattern": {"String": "h"}, "content": ""}),  # fmt: skip
        "pre_tokenizer": BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
    },
    "llama2": {
        "model": char_model(byte_fallback=True, fuse_unk=True),
        "normalizer": sequence("normalizers", {"type": "Prepend", "prepend": "▁"},
                               {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),  # fmt: skip
        "decoder": LLAMA_DECODER,
        "added_tokens": [token("<s>", special=True), token("<n>", normalized=True), token("hello", normalized=True)],
    },
    "unk": {"model": char_model(with_bytes=False), "pre_tokenizer": metaspace(), "decoder": metaspace()},
    "fused unk": {
        "model": char_model(with_bytes=False, fuse_unk=True),
        "pre_tokenizer": metaspace(prepend_scheme="first"),
        "decoder": metaspace(prepend_scheme="first"),
        "added_tokens": [token("<s>", special=True)],
    },
    "no unk": {
        "model": char_model(with_bytes=False, unk_token=None),
        "pre_tokenizer": metaspace(prepend_scheme="never", split=False),
        "decoder": metaspace(prepend_scheme="never", split=False),
    },
    "ignore merges": {
        "model": char_model(byte_fallback=True, ignore_merges=True),
        "pre_tokenizer": metaspace(),
        "decoder": sequence("decoders", metaspace(), {"type": "ByteFallback"}),
    },
    "no decoder": {"model": char_model(), "added_tokens": [token("<s>", special=True)]},
    "strip each": {
        "model": char_model(),
        "decoder": sequence("decoders", {"type": "Strip", "content": "l", "start": 1, "stop": 0}, {"type": "Fuse"}),
    },
} | {
    f"{behavior} {invert} {pattern}": {
        "model": byte_model(),
        "pre_tokenizer": sequence("pretokenizers", split(pattern, behavior, invert), BYTE_LEVEL),
        "decoder": BYTE_LEVEL,
    }
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    for invert in [False, True]
    for pattern in [{"String": "a"}, {"Regex": "[ab]"}, {"Regex": "b*"}]
}  # fmt: skip

EMPTY = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
         "pre_tokenizer": None, "post_processor": None, "decoder": None}  # fmt: skip


def write_synthetic(folder, spec):
    full = json.dumps(EMPTY | spec, ensure_ascii=random.Random(str(folder)).random() < 0.5)
    (folder / "tokenizer.json").write_text(full, encoding="utf-8")
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("name", SYNTHETIC)
def test_synthetic(name, tmp_path):
    spec = SYNTHETIC[name]
    tokenizer = write_synthetic(tmp_path, spec)
    specials = [t["content"] for t in spec.get("added_tokens", [])] + ["ab", "ba", "abab", "hello", " hello", "11"]
    rng = random.Random(6)
    texts = random_texts(7, 200, specials) + ["", " ", "a", "ab"]
    texts += ["".join(rng.choice("aab1 b") for _ in range(rng.randint(1, 12))) for _ in range(200)]
    texts += ["".join(rng.choice(specials + [" ", "\u00a0", "é", "x"]) for _ in range(5)) for _ in range(100)]
    ids = check_encode(tmp_path, tokenizer, texts)
    n_vocab = tokenizer.get_vocab_size() + 5
    ids += [[rng.randrange(n_vocab) for _ in range(rng.randint(0, 20))] for _ in range(300)]
    check_decode(tmp_path, tokenizer, ids)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normal_form_of_every_code_point(form, tmp_path):
    write_synthetic(tmp_path, SYNTHETIC["plain bytes"] | {"normalizer": {"type": form}})
    normal = getattr(tokenizers.normalizers, form)()
    texts = []
    for points in chunks_of_code_points(256):
        texts.append("x".join(f"{c}a\u0301{c}\u0327\u0334" for c in points))
    got = decode(tmp_path, encode(tmp_path, texts))
    problem = first_difference(texts, got, [normal.normalize_str(t) for t in texts])
    assert problem is None, problem


UNSUPPORTED = {
    "WordPiece": {"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a"}},
    "BertPreTokenizer": {"model": byte_model(), "pre_tokenizer": {"type": "BertPreTokenizer"}},
    "Lowercase": {"model": byte_model(), "normalizer": {"type": "Lowercase"}},
    "CTC": {"model": byte_model(), "decoder": {"type": "CTC"}},
    "intersection": {"model": byte_model(), "pre_tokenizer": split({"Regex": "[\\p{L}&&a]"})},
    "end_of_word_suffix": {"model": byte_model(end_of_word_suffix="</w>")},
    "not in the vocabulary": {"model": byte_model(merges=["q zz"])},
    "RobertaProcessing": {"model": byte_model(), "post_processor": {"type": "RobertaProcessing"}},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported(name, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(EMPTY | UNSUPPORTED[name]))
    done = subprocess.run([CLIME_TOK, "encode", tmp_path], input="", capture_output=True, text=True)
    assert done.returncode == 1 and name in done.stderr and "tokenizer.json" in done.stderr, done.stderr


# ---- a new tokenizer ----


def test_init_writes_a_tokenizer(tmp_path):
    """What `clime-train init` writes loads in tokenizers and transformers to the same ids."""
    if not (BUILD / "clime-train").exists():
        pytest.skip("clime-train is not built")
    folder = tmp_path / "model"
    done = subprocess.run([BUILD / "clime-train", "init", folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [tokenizer.token_to_id(t.content) for t in tokenizer.get_added_tokens_decoder().values()]
    texts = random_texts(8, 200, special_texts(tokenizer))
    ids = check_encode(folder, tokenizer, texts)
    assert decode(folder, ids) == texts
    check_decode(folder, tokenizer, [[random.Random(i).randrange(262) for _ in range(20)] for i in range(100)])
    transformers = pytest.importorskip("transformers")
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    assert fast(texts, add_special_tokens=False)["input_ids"] == ids
    assert fast.eos_token_id is not None and fast.pad_token_id is not None


# ---- bad input ----


def test_bad_lines(tmp_path):
    write_synthetic(tmp_path, SYNTHETIC["plain bytes"])
    lines = [b'{"text": "a\xff"}', b'{"text": "\\ud800"}', b'{"text": 1}', b"{", b"[]", b'{"ids": [1]}', b'{"txet": ""}',
             b'{"text": "\xed\xa0\x80"}', b'{"text": "\xc0\x80"}', b'{"text": "\xf4\x90\x80\x80"}',
             b'{"text": "a"} x']  # fmt: skip
    answers = run_bytes("encode", tmp_path, b"".join(line + b'\n{"text": "ab"}\n' for line in lines))
    good = encode(tmp_path, ["ab"])[0]
    assert [a.get("ids") for a in answers[1::2]] == [good] * len(lines)
    assert all(set(a) == {"error"} and a["error"] for a in answers[0::2]), answers
    lines = [b'{"ids": [-1]}', b'{"ids": [1.5]}', b'{"ids": ["a"]}', b'{"ids": 3}', b'{"ids": [99999999999]}', b"{}"]
    answers = run_bytes("decode", tmp_path, b"".join(line + b'\n{"ids": [3]}\n' for line in lines))
    assert all(set(a) == {"error"} for a in answers[0::2]) and all("text" in a for a in answers[1::2])


def test_missing_folder(tmp_path):
    done = subprocess.run([CLIME_TOK, "encode", tmp_path / "none"], input="", capture_output=True, text=True)
    assert done.returncode == 1 and "no tokenizer.json" in done.stderr
    assert subprocess.run([CLIME_TOK, "nonsense", tmp_path], capture_output=True).returncode == 2


def test_hostile_text(folders, reference):
    """Long runs that are quadratic for a naive merge, normaliser or pattern."""
    n = 60000
    texts = ["a" * n, " " * n, " " * n + "x", "\u0301\u0327" * (n // 2), "ab" * n, "\n " * n, "\U0001f600" * n, "<|im_" * n]
    for name in ["qwen3", "stories260K"]:
        problem = first_difference(range(len(texts)), encode(folders[name], texts), reference_encode(reference(name), texts))
        assert problem is None, problem[:500]
