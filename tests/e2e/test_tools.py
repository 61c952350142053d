"""Tools in chat replies: calls told from content, whole and streamed."""

import asyncio
import json
import re

import openai
import pytest
from programs import DATA, need, router_to, run, server
from said import ARGUMENTS, BROKEN, CALL, HALT, PATCH, SECOND, TEMPLATE, THOUGHT, TOOLS, at_once, make_model, model, s, say  # noqa: F401
from schemas import schema as make_schema


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
    with router_to([s.url]) as router:
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


NESTED = [{"type": "custom", "custom": {"name": "patch", "description": "d", "format": {
    "type": "grammar", "grammar": {"syntax": "lark", "definition": "start: line"}}}}, {"type": "custom", "custom": {"name": "now"}}, TOOLS[0]]  # fmt: skip
NOTHING = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
TEXT = '*** "\u00e9"\n+1'


def check_custom(client, model):
    ended = client.chat.completions.create(model="", **ask(model, PATCH, HALT, tools=NESTED, stop=[HALT], max_tokens=3)).choices[0]
    assert ended.finish_reason == "tool_calls" and ended.message.content is None
    body = ask(model, PATCH, *CALL, SECOND, tools=NESTED)
    choice = client.chat.completions.create(model="", **body).choices[0]
    first, get, now = choice.message.tool_calls
    assert (first.type, first.custom.name, first.custom.input) == ("custom", "patch", TEXT)
    assert (get.function.name, get.function.arguments, now.type, now.custom.input) == ("get", ARGUMENTS, "custom", "{}")
    with client.chat.completions.stream(model="", **body) as events:
        seen = [call.to_dict() for e in events if e.type == "chunk" for c in e.chunk.choices for call in c.delta.tool_calls or []]
    assert [c["index"] for c in seen] == sorted(c["index"] for c in seen)
    whole = {c["index"]: c for c in seen if c.get("type") == "custom"}
    assert [whole[i]["custom"] for i in sorted(whole)] == [{"name": "patch", "input": TEXT}, {"name": "now", "input": "{}"}]
    assert "".join(c["function"]["arguments"] for c in seen if c["index"] == 1) == ARGUMENTS and len([c for c in seen if c["index"] != 1]) == 2


def test_custom_tools(s, model):
    """Their calls are texts, as in Responses: shown as functions with one text, in a stream whole, and a call that goes back
    is shown as it was. One that is cut off is text, and no stream says otherwise."""
    with router_to([s.url]) as router:
        for url in (s.url, router.url):
            with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
                check_custom(client, model)
    parameters = lambda **more: {"type": "object", "properties": {"input": {"type": "string"} | more}, "required": ["input"]}
    shown = [{"type": "function", "function": {"name": "patch", "description": "d", "parameters": parameters(description="start: line")}},
             {"type": "function", "function": {"name": "now", "parameters": parameters()}}, TOOLS[0]]  # fmt: skip
    call = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": TEXT}}
    arguments = json.dumps({"input": TEXT}, ensure_ascii=False, separators=(",", ":"))
    plain = {"id": "c", "type": "function", "function": {"name": "patch", "arguments": arguments}}
    sent = lambda tools, call: s.json("/apply_template", {"tools": tools, "messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]})["tokens"]  # fmt: skip
    assert sent(NESTED, call) == sent(shown, plain)
    body = ask(model, CALL[0], CALL[1], tools=[{"type": "custom", "custom": {"name": "get"}}])
    got, reason, deltas = stream(s, body)
    assert got["content"] == CALL[0] + CALL[1] and reason == "length" and not any("tool_calls" in d for d in deltas)
    forced = {"messages": body["messages"], "tools": NESTED, "tool_choice": {"type": "custom", "custom": {"name": "now"}}, "max_tokens": 60}
    message, _ = reply(s, forced | at_once(s, model))  # all of it, or as far as it came
    begun = (message["content"] or "").startswith('<tool_call>\n{"name": "now", "arguments": {')
    assert begun or message["tool_calls"][0]["custom"]["name"] == "now"
    for bad in ({"tools": [{"type": "custom"}]}, {"tools": [{"type": "custom", "custom": {}}]},
                {"tools": NESTED, "messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "x"}}]}]}):  # fmt: skip
        error = s.post("/v1/chat/completions", body | bad)
        assert error.status_code == 400 and ("custom" in error.json()["message"] or "name" in error.json()["message"]), error.text


def test_allowed_tools(s, model):
    """The others are not shown, and a call of one is text, in a stream too."""
    some = lambda mode, *names: {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [
        {"type": "function", "function": {"name": n}} for n in names]}}}  # fmt: skip
    body = ask(model, *CALL, SECOND)
    message, _ = reply(s, body | some("auto", "now"))
    assert message["content"] == "".join(CALL).rstrip() and [c["function"]["name"] for c in message["tool_calls"]] == ["now"]
    got, _, _ = stream(s, body | some("auto", "now"))
    assert got["content"] == message["content"] and [c["name"] for c in got["tool_calls"].values()] == ["now"]
    usage = lambda body: s.json("/v1/chat/completions", body)["usage"]["prompt_tokens"]
    assert usage(body | some("auto", "now")) == usage(body | {"tools": TOOLS[1:]})
    assert usage(body | some("auto")) == usage(body | {"tools": None})
    tools = [TOOLS[0], NESTED[0], NOTHING]
    message, reason = reply(s, {"messages": body["messages"], "tools": tools, "max_tokens": 100, "parallel_tool_calls": False} | some("required", "now") | at_once(s, model))
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["now"] and reason == "tool_calls"
    for bad, word in ((some("auto", "none"), "none"), (some("most", "now"), "mode"), (some("required"), "tools"),
                      ({"tool_choice": {"type": "allowed_tools"}}, "mode"), (some("auto", "now") | {"tools": None}, "tools"),
                      ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["now"]}}}, "allowed_tools"),
                      ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function"}]}}}, "name")):  # fmt: skip
        error = s.post("/v1/chat/completions", body | bad)
        assert error.status_code == 400 and word in error.json()["message"], (bad, error.text)


