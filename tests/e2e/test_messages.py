"""/v1/messages as Anthropic's own package uses it: whole and streamed, tools, reasoning, counts, errors."""

import json

import anthropic
import pytest
from programs import program, server
from said import ARGUMENTS, BROKEN, CALL, HALT, SECOND, THOUGHT, TOOLS, beside, model, s  # noqa: F401

ANTHROPIC_TOOLS = [{"name": t["function"]["name"], "description": "d", "input_schema": t["function"]["parameters"]}
                   for t in TOOLS]  # fmt: skip


@pytest.fixture(scope="module")
def client(s):
    with anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0) as running:
        yield running


def forced(model, *texts, **more):
    """What the package has no name for goes beside."""
    return {"model": "", "max_tokens": 9, "messages": [{"role": "user", "content": "Well?"}],
            "extra_body": beside(model[1], *texts) | {"temperature": 0},
            "stop_sequences": [HALT]} | more  # fmt: skip


def blocks(message):
    return [b.model_dump(exclude_none=True) for b in message.content]


def test_a_whole_reply(client, model):
    got = client.messages.create(**forced(model, THOUGHT, *CALL, SECOND, tools=ANTHROPIC_TOOLS, max_tokens=6))
    kinds = [(b.type, getattr(b, "text", None) or getattr(b, "thinking", None) or (b.name, b.input)) for b in got.content]
    assert kinds == [("thinking", "Hm."), ("text", "Let me."), ("tool_use", ("get", json.loads(ARGUMENTS))),
                     ("tool_use", ("now", {}))]  # fmt: skip
    assert got.stop_reason == "max_tokens" and got.role == "assistant" and got.type == "message"
    assert got.usage.output_tokens == 6 and got.usage.input_tokens > 5
    # no tools: a call is text; the stop sequence is named
    got = client.messages.create(**forced(model, SECOND, HALT))
    assert blocks(got) == [{"type": "text", "text": SECOND}]
    assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", HALT)
    got = client.messages.create(**forced(model, SECOND, max_tokens=1))
    assert got.stop_reason == "max_tokens"


def events(client, **body):
    with client.messages.stream(**body) as stream:
        seen = [e for e in stream if e.type in ("message_start", "content_block_start", "content_block_delta",
                                                "content_block_stop", "message_delta", "message_stop")]  # fmt: skip
        return seen, stream.get_final_message()


def check_order(seen):
    """message_start, then whole blocks in order, then the reason, then the end."""
    types = [e.type for e in seen]
    assert types[0] == "message_start" and types[-2:] == ["message_delta", "message_stop"]
    open_block, next_block = None, 0
    for e in seen[1:-2]:
        if e.type == "content_block_start":
            assert open_block is None and e.index == next_block
            open_block = e.index
        else:
            assert e.index == open_block, types
        if e.type == "content_block_stop":
            open_block, next_block = None, next_block + 1
    assert open_block is None
    return next_block


@pytest.mark.parametrize("texts", [[THOUGHT, *CALL], [*CALL, SECOND], [SECOND], []])
def test_a_stream_is_the_whole_reply(client, model, texts):
    body = forced(model, *texts, HALT, tools=ANTHROPIC_TOOLS)
    whole = client.messages.create(**body)
    seen, final = events(client, **body)
    assert check_order(seen) == len(whole.content)
    final = [{k: v for k, v in b.items() if k != "id"} for b in blocks(final)]
    assert final == [{k: v for k, v in b.items() if k != "id"} for b in blocks(whole)]
    assert seen[-2].delta.stop_reason == whole.stop_reason
    assert seen[-2].usage.output_tokens == whole.usage.output_tokens


def test_what_is_no_call_is_text(client, s, model):
    body = forced(model, CALL[0], BROKEN, tools=ANTHROPIC_TOOLS, max_tokens=2)
    got = client.messages.create(**body).content
    assert {b.type for b in got} == {"text"} and "".join(b.text for b in got) == CALL[0] + BROKEN
    raw = {k: v for k, v in body.items() if k != "extra_body"} | body["extra_body"] | {"stream": True}
    text = ""
    for data in s.events("/v1/messages", raw):
        event = json.loads(data)
        if event["type"] == "content_block_delta" and event["delta"]["type"] == "text_delta":
            text += event["delta"]["text"]
    assert text == CALL[0] + BROKEN


def test_event_names(s, model):
    """Each event is named by its type."""
    body = forced(model, SECOND, HALT, tools=ANTHROPIC_TOOLS)
    raw = {k: v for k, v in body.items() if k != "extra_body"} | body["extra_body"] | {"stream": True}
    with s.client.stream("POST", "/v1/messages", json=raw) as reply:
        lines = [line for line in reply.iter_lines() if line and not line.startswith(":")]
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    assert len(pairs) >= 5
    for name, data in pairs:
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


