"""The record of a run as a file: older schemas, damage, what is kept of it and for how long."""

import contextlib
import os
import sqlite3
import subprocess
import time

import pytest
from programs import to_schema_13
from test_rl import LIMIT, TRAIN, command, fails, model, run_whole  # noqa: F401  the fixture

TABLES = "runs groups samples steps step_samples versions checkpoints evals eval_samples metrics inputs".split()
ESTIMATES = ("advantages", "old_logp", "old_values", "returns")


def query(path, sql):
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def test_a_ledger_of_schema_13_keeps_every_value_and_goes_on(model):  # noqa: F811
    log = model / "schema.log"
    more = {"advantage_estimator": "ppo", "num_rollout": 4, "lr_decay_style": "constant"}
    whole = run_whole(command(model, model / "schema-14", "--get-mismatch-metrics", **more), log)
    part = model / "schema-13"
    run_whole(command(model, part, "--get-mismatch-metrics", **more | {"num_rollout": 2}), log)
    everything = lambda: [query(part / "ledger.db", f"SELECT * FROM {table}") for table in TABLES]
    before = everything()
    assert {n for (n,) in query(part / "ledger.db", "SELECT DISTINCT name FROM sample_streams")} >= {"ids", "logp", "response", *ESTIMATES}
    to_schema_13(part / "ledger.db")
    fails(command(model, part, lr=1), log)  # refused for its options, but it was opened
    assert query(part / "ledger.db", "PRAGMA user_version") == [(14,)] and not query(part / "ledger.db", "PRAGMA foreign_key_check")
    assert everything() == before
    assert run_whole(command(model, part, "--get-mismatch-metrics", **more), log) == whole


