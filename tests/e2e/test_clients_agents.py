"""Frameworks that run tools by themselves, unmodified, on server, router and a trainer's session: openai-agents (chat and
responses), langchain, litellm. They come from `scripts/setup clients` (`make clients`); the tests' own environment has none of them."""

import asyncio
import contextlib
import json
import os
import sqlite3

import pytest
from programs import LIMIT, router_to, server
from test_environments import Run
from tool_user import ANSWER, NAME, OPTIONS, QUESTION, taught

MODEL = "tool-user"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices


@contextlib.contextmanager
def session(d):
    """A task of a training run. Whatever the frameworks do to the messages that they repeat, the session goes on exactly."""
    policy = taught(d)
    (d / "train.jsonl").write_text(json.dumps({"prompt": QUESTION, "label": ANSWER}))
    run = Run(d, "run", "--rollout-temperature", "0.01", hf_checkpoint=policy, num_rollout=1, rollout_batch_size=1,
              rollout_max_response_len=200, rollout_max_context_len=500)  # fmt: skip
    try:
        task, other = run.lease(), run.lease()
        yield f"{run.http.base_url}".rstrip("/") + task["session"] + "/v1"
        run.generate(other, sampling_params={"max_new_tokens": 1})
        run.end(other, reward=0)
        run.end(task, reward=1, paths="all")
        assert run.process.wait(LIMIT) == 0, run.log.read_text()[-3000:]
    finally:
        run.stop()
    with contextlib.closing(sqlite3.connect(run.dir / "ledger.db")) as db:
        turns = json.loads(db.execute("SELECT line FROM metrics WHERE kind = 'rollout'").fetchone()[0])
    assert turns["rollout/turns/extended"] + turns["rollout/turns/rewound"] >= 6
    changed = ("answer", "message", "reasoning", "template")
    assert [turns[f"rollout/turns/branch_{why}"] for why in changed] == [0] * 4, turns
    assert sum(run.gaps()) > 0


@pytest.fixture(scope="module", params=["server", "router", "session"])
def url(request, tmp_path_factory):
    if request.param == "session":
        for name in ("agents", "langchain_openai", "litellm"):
            pytest.importorskip(name, reason=f"{name} is not here: make clients")
        with session(tmp_path_factory.mktemp("session")) as s:
            yield s
        return
    with server(*OPTIONS, model=taught(tmp_path_factory.mktemp("tools"))) as s:
        if request.param == "server":
            yield s.url + "/v1"
        else:
            with router_to([s.url]) as router:
                yield router.url + "/v1"


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("streamed", [False, True])
def test_openai_agents(url, api, streamed):
    agents = pytest.importorskip("agents", reason="openai-agents is not here: make clients")
    ran = []

    @agents.function_tool(name_override=NAME)
    def add(a: int, b: int) -> str:
        """Adds."""
        ran.append((a, b))
        return str(a + b)

    async def ask():
        agents.set_tracing_disabled(True)
        client = agents.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
        settings = agents.ModelSettings(temperature=0, max_tokens=200)
        agent = agents.Agent(name="sums", instructions="Add.", tools=[add], model=kind(MODEL, client), model_settings=settings)
        if not streamed:
            return (await agents.Runner.run(agent, QUESTION)).final_output
        result = agents.Runner.run_streamed(agent, QUESTION)
        kinds = [e.type async for e in result.stream_events()]
        assert "raw_response_event" in kinds and "run_item_stream_event" in kinds
        return result.final_output

    assert asyncio.run(ask()) == ANSWER and ran == [(17, 25)]


def test_langchain(url):
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not here: make clients")
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool(NAME)
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    llm = langchain.ChatOpenAI(model=MODEL, base_url=url, api_key="none", temperature=0, max_tokens=200).bind_tools([add])
    messages = [HumanMessage(QUESTION)]
    messages.append(llm.invoke(messages))
    (call,) = messages[-1].tool_calls
    assert (call["name"], call["args"]) == (NAME, {"a": 17, "b": 25})
    messages.append(add.invoke(call))
    assert isinstance(messages[-1], ToolMessage)
    assert llm.invoke(messages).content == ANSWER
    assert "".join(piece.content for piece in llm.stream(messages)) == ANSWER


def test_litellm(url):
    litellm = pytest.importorskip("litellm", reason="litellm is not here: make clients")
    ask = {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none", "temperature": 0, "max_tokens": 200,
           "tools": [{"type": "function", "function": {"name": NAME, "parameters": {"type": "object", "properties": {}}}}]}  # fmt: skip
    messages = [{"role": "user", "content": QUESTION}]
    pieces = list(litellm.completion(messages=messages, stream=True, **ask))
    streamed = litellm.stream_chunk_builder(pieces, messages=messages).choices[0].message
    whole = litellm.completion(messages=messages, **ask).choices[0].message
    assert [c.function.arguments for c in streamed.tool_calls] == [c.function.arguments for c in whole.tool_calls]
    messages += [whole.model_dump(), {"role": "tool", "tool_call_id": whole.tool_calls[0].id, "content": "42"}]
    assert litellm.completion(messages=messages, **ask).choices[0].message.content == ANSWER
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "word " * 600}], **ask)
