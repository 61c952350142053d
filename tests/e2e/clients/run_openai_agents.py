"""Both APIs, whole and streamed, with a tool; at a server a typed output beside the tool, too."""

import asyncio

import agents
import pydantic
from asked import ANSWER, MODEL, QUESTION, place

url, _, where = place()
ran = []


class Sum(pydantic.BaseModel):
    a: int = pydantic.Field(ge=0, le=99)
    exact: bool


@agents.function_tool(name_override="add")
def add(a: int, b: int) -> str:
    """Adds."""
    ran.append((a, b))
    return str(a + b)


async def ask(kind, streamed, **more):
    client = agents.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    settings = agents.ModelSettings(temperature=0, max_tokens=200)
    agent = agents.Agent(name="sums", instructions="Add.", tools=[add], model=kind(MODEL, client), model_settings=settings, **more)
    if not streamed:
        return (await agents.Runner.run(agent, QUESTION)).final_output
    result = agents.Runner.run_streamed(agent, QUESTION)
    async for _ in result.stream_events():
        pass
    return result.final_output


agents.set_tracing_disabled(True)
for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
    for streamed in (False, True):
        ran.clear()
        said = asyncio.run(ask(kind, streamed))
        assert said == ANSWER and ran == [(17, 25)], (kind, streamed, said, ran)
    if where != "session":  # a response format does not keep the model from its tools
        ran.clear()
        asyncio.run(ask(kind, False, output_type=Sum, tool_use_behavior="stop_on_first_tool"))
        assert ran == [(17, 25)], (kind, ran)
