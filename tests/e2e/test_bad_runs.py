"""What a user can get wrong with clime-train, one case a row: files, lines, options, folders, rewards, routers.

Each row ends with a status that is not 0 and a message that names the thing, soon, and leaves a run folder that works
with its own options as it did before. Rewards that fail in the middle of a run, and runs that others disturb, are in
test_rl.py; lines of `grade` in test_grade.py.
"""

import contextlib
import itertools
import json
import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import threading

import pytest
from programs import BUILD, LIMIT, ROOT, few_threads, run, tiny_model
from test_bad_folders import FOLDERS


@pytest.fixture(scope="module")
def d(tmp_path_factory):
    """A tiny random model and a task."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_model(folder / "init")
    status, _, err = run("clime-train", "task", folder / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 20,
                         "--num-heldout", 8)  # fmt: skip
    assert status == 0, err
    return folder


def words_of(options):
    out = []
    for name, value in options.items():
        if value is not None:
            out += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return out


def rl(d, name, **change):
    options = {
        "run": d / name, "hf_checkpoint": d / "init", "prompt_data": d / "task" / "train.jsonl", "input_key": "prompt",
        "label_key": "label", "apply_chat_template": True, "rm_type": "random", "num_rollout": 2,
        "rollout_batch_size": 4, "n_samples_per_prompt": 2, "global_batch_size": 8, "rollout_max_response_len": 8,
        "max_tokens_per_gpu": 256, "use_dynamic_batch_size": True, "threads": 1, "server_threads": 1, **change,
    }  # fmt: skip
    return few_threads(["rl", *words_of(options)])


def fails(words, *says, status=(1,)):
    got, _, err = run("clime-train", *words)
    assert got in status, (got, err[-2000:])
    for word in says:
        assert word in err, (word, err[-2000:])
    return err


@pytest.fixture(scope="module")
def done_run(d):
    """A run of two rollouts, to its end."""
    status, out, err = run("clime-train", *rl(d, "done"), timeout=2 * LIMIT)
    assert status == 0, err
    return d / "done"


def test_two_rollouts(d, done_run):
    lines = [json.loads(line) for line in open(done_run / "metrics.jsonl")]
    steps = [m for m in lines if m["kind"] == "train"]
    assert len(steps) == 2 and all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps)


# ---- commands and options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words, status, says", [
    ([], 2, "clime-train COMMAND"),
    (["train"], 2, 'no command "train"'),
    (["exprot"], 2, 'no command "exprot", did you mean "export"'),
    (["init"], 1, "clime-train init DIR"),
    (["init", "X", "--head-dim", "33"], 1, "head-dim"),
    (["init", "X", "--num-attention-heads", "3", "--num-key-value-heads", "2"], 1, "num-key-value-heads"),
    (["init", "X", "--family", "gpt2"], 1, "gpt2"),
    (["init", "X", "--family", "llama", "--num-attention-heads", "6"], 1, "must divide --hidden-size"),  # transformers
    (["init", "X", "--hidden-size", "0"], 1, "hidden-size"),
    (["init", "X", "--tokenizer", "/nowhere"], 1, "/nowhere"),
    (["init", "X", "--vocab-size", "16"], 1, "vocab-size"),
    (["task"], 1, "clime-train task DIR"),
    (["task", "X", "--kind", "poems"], 1, "poems"),
    (["task", "X", "--max-operand", "1", "--num-heldout", "100"], 1, "questions"),
    (["sft"], 1, "--hf-checkpoint"),
    (["sft", "--adam-beta2", "1", "--hf-checkpoint", "INIT", "--prompt-data", "Y", "--save-hf", "X"], 1,
     "--adam-beta2 must be below 1"),
    (["sft", "--min-lr", "1", "--lr-decay-style", "cosine", "--hf-checkpoint", "INIT", "--prompt-data", "Y", "--save-hf", "X"], 1,
     "--min-lr 1 is above --lr 1e-05"),
    (["rl"], 1, "is required"),
    (["eval"], 1, "is required"),
    (["report"], 1, "which run"),
    (["report", "/nowhere"], 1, "/nowhere"),
    (["export"], 1, "export needs"),
    (["export", "/nowhere", "X", "--hf-checkpoint", "INIT"], 1, "/nowhere"),
    (["grade", "--rm-tpye", "math"], 1, "rm-type"),
])  # fmt: skip
def test_commands(d, tmp_path, words, status, says):
    words = [str(tmp_path / "out") if w == "X" else str(d / "init") if w == "INIT" else w for w in words]
    fails(words, says, status=(status,))
    assert not (tmp_path / "out" / "model.safetensors").exists()


OPTIONS = [
    ("unknown option", {"rollout_batchsize": 4}, ["rollout-batch-size"]),
    ("no number", {"num_rollout": "many"}, ["num-rollout", "many"]),
    ("negative", {"rollout_batch_size": -1}, ["rollout-batch-size"]),
    ("constraint", {"global_batch_size": 5}, ["rollout-batch-size", "n-samples-per-prompt", "global-batch-size"]),
    ("constraint with steps", {"num_steps_per_rollout": 3}, ["global-batch-size", "num-steps-per-rollout"]),
    ("not a choice", {"kl_loss_type": "k9"}, ["kl-loss-type"]),
    ("temperature 0", {"rollout_temperature": 0}, ["rollout-temperature"]),
    ("temperature that is greedy", {"rollout_temperature": 1e-7}, ["rollout-temperature"]),
    ("temperature that no server takes", {"rollout_temperature": 1e30}, ["rollout-temperature"]),
    ("stop id that is no number", {"rollout_stop_token_ids": "x"}, ["rollout-stop-token-ids", "'x' is no token id"]),
    ("stop id below 0", {"rollout_stop_token_ids": -5}, ["rollout-stop-token-ids", "'-5' is no token id"]),
    ("stop id that JSON has not", {"rollout_stop_token_ids": "05"}, ["rollout-stop-token-ids", "'05' is no token id"]),
    ("rate that gives no numbers", {"lr": 1e39}, ["--lr"]),
    ("beta without a correction", {"adam_beta1": 1}, ["--adam-beta1 must be below 1"]),
    ("beta that is 1 in fp32", {"adam_beta2": 0.99999999999}, ["--adam-beta2 must be below 1"]),
    ("no epsilon", {"adam_eps": 0}, ["--adam-eps must be above 0"]),
    ("decay of more than all", {"lr": 1, "weight_decay": 2}, ["--lr 1 times --weight-decay 2"]),
    ("critic's decay of more than all", {"advantage_estimator": "ppo", "critic_lr": 1, "weight_decay": 2}, ["--critic-lr 1 times --weight-decay 2"]),
    ("deadline that no clock has", {"rm_timeout": 1e300}, ["--rm-timeout", "1000000"]),
    ("more at a time than there can be", {"over_sampling_batch_size": 10**12}, ["--over-sampling-batch-size", "16777216"]),
    ("length that an int has not", {"rollout_max_prompt_len": 2**32 + 1}, ["--rollout-max-prompt-len", "16777216"]),
    ("more threads than there can be", {"threads": 100000}, ["--threads", "1024"]),
    ("answers of an evaluation that no int counts", {"eval_prompt_data": "TRAIN", "eval_interval": 1, "n_samples_per_eval_prompt": 2**20},
     ["more than 2^24 samples", "set train"]),
    ("decay that rises", {"lr": 1e-4, "min_lr": 1e-3, "lr_decay_style": "linear"}, ["--min-lr 0.001 is above --lr 0.0001"]),
    ("critic's decay that rises", {"advantage_estimator": "ppo", "lr": 1e-3, "critic_lr": 1e-5, "min_lr": 1e-4, "lr_decay_style": "cosine"},
     ["--min-lr 0.0001 is above --critic-lr 1e-05"]),
    ("no limit", {"rollout_max_response_len": None}, ["rollout-max-response-len"]),
    ("dynamic without a size", {"max_tokens_per_gpu": None}, ["max-tokens-per-gpu"]),
    ("no run folder", {"run": None}, ["--run"]),
    ("unknown reward", {"rm_type": "vibes"}, ["vibes"]),
    ("reward without its command", {"rm_type": "command"}, ["rm-command"]),
    ("reward command not there", {"rm_type": "command", "rm_command": "no-such-grader -u"}, ["--rm-command", "no-such-grader"]),
    ("environment command not there", {"environment_command": "/nowhere/agent", "rollout_max_context_len": 64},
     ["--environment-command", "/nowhere/agent"]),
    ("alarm command not there", {"alarm_command": "/dev/null"}, ["--alarm-command", "not executable"]),
    ("server's option", {"server_max_runing_requests": 4}, ["max-running-requests"]),
    ("penalty", {"server_frequency_penalty": 1}, ["frequency-penalty"]),
    ("tensor parallel", {"tensor_model_parallel_size": 2}, ["tensor-model-parallel-size"]),
    ("device", {"device": "tpu"}, ["tpu"]),
    ("slice", {"prompt_data": "TRAIN@[a:b]"}, ["[a:b]"]),
    ("empty slice", {"prompt_data": "TRAIN@[5:5]"}, ["no prompt"]),
    ("epochs of less than a rollout", {"num_rollout": None, "num_epoch": 1, "prompt_data": "TRAIN@[:3]"},
     ["--num-epoch 1 of 3 prompts", "--rollout-batch-size 4"]),
    ("folder as prompts", {"prompt_data": "/"}, ["/"]),
    ("no prompts", {"prompt_data": "/nowhere.jsonl"}, ["/nowhere.jsonl"]),
    ("no model", {"hf_checkpoint": "/nowhere"}, ["/nowhere"]),
    ("no reference", {"ref_load": "/nowhere", "use_kl_loss": True, "kl_loss_coef": 0.1}, ["/nowhere"]),
    ("nothing serves", {"router_url": "http://127.0.0.1:9", "server_threads": None}, ["127.0.0.1:9", "--router-url"]),
    ("no URL", {"router_url": "nonsense", "server_threads": None}, ["nonsense", "--router-url"]),
    ("best of no evaluation", {"eval_prompt_data": "TRAIN", "keep_best": "train"}, ["--keep-best train needs --eval-interval"]),
    ("eval set", {"eval_prompt_data": "/nowhere.jsonl", "eval_interval": 1}, ["/nowhere.jsonl"]),
]


@pytest.mark.parametrize("change, says", [c[1:] for c in OPTIONS], ids=[c[0] for c in OPTIONS])
def test_rl_options(d, change, says):
    change = {k: v.replace("TRAIN", str(d / "task" / "train.jsonl")) if isinstance(v, str) else v
              for k, v in change.items()}  # fmt: skip
    name = "options-" + "-".join(change)
    fails(rl(d, name, **change), *says)
    if (d / name / "ledger.db").exists():
        db = sqlite3.connect(d / name / "ledger.db")
        assert db.execute("SELECT count(*) FROM steps").fetchone()[0] == 0


# ---- prompt files ----------------------------------------------------------------------------------------------------


LINES = [
    ("broken", b'{"prompt": "1+1", "label": "2"', ["x.jsonl:2"]),
    ("a list", b"[1]", ["x.jsonl:2"]),
    ("no prompt", b'{"label": "2"}', ["x.jsonl:2", 'no "prompt" (--input-key): the row has "label"']),
    ("no label", b'{"prompt": "1+1"}', ["x.jsonl:2", 'no "label" (--label-key): the row has "prompt"']),
    ("prompt a number", b'{"prompt": 5, "label": "2"}', ["x.jsonl:2"]),
    ("prompt twice", b'{"prompt": "a", "prompt": "b", "label": "2"}', ["x.jsonl:2", '"prompt" twice']),
    ("prompt null", b'{"prompt": null, "label": "2"}', ["x.jsonl:2", '"prompt" is null: a prompt is text']),
    ("metadata with a name twice", b'{"prompt": "a", "label": "2", "metadata": {"k": 1, "k": 2}}', ["x.jsonl:2", '"metadata"', '"k" is there twice']),
    ("metadata with one further in", b'{"prompt": "a", "label": "2", "metadata": {"a": [{"k": 1, "\\u006b": 2}]}}',
     ["x.jsonl:2", '"metadata"', '"k" is there twice']),
    ("messages of text", b'{"prompt": ["a"], "label": "2"}', ["x.jsonl:2", "messages", "expected an object"]),
    ("tools that are no JSON", b'{"prompt": "a", "label": "2", "tools": "x"}', ["x.jsonl:2", '"tools" is text']),
    ("type of reward a number", b'{"prompt": "a", "label": "2", "metadata": {"rm_type": 5}}',
     ["x.jsonl:2", "metadata", "rm_type"]),
    ("empty messages", b'{"prompt": [], "label": "2"}', ["x.jsonl:2"]),
    ("not UTF-8", b'{"prompt": "\xff", "label": "2"}', ["x.jsonl:2"]),
    ("metadata a list", b'{"prompt": "a", "label": "2", "metadata": [1]}', ["x.jsonl:2", "metadata"]),
    ("deep", b'{"prompt": ' + b"[" * 5000, ["x.jsonl:2"]),
    ("zeros that a crash left", b"\0" * 100, ["x.jsonl:2"]),
]


@pytest.mark.parametrize("command, line, says", [pytest.param(command, line, says, id=f"{command}-{name}") for command in ("rl", "sft")
                                                 for name, line, says in LINES if command == "rl" or b"metadata" not in line])  # fmt: skip
def test_lines(d, tmp_path, command, line, says):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"prompt": "1+1", "label": "2"}\n' + line + b"\n")
    if command == "rl":
        fails(rl(d, "lines", prompt_data=path), *says)
    else:
        fails(["sft", "--hf-checkpoint", d / "init", "--prompt-data", path, "--label-key", "label",
               "--apply-chat-template", "--save-hf", tmp_path / "out"], *says)  # fmt: skip
        assert not (tmp_path / "out").exists()


def test_fields_of_one_name(d, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("prompt,label,prompt\na,1,b\n")
    fails(rl(d, "columns", prompt_data=path), "x.csv:1", "two fields of the header have the same name")


@pytest.mark.parametrize("head, form", [(b"\x1f\x8b\x08", "gzip"), (b"PK\x03\x04", "zip"), (b"PAR1", "Parquet"),
                                        ('{"prompt": "a"}'.encode("utf-16"), "UTF-16")])  # fmt: skip
def test_files_of_other_forms(d, tmp_path, head, form):
    path = tmp_path / "x.jsonl"
    path.write_bytes(head + bytes(64))
    fails(rl(d, "forms", prompt_data=path), "x.jsonl", form, "not read")


def test_sources_that_are_no_files(d, tmp_path):
    """A pipe that nobody writes to is not waited for, and a line that never ends is not read to the end of memory."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    fails(rl(d, "sources", prompt_data=tmp_path / "pipe.jsonl"), "pipe.jsonl: it is no plain file")
    fails(rl(d, "sources", prompt_data="/dev/zero"), "/dev/zero: it is no plain file")
    fails(rl(d, "sources", prompt_data=tmp_path), f"{tmp_path}: it is a folder")
    with open(tmp_path / "long.jsonl", "wb") as f:
        f.write(b'{"prompt": "1", "label": "1"}\n')
        f.truncate(1 << 30)  # sparse
    fails(rl(d, "sources", prompt_data=tmp_path / "long.jsonl"), "long.jsonl:2: the line is over 64 MiB")


