"""Structured outputs over its OpenAI, vLLM and SGLang backends."""

from typing import Literal

import openai
import outlines
import pydantic
from asked import MODEL, QUESTION, place

url, _, where = place()


class Sum(pydantic.BaseModel):
    a: int
    exact: bool


client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
for model in (outlines.from_vllm(client, MODEL), outlines.from_sglang(client, MODEL), outlines.from_openai(client, MODEL)):
    Sum.model_validate_json(model(QUESTION, Sum, max_tokens=200))
    if "OpenAI" != type(model).__name__:
        assert model(QUESTION, Literal["yes", "no"], max_tokens=20) in ("yes", "no")
        assert len(model(QUESTION, outlines.regex("[0-9]{3}"), max_tokens=20)) == 3
