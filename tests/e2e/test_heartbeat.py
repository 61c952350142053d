"""A stream in which nothing happens says that it lives: proxies cut connections that are silent."""

import json
import threading

import openai
from programs import LIMIT, chat_model, server

CHAT = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 4, "temperature": 0, "stream": True}


def text_of(events):
    choices = [json.loads(e)["choices"][0] for e in events if e != "[DONE]"]
    assert choices[-1]["finish_reason"] == "length"
    return "".join(c["delta"].get("content", "") for c in choices)


def paused_stream(s, path, body, n):
    """All lines of a stream that is held until n heartbeats have come, or, for n == 0, for two seconds."""
    s.json("/pause_generation", {"mode": "in_place"})
    resume = threading.Timer(2, s.json, ("/continue_generation", {}))
    if n == 0:
        resume.start()
    lines = []
    with s.client.stream("POST", path, json=body, timeout=LIMIT) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            lines.append(line)
            if n and lines.count(": heartbeat") == n and not resume.is_alive():
                n = 0
                threading.Thread(target=s.json, args=("/continue_generation", {})).start()
    if resume.is_alive():
        resume.join()
    return lines


def test_heartbeats(tmp_path):
    with server("--stream-heartbeat", "1", model=chat_model(tmp_path)) as s:
        said = text_of(s.events("/v1/chat/completions", CHAT))
        lines = paused_stream(s, "/v1/chat/completions", CHAT, 2)
        assert lines.count(": heartbeat") >= 2
        assert text_of(x[6:] for x in lines if x.startswith("data: ")) == said
        # SGLang's load generators take every line of /generate for JSON
        body = {"text": "Once", "sampling_params": {"max_new_tokens": 4}, "stream": True}
        assert ": heartbeat" not in paused_stream(s, "/generate", body, 0)
        s.json("/pause_generation", {"mode": "in_place"})
        threading.Timer(2.5, s.json, ("/continue_generation", {})).start()
        with openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as client:
            name = s.get("/v1/models").json()["data"][0]["id"]
            chunks = list(client.chat.completions.create(model=name, **CHAT))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == said
