"""Samples that top_p or top_k cut: each token's set is in the ledger, the loss is over it, the gap still compares the whole
distribution's number; every layout, a record and a killed run give the same weights; what has no sets is refused."""

import contextlib
import signal
import sqlite3
import struct
import subprocess
import time

from test_ranks import ALL_TERMS
from test_rl import LIMIT, command, fails, metrics, model, run_whole, start  # noqa: F401  the fixture

GAP = "train/train_rollout_logprob_abs_diff"


def query(run_dir, sql, *args):
    with contextlib.closing(sqlite3.connect(run_dir / "ledger.db")) as db:
        rows = db.execute(sql, args).fetchall()
        db.commit()
        return rows


def check_record(run_dir, top_k=None):
    """The sets of all trained samples are whole and hold their tokens; mass and both numbers agree. How many tokens are cut."""
    cut = 0
    rows = query(run_dir, "SELECT s.n_prompt, s.n_response, s.ids, s.mask, s.logp, s.kept_n, s.kept, s.kept_logp"
                          " FROM step_samples t JOIN samples s ON s.id = t.sample_id")  # fmt: skip
    assert rows
    for n_prompt, n, ids, mask, logp, kept_n, kept, kept_logp in rows:
        ids = struct.unpack(f"<{n_prompt + n}I", ids)[n_prompt:]
        lengths, at = struct.unpack(f"<{n}I", kept_n), 0
        numbers = zip(ids, mask, lengths, *(struct.unpack(f"<{n}f", x) for x in (logp, kept_logp)), strict=True)
        kept = struct.unpack(f"<{sum(lengths)}I", kept)
        for token, trained, length, whole, over_set in numbers:
            of = kept[at : at + length]
            at += length
            assert trained and token in of and list(of) == sorted(set(of)) and length <= (top_k or 4096)
            assert over_set >= whole - 1e-6 and (length > 1 or over_set > -1e-5)
            cut += over_set > whole + 1e-6
    return cut


def steps(run_dir):
    return [m for m in metrics(run_dir) if m["kind"] == "train"]


def test_top_p(model):  # noqa: F811
    """Alone, on two ranks with everything in parts, and from the record."""
    options = dict(rollout_top_p=0.9, num_rollout=3)
    done = {}
    for name, more in {"alone": [], "ranks": ["--actor-num-gpus-per-node", "2", "--shard-weights", "on"],
                       "shared": ["--actor-num-gpus-per-node", "2", "--context-parallel-size", "1"]}.items():  # fmt: skip
        run_dir = model / f"kept-{name}"
        sha = run_whole(command(model, run_dir, *ALL_TERMS, *more, **options), model / f"kept-{name}.log")
        done[name] = sha, [{k: v for k, v in m.items() if k.startswith("train/")} for m in steps(run_dir)]
    assert done["ranks"] == done["alone"] == done["shared"]
    of_steps = done["alone"][1]
    assert len(of_steps) == 6 and all(m[GAP] == 0 for m in of_steps if GAP in m) and sum(GAP in m for m in of_steps) >= 3
    assert check_record(model / "kept-alone") > 100
    # the trainer's own number over the set is the server's but for the order of a sum
    first = of_steps[0]
    assert abs(first["train/tis"] - 1) < 1e-5 and first["train/tis_abs"] < 1e-5, first
    words = command(model, model / "kept-replay", *ALL_TERMS, "--replay", str(model / "kept-alone"), **options)
    assert run_whole(words, model / "kept-replay.log") == done["alone"][0]


def test_top_k_and_a_kill(model):  # noqa: F811
    options = dict(rollout_top_k=5, num_rollout=4, save_interval=1)
    sha = run_whole(command(model, model / "kept-k", **options), model / "kept-k.log")
    assert check_record(model / "kept-k", 5) > 100 and all(m.get(GAP, 0) == 0 for m in steps(model / "kept-k"))
    run_dir, log = model / "kept-killed", model / "kept-killed.log"
    p = start(command(model, run_dir, **options), log)
    deadline = time.monotonic() + LIMIT
    while not (run_dir / "metrics.jsonl").exists() or not steps(run_dir):
        assert time.monotonic() < deadline and p.poll() is None, open(log).read()[-2000:]
        time.sleep(0.02)
    p.send_signal(signal.SIGKILL)
    p.wait()
    assert run_whole(command(model, run_dir, **options), log) == sha


def test_what_cuts_nothing(model):  # noqa: F811
    """A top_k of the whole vocabulary: no sets, and the weights of a run without it."""
    whole = run_whole(command(model, model / "kept-none", num_rollout=1), model / "kept-none.log")
    run_dir = model / "kept-all"
    assert run_whole(command(model, run_dir, num_rollout=1, rollout_top_k=1 << 20), model / "kept-all.log") == whole
    assert query(run_dir, "SELECT count(*) FROM sample_streams WHERE name LIKE 'kept%'") == [(0,)]
    explained = lambda **o: subprocess.run(command(model, model / "kept-explain", "--explain", **o), capture_output=True, text=True).stdout
    said = "the loss is over what each token was drawn from"
    assert said not in explained(rollout_top_k=1 << 20) and said in explained(rollout_top_p=0.9)


def test_refused(model):  # noqa: F811
    """A teacher's numbers are of all ids; samples without sets, stored or recorded, are not trained on as if nothing was cut."""
    log = model / "kept-refused.log"
    teacher = ["--use-opd", "--opd-type", "sglang", "--opd-teacher-url", "http://127.0.0.1:9/generate"]
    assert "a teacher says" in fails(command(model, model / "kept-opd", *teacher, rollout_top_p=0.9), log)
    source, options = model / "kept-source", dict(rollout_top_p=0.9, num_rollout=1, eval_interval=0)
    run_whole(command(model, source, "--debug-rollout-only", **options), model / "kept-source.log")
    words = lambda d: command(model, d, "--debug-train-only", "--load-debug-rollout-data", str(source), **options)
    run_whole(words(model / "kept-loaded"), model / "kept-loaded.log")
    assert check_record(model / "kept-loaded") > 10
    query(source, "DELETE FROM sample_streams WHERE name LIKE 'kept%'")
    assert "does not hold what each of its tokens was drawn from" in fails(words(model / "kept-without"), model / "kept-without.log")
