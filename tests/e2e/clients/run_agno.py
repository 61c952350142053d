"""An agent with a tool over chat, Responses and its class for vLLM."""

from agno.agent import Agent
from agno.models.openai import OpenAILike, OpenAIResponses
from agno.models.vllm import VLLM
from asked import ANSWER, MODEL, QUESTION, place

url, _, where = place()
ran = []


def add(a: int, b: int) -> str:
    """Adds."""
    ran.append((a, b))
    return str(a + b)


for kind in (OpenAILike, OpenAIResponses, VLLM):
    ran.clear()
    said = Agent(model=kind(id=MODEL, base_url=url + "/v1", api_key="none", temperature=0), tools=[add], telemetry=False).run(QUESTION).content
    assert said == ANSWER and ran == [(17, 25)], (kind, said, ran)
