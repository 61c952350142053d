"""An agent with a plugin."""

import asyncio

import openai
from asked import ANSWER, MODEL, QUESTION, place
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function

url, _, where = place()
ran = []


class Sums:
    @kernel_function(name="add", description="adds")
    def add(self, a: int, b: int) -> str:
        ran.append((a, b))
        return str(a + b)


async def ask():
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    service = OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)
    return str((await ChatCompletionAgent(service=service, name="adder", instructions="Add.", plugins=[Sums()]).get_response(QUESTION)).content)


said = asyncio.run(ask())
assert said == ANSWER, (said, ran)
