"""/v1/responses as the official package uses it: whole and streamed, tools, reasoning, conversations, errors."""

import json
import re

import openai
import pytest
from programs import router_to, server
from said import ARGUMENTS, BROKEN, CALL, HALT, PATCH, SECOND, THOUGHT, TOOLS, at_once, beside, model, s  # noqa: F401

FLAT_TOOLS = [{"type": "function", "strict": False} | t["function"] for t in TOOLS]


@pytest.fixture(scope="module")
def client(s):
    with openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as running:
        yield running


def forced(model, *texts, **more):
    return {"model": "", "input": "Well?", "max_output_tokens": 9, "temperature": 0,
            "extra_body": beside(model[1], *texts) | {"stop": [HALT]}} | more  # fmt: skip


def raw(body):
    return {k: v for k, v in body.items() if k != "extra_body"} | body["extra_body"]


def kinds(response):
    out = []
    for item in response.output:
        if item.type == "function_call":
            out.append((item.name, item.arguments))
        else:
            out.append((item.type, "".join(part.text for part in item.content)))
    return out


def test_a_whole_reply(client, model):
    got = client.responses.create(**forced(model, THOUGHT, *CALL, HALT, tools=FLAT_TOOLS, instructions="Be."))
    assert kinds(got) == [("reasoning", "Hm."), ("message", "Let me."), ("get", ARGUMENTS)]
    assert got.status == "completed" and got.object == "response" and got.error is None
    assert got.output_text == "Let me." and got.instructions == "Be." and got.tools[0].name == "get"
    assert got.usage.output_tokens == 6 and got.usage.output_tokens_details.reasoning_tokens == 1
    assert got.usage.total_tokens == got.usage.input_tokens + 6
    assert len({item.id for item in got.output}) == 3
    got = client.responses.create(**forced(model, SECOND, max_output_tokens=1))
    assert (got.status, got.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert kinds(got) == [("message", SECOND)]


def test_what_comes_back_of_a_request_in_many_lines(s, model):
    """Tools come back in events, of which each is a line, however the client laid them out."""
    body = raw(forced(model, SECOND, stream=True)) | {"tools": FLAT_TOOLS}
    data = json.dumps(body, indent=1).replace("\n", "\r\n").replace("\r\n  ", "\r").encode()
    events = s.client.post("/v1/responses", content=data).content
    lines = [x for x in re.split(rb"\r\n|\n|\r", events) if x]
    assert {x.split(b":")[0] for x in lines} == {b"event", b"data"} and b"response.incomplete" in lines[-1]
    assert json.loads(lines[-1][6:])["response"]["tools"] == FLAT_TOOLS


@pytest.mark.parametrize("texts", [[THOUGHT, *CALL], [*CALL, SECOND], [SECOND], []])
def test_a_stream_is_the_whole_reply(client, model, texts):
    body = forced(model, *texts, HALT, tools=FLAT_TOOLS)
    whole = client.responses.create(**body)
    with client.responses.stream(**body) as stream:
        seen = list(stream)
        final = stream.get_final_response()
    assert kinds(final) == kinds(whole) and final.status == whole.status == "completed"
    assert [e.sequence_number for e in seen] == list(range(len(seen)))
    assert [e.type for e in seen[:2]] == ["response.created", "response.in_progress"]
    assert seen[-1].type == "response.completed"
    check_items(seen[2:-1])


def check_items(seen):
    """Each item whole before the next; its deltas make what its done says."""
    index, open_item, text, part = -1, None, "", False
    for e in seen:
        if e.type == "response.output_item.added":
            assert open_item is None and e.output_index == index + 1
            index, open_item, text = e.output_index, e.item, ""
            assert e.item.status == "in_progress"
            continue
        assert open_item is not None and e.output_index == index
        if e.type == "response.content_part.added":
            part = True
        elif e.type.endswith(".delta"):
            assert e.item_id == open_item.id and (part or open_item.type in ("function_call", "custom_tool_call"))
            text += e.delta
        elif e.type == "response.function_call_arguments.done":
            assert e.arguments == text and e.name == open_item.name
        elif e.type == "response.custom_tool_call_input.done":
            assert e.input == text
        elif e.type in ("response.output_text.done", "response.reasoning_text.done"):
            assert e.text == text
        elif e.type == "response.content_part.done":
            assert e.part.text == text
            part = False
        elif e.type == "response.output_item.done":
            assert e.item.id == open_item.id and e.item.status == "completed" and not part
            open_item = None
        else:
            raise AssertionError(e.type)
    assert open_item is None


def test_event_names(s, model):
    with s.client.stream("POST", "/v1/responses", json=raw(forced(model, SECOND, HALT, tools=FLAT_TOOLS)) | {"stream": True}) as reply:
        lines = [line for line in reply.iter_lines() if line and not line.startswith(":")]
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    assert len(pairs) >= 6
    for name, data in pairs:
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


def test_what_is_no_call_is_text(s, client, model):
    body = forced(model, CALL[0], BROKEN, tools=FLAT_TOOLS, max_output_tokens=2)
    assert client.responses.create(**body).output_text == CALL[0] + BROKEN
    events = [json.loads(e) for e in s.events("/v1/responses", raw(body) | {"stream": True})]
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == CALL[0] + BROKEN
    final = events[-1]
    assert final["type"] == "response.incomplete" and all(i["type"] == "message" for i in final["response"]["output"])


def test_a_conversation_reaches_the_template(s, client):
    items = [
        {"role": "developer", "content": "s2"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"type": "function_call", "call_id": "call_1", "name": "now", "arguments": "{}"},
        {"type": "function_call", "call_id": "call_2", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "late"}]},
        {"role": "user", "content": "d"},
    ]  # fmt: skip
    call = {"type": "function", "function": {"name": "now", "arguments": "{}"}}
    chat = [{"role": "system", "content": "s1\n\ns2"}, {"role": "user", "content": "a"},
            {"role": "assistant", "content": "c", "reasoning_content": "t",
             "tool_calls": [{"id": "call_1"} | call, {"id": "call_2"} | call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
            {"role": "tool", "tool_call_id": "call_2", "content": "late"}, {"role": "user", "content": "d"}]  # fmt: skip
    want = s.json("/apply_template", {"messages": chat, "add_special_tokens": False})["count"]
    got = client.responses.create(model="", input=items, instructions="s1", max_output_tokens=1)
    assert got.usage.input_tokens == want


def test_a_round_with_tools(client, model):
    """What the reply holds goes back as it came."""
    body = forced(model, THOUGHT, SECOND, HALT, tools=FLAT_TOOLS)
    first = client.responses.create(**body)
    call = first.output[-1]
    body["input"] = [{"role": "user", "content": "Well?"}, *[i.model_dump(exclude_none=True) for i in first.output],
                     {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}]  # fmt: skip
    assert client.responses.create(**body).usage.input_tokens > first.usage.input_tokens


CUSTOM = [{"type": "custom", "name": "patch", "description": "d", "format": {"type": "grammar", "syntax": "lark", "definition": "start: line"}},
          {"type": "custom", "name": "now"}, FLAT_TOOLS[0]]  # fmt: skip


def test_custom_tools(client, s, model):
    """Their calls are texts (as of an agent that writes patches): shown as functions with one text, and the text comes
    back; what goes back is what the model wrote. Arguments of another form are the text. A function beside is one."""
    assert kinds(client.responses.create(**forced(model, *CALL, HALT, tools=CUSTOM)))[1:] == [("get", ARGUMENTS)]
    body = forced(model, PATCH, SECOND, HALT, tools=CUSTOM)
    whole = client.responses.create(**body)
    said = [(i.type, i.name, i.input) for i in whole.output if i.type != "message"]
    assert said == [("custom_tool_call", "patch", '*** "\u00e9"\n+1'), ("custom_tool_call", "now", "{}")]
    with client.responses.stream(**body) as stream:
        seen = list(stream)
    check_items(seen[2:-1])
    assert [(e.type.split(".")[-1], e.delta if e.type.endswith("delta") else e.input) for e in seen if "custom_tool" in e.type] == [
        ("delta", '*** "\u00e9"\n+1'), ("done", '*** "\u00e9"\n+1'), ("delta", "{}"), ("done", "{}")]  # fmt: skip
    mine = [i.model_dump(exclude_none=True) for i in whole.output if i.type == "custom_tool_call"]
    assert len({i["id"] for i in mine}) == 2 and all(i["status"] == "completed" for i in mine)
    items = [{"role": "user", "content": "Well?"}, mine[0], {"type": "custom_tool_call_output", "call_id": mine[0]["call_id"], "output": "ok"}]
    parameters = lambda **more: {"type": "object", "properties": {"input": {"type": "string"} | more}, "required": ["input"]}
    shown = [{"type": "function", "function": {"name": "patch", "description": "d", "parameters": parameters(description="start: line")}},
             {"type": "function", "function": {"name": "now", "parameters": parameters()}},
             {"type": "function", "function": {k: v for k, v in FLAT_TOOLS[0].items() if k != "type"}}]  # fmt: skip
    arguments = json.dumps({"input": mine[0]["input"]}, ensure_ascii=False, separators=(",", ":"))
    chat = [{"role": "user", "content": "Well?"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": mine[0]["call_id"], "type": "function", "function": {"name": "patch", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": mine[0]["call_id"], "content": "ok"}]  # fmt: skip
    want = s.json("/apply_template", {"messages": chat, "tools": shown, "add_special_tokens": False})["count"]
    assert client.responses.create(model="", input=items, tools=CUSTOM, max_output_tokens=1).usage.input_tokens == want


LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def test_logprobs(client, s, model):
    """Those of a message's own tokens: not of reasoning, calls and the end. In a stream each goes with the delta that its
    text begins in, and all come again with what is done."""
    body = forced(model, THOUGHT, *CALL, HALT, tools=FLAT_TOOLS)
    shown = [{"type": "function", "function": t["function"] | {"strict": False}} for t in TOOLS]  # in Responses' order
    chat = {"messages": [{"role": "user", "content": "Well?"}], "tools": shown, "temperature": 0, "max_tokens": 9,
            "logprobs": True, "top_logprobs": 2} | body["extra_body"]  # fmt: skip
    numbers = s.json("/v1/chat/completions", chat)["choices"][0]["logprobs"]["content"]
    whole = client.responses.create(**body, **LOGPROBS)
    assert whole.top_logprobs == 2 and whole.truncation == "disabled"
    (part,) = next(i for i in whole.output if i.type == "message").content
    assert [t.to_dict() for t in part.logprobs] == [numbers[1]] and part.logprobs[0].token == CALL[0]
    none = {str(i): -100 for i in model[1].values()}
    free = {"model": "", "input": "Well?", "max_output_tokens": 24, "extra_body": {"seed": 7, "ignore_eos": True, "logit_bias": none}}
    whole = client.responses.create(**free, **LOGPROBS)
    part = whole.output[0].content[0]
    said = b"".join(bytes(t.bytes) for t in part.logprobs).decode(errors="replace")
    assert re.sub(r"<\|\w+\|>", "", said) == part.text and len(part.logprobs) == 24  # special tokens are hidden from the text
    assert all(len(t.top_logprobs) == 2 for t in part.logprobs)
    with client.responses.stream(**free, **LOGPROBS) as stream:
        seen = list(stream)
    want = [(t.token, t.logprob) for t in part.logprobs]
    deltas = [e for e in seen if e.type == "response.output_text.delta"]
    assert [(t.token, t.logprob) for e in deltas for t in e.logprobs] == want
    for done in (next(e for e in seen if e.type == "response.output_text.done"),
                 next(e for e in seen if e.type == "response.content_part.done").part, seen[-1].response.output[0].content[0]):  # fmt: skip
        assert [(t.token, t.logprob) for t in done.logprobs] == want
    assert client.responses.create(**free).output[0].content[0].logprobs == []
    only = client.responses.create(**free, top_logprobs=1).output[0].content[0].logprobs
    assert [(t.token, t.logprob, len(t.top_logprobs)) for t in only] == [(*w, 1) for w in want]


def test_input_tokens(client, s):
    items = [{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "c", "output": "noon"}]  # fmt: skip
    body = {"input": items, "instructions": "s", "tools": FLAT_TOOLS + CUSTOM}
    count = client.responses.input_tokens.count(**body)
    assert count.object == "response.input_tokens"
    assert count.input_tokens == client.responses.create(model="", **body, max_output_tokens=1).usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="input is missing"):
        client.responses.input_tokens.count()
    with pytest.raises(openai.BadRequestError, match="maximum context length") as e:
        client.responses.input_tokens.count(input="x" * 5000)
    assert e.value.code == "context_length_exceeded"


def allowed(mode, *names):
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": n} for n in names] + [
        {"type": "mcp", "server_label": "x"}, {"type": "mcp", "server_label": "x", "name": "y"}]}  # fmt: skip