def test_parsers_by_name(model):
    status, _, err = run("clime-server", "--model-path", model[0], "--tool-call-parser", "qwen2", "--port", 0)
    assert status == 2 and "auto|none|hermes" in err
    with server("--tool-call-parser", "none", model=model[0]) as s:
        message, _ = reply(s, ask(model, *CALL))
        assert message["content"] == "".join(CALL)


def test_a_text_is_read_without_generating(s, model):
    text = "<think>a</think>\n\n" + "".join(CALL) + SECOND
    with router_to([s.url]) as router:
        for where in (s, router):
            got = where.json("/separate_reasoning", {"text": text})
            assert got == {"reasoning_text": "a", "text": "".join(CALL) + SECOND}
            got = where.json("/parse_function_call", {"text": got["text"] + "x", "tools": TOOLS[:1]})
            assert got["normal_text"] == "Let me.x"
            assert got["calls"] == [{"tool_index": 0, "name": "get", "parameters": ARGUMENTS},
                                    {"tool_index": -1, "name": "now", "parameters": "{}"}]  # fmt: skip
    glm = "<tool_call>get\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"
    got = s.json("/parse_function_call", {"text": glm, "tools": TOOLS, "tool_call_parser": "glm45"})
    assert got["calls"][0]["parameters"] == '{"n": 5}'
    for path, body in (("/parse_function_call", {"text": "a", "tool_call_parser": "x"}), ("/parse_function_call", {}),
                       ("/separate_reasoning", {"text": "a", "reasoning_parser": "x"})):  # fmt: skip
        assert s.post(path, body).status_code == 400


def test_markers_that_are_special_tokens(tmp_path):
    """Kimi K2's are: hidden from a text, but not from the parser. The call's id is the model's own."""
    gap, end = "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    texts = ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.get:0", gap, '{"n": 1}', end]
    special = [texts[0], texts[1], gap, end]
    template = "{% for m in messages %}{{ m.content }}{% endfor %}" + "{# <|tool_calls_section_begin|> #}"
    model = make_model(tmp_path, texts, template, special=special)
    with server(model=model[0]) as s:
        # cut off behind the call: its section's end is not needed
        message, _ = reply(s, ask(model, *texts))
        (call,) = message["tool_calls"]
        assert call["id"] == "functions.get:0" and call["function"] == {"name": "get", "arguments": '{"n": 1}'}
        got, _, _ = stream(s, ask(model, *texts))
        assert got["tool_calls"] == {0: {"id": "functions.get:0", "name": "get", "arguments": '{"n": 1}'}}
        # where calls are not looked for, special tokens stay hidden
        message, _ = reply(s, ask(model, *texts, tools=None))
        assert message["content"] == 'functions.get:0{"n": 1}'