def test_a_source_that_gives_nothing(d, tmp_path):
    """One of several is as wrong as the only one; why there is nothing is said."""
    train, empty, long = d / "task" / "train.jsonl", tmp_path / "empty.jsonl", tmp_path / "long.jsonl"
    empty.write_text("\n \n")
    long.write_text(json.dumps({"prompt": 90 * "x", "label": "1", "chosen": "a", "rejected": "a"}) + "\n")
    fails([*rl(d, "sources"), "--prompt-data", train, empty], f"{empty} holds no prompt")
    fails([*rl(d, "sources", rollout_max_prompt_len=60), "--prompt-data", long], f"{long} holds no prompt that is short enough: of 60 tokens at most")
    sft = ["sft", "--hf-checkpoint", d / "init", "--label-key", "label", "--apply-chat-template", "--save-hf", tmp_path / "out",
           "--max-len", 60, "--prompt-data", train]  # fmt: skip
    fails([*sft, empty], f"{empty} holds no prompt")
    fails([*sft, long], f"{long} leaves no sample to train on; left out of all sources: 1 longer than the limit")
    fails(["dpo", "--hf-checkpoint", d / "init", "--apply-chat-template", "--save-hf", tmp_path / "out", "--prompt-data", long],
          "left out: 0 longer than the limit, 1 without a token to train on")  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name, text", [("x.jsonl", '{"prompt": "a", "label": "2"}\n'),
                                        ("x.json", '[{"prompt": "a", "label": "2"}]'),
                                        ("x.csv", "prompt,label\na,2\n")])  # fmt: skip
