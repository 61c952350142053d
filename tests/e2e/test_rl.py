"""The whole loop through the real three programs: same weights whatever happens to them.

One undisturbed run gives the SHA-256 of the final weights. Every other run has the same seed and must end with the same
one: with two servers, with other server limits, and after `kill -9` of trainer, server or router at seeded random
moments with a restart of the same command. CLIME_KILLS (default 20) is the number of kills of each kind.
"""

import json
import os
import random
import re
import signal
import sqlite3
import struct
import subprocess
import time

import pytest

BUILD = os.path.abspath(os.environ.get("CLIME_BUILD", "build"))
TRAIN = os.path.join(BUILD, "clime-train")
KILLS = int(os.environ.get("CLIME_KILLS", "20"))
LIMIT = 60  # seconds: no wait of a run may be longer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny random model and a task; the reward is random by seed, so that every rollout has a gradient."""
    d = tmp_path_factory.mktemp("rl")
    run = lambda *a: subprocess.run([TRAIN, *map(str, a)], check=True, capture_output=True, timeout=LIMIT)
    run("init", d / "init", "--family", "qwen3", "--hidden-size", 64, "--intermediate-size", 192,
        "--num-hidden-layers", 2, "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 64,
        "--max-position-embeddings", 256)  # fmt: skip
    run("task", d / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 40, "--num-heldout", 20)
    return d


def command(model, run_dir, *more, **change):
    options = {
        "run": run_dir, "hf-checkpoint": model / "init", "prompt-data": model / "task" / "train.jsonl",
        "input-key": "prompt", "label-key": "label", "rm-type": "random", "num-rollout": 8, "rollout-batch-size": 6,
        "n-samples-per-prompt": 4, "num-steps-per-rollout": 2, "rollout-max-response-len": 96, "lr": 5e-4,
        "max-tokens-per-gpu": 512, "save-interval": 3, "eval-interval": 4,
        **{k.replace("_", "-"): v for k, v in change.items()},
    }  # fmt: skip
    words = [TRAIN, "rl", "--apply-chat-template", "--rollout-shuffle", "--use-dynamic-batch-size",
             "--eval-prompt-data", "heldout", str(model / "task" / "heldout.jsonl@[0:4]")]  # fmt: skip
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return words + list(more)


def start(words, log):
    return subprocess.Popen(words, stdout=open(log, "a"), stderr=subprocess.STDOUT)


def run_whole(words, log):
    p = start(words, log)
    assert p.wait(timeout=2 * LIMIT) == 0, open(log).read()[-2000:]
    return final_sha(log)


def final_sha(log):
    found = re.findall(r"^done .*sha256 ([0-9a-f]{64})$", open(log).read(), re.M)
    return found[-1] if found else None


def children(pid):
    """Pid by name of the trainer's children."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as f:
                name, rest = f.read().rsplit(")", 1)
            if int(rest.split()[1]) == pid and rest.split()[0] != "Z":
                found[int(entry)] = name.split("(", 1)[1]
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def metrics(run_dir):
    return [json.loads(line) for line in open(run_dir / "metrics.jsonl")]


def check_record(run_dir):
    """What must hold in every finished run's folder."""
    lines = metrics(run_dir)
    steps = [m for m in lines if m["kind"] == "train"]
    assert [m["step"] for m in steps] == list(range(1, 17))
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps if m["train/logprob_gap_tokens"])
    assert all(m["train/logprob_gap_tokens"] > 0 for m in steps if m["step"] % 2 == 1)
    assert [m["eval/step"] for m in lines if m["kind"] == "eval"] == [0, 8, 16]
    db = sqlite3.connect(run_dir / "ledger.db")
    one = lambda sql: db.execute(sql).fetchone()[0]
    assert one("SELECT count(*) FROM steps WHERE done_us IS NULL") == 0
    assert one("SELECT count(*) FROM step_samples") == 8 * 24
    assert one("SELECT count(*) FROM samples WHERE status NOT IN ('completed', 'truncated') OR reward IS NULL") == 0
    assert one("SELECT count(*) FROM samples WHERE lease_incarnation IS NOT NULL") == 0
    ids, n_prompt, n_response, logp, mask = db.execute(
        "SELECT ids, n_prompt, n_response, logp, mask FROM samples ORDER BY id LIMIT 1").fetchone()  # fmt: skip
    assert len(ids) == 4 * (n_prompt + n_response) and len(logp) == 4 * n_response and len(mask) == n_response
    assert all(v <= 0 for v in struct.unpack(f"<{n_response}f", logp))
    db.close()


