"""Samples that keep their KV over an update are trained with the experts that the servers chose: what the ledger has of them
is what the servers' hashes are of, of every position, over cuts, turns and kills; the record gives the same weights; and what
servers say falsely, or not at all, is no sample.
"""

import base64
import contextlib
import json
import os
import random
import sqlite3
import struct
import threading

import httpx
import pytest
from test_environments import Run as Sessions, words
from test_experts import fold, model  # noqa: F401
from test_external import Proxy
from test_fleet import Run, rl
from test_rl import command, external_fleet, fails, final_sha, metrics, run_whole, start
from test_sampling import IN_PLACE, ended, kill_now_and_then, loss_that_waits, push_to_samples_in_flight, query, rollouts, without_checksums

REPLAY = ["--fully-async", "--pause-generation-mode", "in_place", "--use-rollout-routing-replay"]
LAYERS, K = 2, 2  # with experts, and how many of six a row has; of glm4_moe's first, dense layer nothing is kept


def check_experts(run_dir):
    """Of all positions where KV is mixed, of unfinished samples as far as they are, of no others. How many are mixed."""
    rows = query(run_dir, "SELECT status, n_prompt, n_response, mixed_kv, experts, routing FROM samples WHERE n_response > 0")
    for status, n_prompt, n, mixed, experts, routing in rows:
        if experts is None:
            assert not mixed or status in ("aborted", "failed")
            continue
        assert mixed or status in ("aborted", "pending")
        assert len(experts) == (n_prompt + n - 1) * LAYERS * K
        pairs = [experts[i : i + K] for i in range(0, len(experts), K)]
        chosen = [pairs[p : p + LAYERS] for p in range(0, len(pairs), LAYERS)]
        assert all(0 <= a < b < 6 for layers in chosen for a, b in layers)
        if routing and status in ("completed", "truncated"):  # the rows that drew tokens chose these
            hashes = struct.unpack(f"<{n}I", routing)  # 0: a token that the policy did not sample
            assert all(h in (0, fold(layers)) for h, layers in zip(hashes, chosen[n_prompt - 1 :], strict=True)) and any(hashes)
    trained = query(run_dir, "SELECT s.mask, s.experts FROM step_samples t JOIN samples s ON s.id = t.sample_id WHERE s.mixed_kv")
    assert all(experts for _, experts in trained)
    steps = [m for m in metrics(run_dir) if m["kind"] == "train"]
    assert sum(m.get("train/replayed_tokens", 0) for m in steps) == sum(sum(mask) for mask, _ in trained)
    assert not any(m.get("train/replayed_otherwise") or m.get("train/routing_wrong") for m in steps)
    return len(trained)


def mixing(run_dir):
    """The options of a run whose first push finds samples in flight (push_to_samples_in_flight)."""
    return [*REPLAY, "--over-sampling-batch-size", "200", "--server-max-running-requests", "6", *loss_that_waits(run_dir)]


def test_mixed_samples_are_replayed(model):
    run_dir, log = model / "mixed", model / "mixed.log"
    more = [*mixing(run_dir), "--gradient-lanes", "2", "--recompute-granularity", "full"]
    p = start(command(model, run_dir, *more), log)
    push_to_samples_in_flight(run_dir, p, log)
    sha = ended(p, log)
    mixed = check_experts(run_dir)
    assert mixed and sum(m["rollout/replayed_samples"] for m in rollouts(run_dir)) == mixed
    words = command(model, model / "mixed-replay", *more, "--replay", str(run_dir))
    assert run_whole(words, model / "mixed-replay.log") == sha
    # over ranks, experts on them, layers computed again (in all of these): the same
    ranks = ["--actor-num-gpus-per-node", "2", "--expert-model-parallel-size", "2"]
    words = command(model, model / "mixed-ranks", *more, *ranks, "--replay", str(run_dir))
    assert run_whole(words, model / "mixed-ranks.log") == sha and check_experts(model / "mixed-ranks") == mixed

    # other experts in the record, of the row that drew a last token: other gradients
    other = model / "mixed-other"
    os.makedirs(other)
    with contextlib.closing(sqlite3.connect(run_dir / "ledger.db")) as db:
        db.execute(f"VACUUM INTO '{other / 'ledger.db'}'")
    with contextlib.closing(sqlite3.connect(other / "ledger.db")) as db:
        for rowid, data in db.execute("SELECT rowid, data FROM sample_streams WHERE name = 'experts'").fetchall():
            first = [0, 1] if data[-2:] != b"\0\1" else [2, 3]
            db.execute("UPDATE sample_streams SET data = ? WHERE rowid = ?", (data[:-2] + bytes(first), rowid))
        without_checksums(db)
        db.commit()
    if (1,) in query(run_dir, "SELECT t.advantage <> 0 FROM step_samples t JOIN samples s ON s.id = t.sample_id WHERE s.mixed_kv"):
        words = command(model, model / "mixed-other-replay", *more, "--replay", str(other))
        assert "ran again with loss" in fails(words, model / "mixed-other-replay.log")


