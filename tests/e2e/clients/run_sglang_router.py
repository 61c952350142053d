"""Its router before clime-server: chat whole and streamed, text, Responses, /generate, the list of models, loads, flush."""

import json
import sys
import urllib.request

import openai
from asked import ANSWER, MODEL, QUESTION, place, serving

url, folder, where = place()
after = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "and?"}]


def ask(path, body=None):
    body = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(router + path, body, {"Content-Type": "application/json"})) as reply:
        return reply.read().decode()


with serving("/readiness", sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", url, "--host", "127.0.0.1", "--port", "{port}",
             "--model-path", folder, "--prometheus-port", "{other}") as router:  # fmt: skip
    client = openai.OpenAI(base_url=router + "/v1", api_key="none")
    chat = {"model": MODEL, "messages": after, "temperature": 0, "max_tokens": 200}
    assert client.chat.completions.create(**chat).choices[0].message.content == ANSWER
    pieces = client.chat.completions.create(stream=True, **chat)
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == ANSWER
    assert client.completions.create(model=MODEL, prompt="x", max_tokens=4).choices[0].finish_reason
    assert client.responses.create(model=MODEL, input=after, temperature=0, max_output_tokens=200).output_text == ANSWER
    generate = {"input_ids": [1, 5, 6], "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}
    whole = json.loads(ask("/generate", generate))
    events = [e for e in ask("/generate", generate | {"stream": True}).split("\n\n") if e.startswith("data: {")]
    assert len(whole["output_ids"]) == 4 and json.loads(events[-1][6:])["text"] == whole["text"], (whole, events)
    assert MODEL in ask("/v1/models") and ask("/get_loads") and ask("/flush_cache", {}) is not None