def test_a_byte_order_mark_is_none_of_the_data(d, tmp_path, name, text):
    (tmp_path / name).write_text("\ufeff" + text)
    status, out, err = run("clime-train", "data", tmp_path / name, "--input-key", "prompt", "--label-key", "label")
    assert status == 0 and "1 row" in out, (out, err)


def test_sft_response_that_is_no_text(d, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "a", "response": "b"}\n{"prompt": "a", "response": 5}\n')
    fails(["sft", "--hf-checkpoint", d / "init", "--prompt-data", path, "--save-hf", tmp_path / "out"],
          f"{path}, line 2", "response")  # fmt: skip
    fails(["sft", "--hf-checkpoint", d / "init", "--prompt-data", "/nowhere.jsonl", "--save-hf", tmp_path / "out"],
          "/nowhere.jsonl")  # fmt: skip


SAID = '{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}'
TWICE = [  # options, a row, what is said
    (["sft", "--messages-key", "m"], f'{{"m": [{SAID}], "m": [{SAID}]}}', '"m" twice'),
    (["sft", "--messages-key", "m", "--tool-key", "t"], f'{{"m": [{SAID}], "t": "x"}}', '"t" is text that is no JSON'),
    (["sft", "--ids-key", "ids"], '{"ids": [1, 2], "mask": [0, 1], "mask": [0, 1]}', '"mask" twice'),
    (["dpo", "--apply-chat-template"], '{"prompt": "a", "chosen": "b", "rejected": "c", "chosen": "d"}', '"chosen" twice'),
    (["dpo", "--apply-chat-template", "--tool-key", "t"], '{"prompt": "a", "chosen": "b", "rejected": "c", "t": "x"}', '"t" is text'),
]


