"""An agent with a tool over OpenAI's chat and Anthropic's messages, and its stream."""

from asked import ANSWER, MODEL, QUESTION, place
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

url, _, where = place()
ran = []


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    ran.append((a, b))
    return a + b


for model in (ChatOpenAI(model=MODEL, base_url=url + "/v1", api_key="none", temperature=0, max_tokens=200),
              ChatOpenAI(model=MODEL, base_url=url + "/v1", api_key="none", temperature=0, max_tokens=200, use_responses_api=True),
              ChatAnthropic(model=MODEL, base_url=url, api_key="none", temperature=0, max_tokens=200)):  # fmt: skip
    ran.clear()
    agent = create_agent(model, [add])
    last = agent.invoke({"messages": [{"role": "user", "content": QUESTION}]})["messages"][-1]
    assert last.text == ANSWER and ran == [(17, 25)], (type(model), last, ran)
    steps = list(agent.stream({"messages": [{"role": "user", "content": QUESTION}]}, stream_mode="updates"))
    assert len(steps) == 3 and len(ran) == 2, steps
