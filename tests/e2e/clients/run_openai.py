"""Its own helpers, sync and async: a round with a tool, streams, parse() of chat and Responses, completions by ids."""

import asyncio
import json

import openai
import pydantic
from asked import ANSWER, ARGUMENTS, MODEL, NAME, QUESTION, RESULT, place

url, _, where = place()


class Sum(pydantic.BaseModel):
    a: int = pydantic.Field(ge=0, le=99)
    exact: bool


class Add(pydantic.BaseModel):
    a: int
    b: int


client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
messages = [{"role": "user", "content": QUESTION}]
ask = {"model": MODEL, "tools": [openai.pydantic_function_tool(Add, name=NAME)], "temperature": 0, "max_tokens": 200}
first = client.chat.completions.create(messages=messages, **ask).choices[0].message
(call,) = first.tool_calls
assert (call.function.name, json.loads(call.function.arguments)) == (NAME, json.loads(ARGUMENTS))
messages += [first, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
with client.chat.completions.stream(messages=messages, **ask) as events:
    events.until_done()
    assert events.get_final_completion().choices[0].message.content == ANSWER
typed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Sum, max_tokens=200)
assert isinstance(typed.choices[0].message.parsed, Sum)
assert isinstance(client.responses.parse(model=MODEL, input=QUESTION, text_format=Sum, max_output_tokens=200).output_parsed, Sum)
assert len(client.completions.create(model=MODEL, prompt=[1, 5, 6], max_tokens=3, logprobs=1).choices[0].logprobs.tokens) <= 3
assert client.models.list().data[0].id == MODEL
later = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
assert asyncio.run(later.chat.completions.create(messages=messages, **ask)).choices[0].message.content == ANSWER
for refused in (lambda: client.embeddings.create(model=MODEL, input="x"), lambda: client.moderations.create(input="x")):
    try:
        refused()
        raise AssertionError("there is no such endpoint")
    except openai.NotFoundError:
        pass
