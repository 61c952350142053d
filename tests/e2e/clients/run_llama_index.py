"""FunctionAgent with a tool, a chat and its stream over OpenAILike."""

import asyncio

from asked import ANSWER, MODEL, QUESTION, place
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

url, _, where = place()
ran = []


def add(a: int, b: int) -> int:
    """Adds."""
    ran.append((a, b))
    return a + b


async def ask():
    llm = OpenAILike(model=MODEL, api_base=url + "/v1", api_key="none", temperature=0, max_tokens=200, is_chat_model=True,
                     is_function_calling_model=True, context_window=4096)  # fmt: skip
    for streaming in (True, False):
        ran.clear()
        agent = FunctionAgent(tools=[add], llm=llm, streaming=streaming, system_prompt="Add.")
        said = str(await agent.run(QUESTION))
        assert said == ANSWER and ran == [(17, 25)], (said, ran)
    if where != "session":
        after = [ChatMessage(role=r, content="x") for r in ("user", "assistant", "user")]
        assert (await llm.achat(after)).message.content == ANSWER


asyncio.run(ask())