@pytest.mark.parametrize("words, row, says", TWICE, ids=[t[2] + " of " + t[0][0] for t in TWICE])
def test_rows_that_mean_two_things(d, tmp_path, words, row, says):
    path = tmp_path / "x.jsonl"
    path.write_text(row + "\n")
    fails([*words, "--hf-checkpoint", d / "init", "--prompt-data", path, "--save-hf", tmp_path / "out"], "x.jsonl, line 1", says)


def test_tools_as_text_are_tools(d, tmp_path):
    """Of sft's conversations as of rl's prompts: some files have the list written as a string."""
    shutil.copytree(d / "init", tmp_path / "init")
    shutil.copy(ROOT / "examples" / "environments" / "tools.jinja", tmp_path / "init" / "chat_template.jinja")
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"m": [{SAID}], "t": {json.dumps(t)}}}\n' for t in (tools, json.dumps(tools), "", None)))
    status, out, err = run("clime-train", "sft", "--messages-key", "m", "--tool-key", "t", "--hf-checkpoint", tmp_path / "init",
                           "--prompt-data", path, "--print-samples", 4)  # fmt: skip
    one, other, empty, none = out.splitlines()
    assert status == 0 and one == other and empty == none != one and "97,100,100,32" in one, (out, err)  # "add "


