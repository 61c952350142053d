"""Its router before clime-server: chat whole and streamed, text, Responses, Messages, /inference/v1/generate, pause and resume."""

import json
import pathlib
import sys
import urllib.request

import openai
from asked import ANSWER, MODEL, QUESTION, place, serving

url, folder, where = place()
after = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "and?"}]


def ask(path, body):
    request = urllib.request.Request(router + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return reply.read().decode()


command = pathlib.Path(sys.executable).parent / "vllm-router"
with serving("/readiness", command, "--worker-urls", url, "--host", "127.0.0.1", "--port", "{port}", "--prometheus-port", "{other}") as router:
    client = openai.OpenAI(base_url=router + "/v1", api_key="none")
    chat = {"model": MODEL, "messages": after, "temperature": 0, "max_tokens": 200}
    assert client.chat.completions.create(**chat).choices[0].message.content == ANSWER
    pieces = client.chat.completions.create(stream=True, **chat)
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == ANSWER
    assert client.completions.create(model=MODEL, prompt="x", max_tokens=4).choices[0].finish_reason
    assert client.responses.create(model=MODEL, input=after, temperature=0, max_output_tokens=200).output_text == ANSWER
    assert json.loads(ask("/v1/messages", chat))["content"][0]["text"] == ANSWER
    ids = {"model": MODEL, "token_ids": [1, 5, 6], "sampling_params": {"max_tokens": 4, "temperature": 0, "ignore_eos": True}}
    assert len(json.loads(ask("/inference/v1/generate", ids))["choices"][0]["token_ids"]) == 4
    ask("/pause", {}), ask("/resume", {})
    assert json.loads(ask("/generate", {"input_ids": [1, 5, 6], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}))["output_ids"]
