"""Its vLLM model server's client and converter: chat with the ids and the log-probabilities of what was sampled."""

import asyncio
import sys

from asked import MODEL, QUESTION, place
from nemo_gym.openai_utils import NeMoGymAsyncOpenAI

url, _, where = place()
del sys.argv[1:]  # it reads its configuration from there


async def ask():
    client = NeMoGymAsyncOpenAI(base_url=url + "/v1", api_key="none")
    got = await client.create_chat_completion(model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=100,
                                              logprobs=True, return_tokens_as_token_ids=True, return_token_ids=True)  # fmt: skip
    (choice,) = got["choices"]
    ids = [int(t["token"].removeprefix("token_id:")) for t in choice["logprobs"]["content"]]
    assert ids == choice["token_ids"] and got["prompt_token_ids"], got


asyncio.run(ask())
