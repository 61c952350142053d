"""AssistantAgent with a tool, streamed and not; it asks once more for what the result means."""

import asyncio

from asked import ANSWER, MODEL, QUESTION, place
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

url, _, where = place()
ran = []


async def add(a: int, b: int) -> str:
    """Adds."""
    ran.append((a, b))
    return str(a + b)


async def ask(stream):
    info = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown", "structured_output": True}
    client = OpenAIChatCompletionClient(model=MODEL, base_url=url + "/v1", api_key="none", model_info=info, temperature=0, max_tokens=200)
    agent = AssistantAgent("a", client, tools=[add], reflect_on_tool_use=True, model_client_stream=stream, system_message="Add.")
    return (await agent.run(task=QUESTION)).messages[-1].content


for stream in (False, True):
    ran.clear()
    said = asyncio.run(ask(stream))
    assert said == ANSWER and ran == [(17, 25)], (stream, said, ran)
