"""Latent attention through the real programs: the same weights whatever the fleet and its limits, gap 0 over batching, chunks
of prefill, cached prefixes and members of a group, and a saved folder that is the model again. With YaRN, whose positions go
beyond those that it stretches.
"""

import json

import pytest
from programs import run, server
from test_bad_folders import change_config, read_tensors
from test_experts import check_one_number, check_same_weights, ids, make, train_undisturbed

SHAPE = ["--family", "deepseek_v3", "--hidden-size", 64, "--intermediate-size", 96, "--num-hidden-layers", 2,
         "--num-dense-layers", 1, "--num-experts", 6, "--num-experts-per-tok", 2, "--moe-intermediate-size", 40,
         "--num-attention-heads", 4, "--q-lora-rank", 48, "--kv-lora-rank", 32, "--qk-nope-head-dim", 24,
         "--qk-rope-head-dim", 16, "--v-head-dim", 20, "--max-position-embeddings", 256, "--untie-embeddings",
         "--init-std", 0.1]  # fmt: skip
YARN = {"type": "yarn", "factor": 4, "beta_fast": 8, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.5,
        "original_max_position_embeddings": 64}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make(tmp_path_factory.mktemp("latent"), SHAPE, change_config(rope_scaling=YARN))


@pytest.fixture(scope="module")
def undisturbed(model):
    return train_undisturbed(model)


def test_same_weights(model, undisturbed):
    check_same_weights(model, undisturbed, "selective")


def test_one_number(model):
    check_one_number(model / "init")


def test_saved_folder(model, undisturbed):
    """It has the names of the family, says what it is, and is served."""
    names, _ = read_tensors(model / "hf")
    config = json.loads((model / "hf" / "config.json").read_text())
    assert {k: config["rope_scaling"][k] for k in YARN if k != "type"} == {k: v for k, v in YARN.items() if k != "type"}
    assert (config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]) == (48, 32, 16)
    assert names["model.layers.1.self_attn.kv_a_proj_with_mqa.weight"]["shape"] == [48, 64]
    assert names["model.layers.0.self_attn.kv_b_proj.weight"]["shape"] == [4 * (24 + 20), 32]
    with server(model=model / "hf") as s:
        assert ids(s.json("/generate", {"input_ids": [5], "return_logprob": True, "sampling_params": {"max_new_tokens": 3}}))


def test_init_says_what_does_not_fit(tmp_path):
    status, _, err = run("clime-train", "init", tmp_path / "a", "--family", "qwen3_moe", "--kv-lora-rank", "32")
    assert status != 0 and "--family qwen3_moe has no latent attention" in err
    status, _, err = run("clime-train", "init", tmp_path / "a", "--family", "deepseek_v3", "--qk-rope-head-dim", "7")
    assert status != 0 and "must be even" in err
    status, _, err = run("clime-train", "init", tmp_path / "a", "--family", "glm4", "--head-dim", "50")
    assert status != 0 and "25 rotating dimensions of 50" in err and not (tmp_path / "a").exists()


def test_init_of_an_odd_number_of_heads(tmp_path):
    """--num-key-value-heads is no matter of latent attention, nor is its default."""
    status, out, err = run("clime-train", "init", tmp_path / "a", "--family", "deepseek_v3", "--num-attention-heads", "3")
    assert status == 0, err
