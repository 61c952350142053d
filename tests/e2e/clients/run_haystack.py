"""An agent with a tool."""

from asked import ANSWER, MODEL, QUESTION, place
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

url, _, where = place()
ran = []


@tool
def add(a: int, b: int) -> str:
    """Adds."""
    ran.append((a, b))
    return str(a + b)


llm = OpenAIChatGenerator(model=MODEL, api_base_url=url + "/v1", api_key=Secret.from_token("none"),
                          generation_kwargs={"temperature": 0, "max_tokens": 200})  # fmt: skip
said = Agent(chat_generator=llm, tools=[add]).run(messages=[ChatMessage.from_user(QUESTION)])["last_message"].text
assert said == ANSWER and ran == [(17, 25)], (said, ran)
