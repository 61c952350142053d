"""Whole rounds with tools by the official packages, on server and router: the policy calls, the client runs the tool and
sends what it gave, the policy answers. By chat, responses and messages; whole, streamed and asynchronously."""

import asyncio
import json

import anthropic
import openai
import pytest
from programs import router_to, server
from tool_user import ANSWER, ARGUMENTS, NAME, OPTIONS, QUESTION, RESULT, taught

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOL = {"name": NAME, "description": "adds", "parameters": PARAMETERS}
CHAT = {"model": "tool-user", "temperature": 0, "max_tokens": 200, "tools": [{"type": "function", "function": TOOL}]}
RESPONSES = {"model": "tool-user", "temperature": 0, "max_output_tokens": 200, "tools": [{"type": "function", "strict": False} | TOOL]}
ASK = {"role": "user", "content": QUESTION}


@pytest.fixture(scope="module", params=["server", "router"])
def url(request, tmp_path_factory):
    with server(*OPTIONS, model=taught(tmp_path_factory.mktemp("tools"))) as s:
        if request.param == "server":
            yield s.url
        else:
            with router_to([s.url]) as router:
                yield router.url


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as c:
        yield c


def result_of(call):
    """The tool itself."""
    assert (call.function.name, call.function.arguments) == (NAME, ARGUMENTS)
    return {"role": "tool", "tool_call_id": call.id, "content": str(sum(json.loads(call.function.arguments).values()))}


def test_chat(client):
    messages = [ASK]
    first = client.chat.completions.create(messages=messages, **CHAT).choices[0]
    assert first.finish_reason == "tool_calls" and first.message.content is None
    messages += [first.message, result_of(first.message.tool_calls[0])]
    last = client.chat.completions.create(messages=messages, **CHAT).choices[0]
    assert (last.finish_reason, last.message.content, last.message.tool_calls) == ("stop", ANSWER, None)


def test_chat_streamed(client):
    messages = [ASK]
    with client.chat.completions.stream(messages=messages, **CHAT) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    assert [(e.name, e.arguments) for e in done] == [(NAME, ARGUMENTS)]
    messages += [message.model_dump(exclude_none=True, exclude={"parsed"}), result_of(message.tool_calls[0])]
    pieces = client.chat.completions.create(messages=messages, stream=True, **CHAT)
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == ANSWER


def test_many_at_once(url):
    async def one(client):
        first = (await client.chat.completions.create(messages=[ASK], **CHAT)).choices[0].message
        messages = [ASK, first, result_of(first.tool_calls[0])]
        text = ""
        async for p in await client.chat.completions.create(messages=messages, stream=True, **CHAT):
            text += p.choices[0].delta.content or ""
        return text

    async def all_of():
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(16)))

    assert asyncio.run(all_of()) == [ANSWER] * 16


def test_responses(client):
    items = [ASK]
    first = client.responses.create(input=items, **RESPONSES)
    (call,) = first.output
    assert (call.type, call.name, call.arguments, first.status) == ("function_call", NAME, ARGUMENTS, "completed")
    items += [call.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    assert client.responses.create(input=items, **RESPONSES).output_text == ANSWER
    with client.responses.stream(input=items, **RESPONSES) as stream:
        assert "".join(e.delta for e in stream if e.type == "response.output_text.delta") == ANSWER
        assert stream.get_final_response().status == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_messages_with_anthropics_own_loop(url, stream):
    """Its tool runner asks, runs the function and asks again until there is nothing to run."""
    ran = []

    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """Adds."""
        ran.append((a, b))
        return str(a + b)

    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(model="tool-user", max_tokens=200, tools=[add], messages=[ASK], stream=stream,
                                                  extra_body={"temperature": 0})  # fmt: skip
        final = runner.until_done()
    assert ran == [(17, 25)]
    assert [b.text for b in final.content] == [ANSWER] and final.stop_reason == "end_turn"