def test_sft_id_outside_the_vocabulary(d, tmp_path):
    """In the last row: said before the first step, with its line."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"ids": [1, 2], "mask": [0, 1]}\n' * 3 + '{"ids": [1, 272], "mask": [0, 1]}\n')
    fails(["sft", "--hf-checkpoint", d / "init", "--prompt-data", path, "--ids-key", "ids", "--global-batch-size", 1,
           "--no-shuffle", "--save-hf", tmp_path / "out"], f"{path}, line 4", "from 0 to 271")  # fmt: skip


def test_sft_keys_with_escapes(d, tmp_path):
    path = tmp_path / "x.jsonl"
    line = r'{"meta\"x": {"a\n": 1}, "mess\u0061ges": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    path.write_text(line + "\n")
    status, _, err = run("clime-train", "sft", "--hf-checkpoint", d / "init", "--prompt-data", path, "--messages-key",
                         "messages", "--num-epoch", 1, "--global-batch-size", 1, "--save-hf", tmp_path / "out",
                         "--threads", 1)  # fmt: skip
    assert status == 0 and (tmp_path / "out" / "config.json").exists(), err


@pytest.mark.parametrize("name", ["architecture unknown", "data cut", "header length huge", "type not supported"])
def test_rl_refuses_a_folder(d, tmp_path, name):
    change, says = next(c[1:] for c in FOLDERS if c[0] == name)
    shutil.copytree(d / "init", tmp_path / "model")
    change(tmp_path / "model")
    fails(rl(d, "folders", hf_checkpoint=tmp_path / "model"), *says)


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_folders_that_cannot_be_written(d, tmp_path):
    taken = tmp_path / "file"
    taken.write_text("in the way")
    fails(rl(d, "x", run=taken / "run"), str(taken))
    fails(rl(d, "x", run=taken), str(taken))
    fails(rl(d, "x", save=taken / "checkpoints"), str(taken))
    fails(rl(d, "x", save=taken), "--save", str(taken), "Not a directory")
    fails(rl(d, "x", save="/proc/self"), "--save", "/proc/self/")  # a folder, but nothing can be made in it
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("in the way")
    fails(rl(d, "x", run=tmp_path / "run"), str(tmp_path / "run" / "checkpoints"))
    fails(["sft", "--hf-checkpoint", d / "init", "--prompt-data", d / "task" / "warmup.jsonl", "--apply-chat-template",
           "--save-hf", taken / "out", "--threads", 1], str(taken))  # fmt: skip
    fails(["init", taken / "model"], str(taken))
    before = (d / "init" / "model.safetensors").read_bytes()
    fails(["init", d / "init"], str(d / "init"), "holds a model")
    assert (d / "init" / "model.safetensors").read_bytes() == before
    for words in (["init", "/proc"], rl(d, "mounted", save_hf="/proc")):
        fails(words, "/proc is a mount point")
    fails(["task", taken / "task"], str(taken))
    before = (d / "task" / "train.jsonl").read_bytes()
    (d / "task" / "warmup.jsonl").rename(tmp_path / "warmup.jsonl")  # whichever of its files is there
    fails(["task", d / "task"], "heldout.jsonl is there already")
    (tmp_path / "warmup.jsonl").rename(d / "task" / "warmup.jsonl")
    assert (d / "task" / "train.jsonl").read_bytes() == before
    fails(["eval", "--run", taken, "--hf-checkpoint", d / "init", "--eval-prompt-data", "held",
           d / "task" / "heldout.jsonl", "--eval-input-key", "prompt", "--eval-max-response-len", 4, "--rm-type", "random"], str(taken))  # fmt: skip


def test_output_that_is_lost(d, done_run):
    """What a command was run to print does not go missing without a word."""
    for words in (["report", done_run], ["plan", "--hf-checkpoint", d / "init"], [*rl(d, "unsaid"), "--explain"],
                  ["sft", "--hf-checkpoint", d / "init", "--prompt-data", d / "task" / "warmup.jsonl", "--print-samples", 2],
                  ["data", d / "task" / "warmup.jsonl"]):  # fmt: skip
        with open("/dev/full", "w") as full:
            done = subprocess.run([BUILD / "clime-train", *map(str, words)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
        assert done.returncode == 1 and "standard output is not whole" in done.stderr, (words, done.stderr[-1000:])


def same_as_before(d, run_dir):
    """The run's own command finds it finished, as it was."""
    status, out, err = run("clime-train", *rl(d, run_dir.name), timeout=2 * LIMIT)
    assert status == 0 and "done" in out + err