def test_allowed_tools(client, s, model):
    """The others are not shown, and a call of one is text; required forces a call of those."""
    body = forced(model, *CALL, SECOND, HALT, tools=FLAT_TOOLS)
    got = client.responses.create(**body, tool_choice=allowed("auto", "now"))
    assert kinds(got) == [("message", "".join(CALL).rstrip()), ("now", "{}")] and got.tool_choice.mode == "auto"
    alone = client.responses.create(**body | {"tools": FLAT_TOOLS[1:]})
    assert got.usage.input_tokens == alone.usage.input_tokens < client.responses.create(**body).usage.input_tokens
    assert kinds(client.responses.create(**body, tool_choice=allowed("auto", "now", "get"))) == [("message", "Let me."), ("get", ARGUMENTS), ("now", "{}")]
    nothing = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
    must = client.responses.create(model="", input="Well?", max_output_tokens=100, tools=[FLAT_TOOLS[0], nothing],
                                   tool_choice=allowed("required", "now"), parallel_tool_calls=False, extra_body=at_once(s, model))  # fmt: skip
    assert [i.name for i in must.output] == ["now"] and must.status == "completed"
    with client.responses.stream(**body, tool_choice=allowed("auto", "now")) as stream:
        seen = list(stream)
    check_items(seen[2:-1])
    assert kinds(seen[-1].response) == kinds(got)


