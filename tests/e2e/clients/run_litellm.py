"""Its providers that speak to such servers: a tool, a stream, a typed answer, text, Responses."""

import json

import litellm
import pydantic
from asked import ANSWER, ARGUMENTS, MODEL, NAME, QUESTION, place

url, _, where = place()
tool = {"type": "function", "function": {"name": NAME, "description": "adds", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer"}, "b": {"type": "integer"}}}}}  # fmt: skip
after = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "and?"}]


class Sum(pydantic.BaseModel):
    a: int
    exact: bool


for provider, base in (("openai", "/v1"), ("hosted_vllm", "/v1"), ("lm_studio", "/v1"), ("litellm_proxy", "/v1"), ("anthropic", "")):
    ask = {"model": f"{provider}/{MODEL}", "api_base": url + base, "api_key": "none", "temperature": 0, "max_tokens": 200}
    (call,) = litellm.completion(messages=after[:1], tools=[tool], **ask).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (NAME, json.loads(ARGUMENTS)), provider
    pieces = litellm.completion(messages=after, stream=True, **ask)
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == ANSWER, provider
ask = {"model": f"hosted_vllm/{MODEL}", "api_base": url + "/v1", "api_key": "none", "temperature": 0, "max_tokens": 200}
Sum.model_validate_json(litellm.completion(messages=after, response_format=Sum, **ask).choices[0].message.content)
ask["model"] = f"openai/{MODEL}"
assert litellm.text_completion(prompt="x", **ask).choices[0].text is not None
ask["max_output_tokens"] = ask.pop("max_tokens")
assert litellm.responses(input=after, **ask).output[0].content[0].text == ANSWER