def test_sessions(model):
    """A sample of several turns, one of them mixed: the turns' experts are joined, those of what came between them too."""
    (model / "train.jsonl").symlink_to(model / "task" / "train.jsonl")
    options = dict(model="init", num_rollout=10, rollout_max_response_len=120, rollout_max_context_len=200)
    run = Sessions(model, "turns", *mixing(model / "turns"), **options)

    def play():
        while task := run.lease(1):
            for turn in range(3):
                run.generate(task, sampling_params={"max_new_tokens": 30}, **({"text": " 7 more:"} if turn else {}))
            run.end(task, reward=random.random())

    def plays():
        while run.process.poll() is None:
            with contextlib.suppress(AssertionError, httpx.TransportError):  # its task was stopped, or the run is at its end
                play()

    players = [threading.Thread(target=plays) for _ in range(8)]
    for t in players:
        t.start()
    push_to_samples_in_flight(run.dir, run.process, run.log)
    sha = ended(run.process, run.log)
    for t in players:
        t.join()
    assert check_experts(run.dir)
    mixed = query(run.dir, "SELECT s.mask FROM step_samples t JOIN samples s ON s.id = t.sample_id WHERE s.mixed_kv")
    assert any(0 in mask for (mask,) in mixed)
    again = [*mixing(model / "turns"), "--environment", "--replay", str(run.dir)]
    assert run_whole(words(model, "turns-again", *again, **options), model / "turns-again.log") == sha


def test_kills(model):
    """Cut by kills and evaluations, samples go on with what is known of them."""
    rng = random.Random("replay")
    options = [*IN_PLACE, "--use-rollout-routing-replay"]
    mixed = n = 0
    while n < 3 or (not mixed and n < 10):
        run_dir, log = model / f"kills-{n}", model / f"kills-{n}.log"
        assert kill_now_and_then(command(model, run_dir, *options), run_dir, log, 4, rng, check_unfinished) > 0
        mixed += check_experts(run_dir)
        n += 1
    assert mixed
    words = command(model, model / "kills-replay", *options, "--replay", str(run_dir))
    assert run_whole(words, model / "kills-replay.log") == final_sha(log)


def check_unfinished(run_dir):
    """What a kill leaves of samples that were cut is whole."""
    if (run_dir / "ledger.db").exists():
        with contextlib.suppress(sqlite3.OperationalError):  # killed before it had its tables
            sizes = query(run_dir, "SELECT n_prompt + n_response, length(experts) FROM samples WHERE experts IS NOT NULL")
            assert all(bytes_ == (n - 1) * LAYERS * K for n, bytes_ in sizes)


def lie(meta, n):
    """What the n-th reply falsely says; None: it is honest."""
    said = list(struct.iter_unpack("<i", base64.b64decode(meta["routed_experts"])))
    flat = [x for (x,) in said]
    if n == 0:
        del meta["routed_experts"]
        return "routed_experts: 0 bytes"
    if n == 1:
        flat = flat[:-6]
    elif n == 2:
        flat[2] = 6
    elif n == 3:
        flat[2] = flat[3]
    elif n == 4:
        flat[2] = -1
    meta["routed_experts"] = base64.b64encode(struct.pack(f"<{len(flat)}i", *flat)).decode()
    return [None, "bytes of base64 instead of", "6, in layer 1 of position 0, is none of 6 experts",
            "a choice is distinct and ascending", "-1, in layer 1 of position 0"][n] if n < 5 else None  # fmt: skip


@pytest.fixture
def says_experts(model, tmp_path):
    processes, router = external_fleet(tmp_path, model / "init", 1, serving=["--enable-return-routed-experts"])
    yield router
    for p in processes:
        p.kill()
        p.wait()


def test_lies(model, tmp_path, says_experts):
    told = []

    def change(path, body):
        reply = json.loads(body) if path == "/generate" else {}
        if reply.get("meta_info", {}).get("finish_reason", {}).get("type") not in ("stop", "length"):
            return body
        if what := lie(reply["meta_info"], len(told)):
            told.append(what)
        return json.dumps(reply).encode()

    with Proxy(says_experts, change=change) as p:
        run = Run(rl(model, tmp_path / "run", "--router-url", p.url, *REPLAY, server_threads=None, num_rollout=3))
        run.end()
    errors = [e for (e,) in query(run.dir, "SELECT error FROM samples WHERE status = 'failed'")]
    assert len(told) == 5
    for what in told:
        assert any(what in e for e in errors), (what, errors)


def test_servers_must_say_them(model, tmp_path):
    processes, router = external_fleet(tmp_path, model / "init", 1)
    try:
        words = rl(model, tmp_path / "run", "--router-url", router, *REPLAY, server_threads=None)
        says = fails(words, tmp_path / "log")
    finally:
        for p in processes:
            p.kill()
            p.wait()
    assert "does not say which experts its routers choose, which --use-rollout-routing-replay needs: start it with" in says


def test_where_it_is_inert(model):
    explain = lambda *more: run_explain(command(model, model / "explain", *more, "--explain"), model / "explain.log")
    assert "--use-rollout-routing-replay: server and trainer choose the same" in explain("--use-rollout-routing-replay")
    in_force = explain(*REPLAY)
    assert "--use-rollout-routing-replay" not in in_force and "train with their servers' experts" in in_force


def run_explain(words, log):
    p = start(words, log)
    assert p.wait() == 0, log.read_text()
    text = log.read_text()
    log.unlink()
    return text