def test_truncation(client, s):
    """The oldest rounds go, a call with its results; instructions and the last round stay. What fits stays whole."""
    rounds = []
    for i in range(12):
        rounds.append([{"role": "user", "content": f"{i} " + "x" * 90}])
        rounds.append([{"type": "function_call", "call_id": f"c{i}", "name": "now", "arguments": "{}"},
                       {"type": "function_call_output", "call_id": f"c{i}", "output": "y" * 40}])  # fmt: skip
    rounds.append([{"role": "user", "content": "last"}])
    flat = lambda kept: [item for one in kept for item in one]

    def count(items, **more):
        try:
            return client.responses.input_tokens.count(input=items, instructions="s1", **more).input_tokens
        except openai.BadRequestError:
            return 1025

    asked = {"model": "", "instructions": "s1", "max_output_tokens": 100}
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.responses.create(**asked, input=flat(rounds))
    got = client.responses.create(**asked, input=flat(rounds), truncation="auto")
    assert got.truncation == "auto"
    fits = next(k for k in range(1, len(rounds)) if count(flat(rounds[k:])) <= 1024 - 100)
    assert got.usage.input_tokens == count(flat(rounds[fits:])) > count(flat(rounds[fits + 1 :]))
    short = flat(rounds[fits:])
    assert client.responses.create(**asked, input=short, truncation="auto").usage.input_tokens == count(short)
    assert count(flat(rounds), truncation="auto", extra_body={"max_output_tokens": 100}) == got.usage.input_tokens
    long = next(last for n in range(1000, 0, -1) if count(last := [{"role": "user", "content": "w" * n}]) <= 1024 - 20)
    assert count(long) > 1024 - 100  # the last round leaves less than was asked for: the reply gets that
    got = client.responses.create(**asked, input=[*flat(rounds), *long], truncation="auto")
    assert got.usage.input_tokens == count(long) and 0 < got.usage.output_tokens <= 1024 - count(long)
    with pytest.raises(openai.BadRequestError, match="maximum context length") as e:
        client.responses.create(**asked, input=[*flat(rounds), {"role": "user", "content": "z" * 5000}], truncation="auto")
    assert e.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="only system messages are left"):
        client.responses.create(**asked, input=[{"role": "system", "content": "z" * 5000}], truncation="auto")


