"""One truth for all processes: what ranks, servers, teachers and a resumed command bring with them is compared with what the
trainer computes with, and what differs is refused by its key with both values, or allowed by its key and recorded."""

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess

import pytest
from programs import ROOT, free_port, needs_stories, server
from test_external import call, fleet, until
from test_rl import BUILD, LIMIT, TRAIN, command, held_until, model, run_whole, start  # noqa: F401  the fixture

HEX = "[0-9a-f]{16}"


def short(model, name, *more, **change):  # noqa: F811
    """A run of a second. A repeated option: the last one counts."""
    words = dict(num_rollout=2, rollout_batch_size=2, n_samples_per_prompt=2, num_steps_per_rollout=1, rollout_max_response_len=8,
                 save_interval=1, eval_interval=1000)  # fmt: skip
    return command(model, model / name, "--skip-eval-before-train", "--page-port", "-1", *more, **{**words, **change})


def ends(words, log, status=1, **env):
    with open(log, "w") as f:
        p = subprocess.run(words, stdout=f, stderr=f, timeout=2 * LIMIT, env={**os.environ, **env})
    text = open(log).read()
    assert p.returncode == status, text[-3000:]
    return text


def events(run_dir, kind="difference"):
    with contextlib.closing(sqlite3.connect(run_dir / "ledger.db")) as db:
        return [d for (d,) in db.execute("SELECT detail FROM events WHERE kind = ?", (kind,))]


def change_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def flip(path, back=2):
    data = bytearray(path.read_bytes())
    data[-back] ^= 1
    path.write_bytes(data)


# ---- ranks ----


@pytest.fixture(scope="module")
def hosts(model):  # noqa: F811
    """Two hosts' disks, with a model of the same name on each."""
    for host in "ab":
        (model / host).mkdir()
        shutil.copytree(model / "init", model / host / "m")
    return model


def sft(d, *more):
    return [TRAIN, "sft", "--hf-checkpoint", "m", "--prompt-data", d / "task" / "warmup.jsonl", "--apply-chat-template", "--global-batch-size", "16",
            "--num-epoch", "1", "--actor-num-gpus-per-node", "2", "--save-hf", d / "out", *more]  # fmt: skip