@pytest.fixture(scope="module")
def undisturbed(model):
    """(final SHA-256, seconds) of the run that nothing happens to."""
    t0 = time.monotonic()
    sha = run_whole(command(model, model / "undisturbed"), model / "undisturbed.log")
    check_record(model / "undisturbed")
    return sha, time.monotonic() - t0


@pytest.mark.parametrize(
    "name, more",
    [
        ("two_servers", ["--num-servers", "2"]),
        ("other_limits", ["--server-max-running-requests", "3", "--server-chunked-prefill-size", "7"]),
        ("no_cache", ["--server-disable-radix-cache", "--server-concurrency", "2"]),
        ("two_threads", ["--threads", "1", "--sglang-threads", "2"]),
    ],
)
def test_same_weights(model, undisturbed, name, more):
    assert run_whole(command(model, model / name, *more), model / f"{name}.log") == undisturbed[0]
    check_record(model / name)


def test_another_seed_gives_other_weights(model, undisturbed):
    words = command(model, model / "seed", rollout_seed=7)
    assert run_whole(words, model / "seed.log") != undisturbed[0]


def test_resume_of_a_finished_run_changes_nothing(model, undisturbed):
    before = metrics(model / "undisturbed")
    words = command(model, model / "undisturbed")
    assert run_whole(words, model / "again.log") == undisturbed[0]
    assert metrics(model / "undisturbed") == before


def kill_now_and_then(victim, model, name, seconds, n_kills, rng):
    """Runs the command until it ends, with n_kills kills of the victim; returns the longest time between kill and the
    next sign of life (a row in the ledger or the end)."""
    run_dir, log = model / name, model / f"{name}.log"
    words = command(model, run_dir, "--num-servers", "2" if victim == "clime-server" else "1")
    p = start(words, log)
    killed, begun = 0, time.monotonic()
    while True:
        pause = rng.uniform(0.02, max(0.2, seconds * 0.4))
        try:
            code = p.wait(timeout=pause if killed < n_kills else 2 * LIMIT)
            assert code == 0, open(log).read()[-2000:]
            break
        except subprocess.TimeoutExpired:
            assert killed < n_kills, f"no end within {2 * LIMIT} s:\n" + open(log).read()[-2000:]
        if victim == "clime-train":
            p.kill()
            p.wait()
            p = start(words, log)
            killed += 1
        else:
            victims = [pid for pid, comm in children(p.pid).items() if comm == victim]
            if victims:
                os.kill(rng.choice(sorted(victims)), signal.SIGKILL)
                killed += 1
    assert time.monotonic() - begun < LIMIT + n_kills * seconds
    return killed


@pytest.mark.parametrize("victim", ["clime-train", "clime-server", "clime-router"])
def test_kill(model, undisturbed, victim):
    sha, seconds = undisturbed
    rng = random.Random(f"kill {victim}")
    killed = n_run = 0
    while killed < KILLS:
        name = f"{victim}-{n_run}"
        killed += kill_now_and_then(victim, model, name, seconds, min(5, KILLS - killed), rng)
        assert final_sha(model / f"{name}.log") == sha
        check_record(model / name)
        n_run += 1
        assert n_run < 4 * KILLS, "the victim was never there"


def test_children_end_with_the_trainer(model):
    p = start(command(model, model / "orphans"), model / "orphans.log")
    deadline = time.monotonic() + LIMIT
    while len(children(p.pid)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = list(children(p.pid))
    p.kill()
    p.wait()
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline, "a child outlived its trainer"
        time.sleep(0.05)
