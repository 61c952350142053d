"""A mixture of experts through the real programs: the same weights whatever the fleet and its limits, gap 0 over batching,
chunks of prefill, cached prefixes and members of a group, and a saved folder that is the model again.
"""

import json
import subprocess

import pytest
from programs import run, server
from test_rl import LIMIT, TRAIN, check_record, command, run_whole

SHAPE = ["--family", "qwen2_moe", "--hidden-size", 64, "--intermediate-size", 96, "--num-hidden-layers", 3,
         "--num-dense-layers", 1, "--num-experts", 6, "--num-experts-per-tok", 2, "--moe-intermediate-size", 40,
         "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 32, "--max-position-embeddings", 256,
         "--init-std", 0.1]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    d = tmp_path_factory.mktemp("experts")
    do = lambda *a: subprocess.run([TRAIN, *map(str, a)], check=True, capture_output=True, timeout=LIMIT)
    do("init", d / "init", *SHAPE)
    do("task", d / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 40, "--num-heldout", 20)
    return d


@pytest.fixture(scope="module")
def undisturbed(model):
    sha = run_whole(command(model, model / "undisturbed", "--save-hf", model / "hf"), model / "undisturbed.log")
    check_record(model / "undisturbed")
    return sha


def test_same_weights(model, undisturbed):
    more = ["--num-servers", "2", "--server-max-running-requests", "3", "--server-chunked-prefill-size", "7",
            "--recompute-granularity", "full"]  # fmt: skip
    assert run_whole(command(model, model / "other", *more), model / "other.log") == undisturbed
    check_record(model / "other")


def logps(reply):
    return [x[0] for x in reply["meta_info"]["output_token_logprobs"]]


def ids(reply):
    return [x[1] for x in reply["meta_info"]["output_token_logprobs"]]


def test_one_number(model):
    """Members of a group, others beside them, a prompt in chunks and from the cache: the number of a token alone."""
    prompt = [(7 * i) % 250 for i in range(150)]
    sampling = {"max_new_tokens": 12, "temperature": 1, "ignore_eos": True, "sampling_seed": 5}
    with server(model=model / "init") as s:
        group = s.json("/generate", {"input_ids": prompt, "return_logprob": True, "sampling_params": {**sampling, "n": 4}})
        again = s.json("/generate", {"input_ids": prompt, "return_logprob": True, "sampling_params": {**sampling, "n": 4}})
        assert [logps(x) for x in again] == [logps(x) for x in group] and len({tuple(ids(x)) for x in group}) > 1
    with server("--chunked-prefill-size", "9", "--disable-radix-cache", "--max-running-requests", "2",
                model=model / "init") as s:  # fmt: skip
        for member in group:
            scored = s.json("/generate", {"input_ids": prompt + ids(member), "return_logprob": True,
                                          "logprob_start_len": len(prompt),
                                          "sampling_params": {"max_new_tokens": 0}})  # fmt: skip
            assert [x[0] for x in scored["meta_info"]["input_token_logprobs"]][-12:] == logps(member)


def test_saved_folder(model, undisturbed):
    """It has the names of the family, an expert each, and is served."""
    config = json.loads((model / "hf" / "config.json").read_text())
    assert config["mlp_only_layers"] == [0] and config["num_experts"] == 6
    blob = (model / "hf" / "model.safetensors").read_bytes()
    names = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    assert "model.layers.2.mlp.experts.5.down_proj.weight" in names and "model.layers.0.mlp.up_proj.weight" in names
    with server(model=model / "hf") as s:
        assert ids(s.json("/generate", {"input_ids": [5], "return_logprob": True, "sampling_params": {"max_new_tokens": 3}}))


def test_init_says_what_does_not_fit(tmp_path):
    status, _, err = run("clime-train", "init", tmp_path / "a", "--family", "qwen3", "--num-experts", "4")
    assert status != 0 and "--family qwen3 has no experts" in err
    status, _, err = run("clime-train", "init", tmp_path / "a", "--family", "qwen3_moe", "--num-experts-per-tok", "9")
    assert status != 0 and "--num-experts-per-tok is above --num-experts" in err