# ---- the recorded streams and ours, one checker -------------------------------------------------------------------


def check_logprobs(logprobs):
    for kind in ("content", "refusal"):
        for t in (logprobs or {}).get(kind) or []:
            assert {"token", "logprob", "bytes", "top_logprobs"} <= set(t) and t["logprob"] <= 0
            assert all(0 <= b < 256 for b in t["bytes"] or [])


def check_chat_stream(events, usage):
    """Shapes and order of an OpenAI stream. Returns the reasons of the choices."""
    assert events[-1] == "[DONE]" and "[DONE]" not in events[:-1]
    chunks = [json.loads(e) for e in events[:-1]]
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    if usage:
        last = chunks.pop()
        assert last["choices"] == [] and last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    reasons, arguments = {}, {}
    for chunk in chunks:
        assert chunk["choices"] and not chunk.get("usage")
        for c in chunk["choices"]:
            i, delta = c["index"], c["delta"]
            assert i not in reasons or reasons[i] is None  # nothing follows the end of a choice
            assert ("role" in delta) == (i not in reasons)  # the first, and only the first
            check_logprobs(c.get("logprobs"))
            reasons[i] = c["finish_reason"]
            for call in delta.get("tool_calls") or []:
                key = (i, call["index"])
                assert ("id" in call) == (key not in arguments) == ("name" in call["function"])
                assert key in arguments or call["index"] == sum(k[0] == i for k in arguments)
                arguments[key] = arguments.get(key, "") + call["function"]["arguments"]
            if c["finish_reason"]:
                assert not any(delta.values())
    assert all(r in ("stop", "length", "tool_calls") for r in reasons.values())
    assert any(reasons[i] != "length" for i, _ in arguments) or not arguments
    for text in arguments.values():
        assert isinstance(json.loads(text), dict)
    return list(reasons.values())


def test_recorded_streams():
    folder = DATA / "http/openai-sse-recorded"
    need(folder)
    files = sorted(folder.glob("*.bin"))
    assert len(files) == 12
    for path in files:
        check_chat_stream([line[6:] for line in path.read_text().splitlines() if line.startswith("data: ")], True)


@pytest.fixture(scope="module")
def router(s):
    with router_to([s.url]) as running:
        yield running


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"logprobs": True, "top_logprobs": 2}, {"stream_options": {"include_usage": True}},
                                  {"tools": None}])  # fmt: skip
def test_our_streams(s, router, model, more):
    body = ask(model, THOUGHT, *CALL, HALT, stop=[HALT], max_tokens=9, stream=True, **more)
    for where in (s, router):
        reasons = check_chat_stream(where.events("/v1/chat/completions", body), "stream_options" in more)
        assert reasons == ["stop" if more.get("tools", 1) is None else "tool_calls"] * more.get("n", 1)


