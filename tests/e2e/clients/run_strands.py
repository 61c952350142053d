"""An agent with a tool over OpenAI's chat and Anthropic's messages."""

from asked import ANSWER, MODEL, QUESTION, place
from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel

url, _, where = place()
ran = []


@tool
def add(a: int, b: int) -> str:
    """Adds."""
    ran.append((a, b))
    return str(a + b)


for model in (OpenAIModel(client_args={"base_url": url + "/v1", "api_key": "none"}, model_id=MODEL, params={"max_tokens": 200, "temperature": 0}),
              AnthropicModel(client_args={"base_url": url, "api_key": "none"}, model_id=MODEL, max_tokens=200)):  # fmt: skip
    ran.clear()
    said = str(Agent(model=model, tools=[add], system_prompt="Add.", callback_handler=None)(QUESTION)).strip()
    assert said == ANSWER and ran == [(17, 25)], (type(model), said, ran)
