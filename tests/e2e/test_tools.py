"""Tools in chat replies: calls told from content, whole and streamed. The model's output is forced: its tokenizer has
tokens that spell parts of calls, and falling biases with a penalty on what was said make it say them one after the other."""

import asyncio
import json
import re

import openai
import pytest
from programs import program, run, server, tiny_model

CALL = ["Let me.\n<tool_call>\n{\"name\": \"get\", ", '"arguments": {"city": "Pa', 'r\u00eds", "n": 2}}', "\n</tool_call>\n"]
SECOND = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BROKEN = '"arguments": {"city": oops}}'
HALT = "<halt>"
THOUGHT = "<think>\nHm.\n</think>\n\n"
EXTRA = [*CALL, SECOND, BROKEN, HALT, THOUGHT]
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


def make_model(folder, texts, template, **sizes):
    """A tiny model whose tokenizer has a token for each of the texts: (folder, {text: id})"""
    plain = tiny_model(folder / "plain")
    tokenizer = json.loads((plain / "tokenizer.json").read_text())
    first = max([t["id"] for t in tokenizer["added_tokens"]] + list(tokenizer["model"]["vocab"].values())) + 1
    for i, text in enumerate(texts):
        tokenizer["added_tokens"].append({"id": first + i, "content": text, "special": False, "normalized": False,
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
    """Sampling parameters that make a model say these texts, in order; each at most once."""
    bias = {str(ids[t]): 100 - 0.75 * i for i, t in enumerate(texts)}
    return {"logit_bias": bias, "max_tokens": len(texts), "temperature": 0, "presence_penalty": 2, "frequency_penalty": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("tools"), EXTRA, TEMPLATE)


@pytest.fixture(scope="module")
def s(model):
    with server(model=model[0]) as running:
        yield running


def ask(model, *texts, **more):
    return {"messages": [{"role": "user", "content": "Well?"}], "tools": TOOLS} | say(model[1], *texts) | more


def reply(s, body):
    (choice,) = s.json("/v1/chat/completions", body)["choices"]
    return choice["message"], choice["finish_reason"]


def stream(s, body):
    """The message that the deltas make, its reason, and the deltas."""
    message, deltas, reason = {"content": "", "tool_calls": {}}, [], None
    events = s.events("/v1/chat/completions", body | {"stream": True})
    assert events[-1] == "[DONE]"
    for event in events[:-1]:
        for c in json.loads(event)["choices"]:
            deltas.append(c["delta"])
            reason = c["finish_reason"] or reason
            message["content"] += c["delta"].get("content") or ""
            for call in c["delta"].get("tool_calls", []):
                if call["index"] not in message["tool_calls"]:
                    assert call["type"] == "function" and call["function"]["arguments"] == ""
                    message["tool_calls"][call["index"]] = {"id": call["id"], "name": call["function"]["name"], "arguments": ""}
                else:
                    assert "id" not in call and "name" not in call["function"]
                    message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message, reason, deltas


def test_a_call(s, model):
    message, reason = reply(s, ask(model, *CALL))
    (call,) = message["tool_calls"]
    assert re.fullmatch(r"call_[0-9a-f]{24}", call.pop("id"))
    assert call == {"type": "function", "function": {"name": "get", "arguments": ARGUMENTS}}
    assert (message["content"], reason) == ("Let me.", "length")  # it was cut by the limit, behind the call
    message, reason = reply(s, ask(model, *CALL, HALT, stop=[HALT], max_tokens=9))
    assert len(message["tool_calls"]) == 1 and reason == "tool_calls"


def test_parallel_calls(s, model):
    message, _ = reply(s, ask(model, *CALL, SECOND))
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["get", "now"]
    assert len({c["id"] for c in message["tool_calls"]}) == 2
    message, _ = reply(s, ask(model, *CALL, SECOND, parallel_tool_calls=False))
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["get"]
    message, _ = reply(s, ask(model, SECOND))
    assert message["content"] is None and len(message["tool_calls"]) == 1


def test_reasoning_comes_first(s, model):
    message, _ = reply(s, ask(model, THOUGHT, SECOND))
    assert message["reasoning_content"] == message["reasoning"] == "Hm." and len(message["tool_calls"]) == 1


@pytest.mark.parametrize("texts", [CALL, [*CALL, SECOND], [SECOND], [CALL[0], CALL[1]], [CALL[0], BROKEN], ["Let me.\n"]])
@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_adds_up(s, model, texts, n):
    if texts == ["Let me.\n"]:
        body = ask(model, *CALL) | {"logit_bias": {}, "max_tokens": 12}
    else:
        body = ask(model, *texts)
    whole, reason = reply(s, body)
    got, got_reason, deltas = stream(s, body | {"stream_options": {"include_usage": True}})
    calls = whole.get("tool_calls", [])
    assert got["content"] == (whole["content"] or "") and got_reason == reason
    kept = list(got["tool_calls"].values())[: len(calls)]
    assert [(c["name"], c["arguments"]) for c in kept] == [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
    assert sum("tool_calls" in d for d in deltas) >= 2 * len(calls)  # the name, then its arguments
    if n == 2:
        both = s.json("/v1/chat/completions", body | {"n": 2})["choices"]
        assert [c["message"]["content"] for c in both] == [whole["content"]] * 2


def test_what_is_no_call_is_content(s, model):
    for texts in ([CALL[0], BROKEN], [CALL[0], CALL[1]]):
        message, reason = reply(s, ask(model, *texts))
        assert message["content"] == "".join(texts) and "tool_calls" not in message and reason == "length"
        got, _, _ = stream(s, ask(model, *texts))
        assert got["content"] == "".join(texts)


def test_without_tools_a_call_is_text(s, model):
    for more in ({"tools": None}, {"tools": []}, {"tool_choice": "none"}):
        message, _ = reply(s, ask(model, *CALL, **more))
        assert message["content"] == "".join(CALL) and "tool_calls" not in message


def test_tools_are_checked(s, model):
    for tools in ("x", [5], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}]):
        error = s.post("/v1/chat/completions", ask(model, *CALL, tools=tools))
        assert error.status_code == 400 and "tool" in error.json()["message"], error.text


def test_a_round_comes_back_token_exact(s, model):
    """The call as the model wrote it, rendered again, is the ids that it sampled."""
    body = ask(model, SECOND, return_token_ids=True)
    first = s.json("/v1/chat/completions", body)
    (choice,) = first["choices"]
    messages = [*body["messages"], choice["message"], {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"],
                                                      "content": "noon"}]  # fmt: skip
    again = s.json("/apply_template", {"messages": messages, "tools": TOOLS})["tokens"]
    ids = first["prompt_token_ids"] + choice["token_ids"]
    assert again[: len(ids)] == ids


def check_client(client, model, name):
    body = ask(model, *CALL, SECOND, HALT, stop=[HALT], max_tokens=9)
    reply = client.chat.completions.create(model=name, **body)
    calls = reply.choices[0].message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in calls] == [("get", ARGUMENTS), ("now", "{}")]
    with client.chat.completions.stream(model=name, **body) as events:
        done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
        final = events.get_final_completion().choices[0].message
    assert [(e.name, json.loads(e.arguments)) for e in done] == [("get", json.loads(ARGUMENTS)), ("now", {})]
    assert [c.function.name for c in final.tool_calls] == ["get", "now"]


def test_the_official_client(s, model):
    with program("clime-router", "--worker-urls", s.url) as router:
        for url in (s.url, router.url):
            with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
                check_client(client, model, client.models.list().data[0].id)

    async def both():
        async with openai.AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as client:
            body = ask(model, *CALL)
            whole = client.chat.completions.create(model="", **body)
            pieces = await client.chat.completions.create(model="", stream=True, **body)
            text = "".join([c.function.arguments or "" async for p in pieces for c in p.choices[0].delta.tool_calls or []])
            assert text == (await whole).choices[0].message.tool_calls[0].function.arguments == ARGUMENTS

    asyncio.run(both())


def test_parsers_by_name(model):
    status, _, err = run("clime-server", "--model-path", model[0], "--tool-call-parser", "qwen2", "--port", 0)
    assert status == 2 and "auto|none|hermes" in err
    with server("--tool-call-parser", "none", model=model[0]) as s:
        message, _ = reply(s, ask(model, *CALL))
        assert message["content"] == "".join(CALL)