def launch(d, name, *words):
    """Ranks 0 and 1, each in the folder of its host; their statuses and logs."""
    port, ranks = free_port(), []
    for r, host in ((1, "b"), (0, "a")):
        env = dict(RANK=r, WORLD_SIZE=2, LOCAL_RANK=r, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        log = open(d / f"{name}-{r}.log", "w")
        ranks.append(subprocess.Popen(list(map(str, words[r if len(words) > 1 else 0])), cwd=d / host, stdout=log, stderr=log,
                                      env={**os.environ, **{k: str(v) for k, v in env.items()}}))  # fmt: skip
    return [p.wait(timeout=2 * LIMIT) for p in ranks], [(d / f"{name}-{r}.log").read_text() for r in (0, 1)]


def test_ranks_that_read_the_same(hosts):
    statuses, logs = launch(hosts, "same", sft(hosts))
    assert statuses == [0, 0], logs[0][-2000:]


@pytest.mark.parametrize("shard", ["on", "off"])
def test_a_rank_with_other_weights(hosts, shard):
    weights = hosts / "b" / "m" / "model.safetensors"
    flip(weights)
    try:
        statuses, logs = launch(hosts, f"weights-{shard}", sft(hosts, "--shard-weights", shard))
    finally:
        flip(weights)
    assert statuses == [1, 1]
    for log in logs:
        assert re.search(rf"rank 1 of 2 \(pid \d+\) has weights {HEX}, rank 0 has {HEX}", log), log[-2000:]


@pytest.mark.parametrize("key, value", [("rms_norm_eps", 1e-3), ("rope_theta", 5000.0)])
def test_a_rank_with_another_configuration(hosts, key, value):
    config = hosts / "b" / "m" / "config.json"
    text = config.read_text()
    change_config(hosts / "b" / "m", **{key: value})
    try:
        statuses, logs = launch(hosts, key, sft(hosts))
    finally:
        config.write_text(text)
    assert statuses == [1, 1]
    mine = json.loads(text)[key]
    for log in logs:
        said = re.search(rf"rank 1 of 2 \(pid \d+\) has {key} (\S+), rank 0 has (\S+)", log)
        assert said and [float(x) for x in said.groups()] == [value, mine], log[-2000:]


def test_a_rank_with_another_reference(hosts):
    """Not only the policy's folder is each rank's own."""
    for host in "ab":
        shutil.copytree(hosts / "init", hosts / host / "r", dirs_exist_ok=True)
    flip(hosts / "b" / "r" / "model.safetensors")
    with open(hosts / "pairs.jsonl", "w") as f:
        for i in range(8):
            f.write(json.dumps({"prompt": f"{i}+1", "chosen": str(i + 1), "rejected": str(i)}) + "\n")
    words = [TRAIN, "dpo", "--hf-checkpoint", "m", "--ref-load", "r", "--prompt-data", hosts / "pairs.jsonl", "--apply-chat-template",
             "--global-batch-size", "4", "--actor-num-gpus-per-node", "2", "--save-hf", hosts / "out-dpo"]  # fmt: skip
    statuses, logs = launch(hosts, "reference", words)
    assert statuses == [1, 1] and all("has reference.weights" in log for log in logs), logs[0][-2000:]


def test_a_rank_of_another_job(hosts):
    """It came to the same port: its options were not looked at, and it was the run's rank 1."""
    statuses, logs = launch(hosts, "job", sft(hosts, "--lr", "1e-3"), sft(hosts, "--lr", "5"))
    assert statuses == [1, 1]
    assert all("has --lr 5, rank 0 has 1e-3" in log for log in logs), logs[0][-2000:]


# ---- servers ----


@pytest.mark.parametrize("what", ["stop ids", "template", "eps", "tokenizer"])
def test_a_server_of_another_folder(model, what, tmp_path):  # noqa: F811
    init = model / "init"
    folder = tmp_path / "s"
    shutil.copytree(init, folder)
    key = {"stop ids": "stop-token-ids", "template": "chat-template", "eps": "rms_norm_eps", "tokenizer": "tokenizer"}[what]
    if what == "stop ids":
        (folder / "generation_config.json").write_text('{"eos_token_id": [48, 49, 257]}')
    elif what == "eps":
        change_config(folder, rms_norm_eps=1e-3)
    else:
        name = "tokenizer_config.json" if what == "template" else "tokenizer.json"
        text = (folder / name).read_text()
        file = json.loads(text)
        if what == "template":
            file["chat_template"] += "!"
        (folder / name).write_text(json.dumps(file, indent=3))
    with fleet(tmp_path, folder, 1) as (router, _):
        words = short(model, f"other-{key}", "--router-url", router)
        text = ends(words, model / f"other-{key}.log")
        assert re.search(rf"http://\S+ has {key} \S+, the trainer has \S+", text.splitlines()[-1]), text[-2000:]
        if what != "stop ids":
            return
        assert "has stop-token-ids 48,49,257, the trainer has " in text
        sha = run_whole([*words, "--allow-difference", key], model / "allowed.log")
        assert sha and any("has stop-token-ids 48,49,257" in e for e in events(model / f"other-{key}"))


def test_a_server_of_another_folder_beside_a_good_one(model, tmp_path):  # noqa: F811
    """It is left out, and the weights are those of the good one's samples."""
    sha = run_whole(short(model, "alone"), model / "alone.log")
    folder = tmp_path / "s"
    shutil.copytree(model / "init", folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [48, 49, 257]}')
    with fleet(tmp_path, model / "init", 1) as (router, _), server(model=folder) as bad:
        call("POST", f"{router}/workers", {"url": bad.url})
        log = model / "beside.log"
        assert run_whole(short(model, "beside", "--router-url", router), log) == sha
    assert "is out of the router" in open(log).read() and "has stop-token-ids 48,49,257" in open(log).read()


@pytest.mark.parametrize("option, n", [("context-length", 12), ("max-total-tokens", 64)])
def test_a_server_without_room_for_a_sample(model, option, n):  # noqa: F811
    """It would cut samples earlier than the run says, and they would be trained as truncated."""
    text = ends(short(model, f"room-{option}", f"--server-{option}", str(n), rollout_max_response_len=70), model / f"room-{option}.log")
    assert re.search(rf"has room for sequences of {n} tokens \(context_length\), samples may have \d+", text.splitlines()[-1]), text[-2000:]


def test_a_server_that_is_started_again_as_another(model, tmp_path):  # noqa: F811
    """Behind the same address, while a run goes on: it gets no request more."""
    init, other, port = model / "init", tmp_path / "other", free_port()
    shutil.copytree(init, other)
    change_config(other, rms_norm_eps=1e-3)
    go = tmp_path / "go"
    run = lambda folder: subprocess.Popen([os.path.join(BUILD, "clime-server"), "--model-path", str(folder), "--device", "cpu", "--port", str(port)],
                                          stdout=open(tmp_path / "server.log", "a"), stderr=subprocess.STDOUT)  # fmt: skip
    with fleet(tmp_path, init, 1) as (router, _):
        first = run(init)
        try:
            until(lambda: "ready on" in (tmp_path / "server.log").read_text(), "the second server")
            call("POST", f"{router}/workers", {"url": f"http://127.0.0.1:{port}"})
            log = model / "again.log"
            p = start(short(model, "again", "--router-url", router, num_rollout=3, **held_until(go)), log)
            until(lambda: "weights go to" in open(log).read() and open(log).read().count("weights go to") == 2, "both to have weights")
            first.kill()
            first.wait()
            first = run(other)
            until(lambda: "has rms_norm_eps 0.001, the trainer has" in open(log).read(), "the other model to be seen")
            go.touch()
            assert p.wait(timeout=2 * LIMIT) == 0, open(log).read()[-2000:]
        finally:
            first.kill()
            first.wait()
    assert "is out of the router" in open(log).read()


# ---- weights from a folder ----


@pytest.mark.parametrize("key, value", [("rope_theta", 300.0), ("rms_norm_eps", 0.05), ("architectures", ["LlamaForCausalLM"])])
def test_update_from_a_folder_of_another_configuration(model, tmp_path, key, value):  # noqa: F811
    folder = tmp_path / "l"
    shutil.copytree(model / "init", folder)
    change_config(folder, **{key: value})
    with server(model=model / "init") as s:
        reply = s.post("/update_weights_from_disk", {"model_path": str(folder)})
        assert reply.status_code == 400 and key in reply.json()["message"], reply.text
        assert s.post("/update_weights_from_disk", {"model_path": str(model / "init")}).status_code == 200
        said = s.get("/server_info").json()["identity"]
        assert "weights" not in said  # an update has replaced those of the folder


@pytest.mark.parametrize("key, value", [("rope_theta", 300.0), ("rms_norm_eps", 0.05)])
def test_initial_weights_of_another_configuration(model, tmp_path, key, value):  # noqa: F811
    folder = tmp_path / "l"
    shutil.copytree(model / "init", folder)
    change_config(folder, **{key: value})
    text = ends(short(model, f"load-{key}", "--load", str(folder)), model / f"load-{key}.log")
    assert f"--load {folder} has {key} " in text and f"--hf-checkpoint {model / 'init'} has " in text, text


def test_a_reference_alone(model, tmp_path):  # noqa: F811
    """It would be the policy's beginning too, which is said by --load."""
    init = model / "init"
    kl = ["--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load"]
    shutil.copytree(init, tmp_path / "copy")
    flip(tmp_path / "copy" / "model.safetensors")
    text = ends(short(model, "reference", *kl, str(tmp_path / "copy")), model / "reference.log")
    assert "--ref-load" in text and "say --load" in text, text
    log = model / "reference-said.log"
    assert run_whole(short(model, "reference-said", *kl, str(tmp_path / "copy"), "--load", str(init), num_rollout=1), log)
    assert f"the initial weights are those of --load {init}" in open(log).read()


# ---- at resume ----


def test_another_reward_command(model, tmp_path):  # noqa: F811
    script = tmp_path / "a.sh"
    answer = 'while read -r line; do id=${line#*\\"id\\":}; id=${id%%,*}; echo "{\\"id\\":$id,\\"reward\\":$((id % 2))}"; done\n'
    script.write_text(answer)
    words = lambda n, cmd, *more: short(model, "reward", *more, rm_type="command", rm_command=cmd, num_rollout=n)
    run_whole(words(1, f"sh {script}"), model / "reward.log")
    text = ends(words(2, f"exec sh {script}"), model / "reward-2.log")
    assert "--rm-command is another one" in text and f"exec sh {script}, it was sh {script}" in text, text
    script.write_text(answer + "# another one\n")
    assert f"--rm-command's file {script} is another one" in ends(words(2, f"sh {script}"), model / "reward-3.log")
    run_whole(words(2, f"sh {script}", "--allow-difference", "rm-command"), model / "reward-4.log")
    assert any("--allow-difference rm-command" in e for e in events(model / "reward"))


def test_what_may_change_at_resume(model):  # noqa: F811
    """The granularity of recomputing gives the same bits."""
    sha = run_whole(short(model, "whole"), model / "whole.log")
    run_whole(short(model, "recompute", "--recompute-granularity", "full", num_rollout=1), model / "recompute.log")
    assert run_whole(short(model, "recompute", "--recompute-granularity", "selective"), model / "recompute.log") == sha


def test_both_values_of_what_changed(model):  # noqa: F811
    folder = model / "changed"
    shutil.copytree(model / "init", folder)
    words = lambda *more, **change: short(model, "values", *more, **{"hf_checkpoint": folder, **change})
    run_whole(words(num_rollout=1), model / "values.log")
    assert "--eps-clip differs from what this run was begun with (0.3, it was 0.2)" in ends(words("--eps-clip", "0.3"), model / "values-2.log")
    (folder / "generation_config.json").write_text('{"eos_token_id": 48}')
    assert re.search(r"the stop-token-ids of --hf-checkpoint \S+ is another one than this run was begun with \(48,\d+, it was \d+\)",
                     ends(words(), model / "values-3.log"))  # fmt: skip


# ---- a teacher ----


@needs_stories
def test_a_teacher_of_another_vocabulary(model):  # noqa: F811
    with server() as t:
        words = short(model, "teacher", "--use-opd", "--opd-type", "sglang", "--opd-teacher-url", t.url)
        text = ends(words, model / "teacher.log")
    assert re.search(rf"has teacher.vocabulary {HEX}, the policy has {HEX}", text), text[-2000:]


# ---- what is documented ----


def test_the_keys_are_documented(model):  # noqa: F811
    text = (ROOT / "docs" / "devices.md").read_text()
    with server(model=model / "init") as s:
        said = s.get("/server_info").json()["identity"]
    config = json.loads((model / "init" / "config.json").read_text())
    assert "weights" in said and len(said) > 15
    for key in set(said) - set(config):
        assert f"`{key}`" in text, key
