"""Tools over chat, Responses and Messages; at a server a typed output by a tool, which is asked for with tool_choice: required."""

from asked import ANSWER, MODEL, QUESTION, place
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

url, _, where = place()
openai, anthropic = OpenAIProvider(base_url=url + "/v1", api_key="none"), AnthropicProvider(base_url=url, api_key="none")
for model in (OpenAIChatModel(MODEL, provider=openai), OpenAIResponsesModel(MODEL, provider=openai), AnthropicModel(MODEL, provider=anthropic)):
    ran = []
    agent = Agent(model, system_prompt="Add.", model_settings={"temperature": 0, "max_tokens": 200})

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Adds."""
        ran.append((a, b))
        return a + b

    said = agent.run_sync(QUESTION).output
    assert said == ANSWER and ran == [(17, 25)], (type(model), said, ran)