def test_a_conversation_reaches_the_template(s, client):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "c"},
                                          {"type": "tool_use", "id": "call_1", "name": "now", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "noon"}]},
                                     {"type": "text", "text": "d"}]},
    ]  # fmt: skip
    chat = [{"role": "system", "content": "s1\n\ns2"[:2] + "\ns2"}, {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "c", "reasoning_content": "t", "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "noon"}, {"role": "user", "content": "d"}]  # fmt: skip
    want = s.json("/apply_template", {"messages": chat, "add_special_tokens": False})["count"]
    system = [{"type": "text", "text": "s1"}, {"type": "text", "text": "s2"}]
    assert client.messages.count_tokens(model="", messages=messages, system=system).input_tokens == want
    got = client.messages.create(model="", messages=messages, system=system, max_tokens=1)
    assert got.usage.input_tokens + got.usage.cache_read_input_tokens == want


def test_a_round_with_tools(client, model):
    body = forced(model, SECOND, HALT, tools=ANTHROPIC_TOOLS)
    first = client.messages.create(**body)
    (call,) = first.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "noon"}
    body["messages"] = [*body["messages"], {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    again = client.messages.create(**body)
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens > first.usage.input_tokens


def test_tools_that_are_searched_for(client):
    """Claude Code's ToolSearch: a reference is the found tool's name, and a deferred tool is shown once one has named it."""
    first, second = ANTHROPIC_TOOLS[:2]
    deferred = second | {"defer_loading": True}
    result = lambda *content: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": list(content)}]}  # noqa: E731
    asked = [{"role": "user", "content": "Well?"},
             {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": first["name"], "input": {}}]}]  # fmt: skip
    reference = result({"type": "tool_reference", "tool_name": second["name"]})
    text = result({"type": "text", "text": second["name"]})
    count = lambda messages, *tools: client.messages.count_tokens(model="", messages=messages, tools=list(tools)).input_tokens  # noqa: E731
    assert count(asked, first) != count(asked, first, second)  # the template shows tools
    assert count(asked, first, deferred) == count(asked, first)
    assert count(asked + [reference], first, deferred) == count(asked + [text], first, second)
    assert count(asked + [text], first, deferred) == count(asked + [text], first)
    other = result({"type": "tool_reference", "tool_name": "other"})
    assert count(asked + [other], first, deferred) == count(asked + [other], first)
    assert count(asked, first, deferred | {"defer_loading": False}) == count(asked, first, second)
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}  # which nobody runs here
    assert count(asked, first, deferred, search) == count(asked, first, second)


def test_bad_requests(client, s):
    user = [{"role": "user", "content": "a"}]
    for more, word in (
        ({"messages": []}, "empty"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0]"),
        ({"messages": user, "max_tokens": None}, "max_tokens"),
        ({"messages": user, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"messages": user, "tools": [{"description": "no name"}]}, "tools"),
        ({"messages": user, "mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"messages": user, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ({"messages": user, "model": "nobody"}, "nobody"),
    ):
        reply = s.post("/v1/messages", {"max_tokens": 4} | more)
        assert reply.status_code in (400, 404) and word in reply.json()["error"]["message"], (more, reply.text)
    with pytest.raises(anthropic.BadRequestError, match="role"):
        client.messages.create(model="", max_tokens=4, messages=[{"role": "tool", "content": "a"}])


def test_errors_are_in_anthropics_words(model):
    """What its package and agents look at: the kinds of errors, a request's id, and how an over-long prompt is told."""
    with server("--api-key", "secret", model=model[0]) as s, program("clime-router", "--worker-urls", s.url,
                                                                      "--worker-api-key", "secret") as router:  # fmt: skip
        for url in (s.url, router.url):
            with anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0) as c:
                def refused(error, call=c.messages.create, c=c, **more):
                    with pytest.raises(error) as e:
                        call(**{"model": "", "messages": [{"role": "user", "content": "a"}]} | more)
                    assert e.value.body["type"] == "error" and e.value.body["request_id"] == e.value.request_id != ""
                    return e.value

                assert refused(anthropic.BadRequestError, max_tokens=4, extra_body={"temperature": -1}).type == "invalid_request_error"
                assert refused(anthropic.BadRequestError, c.messages.count_tokens, extra_body={"top_p": 7}).type == "invalid_request_error"
                assert refused(anthropic.NotFoundError, max_tokens=4, model="nobody").type == "not_found_error"
                for stream in (False, True):
                    long = refused(anthropic.BadRequestError, max_tokens=4, stream=stream, messages=[{"role": "user", "content": "x" * 3000}])
                    assert long.type == "invalid_request_error" and long.api_message.startswith("prompt is too long: ")
        with anthropic.Anthropic(base_url=s.url, api_key="wrong", max_retries=0) as c, pytest.raises(anthropic.AuthenticationError) as e:
            c.messages.create(**forced(model, HALT))
        assert e.value.type == "authentication_error"
        assert s.post("/v1/chat/completions").json()["error"]["type"] == "AuthenticationError"


def test_keys_and_router(model):
    with server("--api-key", "secret", model=model[0]) as s, program("clime-router", "--worker-urls", s.url,
                                                                      "--worker-api-key", "secret") as router:  # fmt: skip
        with anthropic.Anthropic(base_url=s.url, api_key="wrong", max_retries=0) as c, pytest.raises(anthropic.AuthenticationError):
            c.messages.create(**forced(model, HALT))
        for url, key in ((s.url, "secret"), (router.url, "any")):
            with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as c:
                body = forced(model, SECOND, HALT, tools=ANTHROPIC_TOOLS)
                assert events(c, **body)[1].stop_reason == "tool_use"
                assert c.messages.count_tokens(model="", messages=body["messages"]).input_tokens > 5
