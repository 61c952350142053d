"""Samples that top_p or top_k cut: each token's set is in the ledger, the loss is over it, the gap still compares the whole
distribution's number; every layout, a record and a killed run give the same weights; what has no sets is refused."""

import contextlib
import re
import signal
import sqlite3
import struct
import subprocess
import time

import pytest
from programs import tiny_model
from test_environments import Run
from test_experts import SHAPE, make, rewrite
from test_external import Proxy, fleet, put_between
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
            if not trained:  # an environment's
                assert length == 0 and over_set == 0
                continue
            assert token in of and list(of) == sorted(set(of)) and length <= (top_k or 4096)
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


def test_more_ids_than_are_kept(model, tmp_path):  # noqa: F811
    tiny_model(tmp_path / "wide", **{"vocab-size": 8192})
    words = lambda k, *more: command(model, model / f"kept-{k}", *more, rollout_top_k=k, hf_checkpoint=tmp_path / "wide")
    assert "--rollout-top-k 4097: the loss is over the ids that a token was drawn from, of which 4096" in fails(words(4097), model / "kept-wide.log")
    assert subprocess.run(words(4096, "--explain"), capture_output=True).returncode == 0


@pytest.mark.parametrize("fault", ["no sets", "another set"])
def test_an_external_server_that_says_no_sets(model, tmp_path, fault):  # noqa: F811
    """Or such without the token: none of its samples is trained on, and each says why."""
    key = b"output_token_sampling_mask"
    change = lambda _, body: body.replace(key, b"not_known") if fault == "no sets" else re.sub(key + rb'":\[\[[^\]]*', key + b'":[[271', body)
    with fleet(tmp_path, model / "init", 1) as (router, (url,)), Proxy(url, change=change) as proxy:
        put_between(router, url, proxy)
        run_dir, log = model / f"kept-{fault}", model / f"kept-{fault}.log"
        said = fails(command(model, run_dir, "--router-url", router, rollout_top_p=0.9, num_rollout=1, eval_interval=0), log)
    why = "(output_token_sampling_mask), which --rollout-top-p and --rollout-top-k need" if fault == "no sets" else "is not in its set"
    assert why in said, said[-3000:]
    assert query(run_dir, "SELECT count(*) FROM step_samples") == [(0,)]
    assert all(why in error for (error,) in query(run_dir, "SELECT error FROM samples WHERE status = 'failed'"))


def test_sessions(model):  # noqa: F811
    """Several turns of an environment whose own top_p is not taken: what it says has no sets, and each sampled token has one."""
    run = Run(model, "kept-session", model="init", prompt_data=model / "task" / "train.jsonl", rollout_top_p=0.9)

    def play(task):
        history = [{"role": "user", "content": task["prompt"]}]
        for _ in range(2):
            history.append({"role": "assistant", "content": run.chat(task, history, top_p=0.1, max_tokens=8)})
            history.append({"role": "user", "content": "go on"})
        run.generate(task, text="<|user|>7<|end|><|assistant|>", sampling_params={"max_new_tokens": 5, "top_p": 0.1})
        run.end(task, reward=len(history[1]["content"]) % 3)

    run.play_out(play)
    assert sum(run.gaps()) > 50 and check_record(run.dir) > 20
    assert query(run.dir, "SELECT count(*) FROM samples WHERE instr(mask, x'00')")[0][0] > 0


@pytest.mark.parametrize("more", [[], ["--async"], ["--fully-async", "--async", "--pause-generation-mode", "in_place"]])
def test_partial_rollouts(model, more):  # noqa: F811
    """Samples of several versions: each part's sets are whole, and the gap is of what the trainer's own version sampled."""
    run_dir = model / f"kept-partial-{len(more)}"
    run_whole(command(model, run_dir, "--partial-rollout", "--over-sampling-batch-size", "12", "--server-max-running-requests", "6", *more, rollout_top_p=0.9, num_rollout=4, save_interval=1),
              model / f"kept-partial-{len(more)}.log")  # fmt: skip
    assert check_record(run_dir) > 100 and all(m.get(GAP, 0) == 0 for m in steps(run_dir)) and any(GAP in m for m in steps(run_dir))
    assert query(run_dir, "SELECT count(*) FROM samples WHERE json_array_length(versions) > 1")[0][0] > 0


def test_experts(tmp_path):
    made = make(tmp_path, SHAPE, rewrite)
    done = {}
    for name, more in {"alone": [], "ranks": ["--actor-num-gpus-per-node", "2", "--shard-weights", "on"]}.items():
        done[name] = run_whole(command(made, made / name, *more, rollout_top_p=0.9, num_rollout=2), made / f"{name}.log")
        assert check_record(made / name) > 100 and all(m.get(GAP, 0) == 0 for m in steps(made / name)) and any(GAP in m for m in steps(made / name))
    assert done["alone"] == done["ranks"]
