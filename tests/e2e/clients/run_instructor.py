"""Typed answers in the modes whose output a grammar fixes; RESPONSES_TOOLS forces a call and names a format as well."""

import anthropic
import instructor
import openai
import pydantic
from asked import MODEL, QUESTION, place

url, _, where = place()


class Sum(pydantic.BaseModel):
    a: int = pydantic.Field(ge=0, le=99)
    exact: bool


client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
ask = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "response_model": Sum, "max_retries": 0}
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    assert isinstance(instructor.from_openai(client, mode=mode).chat.completions.create(temperature=0, max_tokens=200, **ask), Sum), mode
both = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)
assert isinstance(both.responses.create(model=MODEL, input=QUESTION, response_model=Sum, max_retries=0, max_output_tokens=200), Sum)
claude = instructor.from_anthropic(anthropic.Anthropic(base_url=url, api_key="none", max_retries=0))
assert isinstance(claude.messages.create(max_tokens=200, **ask), Sum)
