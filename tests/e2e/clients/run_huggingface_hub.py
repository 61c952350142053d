"""InferenceClient with a base URL: it calls the model "dummy" unless told."""

import asyncio
import os

os.environ.pop("HF_HUB_OFFLINE", None)  # it refuses every address by that
from asked import ANSWER, ARGUMENTS, NAME, QUESTION, RESULT, place  # noqa: E402
from huggingface_hub import AsyncInferenceClient, InferenceClient  # noqa: E402

url, _, where = place()
tool = {"type": "function", "function": {"name": NAME, "description": "adds", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer"}, "b": {"type": "integer"}}}}}  # fmt: skip
ask = {"tools": [tool], "temperature": 0, "max_tokens": 200}
client, messages = InferenceClient(base_url=url, api_key="none"), [{"role": "user", "content": QUESTION}]
first = client.chat_completion(messages, logprobs=True, **ask).choices[0]
(call,) = first.message.tool_calls
assert (call.function.name, call.function.arguments) == (NAME, ARGUMENTS) and first.logprobs.content
messages += [{"role": "assistant", "content": "", "tool_calls": [{"id": call.id, "type": "function", "function": {
    "name": NAME, "arguments": ARGUMENTS}}]}, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]  # fmt: skip
assert client.chat_completion(messages, **ask).choices[0].message.content == ANSWER
pieces = client.chat_completion(messages, stream=True, **ask)
assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == ANSWER
assert asyncio.run(AsyncInferenceClient(base_url=url, api_key="none").chat_completion(messages, **ask)).choices[0].message.content == ANSWER
