"""A call with a tool, and the round after it."""

from asked import ANSWER, MODEL, QUESTION, place
from mirascope import llm

url, _, where = place()
llm.register_provider("openai:completions", scope="openai/", base_url=url + "/v1", api_key="none")
ran = []


@llm.tool
def add(a: int, b: int) -> str:
    """Adds."""
    ran.append((a, b))
    return str(a + b)


@llm.call(f"openai/{MODEL}:completions", tools=[add], temperature=0, max_tokens=200)
def ask():
    return QUESTION


reply = ask()
assert [c.name for c in reply.tool_calls] == ["add"], reply
last = reply.resume(reply.execute_tools())
assert last.text() == ANSWER and ran == [(17, 25)], (last, ran)
