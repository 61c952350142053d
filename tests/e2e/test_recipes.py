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


def test_made_with_what_the_family_fixes(folder):
    made = {family: json.loads((folder / family / "config.json").read_text()) for family in FAMILY.values()}
    assert made["glm4"]["attention_bias"] and made["glm4"]["partial_rotary_factor"] == 0.5  # as published
    assert not made["qwen3"]["attention_bias"] and "partial_rotary_factor" not in made["qwen3"]


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


MOE = dict(tie_word_embeddings=False, torch_dtype="bfloat16", rms_norm_eps=1e-5, num_experts_per_tok=8, norm_topk_prob=True)
SIGMOID = dict(n_group=1, topk_group=1, n_shared_experts=1, routed_scaling_factor=2.5)
LATENT = dict(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, scoring_func="sigmoid",
              topk_method="noaux_tc")  # fmt: skip
# the shapes of published checkpoints: what is reckoned needs no more of them than config.json
EXPERTS = {
    "run-qwen3-30B-A3B.sh": dict(MOE, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=2048,
        intermediate_size=6144, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
        vocab_size=151936, num_experts=128, moe_intermediate_size=768, max_position_embeddings=40960),
    "run-moonlight-16B-A3B.sh": dict(MOE, **LATENT, **{**SIGMOID, "n_shared_experts": 2, "routed_scaling_factor": 2.446},
        architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", hidden_size=2048, intermediate_size=11264,
        num_hidden_layers=27, num_attention_heads=16, num_key_value_heads=16, vocab_size=163840, n_routed_experts=64,
        moe_intermediate_size=1408, first_k_dense_replace=1, q_lora_rank=None, rope_theta=50000,
        max_position_embeddings=8192) | {"num_experts_per_tok": 6},
    "run-glm4.5-Air.sh": dict(MOE, **SIGMOID, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", hidden_size=4096,
        intermediate_size=10944, num_hidden_layers=46, num_attention_heads=96, num_key_value_heads=8, head_dim=128,
        vocab_size=151552, n_routed_experts=128, moe_intermediate_size=1408, first_k_dense_replace=1, attention_bias=True,
        use_qk_norm=False, partial_rotary_factor=0.5, rope_theta=1000000, max_position_embeddings=131072),
}  # fmt: skip
LARGE = {
    "GLM-4.5": EXPERTS["run-glm4.5-Air.sh"] | dict(hidden_size=5120, intermediate_size=12288, num_hidden_layers=92,
        n_routed_experts=160, moe_intermediate_size=1536, first_k_dense_replace=3, use_qk_norm=True),
    "DeepSeek-V3": EXPERTS["run-moonlight-16B-A3B.sh"] | dict(hidden_size=7168, intermediate_size=18432, num_hidden_layers=61,
        num_attention_heads=128, num_key_value_heads=128, vocab_size=129280, n_routed_experts=256, num_experts_per_tok=8,
        moe_intermediate_size=2048, n_shared_experts=1, first_k_dense_replace=3, q_lora_rank=1536, n_group=8, topk_group=4,
        max_position_embeddings=163840),
}  # fmt: skip


def of_shape(folder, name, config):
    """A folder whose configuration is the shape; tokenizer and weights, which nobody reads, are a small model's."""
    to = folder / f"shape-{name}"
    if not to.exists():
        shutil.copytree(folder / "qwen3", to)
        (to / "config.json").write_text(json.dumps(config))
    return to


def plan(folder, *words):
    """(exit status, GiB of a device by way of training, text)"""
    status, out, err = run("clime-train", "plan", "--hf-checkpoint", folder, *words)
    assert "training:" in out, err
    return status, {m[1]: float(m[2]) for m in re.finditer(r"^  (replicated|sharded|expert parallel) +([0-9.]+) ", out, re.M)}, out


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_recipe(folder, name):
    """Understood for 4 and 8 GPUs, and the header's arithmetic is what --explain and clime-train plan say."""
    shape, data = of_shape(folder, name, EXPERTS[name]), folder / "train.jsonl"
    header = " ".join((SCRIPTS / name).read_text().split("set -eu")[0].replace("\n#", " ").split())
    text = (SCRIPTS / name).read_text()
    rows, shared = re.search(r"--max-tokens-per-gpu (\d+)", text)[1], re.search(r"--context-parallel-size \d+", text)
    stay = "--expert-model-parallel-size" in text
    assert script(name)[0] == 2
    for gpus in 4, 8:
        status, out, err = script(name, shape, data, data, "--explain", RUN=folder / "none", GPUS=gpus)
        assert status == 0, err
        colocated = "--colocate" in (SCRIPTS / name).read_text()
        assert "recompute full" in out and ("the trainer's own memory, nothing is copied" in out) == colocated
        assert stay or re.search(r"whole on every rank .replicated.: [0-9.]+ GiB.*; a part of them on each .sharded.: [0-9.]+ GiB", out)
        if stay:
            assert f"each rank has {EXPERTS[name]['n_routed_experts'] // gpus} of the " in out and "2 ranks share a micro-batch" in out
        millions = float(re.search(r"([0-9.]+) M parameters", out)[1])
        _, gib, text = plan(shape, "--devices", gpus, "--max-tokens-per-gpu", rows, "--optimizer-cpu-offload",
                            *(shared[0].split() if shared else ()))  # fmt: skip
        assert f"{millions / 1000:.2f}e9 parameters" in header and f"{millions / 1000:.2f}e9 parameters" in text
        assert f"a token meets {re.search(r'([0-9.]+)e9 of them', text)[1]}e9" in header
        assert f"{2e6 * millions / 2**30:.1f} GiB" in header and f"fp32 gradients {4e6 * millions / 2**30:.1f}" in header
        host = int(re.search(r"([0-9]+) of [0-9]+ GiB on a host", text)[1])
        assert abs(host - int(re.search(r"are ([0-9]+) GiB and stay on the host", header)[1])) <= 1
        assert f"{re.search(r'values: ([0-9.]+) KiB', text)[1]} KiB a token" in header
        assert ("DOES NOT FIT" in re.search(r"replicated.*", text)[0]) == (not colocated)
        said = ["replicated"] if name != "run-glm4.5-Air.sh" or gpus == 8 else []
        said += [] if colocated else ["expert parallel"] if stay else ["sharded"]
        assert all(re.search(rf"\b{round(gib[way])}\b", header) for way in said), (gib, header)
        if colocated:  # to within 10,000
            room = round(int(re.search(r"room for ([0-9]+) tokens", text)[1]), -4)
            assert f"{room:,} tokens of {gpus} GPUs" in header or f"{room:,} of {gpus}." in header, (room, header)


