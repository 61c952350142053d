#!/usr/bin/env python3
"""The calculator as a tool of the OpenAI API: an agent's plain loop, which knows nothing of training but its base URL.

Started by `clime-train rl --environment-command "python3 examples/environments/calculator_tools.py"`. The policy's chat
template must show tools; examples/environments/tools.jinja is a small one. scripts/agent-calculator trains with it.
"""

import json

from calculator import main, messages_of

TURNS = 4
NUMBER = {"type": "integer"}
TOOLS = [{"type": "function", "function": {
    "name": "add", "description": "The sum of two numbers.",
    "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}}}]  # fmt: skip


def call(function):
    """The tool's result, or what was wrong: that is for the policy to read."""
    try:
        arguments = json.loads(function.arguments)
        if function.name != "add":
            return "no such tool"
        return str(int(arguments["a"]) + int(arguments["b"]))
    except (KeyError, TypeError, ValueError):
        return "bad arguments"


def act(client, task):
    messages = messages_of(task)
    for _ in range(TURNS):
        answer = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0].message
        messages.append(answer)
        if not answer.tool_calls:
            return 1.0 if (answer.content or "").strip() == str(task["label"]) else 0.0
        for c in answer.tool_calls:
            messages.append({"role": "tool", "tool_call_id": c.id, "content": call(c.function)})
    return 0.0


if __name__ == "__main__":
    main(act)
