"""The generate client of its training (renderers): tokens in and out by /inference/v1/generate, with the numbers of what was sampled."""

import asyncio

import renderers
from asked import ANSWER, MODEL, QUESTION, place
from openai import AsyncOpenAI
from renderers.client import generate

url, folder, where = place()


async def ask():
    from transformers import AutoTokenizer

    renderer = renderers.create_renderer(AutoTokenizer.from_pretrained(folder))
    client = AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "and?"}]
    got = await generate(client=client, renderer=renderer, messages=messages, model=MODEL, cache_salt="step-1",
                         sampling_params={"temperature": 0.0, "max_tokens": 40})  # fmt: skip
    assert len(got["completion_ids"]) == len(got["completion_logprobs"]) > 0 and got["finish_reason"] == "stop", got
    assert got["content"].strip() == ANSWER, got


asyncio.run(ask())