def test_tools_beside_a_format(s, model):
    """auto: a call, or an answer in the format. A forced call wins over the format."""
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
    flat = {"type": "json_schema", "name": "answer", "schema": schema}
    chat = {"messages": [{"role": "user", "content": "Well?"}], "tools": TOOLS, "max_tokens": 200, "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": flat}}  # fmt: skip
    biased = lambda *texts: {"logit_bias": {str(model[1][t]): 100 for t in texts} | at_once(s, model)["logit_bias"]}
    brace = {"logit_bias": {str(s.json("/tokenize", {"prompt": "{", "add_special_tokens": False})["tokens"][0]): 100}}

    def ask(**more):
        choice = s.json("/v1/chat/completions", chat | more)["choices"][0]
        calls = [c["function"]["name"] for c in choice["message"].get("tool_calls") or []]
        return calls, choice["message"]["content"], choice["finish_reason"]

    assert ask(parallel_tool_calls=False, **biased(SECOND)) == (["now"], None, "tool_calls")
    calls, content, end = ask(**brace)
    assert calls == [] and json.loads(content) == {"a": "x"} and end == "stop"
    calls, content, end = ask(**brace, response_format={"type": "json_object"})
    assert calls == [] and content.startswith("{")
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        calls, content, end = ask(tool_choice=choice, parallel_tool_calls=False, **biased(SECOND))
        assert (calls, content, end) == (["now"], None, "tool_calls")
    calls, content, end = ask(tool_choice="none", **brace)
    assert calls == [] and json.loads(content) == {"a": "x"}
    reply = s.json("/v1/chat/completions", chat | {"tool_choice": "required", "response_format": None, "regex": "a"}, 400)
    assert "another grammar" in reply["message"]
    assert "beside tools" in s.json("/v1/chat/completions/render", chat, 400)["message"]

    tools = [{"type": "function", **t["function"]} for t in TOOLS]
    body = {"input": "Well?", "tools": tools, "text": {"format": flat}, "max_output_tokens": 200, "temperature": 0, "parallel_tool_calls": False}
    for more in ({}, {"tool_choice": {"type": "function", "name": "now"}}):
        (item,) = s.json("/v1/responses", body | biased(SECOND) | more)["output"]
        assert (item["type"], item["name"]) == ("function_call", "now")
    (item,) = s.json("/v1/responses", body | brace)["output"]
    assert json.loads(item["content"][0]["text"]) == {"a": "x"}
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
    body = {"messages": chat["messages"], "tools": tools, "output_config": {"format": flat}, "max_tokens": 200, "temperature": 0}
    one = {"type": "auto", "disable_parallel_tool_use": True}
    (block,) = s.json("/v1/messages", body | biased(SECOND) | {"tool_choice": one})["content"]
    assert (block["type"], block["name"]) == ("tool_use", "now")
    (block,) = s.json("/v1/messages", body | brace)["content"]
    assert json.loads(block["text"]) == {"a": "x"}


def test_one_list_of_tools_in_three_forms(tmp_path):
    """Generated tools through chat completions, Responses and Messages: as many tokens of prompt, the same forced call."""
    model = make_model(tmp_path, [THOUGHT], TEMPLATE, **{"max-position-embeddings": 8192})

    def outcome(reply):  # tokens of the prompt, and the call, or the text of one that was cut off
        if "choices" in reply:
            message = reply["choices"][0]["message"]
            call = message["tool_calls"][0]["function"] if message.get("tool_calls") else None
            return reply["usage"]["prompt_tokens"], (call["name"], json.loads(call["arguments"])) if call else message["content"]
        if reply.get("object") == "response":
            item = reply["output"][0]
            call = item["type"] == "function_call"
            return reply["usage"]["input_tokens"], (item["name"], json.loads(item["arguments"])) if call else item["content"][0]["text"]
        block, usage = reply["content"][0], reply["usage"]
        n = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        return n, (block["name"], block["input"]) if block["type"] == "tool_use" else block["text"]

    def generated(seed):
        for i in range(1 + seed % 3):
            one = make_schema(seed * 10 + i)
            parameters = {"type": "object", "properties": {"p": one}, "required": ["p"], "$defs": one.pop("$defs", {})}
            yield {"name": f"tool_{seed}_{i}", "description": f"d{seed}", "parameters": parameters}

    def check(s, seed):
        made = list(generated(seed))
        name, asked = made[-1]["name"], [{"role": "user", "content": "Well?"}]
        bodies = {
            "chat/completions": {"messages": asked, "tools": [{"type": "function", "function": t} for t in made],
                                 "tool_choice": {"type": "function", "function": {"name": name}}, "max_tokens": 100},
            "responses": {"input": "Well?", "tools": [{"type": "function"} | dict(reversed(t.items())) for t in made],
                          "tool_choice": {"type": "function", "name": name}, "max_output_tokens": 100},
            "messages": {"messages": asked, "tool_choice": {"type": "tool", "name": name}, "max_tokens": 100,
                         "tools": [{"input_schema": t["parameters"], "name": t["name"], "description": t["description"]} for t in made]},
        }  # fmt: skip
        rest = {"temperature": 0} | at_once(s, model)
        outcomes = [outcome(s.json(f"/v1/{path}", body | rest)) for path, body in bodies.items()]
        assert outcomes[0] == outcomes[1] == outcomes[2], outcomes

    with server(model=model[0]) as s:
        for seed in range(8):
            check(s, seed)
