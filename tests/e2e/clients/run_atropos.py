"""Its server manager, of kind sglang: two answers to one chat."""

import asyncio

from asked import MODEL, QUESTION, place
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager

url, folder, where = place()


async def ask():
    config = APIServerConfig(model_name=MODEL, base_url=url + "/v1", api_key="none", server_type="sglang", tokenizer_name=folder, health_check=False)
    manager = ServerManager([config], slurm=False, testing=False)
    got = await manager.chat_completion(messages=[{"role": "user", "content": QUESTION}], n=2, max_tokens=30, temperature=1.0)
    assert len(got.choices) == 2


asyncio.run(ask())
