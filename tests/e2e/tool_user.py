"""A policy that was taught one conversation: asked for a sum it calls a tool, told the result it says it. What clients that
run tools by themselves need, since their requests cannot tell it what to say. Its template shows neither tools nor system
texts, so that it says the same to every client."""

import json

from programs import run, tiny_model

QUESTION, RESULT, ANSWER = "What is 17 and 25?", "42", "It is 42."
NAME, ARGUMENTS = "add", '{"a": 17, "b": 25}'
CALL = f'<tool_call>\n{{"name": "{NAME}", "arguments": {ARGUMENTS}}}\n</tool_call>'
OPTIONS = ("--tool-call-parser", "hermes", "--served-model-name", "tool-user")
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}[user] {{ m.content }}\n"
    "{% elif m.role == 'tool' %}[tool] {{ m.content }}\n"
    "{% elif m.role == 'assistant' %}[assistant] {{ m.content or '' }}"
    "{% for c in m.tool_calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments|tojson }}{% endif %}}"
    "\n</tool_call>{% endfor %}{{ eos_token }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def taught(folder):
    """The folder of the model."""
    sizes = {"num-hidden-layers": 2, "max-position-embeddings": 512}
    plain = tiny_model(folder / "plain", **sizes)
    (plain / "chat_template.jinja").write_text(TEMPLATE)
    rounds = [[f"[user] {QUESTION}\n[assistant] ", CALL],
              [f"[user] {QUESTION}\n[assistant] {CALL}<|end|>\n[tool] {RESULT}\n[assistant] ", ANSWER]]  # fmt: skip
    (folder / "data.jsonl").write_text("\n".join(json.dumps({"prompt": p, "response": r}) for p, r in rounds))
    status, _, err = run("clime-train", "sft", "--hf-checkpoint", plain, "--prompt-data", folder / "data.jsonl", "--global-batch-size", 2,
                         "--num-epoch", 400, "--lr", "5e-3", "--target-loss", "0.01", "--save-hf", folder / "model")  # fmt: skip
    assert status == 0, err
    return folder / "model"
