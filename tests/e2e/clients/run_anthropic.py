"""Messages, streamed and not, its runner of tools, parse() and counts."""

import anthropic
import pydantic
from asked import ANSWER, MODEL, QUESTION, place

url, _, where = place()
ran = []


class Sum(pydantic.BaseModel):
    a: int
    exact: bool


@anthropic.beta_tool
def add(a: int, b: int) -> str:
    """Adds.

    Args:
        a: one
        b: another
    """
    ran.append((a, b))
    return str(a + b)


client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
ask = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": QUESTION}]}
last = client.beta.messages.tool_runner(tools=[add], **ask).until_done()
assert last.content[0].text == ANSWER and ran == [(17, 25)], (last, ran)
with client.messages.stream(tools=[add.to_dict()], **ask) as events:
    (block,) = events.get_final_message().content
assert (block.name, block.input) == ("add", {"a": 17, "b": 25}), block
assert isinstance(client.messages.parse(output_format=Sum, **ask).parsed_output, Sum)
assert client.messages.count_tokens(model=MODEL, messages=ask["messages"]).input_tokens > 0
