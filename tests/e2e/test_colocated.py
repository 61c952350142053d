"""Servers that compute with the memory of a trainer of several ranks (--colocate): each with that of the rank on its device."""

import os
import re

import pytest
from programs import LIMIT
from test_ranks import ranks_of, until
from test_rl import children, command, final_sha, held_until, metrics, model, run_whole, start  # noqa: F401  the fixture


def memory(pid):
    """The inodes of the shared memory that a process has mapped."""
    return {line.split()[4] for line in open(f"/proc/{pid}/maps") if "memfd:clime" in line}


def option(pid, name):
    words = open(f"/proc/{pid}/cmdline").read().split("\0")
    return int(words[len(words) - 1 - words[::-1].index(name) + 1])


def checked(run_dir, log):
    steps = [m for m in metrics(run_dir) if m["kind"] == "train"]
    assert steps and steps[0]["train/logprob_gap_tokens"] > 0
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps if m["train/logprob_gap_tokens"])
    return final_sha(log)


@pytest.fixture(scope="module")
def alone(model):  # noqa: F811
    return run_whole(command(model, model / "alone", "--gradient-lanes", "2", num_rollout=2, rollout_max_response_len=24), model / "alone.log")


def test_a_server_for_each_rank(model, alone):  # noqa: F811
    """Whole weights on two ranks: server i computes with rank i's, on its device."""
    go, run_dir, log = model / "each.go", model / "each", model / "each.log"
    p = start(command(model, run_dir, "--colocate", "--actor-num-gpus-per-node", "2", "--rollout-num-gpus", "2", "--gradient-lanes", "2",
                      **held_until(go), num_rollout=2, rollout_max_response_len=24), log)  # fmt: skip
    servers = lambda: {option(pid, "--gpu"): pid for pid, name in children(p.pid).items() if name == "clime-server"}
    try:
        until(lambda: re.search(r"server-1 .*in place", log.read_text()) and len(servers()) == 2, "both servers")
        ranks = {0: p.pid, **ranks_of(p.pid)}
        until(lambda: all(memory(pid) for pid in servers().values()), "their weights")
        assert {i: [r for r, pid in ranks.items() if memory(pid) & memory(of)] for i, of in servers().items()} == {0: [0], 1: [1]}
    finally:
        go.touch()
        p.wait(2 * LIMIT)
    assert p.returncode == 0, log.read_text()[-2000:]
    assert checked(run_dir, log) == alone