def test_plan_of_what_nobody_has_here(folder):
    """It says what stands in the way, and with an exit status: 0 only where a run would go."""
    glm, more = of_shape(folder, "GLM-4.5", LARGE["GLM-4.5"]), ("--optimizer-cpu-offload", "--max-tokens-per-gpu", 16384)
    status, gib, out = plan(glm, "--devices", 64, "--hosts", 8, *more)
    assert status == 1 and "352.80e9 parameters, 32.85e9 of them" in out
    assert gib["sharded"] < gib["replicated"] and "--expert-model-parallel-size 32\n" in out
    few = plan(glm, "--devices", 64, "--hosts", 8, "--expert-model-parallel-size", 8, *more)[1]
    assert gib["expert parallel"] < few["expert parallel"] < gib["replicated"]
    long = ("--expert-model-parallel-size", 8, "--context-parallel-size", 2, "--optimizer-cpu-offload", "--max-tokens-per-gpu")
    status, gib, out = plan(glm, "--devices", 64, "--hosts", 8, *long, 8192)
    assert "of 16384 tokens on each 2 neighbours that share them" in out and "8  --context-parallel-size 2\n" in out
    assert gib["expert parallel"] < few["expert parallel"] < plan(glm, "--devices", 64, "--hosts", 8, *long, 16384)[1]["expert parallel"]
    assert "as many experts on each rank: not with these" in plan(glm, "--devices", 64, "--expert-model-parallel-size", 64, *more)[2]
    status, gib, out = plan(glm, "--devices", 32, "--hosts", 4, *more)
    assert status == 1 and gib["expert parallel"] < gib["sharded"] < gib["replicated"]
    assert re.search(r"does not hide behind computing .*--expert-model-parallel-size", out)
    assert "NOT ONE ANSWER FITS" in out and "between hosts, which has not been measured" in out
    status, _, out = plan(of_shape(folder, "DeepSeek-V3", LARGE["DeepSeek-V3"]), "--devices", 128, "--hosts", 16,
                          "--optimizer-cpu-offload")  # fmt: skip
    assert status == 1 and "671.03e9 parameters" in out and "a trainer has at most 64 ranks" in out
    assert "no way of training that this version has fits these devices" in out
    shape = of_shape(folder, "run-moonlight-16B-A3B.sh", EXPERTS["run-moonlight-16B-A3B.sh"])
    status, _, out = plan(shape, "--devices", 4, "--optimizer-cpu-offload")
    assert status == 0 and re.search(r"a rollout: [0-9.]+ s, [0-9]+ answered tokens a device and second", out)
    assert "power of two" not in out
    for n, says in (12, "a power of two, 12 are none"), (128, "a trainer has at most 64 ranks"):
        status, _, out = plan(shape, "--devices", n, "--optimizer-cpu-offload")
        assert status == 1 and says in out
    for word, n, says in (("--expert-model-parallel-size", 3, "3 must divide the ranks and the 64 experts"),
                          ("--response-len", 8000, "of 8256 tokens are more than the model's 8192 positions")):  # fmt: skip
        status, _, out = plan(shape, "--devices", 8, "--optimizer-cpu-offload", word, n)
        assert status == 1 and says in out, out
    status, _, out = plan(folder / "qwen3", "--devices", 8, "--expert-model-parallel-size", 2)
    assert status == 1 and "--expert-model-parallel-size 2: Qwen3ForCausalLM has no experts" in out
    for words, says in ((["--devices", "9", "--hosts", "2"], "--devices 9 are not as many"), ([], "--hf-checkpoint is missing"),
                        (["--devices", "4", "--context-parallel-size", "3"], "--context-parallel-size 3 is no power of two that"),
                        (["--devices", "4", "--context-parallel-size", "8"], "divides --devices 4")):  # fmt: skip
        status, _, err = run("clime-train", "plan", *(["--hf-checkpoint", shape, *words] if words else []))
        assert status == 1 and says in err


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