def test_bad_requests(client, s):
    for more, word in (
        ({"input": None}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input_image"),
        ({"input": [{"role": "nobody", "content": "a"}]}, "nobody"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"role": "user", "content": "a"}, {"type": "function_call", "arguments": "{}"}]}, "input[1]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"input": [{"type": "custom_tool_call", "name": "f"}]}, "input[0]"),
        ({"tools": [{"type": "local_shell"}]}, "local_shell"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "schema"),
        ({"truncation": "some"}, "truncation"),
        ({"top_logprobs": 257}, "top_logprobs"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "any", "tools": []}}, "mode"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tools"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]}, "tools": FLAT_TOOLS}, "x"),
        ({"personality": "friendly"}, "personality"),
        ({"model": "nobody"}, "nobody"),
    ):
        reply = s.post("/v1/responses", {"input": "a", "max_output_tokens": 1} | more)
        assert reply.status_code in (400, 404) and word in reply.json()["error"]["message"], (more, reply.text)
    # what agents send beside, and tools that others' servers run: not an error, and not shown
    got = client.responses.create(model="", input="a", max_output_tokens=1, store=False, include=["reasoning.encrypted_content"],
                                  tools=[{"type": "web_search"}], prompt_cache_key="k", text={"verbosity": "low"})  # fmt: skip
    assert got.usage.input_tokens == client.responses.create(model="", input="a", max_output_tokens=1).usage.input_tokens


