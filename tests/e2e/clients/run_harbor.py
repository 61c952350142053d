"""Its LLM class with the details of a rollout: the ids of prompts and answers, and their log-probabilities."""

import asyncio

from asked import MODEL, QUESTION, place
from harbor.llms.chat import Chat
from harbor.llms.lite_llm import LiteLLM

url, _, where = place()
info = {"max_input_tokens": 400, "max_output_tokens": 100, "input_cost_per_token": 0.0, "output_cost_per_token": 0.0}
llm = LiteLLM(f"hosted_vllm/{MODEL}", api_base=url + "/v1", temperature=0, collect_rollout_details=True, model_info=info)
chat = Chat(llm)
for text in (QUESTION, "and?"):
    asyncio.run(chat.chat(text))
(detail,) = chat.rollout_details
prompts, answers, numbers = detail["prompt_token_ids"], detail["completion_token_ids"], detail["logprobs"]
assert len(prompts) == len(answers) == len(numbers) == 2 and [len(a) for a in answers] == [len(n) for n in numbers], detail
assert all(n <= 0 for turn in numbers for n in turn) and all(prompts)
