"""A model that says what a test wants: its tokenizer has tokens that spell whole pieces of replies, and falling biases with
a penalty on what was said make it say them one after the other. Shared by the tests of tools."""

import json

import pytest
from programs import run, server, tiny_model

CALL = ["Let me.\n<tool_call>\n{\"name\": \"get\", ", '"arguments": {"city": "Pa', 'r\u00eds", "n": 2}}', "\n</tool_call>\n"]
SECOND = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BROKEN = '"arguments": {"city": oops}}'
HALT = "<halt>"
THOUGHT = "<think>\nHm.\n</think>\n\n"
PATCH = '<tool_call>\n{"name": "patch", "arguments": {"input": "*** \\"\u00e9\\"\\n+1"}}\n</tool_call>'
EXTRA = [*CALL, SECOND, BROKEN, HALT, THOUGHT, PATCH]
TEMPLATE = (
    "{% if tools %}[tools] <tool_call>{{ tools|tojson }}\n</think>{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments|tojson }}{% endif %}}"
    "\n</tool_call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
TOOLS = [
    {"type": "function", "function": {"name": "get", "description": "d", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]  # fmt: skip
ARGUMENTS = '{"city": "Par\u00eds", "n": 2}'


def make_model(folder, texts, template, special=(), **sizes):
    """A tiny model whose tokenizer has a token for each of the texts, some of them special: (folder, {text: id})"""
    plain = tiny_model(folder / "plain")
    tokenizer = json.loads((plain / "tokenizer.json").read_text())
    first = max([t["id"] for t in tokenizer["added_tokens"]] + list(tokenizer["model"]["vocab"].values())) + 1
    for i, text in enumerate(texts):
        tokenizer["added_tokens"].append({"id": first + i, "content": text, "special": text in special, "normalized": False,
                                          "single_word": False, "lstrip": False, "rstrip": False})  # fmt: skip
    (plain / "tokenizer.json").write_text(json.dumps(tokenizer))
    (plain / "chat_template.jinja").write_text(template)
    sizes = {"hidden-size": 64, "intermediate-size": 192, "num-hidden-layers": 1, "num-attention-heads": 2,
             "num-key-value-heads": 1, "head-dim": 32, "max-position-embeddings": 1024} | sizes  # fmt: skip
    status, _, err = run("clime-train", "init", folder / "model", "--tokenizer", plain,
                         *(w for k, v in sizes.items() for w in (f"--{k}", v)))  # fmt: skip
    assert status == 0, err
    (folder / "model" / "chat_template.jinja").write_text(template)
    return folder / "model", {text: first + i for i, text in enumerate(texts)}


def say(ids, *texts):
    """Sampling parameters that make a model say these texts, in order, each at most once: six at most, as a penalty is at
    most 4."""
    assert len(texts) <= 6
    bias = {str(ids[t]): 100 - 0.65 * i for i, t in enumerate(texts)}
    return {"logit_bias": bias, "max_tokens": len(texts), "temperature": 0, "presence_penalty": 2, "frequency_penalty": 2}


def beside(ids, *texts):
    """What of that OpenAI's and Anthropic's packages have no name for everywhere."""
    return {k: v for k, v in say(ids, *texts).items() if k in ("logit_bias", "presence_penalty", "frequency_penalty")}


def at_once(s, model):
    """A bias that keeps a model from reasoning first, token by token or in one: a forced call then begins the reply."""
    (h,) = s.json("/tokenize", {"prompt": "h", "add_special_tokens": False})["tokens"]
    return {"logit_bias": {str(h): -100, str(model[1][THOUGHT]): -100}}


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("said"), EXTRA, TEMPLATE)


@pytest.fixture(scope="session")
def s(model):
    with server(model=model[0]) as running:
        yield running
