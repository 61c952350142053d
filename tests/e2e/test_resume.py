"""What a resume stands on: nothing that decides may have changed without a word, and a run goes on wherever it is put."""

import contextlib
import fcntl
import json
import math
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import time

import pytest
from programs import partly
from test_rl import LIMIT, TRAIN, command, fails, final_sha, metrics, model, reward_command, run_whole, start  # noqa: F401  the fixture

KL = ["--use-kl-loss", "--kl-loss-coef", "0.01", "--ref-update-interval", "2"]


def query(run_dir, sql, *args):
    with contextlib.closing(sqlite3.connect(run_dir / "ledger.db")) as db:
        rows = db.execute(sql, args).fetchall()
        db.commit()
        return rows


def flip(path, at=None):
    """One bit of a file, by default in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)


def steps_of(run_dir):
    return sorted(int(p.name[5:]) for p in (run_dir / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def base(model):  # noqa: F811
    """Runs of six rollouts with checkpoints at three and six, and what they come to at eight: with and without a reference."""
    made = {}
    for name, more in (("plain", []), ("kl", KL)):
        run_whole(command(model, model / name, *more, num_rollout=6), model / f"{name}.log")
        shutil.copytree(model / name, model / f"{name}-8")
        made[name] = run_whole(command(model, model / f"{name}-8", *more), model / f"{name}-8.log")
    return made


@pytest.mark.parametrize("kind, file", partly([("plain", "master.f32"), ("plain", "moment1.f32"), ("kl", "reference.bin"),
                                               ("plain", "moment2.f32"), ("plain", "state.json")]))  # fmt: skip
def test_a_flipped_bit_in_a_checkpoint(model, base, kind, file):  # noqa: F811
    """The newest checkpoint is named and passed over, the one before it taken; the weights are the same in the end."""
    run_dir, log = model / f"flipped-{file}", model / f"flipped-{file}.log"
    shutil.copytree(model / kind, run_dir)
    newest = run_dir / "checkpoints" / "step_00000012"
    if file == "state.json":
        text = (newest / file).read_text()
        assert '"updates":12' in text
        (newest / file).write_text(text.replace('"updates":12', '"updates":13'))
    else:
        flip(newest / file)
    assert run_whole(command(model, run_dir, *(KL if kind == "kl" else [])), log) == base[kind]
    said = [d for (d,) in query(run_dir, "SELECT detail FROM events WHERE kind = 'recover'")]
    assert any("step_00000012 cannot be used" in d and file in d for d in said), said
    assert "6 steps run again, all bits as recorded" in open(log).read()


def test_another_reference_model(model, base):  # noqa: F811
    other, run_dir = model / "other-reference", model / "reference-changed"
    shutil.copytree(model / "init", other)
    words = lambda n: command(model, run_dir, *KL[:3], "--ref-load", str(other), num_rollout=n)
    run_whole(words(1), model / "reference.log")
    weights = other / "model.safetensors"
    flip(weights, weights.stat().st_size - 2)
    assert "the reference model is another one" in fails(words(2), model / "reference-changed.log")


def test_a_changed_prompt_file(model):  # noqa: F811
    """What it says decides, not where it is."""
    prompts, run_dir, log = model / "prompts.jsonl", model / "prompts", model / "prompts.log"
    shutil.copy(model / "task" / "train.jsonl", prompts)
    words = lambda n: command(model, run_dir, prompt_data=prompts, num_rollout=n)
    sha = run_whole(command(model, model / "prompts-whole", num_rollout=3), model / "prompts-whole.log")
    run_whole(words(1), log)
    lines = prompts.read_text().splitlines()
    line = json.loads(lines[-1])
    line["label"] = str(line["label"]) + "0"
    prompts.write_text("\n".join(lines[:-1] + [json.dumps(line)]) + "\n")
    assert "--prompt-data" in fails(words(2), model / "prompts-changed.log")
    assert run_whole(command(model, run_dir, num_rollout=3), log) == sha  # the first content, elsewhere


def test_another_tokenizer(model):  # noqa: F811
    folder, run_dir = model / "tokenizer", model / "tokenizer-changed"
    shutil.copytree(model / "init", folder)
    words = lambda n: command(model, run_dir, hf_checkpoint=folder, num_rollout=n)
    run_whole(words(1), model / "tokenizer.log")
    file = folder / "tokenizer.json"
    file.write_text(file.read_text() + "\n\n")
    assert "--hf-checkpoint" in fails(words(2), model / "tokenizer-changed.log")


def test_an_option_that_the_record_does_not_know(model):  # noqa: F811
    """A run that was begun before an option came goes on with its default, and with nothing else."""
    run_dir, log = model / "older-option", model / "older-option.log"
    run_whole(command(model, run_dir, num_rollout=1), log)
    for name in ("eps-clip", "rollout-top-k", "advantage-estimator"):
        query(run_dir, "UPDATE runs SET options = json_remove(options, ?)", f'$."{name}"')
    assert "--eps-clip differs" in fails(command(model, run_dir, eps_clip=0.3), model / "older-option-2.log")
    run_whole(command(model, run_dir, num_rollout=2), log)


def test_a_run_that_was_moved(model, base):  # noqa: F811
    """Run folder, model and prompts in another place: it goes on from its checkpoint."""
    place = model / "elsewhere"
    place.mkdir()
    shutil.copytree(model / "plain", place / "moved")
    shutil.copytree(model / "init", place / "init")
    shutil.copytree(model / "task", place / "task")
    log = place / "log"
    assert run_whole(command(place, place / "moved"), log) == base["plain"]
    assert "(0 steps run again" in open(log).read()
    paths = [p for (p,) in query(place / "moved", "SELECT path FROM checkpoints")]
    assert paths and all(p.startswith("checkpoints/") for p in paths)


def test_a_moved_run_of_schema_8(model, base):  # noqa: F811
    """It stored the paths of checkpoints as they were typed."""
    run_dir, log = model / "typed", model / "typed.log"
    shutil.copytree(model / "plain", run_dir)
    query(run_dir, "UPDATE checkpoints SET checksum = NULL, path = ? || path", "some/where/before/")
    assert run_whole(command(model, run_dir), log) == base["plain"]
    assert "(0 steps run again" in open(log).read()


def test_which_checkpoints_are_kept(model):  # noqa: F811
    kept = lambda name: [s for (s,) in query(model / name, "SELECT step FROM checkpoints ORDER BY 1")]
    for name, more, steps in [
        ("kept-default", [], [14, 16]),
        ("kept-3", ["--keep-checkpoints", "3"], [12, 14, 16]),
        ("kept-retain", ["--keep-checkpoints", "1", "--save-retain-interval", "3"], [6, 12, 16]),
        ("kept-all", ["--keep-checkpoints", "0"], [2, 4, 6, 8, 10, 12, 14, 16]),
        ("kept-async", ["--async", "--update-weights-interval", "2", "--keep-checkpoints", "1"], [12, 14, 16]),
    ]:
        run_whole(command(model, model / name, *more, save_interval=1), model / f"{name}.log")
        assert steps_of(model / name) == kept(name) == steps, name


def test_how_long_tokens_are_kept(model, base):  # noqa: F811
    """--keep-rollouts: figures stay, tokens go, a resume has what it needs."""
    run_dir, log = model / "short-memory", model / "short-memory.log"
    run_whole(command(model, run_dir, "--keep-rollouts", "1", num_rollout=6, save_interval=1), log)
    with_tokens = query(run_dir, "SELECT DISTINCT rollout FROM samples WHERE ids IS NOT NULL ORDER BY 1")
    assert with_tokens == [(5,)]  # the last of six, which is after the older of the two checkpoints
    assert query(run_dir, "SELECT count(*) FROM samples WHERE reward IS NULL OR versions IS NULL") == [(0,)]
    flip(run_dir / "checkpoints" / "step_00000012" / "moment1.f32")
    assert run_whole(command(model, run_dir, "--keep-rollouts", "1", save_interval=1), log) == base["plain"]
    assert "2 steps run again, all bits as recorded" in open(log).read()
    words = command(model, model / "short-replay", "--replay", str(run_dir))
    assert "not kept any more" in fails(words, model / "short-replay.log")


def test_a_deleted_lock_lets_nobody_in(model):  # noqa: F811
    run_dir = model / "unlocked"
    p = start(command(model, run_dir, num_rollout=100000), model / "unlocked.log")
    deadline = time.monotonic() + LIMIT
    while not (run_dir / "ledger.db").exists():
        assert p.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    p.send_signal(signal.SIGSTOP)  # so that it is there still, however late the second one comes
    for lock in run_dir.glob("*lock*"):
        os.unlink(lock)
    assert "another clime-train works on" in fails(command(model, run_dir), model / "unlocked-2.log")
    p.kill()
    p.wait()


def test_a_lock_that_outlives_its_trainer_for_a_moment(model):  # noqa: F811
    """A trainer killed while it starts a child leaves its lock to that child, until this one is its program. The next trainer waits:
    the process that the lock names is gone."""
    run_dir, log = model / "left", model / "left.log"
    run_dir.mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    with open(run_dir / "lock", "w") as lock:
        print(gone.pid, file=lock, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
        p = start(command(model, run_dir, num_rollout=1), log)
        deadline = time.monotonic() + LIMIT
        while f"process {gone.pid}, which is gone" not in log.read_text():
            assert p.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
    assert p.wait(LIMIT) == 0, log.read_text()


def test_sigterm_ends_behind_a_rollout(model):  # noqa: F811
    """All is saved, the exit status is 0, and the same command goes on to the weights of a run that nobody asked. Whoever cannot
    wait asks twice."""
    run_dir, log = model / "asked", model / "asked.log"
    hold, held = model / "asked.hold", model / "asked.held"  # while the first is there no reward is given; the second says so
    body = f'while [ -e {hold} ]; do : >{held}; sleep 0.02; done; echo "{{\\"id\\":$id,\\"reward\\":$((id % 2))}}";'
    words = lambda where, n: command(model, where, "--rm-command", reward_command(body), rm_type="random:1,command:0", rm_timeout=2 * LIMIT,
                                     num_rollout=n, save_interval=1000, eval_interval=0, lr_decay_style="constant")  # fmt: skip
    p = start(words(run_dir, 1000), log)
    deadline = time.monotonic() + LIMIT

    def until(text, n=1):
        while open(log).read().count(text) < n:
            assert p.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)

    until("rollout  0 ")
    p.send_signal(signal.SIGTERM)
    assert p.wait(timeout=LIMIT) == 0, open(log).read()[-2000:]
    (n,) = [int(line.split()[4]) for line in open(log) if line.startswith("stopped  by SIGTERM after ")]
    assert 0 < n < 1000 and steps_of(run_dir)[-1] == query(run_dir, "SELECT max(step) FROM steps WHERE done_us IS NOT NULL")[0][0] == 2 * n
    assert f"stop: by SIGTERM after {n} of 1000 rollouts" in [d for (d,) in query(run_dir, "SELECT detail FROM events WHERE kind = 'order'")]
    assert run_whole(words(run_dir, n + 1), log) == run_whole(words(model / "unasked", n + 1), model / "unasked.log")
    p = start(words(run_dir, 1000), log)
    until(f"rollout  {n + 1} ")
    hold.touch()
    while not held.exists():  # and so no rollout ends
        assert p.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    p.send_signal(signal.SIGTERM)
    until("asked again, at once", 2)
    p.send_signal(signal.SIGTERM)
    assert p.wait(timeout=LIMIT) == -signal.SIGTERM
    hold.unlink()


def test_every_rollout_has_its_perf_line(model, base):  # noqa: F811
    """Also one that was recorded and then cut off before its end."""
    run_dir = model / "perf"
    shutil.copytree(model / "plain", run_dir)
    shutil.rmtree(run_dir / "checkpoints")  # as killed after the sixth rollout's steps were chosen
    query(run_dir, "DELETE FROM checkpoints")
    query(run_dir, "UPDATE steps SET done_us = NULL, loss = NULL, grad_norm = NULL, stats = NULL WHERE step > 10")
    query(run_dir, "DELETE FROM metrics WHERE step > 10 AND kind = 'train'")
    query(run_dir, "DELETE FROM versions WHERE version > 10")
    assert run_whole(command(model, run_dir), model / "perf.log") == base["plain"]
    assert [m["rollout"] for m in metrics(run_dir) if m["kind"] == "perf"] == list(range(8))
    victim = model / "perf-killed"
    words = command(model, victim, num_rollout=40, save_interval=1, eval_interval=0)
    for _ in range(4):
        p = start(words, model / "perf-killed.log")
        time.sleep(1.0)
        p.kill()
        p.wait()
    run_whole(words, model / "perf-killed.log")
    assert [m["rollout"] for m in metrics(victim) if m["kind"] == "perf"] == list(range(40))
    assert final_sha(model / "perf-killed.log")


def undo(run_dir, chosen):
    """The run as it was before the two steps of its sixth rollout ran; chosen: they were recorded, and without checksums."""
    shutil.rmtree(run_dir / "checkpoints" / "step_00000012")
    query(run_dir, "DELETE FROM eval_samples WHERE eval_id IN (SELECT id FROM evals WHERE step > 10)")
    query(run_dir, "DELETE FROM evals WHERE step > 10")
    query(run_dir, "DELETE FROM checkpoints WHERE step > 10")
    query(run_dir, "DELETE FROM versions WHERE version > 10")
    query(run_dir, "DELETE FROM metrics WHERE step > 10 AND kind <> 'rollout'")
    if chosen:
        query(run_dir, "UPDATE steps SET done_us = NULL, loss = NULL, grad_norm = NULL, stats = NULL, checksum = NULL WHERE step > 10")
    else:
        query(run_dir, "UPDATE groups SET state = 'open', ended_in = NULL WHERE ended_in = 5")
        query(run_dir, "DELETE FROM metrics WHERE step > 10")
        query(run_dir, "DELETE FROM step_samples WHERE step > 10")
        query(run_dir, "DELETE FROM steps WHERE step > 10")


def test_a_reward_that_no_advantage_can_be_made_from(model, base):  # noqa: F811
    """Its group is left out of the training, with an alarm, and the run goes on."""
    for name, reward in (("huge", 1e308), ("large", -1e160)):
        run_dir, log = model / f"reward-{name}", model / f"reward-{name}.log"
        shutil.copytree(model / "plain", run_dir)
        undo(run_dir, False)
        ((group, sample),) = query(run_dir, "SELECT group_id, id FROM samples WHERE rollout = 5 AND member = 2 LIMIT 1")
        query(run_dir, "UPDATE sample_rows SET reward = ?, checksum = NULL WHERE id = ?", reward, sample)
        run_whole(command(model, run_dir, num_rollout=6), log)
        left_out = "SELECT group_id, count(*) FROM step_samples t JOIN sample_rows s ON s.id = t.sample_id WHERE removed = 2"
        assert query(run_dir, left_out) == [(group, 4)]
        assert query(run_dir, "SELECT count(*) FROM step_samples") == [(6 * 24,)]
        ((drop,),) = query(run_dir, "SELECT detail FROM events WHERE kind = 'drop' AND detail LIKE 'group%cannot be trained on%'")
        assert f"group {group} of rollout 5" in drop and "its member 2 is" in drop, drop
        alarms = [json.loads(d) for (d,) in query(run_dir, "SELECT detail FROM events WHERE kind = 'alarm'")]
        assert [a["state"] for a in alarms if a["alarm"] == "group-not-finite"] == ["raised"]
        assert all(math.isfinite(g) for (g,) in query(run_dir, "SELECT grad_norm FROM steps"))


def test_a_gap_is_told(model, base):  # noqa: F811
    """A log-probability of the server's that the trainer does not have: an alarm, a count; or the end."""
    run_dir, log = model / "gap", model / "gap.log"
    shutil.copytree(model / "plain", run_dir)
    undo(run_dir, True)
    sql = "SELECT s.id, s.group_id, s.member, s.logp FROM step_samples t JOIN samples s ON s.id = t.sample_id WHERE t.step = 11 AND t.position = 3"  # noqa: E501
    ((sample, group, member, logp),) = query(run_dir, sql)
    values = list(struct.unpack(f"<{len(logp) // 4}f", logp))
    values[2] += 0.25
    query(run_dir, "UPDATE sample_streams SET data = ? WHERE sample_id = ? AND name = 'logp'",
          struct.pack(f"<{len(values)}f", *values), sample)  # fmt: skip
    query(run_dir, "UPDATE sample_rows SET checksum = NULL WHERE id = ?", sample)
    shutil.copytree(run_dir, model / "gap-ends")
    said = fails(command(model, model / "gap-ends", "--gap-must-be-zero"), model / "gap-ends.log")
    token = f"token 2 of sample 5/{group}/{member}"
    assert token in said and f"{values[2]:.9g}" in said and f"{logp and struct.unpack('<f', logp[8:12])[0]:.9g}" in said, said
    run_whole(command(model, run_dir), log)
    alarms = [json.loads(d) for (d,) in query(run_dir, "SELECT detail FROM events WHERE kind = 'alarm' ORDER BY id")]
    told = [a for a in alarms if a["alarm"] == "gap"]
    assert told[0]["state"] == "raised" and token in told[0]["cause"] and "step 11" in told[0]["cause"]
    assert [a["state"] for a in told] == ["raised"]
    assert [line for line in open(log) if " W " in line and token in line]
    report = subprocess.run([TRAIN, "report", run_dir], capture_output=True, text=True, timeout=LIMIT).stdout
    assert "not 0 for 1 token in 1 step" in report, report
    sound = subprocess.run([TRAIN, "report", model / "plain"], capture_output=True, text=True, timeout=LIMIT).stdout
    assert "not 0" not in sound
