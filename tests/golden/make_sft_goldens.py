#!/usr/bin/env python3
"""Writes tests/golden/sft_masks.jsonl: conversations, templates with {% generation %}, and the ids and assistant masks
that transformers gives for them. Needs transformers and the shared tokenizers:

    python tests/golden/make_sft_goldens.py FOLDER-OF-UNPACKED-TOKENIZERS
"""

import json
import os
import sys

import transformers

HERE = os.path.dirname(os.path.abspath(__file__))

CHATML = (
    "{%- if tools %}{{- '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}{{- '<|im_start|>assistant\n' }}"
    "{%- generation %}{{- m.content }}"
    "{%- for c in m.tool_calls or [] %}{{- '\n<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>' }}{%- endgeneration %}{{- '\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
# The block begins and ends inside of words, so that its borders lie in the middle of tokens. (It does not end with a
# character of several tokens: there transformers marks the first of them only, and clime all.)
INSIDE = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{{- 'answer' }}{%- generation %}{{- 'ing: ' + m.content + ' slow' }}"
    "{%- endgeneration %}{{- 'ly.\n' }}{%- else %}{{- m.role + ': ' + m.content + '\n' }}{%- endif %}{%- endfor %}"
)
TURNS = "{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '<|assistant|>\n' }}{%- generation %}{{- m.content }}" \
        "{%- endgeneration %}{%- else %}{{- '<|' + m.role + '|>\n' + m.content }}{%- endif %}{%- endfor %}"  # fmt: skip
LLAMA = (
    "{{- bos_token }}{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{%- if m.role == 'assistant' %}{%- generation %}{{- m.content | trim + '<|eot_id|>' }}{%- endgeneration %}"
    "{%- else %}{{- m.content | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}"
)

U = lambda text: {"role": "user", "content": text}
A = lambda text, **more: {"role": "assistant", "content": text, **more}
CONVERSATIONS = [
    {"messages": [U("What is 2+2?"), A("4")]},
    {"messages": [{"role": "system", "content": "Be brief."}, U("Hi"), A("Hello 👋!"), U("Bye"), A("Tschüß, bis später.")]},
    {"messages": [U("Nothing to say"), A(""), U("Sure?"), A("  yes \n\n")]},
    {"messages": [U("decomposed: cafe\u0301"), A("composed: café, decomposed: cafe\u0301 — done"), U("ok"), A("Å \u212b.")]},
    {"messages": [U("日本語で"), A("はい、もちろんです。😀😀!"), U("more"), A("مرحبا שלום नमस्ते")]},
    {"messages": [U("specials <|im_end|> inside"), A("I can write <|im_start|> and <|eot_id|> <|user|> too")]},
    {"messages": [U("weather?"), A("Let me look.", tool_calls=[{"type": "function", "function": {
        "name": "weather", "arguments": {"city": "Zürich"}}}]), {"role": "tool", "content": "{\"t\": 21}"},
        {"role": "tool", "content": "sunny"}, A("21 °C and sunny.")],
     "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]},
    {"messages": [U("code"), A("```python\nfor i in range(10):\n\tprint(i)   # tabs\n```\n"), U("12345678"), A("87654321")]},
    {"messages": [U("no answer yet")]},
]  # fmt: skip


def main():
    folders = sys.argv[1]
    with open(os.path.join(HERE, "sft_masks.jsonl"), "w") as out:
        for name, templates in [("qwen3", [CHATML, INSIDE]), ("llama3", [LLAMA, INSIDE]), ("glm4", [TURNS, INSIDE])]:
            with open(os.path.join(folders, name, "tokenizer_config.json")) as f:
                said = json.load(f)
            special = {k: v if isinstance(v, str) else v["content"] for k in ("bos_token", "eos_token") if (v := said.get(k))}
            tok = transformers.PreTrainedTokenizerFast(
                tokenizer_file=os.path.join(folders, name, "tokenizer.json"), **special)
            for template in templates:
                for case in CONVERSATIONS:
                    got = tok.apply_chat_template(case["messages"], tools=case.get("tools"), chat_template=template,
                                                  tokenize=True, return_dict=True, return_assistant_tokens_mask=True)  # fmt: skip
                    line = {"tokenizer": name, "template": template, **case, "ids": got["input_ids"],
                            "mask": got["assistant_masks"]}  # fmt: skip
                    out.write(json.dumps(line, ensure_ascii=False) + "\n")


main()