def test_through_the_router(s, model):
    with router_to([s.url]) as router:
        with openai.OpenAI(base_url=router.url + "/v1", api_key="none", max_retries=0) as client:
            body = forced(model, *CALL, HALT, tools=FLAT_TOOLS)
            assert kinds(client.responses.create(**body)) == [("message", "Let me."), ("get", ARGUMENTS)]
            with client.responses.stream(**body) as stream:
                assert [e.type for e in stream][-1] == "response.completed"
            count = client.responses.input_tokens.count(input="Well?", tools=FLAT_TOOLS).input_tokens
            assert count == client.responses.create(**body).usage.input_tokens
            logprobs = client.responses.create(**body, **LOGPROBS).output[0].content[0].logprobs
            assert len(logprobs) == 1 and len(logprobs[0].top_logprobs) == 2


SPACED = [FLAT_TOOLS[0], {"type": "namespace", "name": "mcp__x", "description": "Clocks.", "tools": [
    {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}]}]  # fmt: skip


def test_tools_in_a_namespace(client, s, model):
    """Shown, called and given back by name and namespace, and taken so in a history: Codex's MCP tools."""
    count = lambda **body: s.json("/v1/responses/input_tokens", {"input": "Well?"} | body)["input_tokens"]
    shown = [FLAT_TOOLS[0], SPACED[1]["tools"][0] | {"name": "mcp__x.now", "description": "Clocks."}]
    assert count(tools=SPACED) == count(tools=shown) > count(tools=FLAT_TOOLS[:1]) > count()
    body = dict(model="", input="Well?", tools=SPACED, max_output_tokens=80, temperature=0, parallel_tool_calls=False,
                tool_choice={"type": "function", "name": "now", "namespace": "mcp__x"}, extra_body=at_once(s, model))  # fmt: skip
    (item,) = client.responses.create(**body).model_dump()["output"]
    assert (item["type"], item["namespace"], item["name"], item["arguments"]) == ("function_call", "mcp__x", "now", "{}")
    raw_body = {k: v for k, v in body.items() if k not in ("extra_body", "model")} | body["extra_body"] | {"stream": True}
    events = [json.loads(line[6:]) for line in s.client.post("/v1/responses", json=raw_body).text.splitlines() if line.startswith("data: ")]
    assert events[-1]["type"] == "response.completed" and events[-1]["response"]["output"][0]["namespace"] == "mcp__x"
    named = [e.get("item", e) for e in events if e["type"] in ("response.output_item.added", "response.output_item.done", "response.function_call_arguments.done")]
    assert len(named) == 3 and all((e["namespace"], e["name"]) == ("mcp__x", "now") for e in named)
    some = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "mcp__x"}]}
    assert count(tools=SPACED, tool_choice=some) == count(tools=shown[1:])
    history = lambda **call: [{"role": "user", "content": "Well?"}, {"type": "function_call", "call_id": "c", "arguments": "{}"} | call,
                              {"type": "function_call_output", "call_id": "c", "output": "5"}]  # fmt: skip
    assert count(tools=SPACED, input=history(name="now", namespace="mcp__x")) == count(tools=shown, input=history(name="mcp__x.now"))
    message = s.json("/v1/responses", {"input": "Well?", "tools": [{"type": "new_kind", "name": "x"}]}, 400)["message"]
    assert "new_kind is not known" in message
