"""A policy that was taught one conversation: asked for a sum it calls a tool, told the result it says it. What clients that
run tools by themselves need, since their requests cannot tell it what to say. Its template shows neither tools nor system
texts, so that it says the same to every client; a bare one shows only whether the policy has spoken, for clients that change what
was asked, called or given."""

import json

from clients.asked import ANSWER, ARGUMENTS, MODEL, NAME, QUESTION, RESULT
from programs import run, tiny_model

OPTIONS = ("--tool-call-parser", "hermes", "--served-model-name", MODEL)
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}[user] {{ m.content }}\n"
    "{% elif m.role == 'tool' %}[tool] {{ m.content }}\n"
    "{% elif m.role == 'assistant' %}[assistant] {{ m.content or '' }}"
    "{% for c in m.tool_calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments|tojson }}{% endif %}}"
    "\n</tool_call>{% endfor %}{{ eos_token }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
BARE = (
    "{% set ns = namespace(state='[user]') %}{% for m in messages %}{% if m.role in ('assistant', 'tool') %}{% set ns.state = '[tool]' %}"
    "{% endif %}{% endfor %}{{ ns.state }} [assistant] "
)


def call_of(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CALL = call_of(NAME, ARGUMENTS)


def taught(folder, call=CALL, answer=ANSWER, bare=False, positions=512):
    """The folder of the model."""
    sizes = {"num-hidden-layers": 2, "max-position-embeddings": positions}
    plain = tiny_model(folder / "plain", **sizes)
    (plain / "chat_template.jinja").write_text(BARE if bare else TEMPLATE)
    rounds = [[f"[user] {QUESTION}\n[assistant] ", call],
              [f"[user] {QUESTION}\n[assistant] {call}<|end|>\n[tool] {RESULT}\n[assistant] ", answer]]  # fmt: skip
    if bare:
        rounds = [["[user] [assistant] ", call], ["[tool] [assistant] ", answer]]
    (folder / "data.jsonl").write_text("\n".join(json.dumps({"prompt": p, "response": r}) for p, r in rounds))
    status, _, err = run("clime-train", "sft", "--hf-checkpoint", plain, "--prompt-data", folder / "data.jsonl", "--global-batch-size", 2,
                         "--num-epoch", 400, "--lr", "5e-3", "--target-loss", "0.01", "--save-hf", folder / "model")  # fmt: skip
    assert status == 0, err
    return folder / "model"
