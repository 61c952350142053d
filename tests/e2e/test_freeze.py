"""Freezing through the whole loop: what the patterns name is the initial model's, bit for bit, in the exported folder;
a run that was stopped and goes on has the weights of one that was not; another choice is refused; --explain says it."""

import json
import re
import shutil
import subprocess

import pytest
from programs import BUILD, SLOW, few_threads

TRAIN = BUILD / "clime-train"
LIMIT = 120 * SLOW


def train(*words):
    return subprocess.run([TRAIN, *map(str, words)], capture_output=True, text=True, timeout=LIMIT)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    d = tmp_path_factory.mktemp("freeze")
    made = train("init", d / "init", "--dtype", "f32", "--family", "qwen3", "--hidden-size", 64, "--intermediate-size", 96,
                 "--num-hidden-layers", 2, "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 32,
                 "--max-position-embeddings", 128)  # fmt: skip
    assert made.returncode == 0, made.stderr
    made = train("task", d / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 40, "--num-heldout", 20)
    assert made.returncode == 0, made.stderr
    return d


def tensors(folder):
    """{name: bytes} of a folder with one safetensors file."""
    raw = (folder / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    header.pop("__metadata__", None)
    return {k: raw[end + v["data_offsets"][0] : end + v["data_offsets"][1]] for k, v in header.items()}


def rl(model, run_dir, *more, rollouts=3):
    return train(*few_threads(["rl", "--run", run_dir, "--hf-checkpoint", model / "init", "--prompt-data",
                 model / "task" / "train.jsonl", "--input-key", "prompt", "--label-key", "label", "--rm-type", "random",
                 "--apply-chat-template", "--rollout-batch-size", 4, "--n-samples-per-prompt", 4, "--lr", "5e-4",
                 "--rollout-max-response-len", 24, "--dtype", "f32", "--num-rollout", rollouts, "--save-interval", 1, *more]))  # fmt: skip


def sha(done):
    assert done.returncode == 0, done.stderr[-2000:]
    return re.findall(r"^done .*sha256 ([0-9a-f]{64})$", done.stdout + done.stderr, re.M)[-1]


@pytest.mark.parametrize("words, frozen", [
    (["--freeze-params-name-list", "embed_tokens", r"layers\.0\."], lambda n: "embed_tokens" in n or "layers.0." in n),
    (["--only-train-params-name-list", r"layers\.1\.mlp", "--advantage-estimator", "ppo"],
     lambda n: "layers.1.mlp" not in n),
])  # fmt: skip
def test_frozen_tensors_keep_their_bits(model, tmp_path, words, frozen):
    whole = rl(model, tmp_path / "whole", *words, "--save-hf", tmp_path / "hf-{rollout_id}")
    want = sha(whole)
    before, after = tensors(model / "init"), tensors(tmp_path / "hf-2")
    assert before.keys() == after.keys()
    for name in before:
        assert (before[name] == after[name]) == frozen(name), name

    last = max((tmp_path / "whole" / "checkpoints").iterdir())
    export = ["export", last, tmp_path / "exported", "--hf-checkpoint", model / "init"]
    without = train(*export)
    assert without.returncode != 0 and words[0] in without.stderr
    done = train(*export, *words[: words.index("--advantage-estimator") if "ppo" in words else None])
    assert done.returncode == 0 and tensors(tmp_path / "exported") == after, done.stderr

    sha(rl(model, tmp_path / "parts", *words, rollouts=1))
    assert sha(rl(model, tmp_path / "parts", *words)) == want
    other = rl(model, tmp_path / "parts", *words[2:] if "ppo" in words else [])
    assert other.returncode != 0 and words[0][2:] in other.stderr

    said = rl(model, tmp_path / "none", *words, "--explain")
    assert re.search(r"trained: \d+ of 24 tensors", said.stdout), said.stdout


def test_a_pattern_without_a_tensor_ends_the_start(model, tmp_path):
    done = rl(model, tmp_path / "run", "--freeze-params-name-list", "linear_fc1")
    assert done.returncode != 0
    assert "'linear_fc1' is in no tensor's name" in done.stderr
    done = rl(model, tmp_path / "run", "--freeze-params-name-list", ".")
    assert done.returncode != 0 and "nothing is left to train" in done.stderr
    both = rl(model, tmp_path / "run", "--freeze-params-name-list", "mlp", "--only-train-params-name-list", "mlp")
    assert both.returncode != 0 and "exclude each other" in both.stderr


def test_sft(model, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i}+{i}=", "response": str(2 * i)}) + "\n" for i in range(40)))
    done = train("sft", "--hf-checkpoint", model / "init", "--prompt-data", data, "--save-hf", tmp_path / "out", "--lr",
                 "1e-3", "--global-batch-size", 8, "--dtype", "f32", "--freeze-params-name-list", "norm", "q_proj")  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = tensors(model / "init"), tensors(tmp_path / "out")
    for name in before:
        assert (before[name] == after[name]) == ("norm" in name or "q_proj" in name), name


def test_a_bias_that_only_chooses_is_nothing_to_train(model, tmp_path):
    made = train("init", tmp_path / "init", "--family", "glm4_moe", "--hidden-size", 32, "--num-hidden-layers", 1)
    assert made.returncode == 0, made.stderr
    done = rl(model, tmp_path / "run", "--hf-checkpoint", tmp_path / "init", "--only-train-params-name-list",
              "e_score_correction_bias", "--explain")  # fmt: skip
    assert done.returncode != 0 and "nothing is left to train" in done.stderr


@pytest.mark.parametrize("words", [["mlp.up_proj"], [r"layers\.0\."], ["embed_tokens", "model.norm"]], ids=lambda w: w[0])
def test_same_weights_over_ranks(model, tmp_path, words):
    """Four lanes on one rank, and on two in turns, which have the weights in parts; also where the last tensors of the
    buffer of gradients are frozen."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i}+{i}=", "response": str(2 * i)}) + "\n" for i in range(40)))
    made = {}
    for name, more in {"one": [], "two": ["--actor-num-gpus-per-node", 2, "--shard-weights", "on"]}.items():
        done = train("sft", "--hf-checkpoint", model / "init", "--prompt-data", data, "--save-hf", tmp_path / name, "--lr", "1e-2",
                     "--global-batch-size", 20, "--max-tokens-per-gpu", 16, "--dtype", "f32", "--gradient-lanes", 4,
                     "--only-train-params-name-list", *words, *more)  # fmt: skip
        assert done.returncode == 0, done.stderr
        made[name] = tensors(tmp_path / name)
    assert made["one"] == made["two"] and made["one"] != tensors(model / "init")


def test_frozen_weights_that_changed_in_place_are_noticed(model, tmp_path):
    """A checkpoint does not hold them: of the policy, and of a critic with a folder of its own."""
    folders = {name: tmp_path / name for name in ("policy", "critic")}
    for folder in folders.values():
        shutil.copytree(model / "init", folder)
    words = ["--only-train-params-name-list", "mlp", "--dtype", "bf16", "--advantage-estimator", "ppo", "--hf-checkpoint",
             folders["policy"], "--critic-load", folders["critic"]]  # fmt: skip
    sha(rl(model, tmp_path / "run", *words, rollouts=1))
    for name, says in (("critic", "frozen of the critic"), ("policy", "weights")):
        file = folders[name] / "model.safetensors"
        raw = file.read_bytes()
        file.write_bytes(raw[:-2] + bytes([raw[-2] ^ 32, raw[-1]]))  # the last tensor: the final norm
        done = rl(model, tmp_path / "run", *words)
        assert done.returncode != 0 and says in done.stderr, done.stdout + done.stderr
        file.write_bytes(raw)
    sha(rl(model, tmp_path / "run", *words))
