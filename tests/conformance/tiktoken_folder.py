"""Folders with tiktoken.model as Moonlight's and Kimi K2's are, and what their Python class makes of a text.

The class is transformers' slow tokenizer around tiktoken: it finds the special tokens that have a role, cuts what is
between them where it is very long, and gives the parts to tiktoken, which finds the other special tokens.
"""

import base64
import json
import random
import re

ALTERNATIVES = [
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
]
ROLES = {"bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
ADDITIONAL = ["<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"]
NAMES = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_system|>",
         11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>", 17: "<|im_middle|>", 254: "[UNK]",
         255: "[PAD]"}  # fmt: skip
N_SPECIAL = 258  # of the class; "+ 2" is what the older ones have
TEMPLATE = (
    "{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}"
    "{%- for message in messages -%}<|im_{{ message['role'] }}|>{{ message['role'] }}<|im_middle|>{{ message['content'] }}"
    "<|im_end|>{%- endfor -%}{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"
)
SORTS_TOOLS = """
    def apply_chat_template(
        self, conversation, tools: Optional[list[dict]] = None, tokenize: bool = False, **kwargs
    ):
        tools = deep_sort_dict(tools)
        return super().apply_chat_template(
            conversation, tools=tools, tokenize=tokenize, add_generation_prompt=add_generation_prompt, **kwargs,
        )

def deep_sort_dict(obj: Any) -> Any:
    if isinstance(obj, dict):
        return {k: deep_sort_dict(v) for k, v in sorted(obj.items())}
    if isinstance(obj, list):
        return [deep_sort_dict(item) for item in obj]
    return obj
"""


def python_file(alternatives=ALTERNATIVES, reserved="self.num_reserved_special_tokens + 2", run="25_000", rendering=""):
    """The lines of the class that fix something, in their places."""
    pattern = "".join(f'            r"""{a}""",\n' for a in alternatives)
    return f"""class TikTokenTokenizer(PreTrainedTokenizer):
    num_reserved_special_tokens = 256

    pat_str = "|".join(
        [
{pattern}        ]
    )

    def __init__(self, vocab_file):
        self.special_tokens = {{
            special_tokens_mapping.get(i, f"<|reserved_token_{{i}}|>"): i
            for i in range(
                num_base_tokens, num_base_tokens + {reserved}
            )
        }}

    def encode(self, text):
        TIKTOKEN_MAX_ENCODE_CHARS = 400_000
        MAX_NO_WHITESPACES_CHARS = {run}
{rendering}"""


def small_vocabulary(seed=1, n=1500):
    """The bytes in a random order, then unions of two tokens each: many ways to spell a text, many ties."""
    rng = random.Random(seed)
    tokens = [bytes([b]) for b in range(256)]
    rng.shuffle(tokens)
    common = [bytes([b]) for b in b"abcdefghilnorstuAST '\n01=." + "世界é\u0301が\u0e01".encode()]
    unions = {}
    while len(unions) < n - 256:
        union = rng.choice([*common, *unions]) + rng.choice(common)
        if len(union) <= 24:
            unions[union] = None
    return [*tokens, *unions]


def ranks_text(tokens):
    return b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens))


def write_folder(folder, tokens, python=python_file(), **config):
    """config: members of tokenizer_config.json that are others."""
    first = len(tokens)
    folder.mkdir(exist_ok=True)
    (folder / "tiktoken.model").write_bytes(ranks_text(tokens))
    if python is not None:
        (folder / "tokenization_moonshot.py").write_text(python, encoding="utf-8")
    names = {str(first + i): {"content": name, "special": "tool" not in name} for i, name in NAMES.items()}
    members = ROLES | {"added_tokens_decoder": names, "additional_special_tokens": ADDITIONAL,
                       "auto_map": {"AutoTokenizer": ["tokenization_moonshot.TikTokenTokenizer", None]},
                       "tokenizer_class": "TikTokenTokenizer", "chat_template": TEMPLATE} | config  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in members.items() if v is not None}))
    return folder


def runs(text, longest=25000):
    """text in parts with no more than `longest` characters in a row that are all white space or all none."""
    start = run = 0
    for i, c in enumerate(text):
        run = run + 1 if i and c.isspace() == text[i - 1].isspace() else 1
        if run > longest:
            yield text[start:i]
            start, run = i, 1
    yield text[start:]


class Reference:
    def __init__(self, tokens, encoding):
        """encoding: the class tiktoken.Encoding"""
        first = len(tokens)
        self.special = {NAMES.get(i, f"<|reserved_token_{first + i}|>"): first + i for i in range(N_SPECIAL)}
        self.role = {self.special[name] for name in [*ROLES.values(), *ADDITIONAL]}
        self.split = re.compile("(" + "|".join(re.escape(n) for n in [*ROLES.values(), *ADDITIONAL]) + ")")
        self.model = encoding("test", pat_str="|".join(ALTERNATIVES), special_tokens=self.special,
                              mergeable_ranks={t: i for i, t in enumerate(tokens)})  # fmt: skip

    def encode(self, text):
        ids = []
        for k, stretch in enumerate(self.split.split(text)):
            if k % 2:
                ids.append(self.special[stretch])
                continue
            for at in range(0, len(stretch), 400000):
                for part in runs(stretch[at : at + 400000]):
                    ids += self.model.encode(part, allowed_special="all")
        return ids

    def decode(self, ids, skip_special=False):
        return self.model.decode([i for i in ids if not (skip_special and i in self.role)])