def test_a_ledger_older_than_the_first_schema_is_refused(model, tmp_path):  # noqa: F811
    for version in (1, 12, 15):
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
            db.execute(f"PRAGMA user_version = {version}")
        fails(command(model, tmp_path), model / "first.log")
        assert f"has schema version {version}; this program reads 13 to 14" in (model / "first.log").read_text()
        done = subprocess.run([TRAIN, "report", tmp_path], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 1 and f"has schema version {version}; this program reads 13 to 14" in done.stderr


def test_a_lock_that_another_program_holds_is_waited_for_and_named(model):  # noqa: F811
    run, log = model / "locked", model / "locked.log"
    with open(log, "wb") as out:
        p = subprocess.Popen(command(model, run, num_rollout=3), stdout=out, stderr=out)
    until = time.monotonic() + LIMIT
    while b"rollout  0" not in log.read_bytes() and time.monotonic() < until:
        time.sleep(0.02)
    with contextlib.closing(sqlite3.connect(run / "ledger.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        while b"another program holds its lock" not in log.read_bytes() and time.monotonic() < until:
            time.sleep(0.1)
        db.execute("ROLLBACK")
    assert p.wait(LIMIT) == 0, log.read_text()[-2000:]
    assert b"ledger.db: another program holds its lock (fuser names it): waiting for it" in log.read_bytes()


def static(words, size):
    """Micro-batches of a number of samples in place of packed ones."""
    at = words.index("--max-tokens-per-gpu")
    words = words[:at] + words[at + 2 :]
    words.remove("--use-dynamic-batch-size")
    return [*words, "--micro-batch-size", str(size)]


def test_loaded_samples_longer_than_this_run_would_make(model):  # noqa: F811
    """The plan holds what is loaded, not only what the prompts and the response length of this run give."""
    source = model / "long-samples"
    p = subprocess.run(command(model, source, "--debug-rollout-only", num_rollout=2), capture_output=True, timeout=LIMIT)
    assert p.returncode == 0, p.stderr[-2000:]
    sha = {}
    for length in (96, 4):
        words = command(model, model / f"loaded-{length}", "--load-debug-rollout-data", str(source), num_rollout=2,
                        eval_interval=0, rollout_max_response_len=length)  # fmt: skip
        sha[length] = run_whole(static(words, 12), model / f"loaded-{length}.log")
    assert sha[4] == sha[96]


def test_explain_with_every_transport(model):  # noqa: F811
    shared = ["--colocate", "--actor-num-gpus-per-node", "2", "--shard-weights"]
    ways = {"auto": "where it can be", "http": "over HTTP", "ipc": "from the trainer's memory", "nccl": "by NCCL", "pull": "that they pull"}
    for more, says in [*((["--update-weight-transport", way], says) for way, says in ways.items()),
                       ([*shared, "off"], "in place"), ([*shared, "on"], "by a copy from the trainer's device memory")]:  # fmt: skip
        p = subprocess.run(command(model, model / "explained", "--explain", *more), capture_output=True, text=True, timeout=LIMIT)
        assert p.returncode == 0 and says in [s for s in p.stdout.splitlines() if "weights go to the servers" in s][0], p.stdout


def test_explain_of_half_a_run(model):  # noqa: F811
    """What is recorded is not sampled, whatever the options of sampling say; what is only sampled is not trained."""
    def explained(*more, **change):
        words = command(model, model / "half", *more, "--explain", "--over-sampling-batch-size", "9", **change)
        p = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)
        assert p.returncode == 0, p.stderr
        return p.stdout

    for way in ("--load-debug-rollout-data", "--replay"):
        says = explained(way, str(model / "other"), eval_interval=0)
        assert f"those of {model / 'other'}: no server is started" in says and "memory plan" in says
        assert "weights go to the servers" not in says and "are submitted" not in says
    says = explained("--debug-rollout-only")
    assert "nothing is trained" in says and "are submitted 9 at a time" in says
    assert not any(what in says for what in ("weights go to the servers", "AdamW", "memory plan", "loss ="))


INERT = {  # what is given, and what --explain says of it
    "--kl-loss-coef 0.1 --kl-loss-type k3": ["--kl-loss-coef: --use-kl-loss is off", "--kl-loss-type: there is no KL term"],
    "--tis-clip 3": ["--tis-clip: --use-tis is off"],
    "--rs-upper-bound 3": ["--rs-upper-bound: --use-rs is off"],
    "--opsm-delta 0.5 --opd-kl-coef 2": ["--opsm-delta: --use-opsm is off", "--opd-kl-coef: --use-opd is off"],
    "--min-lr 1e-9": ["--min-lr, --lr-decay-iters: the rate does not fall"],
    "--micro-batch-size 7": ["--micro-batch-size: --use-dynamic-batch-size packs"],
    "--advantage-estimator cispo --eps-clip-c 3": ["--eps-clip-c: the estimator's policy term has no dual clip"],
    "--use-tis": ["--use-tis, --use-rs, --rs-veto-threshold: groups of one rollout have one version"],
    "--eval-interval 0": ["there is no --eval-interval, so nothing is evaluated"],
}  # fmt: skip


def test_explain_lists_what_needs_another_option(model):  # noqa: F811
    """Nothing is ignored in silence, and what is in force is not among it."""
    def explained(words):
        p = subprocess.run(command(model, model / "inert", "--explain", *words.split()), capture_output=True, text=True, timeout=LIMIT)
        assert p.returncode == 0, p.stderr
        return p.stdout.split("options without effect\n")

    for words, says in INERT.items():
        in_force, listed = explained(words)
        assert all(s in listed for s in says) and len(listed.splitlines()) == len(says), (words, listed)
        assert "dual clip" not in in_force and "(constant, warm-up 0), betas" in in_force
    in_force, listed = explained("--use-kl-loss --kl-loss-coef 0.1 --kl-loss-type k3 --eps-clip-c 3 --lr-decay-style cosine --min-lr 1e-9 "
                                 "--use-opsm --opsm-delta 0.5")  # fmt: skip
    assert "(dual clip)" in in_force and "cosine, warm-up 0, to 1e-09 after" in in_force and listed.strip() == "none"
    # samples of other weights than this run's: rho is not 1 there
    in_force, listed = explained(f"--load-debug-rollout-data {model / 'other'} --use-tis --eval-interval 0")
    assert "pg times rho" in in_force and "--use-tis" not in listed and "logits / the temperature of each sample)" in in_force


def test_a_finished_run_where_nothing_can_be_written(model):  # noqa: F811
    """Another user's run, or one on a read-only disk: SQLite would make files beside a ledger even to read it. The path has
    what a URI of SQLite's would take for something else."""
    source = model / "still" / "a #1 %41?b"
    words = command(model, source, "--rollout-seed", "7", num_rollout=2, eval_interval=0)
    run_whole(words, model / "still.log")
    assert not (source / "ledger.db-wal").exists()
    alone = [] if os.geteuid() else ["unshare", "-m", "sh", "-c", 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"', "sh", source]
    if alone and subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("a root that may not mount can write everywhere")
    os.chmod(source, 0o555)
    try:
        for more in (["report", source], command(model, model / "from-still", "--load-debug-rollout-data", str(source), num_rollout=2, eval_interval=0)[1:],
                     command(model, model / "again-still", "--rollout-seed", "7", "--replay", str(source), num_rollout=2, eval_interval=0)[1:],
                     ["data", "--from-run", source, "--output", model / "still.jsonl"]):  # fmt: skip
            p = subprocess.run([*alone, TRAIN, *more], capture_output=True, text=True, timeout=LIMIT)
            assert p.returncode == 0, (more, p.stderr[-2000:])
    finally:
        os.chmod(source, 0o755)
    assert not (source / "ledger.db-wal").exists()