def test_run_of_other_options(d, done_run):
    fails(rl(d, "done", lr=0.5), "--lr", "another run folder")
    fails(rl(d, "done", rollout_seed=5), "--rollout-seed")
    fails(rl(d, "done", prompt_data=d / "task" / "warmup.jsonl", label_key="response"), "differs")
    same_as_before(d, done_run)


def test_run_of_another_model(d, done_run):
    """The same path with another model in it."""
    init = d / "init"
    shutil.move(init, d / "kept")
    try:
        tiny_model(init, **{"intermediate-size": 128})
        fails(rl(d, "done", num_rollout=3), "--hf-checkpoint", "is another one than this run was begun with")
    finally:
        shutil.rmtree(init)
        shutil.move(d / "kept", init)
    same_as_before(d, done_run)


def test_broken_ledgers(d, done_run, tmp_path):
    for name, data in (("text", b"this is no database, but long enough to be read as one" * 100), ("cut", None)):
        folder = tmp_path / name
        shutil.copytree(done_run, folder)
        for extra in ("ledger.db-wal", "ledger.db-shm"):
            (folder / extra).unlink(missing_ok=True)
        path = folder / "ledger.db"
        path.write_bytes(data or path.read_bytes()[:5000])
        fails(["report", folder], "ledger")
        fails(rl(d, "x", run=folder), "ledger")
    newer = tmp_path / "newer"
    shutil.copytree(done_run, newer)
    db = sqlite3.connect(newer / "ledger.db")
    db.execute("PRAGMA user_version = 1000")
    db.commit()
    db.close()
    fails(rl(d, "x", run=newer), "schema version 1000")
    fails(["report", newer], "schema version 1000")


