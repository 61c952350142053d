"""The recipe scripts: every option group is understood, the plans say what their headers say, GSM8K's runs to its end."""

import json
import os
import re
import shutil
import sqlite3
import subprocess

import pytest
from programs import BUILD, LIMIT, ROOT, run

SCRIPTS = ROOT / "scripts"
FAMILY = {"run-qwen3-4B.sh": "qwen3", "run-glm4-9B.sh": "glm4"}
# the shapes of the real checkpoints: what --explain needs of them is config.json alone
REAL = {
    "run-qwen3-4B.sh": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
                            num_key_value_heads=8, head_dim=128, vocab_size=151936),
    "run-glm4-9B.sh": dict(hidden_size=4096, intermediate_size=13696, num_hidden_layers=40, num_attention_heads=32,
                           num_key_value_heads=2, head_dim=128, vocab_size=151552, tie_word_embeddings=False),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small random models with a long context, and a few of GSM8K's kind."""
    d = tmp_path_factory.mktemp("recipes")
    for family in FAMILY.values():
        more = ["--untie-embeddings"] if family == "glm4" else []
        status, _, err = run(
            "clime-train", "init", d / family, "--family", family, "--hidden-size", 64, "--intermediate-size", 128,
            "--num-hidden-layers", 1, "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 32,
            "--max-position-embeddings", 32768, *more,
        )  # fmt: skip
        assert status == 0, err
    with open(d / "train.jsonl", "w") as f:
        for k in range(24):
            row = {"question": f"Ann has {k} apples and eats {k // 2}. How many are left?",
                   "answer": f"She has {k}-{k // 2}=<<{k}-{k // 2}={k - k // 2}>>{k - k // 2}.\n#### {k - k // 2}"}  # fmt: skip
            f.write(json.dumps({**row, "prompt": row["question"], "label": str(k - k // 2)}) + "\n")
    return d


def script(name, *words, **env):
    done = subprocess.run([SCRIPTS / name, *map(str, words)], capture_output=True, text=True, timeout=LIMIT,
                          env={**os.environ, "CLIME_BUILD": str(BUILD), **{k: str(v) for k, v in env.items()}})  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", FAMILY)
def test_explain(folder, name):
    data = folder / "train.jsonl"
    status, out, err = script(name, folder / FAMILY[name], data, data, "--explain", RUN=folder / "none")
    assert status == 0, err
    assert "3000 rollouts of 32 prompts x 8 samples" in out and "recompute full" in out
    assert "eps = 0.2, eps_high = 0.28" in out and "betas 0.9 0.98" in out and "decay 0.1" in out
    assert "the trainer's own memory, nothing is copied" in out
    assert ("--optimizer-cpu-offload" in out) == (name == "run-glm4-9B.sh")  # inert where memory is the host's
    assert not (folder / "none").exists()
    # later options win; a wrong one is named
    assert "7 rollouts of" in script(name, folder / FAMILY[name], data, "--num-rollout", 7, "--explain")[1]
    assert "--num-rollot" in script(name, folder / FAMILY[name], data, "--num-rollot", 7)[2]
    assert script(name)[0] == 2


@pytest.mark.parametrize("name", FAMILY)
def test_header_says_the_plan(folder, name):
    """The figures in a script's header are the plan's for the real checkpoint."""
    real = folder / f"real-{name}"
    shutil.copytree(folder / FAMILY[name], real)
    config = json.loads((real / "config.json").read_text())
    (real / "config.json").write_text(json.dumps({**config, **REAL[name]}))
    status, out, err = script(name, real, folder / "train.jsonl", "--explain")
    assert status == 0, err
    header = " ".join((SCRIPTS / name).read_text().split("set -eu")[0].replace("\n#", " ").split())
    part = {m[1]: float(m[2]) for m in re.finditer(r"^  ([a-z ]+?) +([0-9.]+) GiB$", out, re.M)}
    millions = float(re.search(r"([0-9.]+) M parameters", out)[1])
    assert f"{millions / 1000:.2f}e9 parameters" in header
    assert f"bf16 weights {2e6 * millions / 2**30:.2f} GiB" in header
    assert f"gradients {part['gradients']:.2f}" in header
    if name == "run-glm4-9B.sh":
        states = part["master weights"] + part["moments"]
        assert f"{states:.1f} GiB" in header and f"{states * 2**30 / 1e9:.0f} GB" in header
        assert part["activations"] < 4.8
    else:
        assert f"weights {part['master weights']:.2f}" in header and f"moments {part['moments']:.2f}" in header
        assert f"{part['activations']:.1f} with whole layers recomputed" in header
    layers, heads, size = (REAL[name][k] for k in ("num_hidden_layers", "num_key_value_heads", "head_dim"))
    assert f"{layers * heads * size * 2 * 2 // 1024} KiB a token" in header


def test_gsm8k(folder):
    """A short run to its end, and again: it goes on where it was."""
    words = [folder / "qwen3", folder / "train.jsonl", folder / "train.jsonl@[0:4]", "--num-rollout", 2,
             "--rollout-batch-size", 2, "--n-samples-per-prompt", 2, "--global-batch-size", 4,
             "--rollout-max-response-len", 32, "--max-tokens-per-gpu", 2048]  # fmt: skip
    for _ in range(2):
        status, out, err = script("run-gsm8k-sft-rl.sh", *words, RUN=folder / "gsm8k", SFT_EPOCHS=2)
        assert status == 0, err
        assert "done     2 rollouts, 2 steps" in out
    lines = [json.loads(line) for line in open(folder / "gsm8k" / "metrics.jsonl")]
    assert [m["eval/step"] for m in lines if m["kind"] == "eval"] == [0, 2]
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in lines if m["kind"] == "train")
    assert len(open(folder / "gsm8k" / "sft-run" / "metrics.jsonl").readlines()) == 2
    assert (folder / "gsm8k" / "hf" / "config.json").exists()
    db = sqlite3.connect(folder / "gsm8k" / "ledger.db")
    assert db.execute("SELECT count(*) FROM samples WHERE reward IS NOT NULL").fetchone() == (8,)
    assert db.execute("SELECT label FROM groups").fetchone()[0].startswith('"She has')
