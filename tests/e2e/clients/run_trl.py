"""VLLMClient, which GRPOTrainer(vllm_mode="server") and TRL's distillation ask by: its default rollout, a chat, a teacher's numbers, and what
it reads before weights are sent. The sending itself needs a CUDA device."""

from asked import QUESTION, place
from trl.generation.vllm_client import VLLMClient

url, _, where = place()
client = VLLMClient(base_url=url, connection_timeout=60)
prompt = [1, 5, 6, 7]
got = client.generate([prompt, prompt], n=2, max_tokens=4, temperature=0.7)  # logprobs=0, as GRPOTrainer asks
assert got["prompt_ids"] == [prompt, prompt] and len(got["completion_ids"]) == 4
for ids, numbers, tokens in zip(got["completion_ids"], got["logprobs"], got["logprob_token_ids"], strict=True):
    assert [[i] for i in ids] == tokens and all(len(n) == 1 and n[0] <= 0 for n in numbers)
several = client.generate([prompt], max_tokens=4, logprobs=3)
assert all(3 <= len(n) <= 4 and n == sorted(n, reverse=True) for n in several["logprobs"][0])
assert len(client.generate([QUESTION], max_tokens=4)["completion_ids"][0]) <= 4
chat = client.chat([[{"role": "user", "content": QUESTION}]], max_tokens=80, temperature=0)
assert len(chat["completion_ids"][0]) == len(chat["logprobs"][0]) > 0 and chat["prompt_ids"][0]
sequences = [prompt + got["completion_ids"][0], prompt + got["completion_ids"][1]]
teacher = client.get_sequence_logprobs(sequences, [len(prompt)] * 2, top_logprobs=2)
for numbers, own in zip(teacher["logprobs"], teacher["actual_logprobs"], strict=True):
    assert all(len(n) == 2 and n[0] >= n[1] for n in numbers) and all(o[0] <= n[0] for o, n in zip(own, numbers, strict=True))
info = client.get_server_info()
assert info["weight_transfer_config"] and info["lora_config"] is None and info["model_config"]["dtype"].startswith("torch.")
assert info["model_config"]["logprobs_mode"] == "processed_logprobs" and info["parallel_config"]["data_parallel_size"] == 1
client.reset_prefix_cache()
if where == "server":  # behind a router each server has ranks of its own
    assert client.get_world_size() == 1
    try:
        client.init_communicator(device="cpu")
        raise AssertionError("weights went to a CPU")
    except NotImplementedError:
        pass