def test_broken_checkpoint(d, done_run, tmp_path):
    """A checkpoint whose file was cut is not exported."""
    newest = sorted(p for p in (done_run / "checkpoints").iterdir() if p.is_dir())[-1]
    for victim in ("state.json", "master.f32"):
        broken = tmp_path / victim
        shutil.copytree(newest, broken)
        os.truncate(broken / victim, (broken / victim).stat().st_size // 2)
        fails(["export", broken, tmp_path / "out", "--hf-checkpoint", d / "init"], victim)


# ---- routers and rewards ---------------------------------------------------------------------------------------------


def test_router_that_never_answers(d):
    """It takes the connection and says nothing: the call's own limit ends it, by name."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        port = mute.getsockname()[1]
        fails(rl(d, "mute", router_url=f"http://127.0.0.1:{port}", server_threads=None), "--router-url", str(port))


@contextlib.contextmanager
def odd_router(answer):
    """Its port. answer(n): what it says on its n-th connection, before it closes it."""
    with socket.create_server(("127.0.0.1", 0)) as odd:

        def serve():
            for n in itertools.count():
                try:
                    c, _ = odd.accept()
                except OSError:
                    return
                with c:
                    c.recv(4096)
                    c.sendall(answer(n))

        threading.Thread(target=serve, daemon=True).start()
        yield str(odd.getsockname()[1])


def test_router_that_speaks_something_else(d):
    with odd_router(lambda n: b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>") as port:
        fails(rl(d, "odd", router_url=f"http://127.0.0.1:{port}", server_threads=None), "--router-url", port)


def test_router_that_breaks_one_connection(d):
    """Once is no reason to call the run off: it is asked again, and what it says then counts."""
    teapot = b"HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with odd_router(lambda n: teapot if n else b"") as port:
        fails(rl(d, "broken", router_url=f"http://127.0.0.1:{port}", server_threads=None), "--router-url", port, "418")


REWARDS = [
    ("dies", "exit 3", {}, ["failed"]),
    ("hangs", "sleep 1000", {"rm_timeout": 0.3}, ["TIMEOUT"]),
    ("says nonsense", "while read -r line; do echo nonsense; done", {"rm_timeout": 2}, ["failed"]),
    ("answers others", 'while read -r line; do echo \'{"id": 123456789, "reward": 1}\'; done', {"rm_timeout": 2}, ["failed"]),
    ("not a number", 'while read -r l; do i=${l#*\\"id\\":}; echo "{\\"id\\":${i%%[,\\}]*},\\"reward\\":\\"x\\"}"; done',
     {"rm_timeout": 2}, ["failed"]),
]  # fmt: skip


@pytest.mark.parametrize("command, change, says", [c[1:] for c in REWARDS], ids=[c[0] for c in REWARDS])
def test_rewards_that_fail(d, command, change, says, request):
    """The run ends and says why; nothing was trained, every failed sample has its reason and no reward."""
    name = "reward-" + request.node.callspec.id.replace(" ", "-")
    fails(rl(d, name, rm_type="command", rm_command=command, rollout_batch_size=1, global_batch_size=2, **change), *says)
    db = sqlite3.connect(d / name / "ledger.db")
    one = lambda sql: db.execute(sql).fetchone()[0]
    assert one("SELECT count(*) FROM samples WHERE status = 'failed'") > 0
    assert one("SELECT count(*) FROM samples WHERE status = 'failed' AND (error IS NULL OR reward IS NOT NULL)") == 0
    assert one("SELECT count(*) FROM steps") == 0


def test_eval_input(d, tmp_path):
    def evaluate(**change):
        options = {"run": tmp_path / "run", "hf_checkpoint": d / "init", "apply_chat_template": True, "rm_type": "random",
                   "eval_input_key": "prompt", "eval_label_key": "label", "eval_max_response_len": 4, **change}  # fmt: skip
        return ["eval", *words_of(options)]

    held = d / "task" / "heldout.jsonl"
    fails([*evaluate(), "--eval-prompt-data", "a", "/nowhere.jsonl"], "/nowhere.jsonl")
    fails([*evaluate(), "--eval-prompt-data", "a", held, "a", held], "two sets are named a")
    fails([*evaluate(), "--eval-prompt-data", "a", held, "b"], "pairs")
    fails([*evaluate(eval_input_key="question"), "--eval-prompt-data", "a", held], "question", ":1")
    fails([*evaluate(eval_label_key="answer"), "--eval-prompt-data", "a", held], "answer", ":1")
    fails([*evaluate(rm_type="vibes"), "--eval-prompt-data", "a", held], "vibes")
    fails([*evaluate(hf_checkpoint="/nowhere"), "--eval-prompt-data", "a", held], "/nowhere")
    fails([*evaluate(router_url="http://127.0.0.1:9"), "--eval-prompt-data", "a", held], "--router-url")


def limited(words, **limits):
    """Runs clime-train with these limits (resource.RLIMIT_*): (status, errors). A crash is a failure here."""
    def set_them():
        for name, most in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))

    done = subprocess.run([BUILD / "clime-train", *map(str, words)], capture_output=True, text=True, timeout=LIMIT,
                          preexec_fn=set_them)  # fmt: skip
    assert done.returncode >= 0, (limits, done.stderr[-2000:])
    return done.returncode, done.stderr


def test_few_descriptors_and_small_files(d):
    """The run ends with a word, whichever file it could not open, and whatever it could not write; then it goes on."""
    words = rl(d, "limits", save_interval=1)
    for most in (12, 16, 24, 36):
        status, err = limited(words, NOFILE=most)
        assert status == 0 or err, most
    for most in (4096, 200_000):
        status, err = limited(words, FSIZE=most)
        assert status == 1 and ("File too large" in err or "disk" in err), (most, err[-500:])
    assert limited(words)[0] == 0


def test_a_folder_inside_a_checkpoint(d):
    """Retention removes a checkpoint's own files and goes on; what a user put there stays, with a warning."""
    name = "folder-in-checkpoint"
    words = lambda n: rl(d, name, num_rollout=n, save_interval=1, keep_checkpoints=1)
    assert limited(words(1))[0] == 0
    (first,) = (d / name / "checkpoints").iterdir()
    for place in (first / "hf", first.parent / "hf"):
        fails(["export", first, place, "--hf-checkpoint", d / "init", "--device", "cpu"], "name a place outside")
    (first / "hf").mkdir()
    (first / "notes.txt").write_text("mine")
    status, err = limited(words(3))
    assert status == 0 and f"{first} stays" in err, err[-2000:]
    assert sorted(p.name for p in first.iterdir()) == ["hf", "notes.txt"]
    left = [p for p in first.parent.iterdir() if p != first]
    db = sqlite3.connect(d / name / "ledger.db")
    assert len(left) == 1 and db.execute("SELECT count(*) FROM checkpoints").fetchone()[0] == 1
    assert limited(words(4))[0] == 0


def test_children_leave_nothing(d, done_run):
    """No program of the runs above is left."""
    left = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[0].startswith(os.fsencode(BUILD)) and any(os.fsencode(d) in w for w in words):
            left.append(words)
    assert not left


def test_save_hf_of_a_run_that_goes_on(d, done_run):
    """What lies where the model of a rollout that is done was written is no matter; where the next is to go, it is."""
    for rollout in (0, 2, 19):
        (d / f"hf-{rollout}").mkdir()
        (d / f"hf-{rollout}" / "notes").touch()
    fails(rl(d, "done", num_rollout=50, save_hf=d / "hf-{rollout_id}"), "--save-hf", "hf-19")  # of every 20th
    fails(rl(d, "done", num_rollout=3, save_hf=d / "hf-{rollout_id}"), "--save-hf", "hf-2")
    (d / "hf-2" / "notes").unlink()
    (d / "hf-2").rmdir()
    status, _, err = run("clime-train", *rl(d, "done", save_hf=d / "hf-{rollout_id}"))
    assert status == 0, err


def test_save_hf_where_others_write(d):
    """What lies there is not replaced: the run ends, but the steps until then are in its checkpoint, and it goes on when that is gone."""
    out, other = d / "hf-shared", d / "hf-shared" / "policy.gguf"
    reward = f"""while read -r l; do
        if test -e {out} && ! test -e {d}/shared; then touch {other}; fi
        i=${{l#*\\"id\\":}}; echo "{{\\"id\\":${{i%%[,\\}}]*}},\\"reward\\":1}}"
    done"""
    words = rl(d, "shared-hf", save_hf=out, save_interval=1, rm_type="command", rm_command=reward)
    fails(words, "policy.gguf")
    assert sqlite3.connect(d / "shared-hf" / "ledger.db").execute("SELECT max(step) FROM checkpoints").fetchone() == (2,)
    assert os.listdir(out).count("policy.gguf") == 1
    fails(words, "--save-hf", "policy.gguf")
    other.unlink()
    (d / "shared").touch()
    status, _, err = run("clime-train", *words)
    assert status == 0 and "config.json" in os.listdir(out), err
