"""Ways of running, each with each: an option is honoured, which is seen from outside, or refused by name.

Every row of WAYS has what it takes on a command line and how its effect shows. What cannot go together must say so
before anything is loaded; nothing may be read and then ignored.
"""

import itertools
import json
import os
import re
import signal
import sqlite3

import pytest
from programs import LIMIT, partly
from test_external import Proxy, fleet, put_between
from test_fleet import Run, d, rl  # noqa: F401
from test_rl import children, final_sha, held_until


def log_has(pattern):
    return lambda run: re.search(pattern, run.log()) is not None


def versions_behind(run):
    """The last rollout was sampled by weights older than the ones that it trained first."""
    db = sqlite3.connect(run.dir / "ledger.db")
    rollout, versions = db.execute("SELECT rollout, versions FROM samples ORDER BY id DESC LIMIT 1").fetchone()
    db.close()
    return json.loads(versions)[-1][0] < rollout


def samples_have(column, value):
    def look(run):
        db = sqlite3.connect(run.dir / "ledger.db")
        n = db.execute(f"SELECT count(*) FROM samples WHERE {column} IS {value}").fetchone()[0]
        db.close()
        return n > 0
    return look


def was_offloaded(run):
    """The server's log says it, or the proxy before an external one has seen it."""
    if run.seen:
        return ("POST", "/release_memory_occupation") in run.seen
    return "release" in (run.dir / "logs" / "server-0.log").read_text(errors="replace")


def metrics_have(key):
    return lambda run: any(key in json.loads(line) for line in open(run.dir / "metrics.jsonl"))


GROUP_COMMAND = ('while IFS= read -r l; do id=${l#*\\"id\\":}; id=${id%%,*}; case $l in '
                 '*group*) echo "{\\"id\\":$id,\\"rewards\\":[0.25,0.75]}";; '
                 '*) echo "{\\"id\\":$id,\\"reward\\":0.5}";; esac; done')  # fmt: skip

# name: (words, how its effect shows)
WAYS = {
    "async": (["--async"], versions_behind),
    "fully-async": (["--fully-async"], metrics_have("rollout/mixed_kv_samples")),
    "colocate": (["--colocate"], log_has("in place: the trainer's own memory")),
    "transport http": (["--update-weight-transport", "http"], log_has("weights go to .* over HTTP")),
    "transport ipc": (["--update-weight-transport", "ipc"], log_has("weights go to .* by a copy")),
    "transport nccl": (["--update-weight-transport", "nccl"], log_has("weights go to .* by broadcast")),
    "transport pull": (["--update-weight-transport", "pull"], log_has("weights go to .* in packets that it pulls")),
    "offload": (["--offload-rollout"], was_offloaded),
    "two servers": (["--num-servers", "2"], log_has("server-1 is up")),
    "group reward": (["--group-rm", "--rm-type", "command", "--rm-command", GROUP_COMMAND], samples_have("reward", "0.75")),
    "evaluation": (["--eval-interval", "1", "--eval-prompt-data", "held", "HELD"], metrics_have("eval/held")),
    "rollouts only": (["--debug-rollout-only"], lambda run: "grad" not in run.log() and samples_have("reward", "NOT NULL")(run)),
    "router": (["--router-url", "ROUTER"], log_has(r"worker http://127")),
}

# These are one thing, or the same thing said twice.
SKIP = [{"async", "fully-async"}, {"transport http", "transport ipc"}, {"transport http", "transport nccl"},
        {"transport ipc", "transport nccl"},
        *({"transport pull", other} for other in ("transport http", "transport ipc", "transport nccl", "group reward", "evaluation"))]  # fmt: skip

PAIRS = [(a, b) for a, b in itertools.combinations(WAYS, 2) if {a, b} not in SKIP]


@pytest.mark.parametrize("a, b", partly(PAIRS), ids=[f"{a} + {b}" for a, b in PAIRS])
def test_pair(d, tmp_path, a, b):  # noqa: F811
    held = f"{d / 'task' / 'heldout.jsonl'}@[0:2]"
    words = [held if w == "HELD" else w for name in (a, b) for w in WAYS[name][0]]

    def go(words, **change):
        run = Run(rl(d, tmp_path / "run", *words, num_rollout=3, rm_type=None if "--rm-type" in words else "random", **change))
        run.seen = seen
        try:
            status = run.process.wait(LIMIT)
        finally:
            run.stop()
        log = run.log()
        if status == 0:
            for name in (a, b):
                assert WAYS[name][1](run), f"{name} was not honoured beside {b if name == a else a}:\n{log[-3000:]}"
        else:  # refused: both are named, before anything is loaded
            assert "model:" not in log and "is up at" not in log, log[-3000:]
            named = [next(w for w in WAYS[name][0] if w.startswith("--")) for name in (a, b)]
            named = ["async" if w == "--fully-async" else w for w in named]  # it implies --async, which may be what speaks
            assert all(option in log for option in named), log[-3000:]

    seen = {}
    if "ROUTER" in words:
        with fleet(tmp_path, d / "init", 1) as (router, (first,)), Proxy(first) as p:
            put_between(router, first, p)
            seen = p.seen
            go([router if w == "ROUTER" else w for w in words], server_threads=None)
    else:
        go(words)


BY = {"nccl": "weights of version .* broadcast to", "ipc": "weights go to .* by a copy"}


@pytest.mark.parametrize("way, mode", [("nccl", "--async"), ("ipc", "--fully-async"), ("nccl", "--fully-async --pause-generation-mode in_place"),
                                       *(pytest.param(*p, marks=pytest.mark.full) for p in [
                                           ("ipc", "--async"), ("nccl", "--fully-async"),
                                           ("ipc", "--fully-async --pause-generation-mode in_place")])])  # fmt: skip
def test_weights_of_the_device_beside_a_running_step(d, tmp_path, mode, way):  # noqa: F811
    """The same weights as over HTTP; a server that is killed meanwhile gets what is served, not what is being made."""
    gate = tmp_path / "gate"
    held = held_until(gate, 5 * 16)  # of eight rollouts five get their rewards before that

    def go(name, transport, kill=False):
        run = Run(rl(d, tmp_path / name, *mode.split(), "--update-weight-transport", transport, num_rollout=8, num_servers=2,
                     rollout_batch_size=8, rollout_max_response_len=48, **held))  # fmt: skip
        try:
            if kill:
                run.wait_for("rollout  1 ")
                os.kill(next(p for p, name in children(run.process.pid).items() if name == "clime-server"), signal.SIGKILL)
            gate.touch()
            run.end()
        finally:
            run.stop()
            gate.unlink(missing_ok=True)
        gaps = [json.loads(line) for line in open(run.dir / "metrics.jsonl")]
        assert all(m.get("train/train_rollout_logprob_abs_diff", 0) == 0 for m in gaps if m["kind"] == "train")
        assert log_has(BY[way])(run) == (transport == way)
        return final_sha(run.log_path)

    shas = {go("http", "http"), go(way, way), go("killed", way, kill=True)}
    assert mode != "--async" or len(shas) == 1  # there timing decides which token is of which version
