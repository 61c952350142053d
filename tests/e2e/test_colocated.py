"""Servers that compute with the memory of a trainer of several ranks (--colocate): each with that of the rank on its device."""


import pytest
from programs import LIMIT
from test_hostile_machine import hostile  # noqa: F401  the fixture
from test_ranks import NOT_PRELOADED, broken_devices, ranks_of, until
from test_rl import children, command, final_sha, held_until, metrics, model, run_whole, start  # noqa: F401  the fixture


def memory(pid):
    """The inodes of the shared memory that a process has mapped."""
    return {line.split()[4] for line in open(f"/proc/{pid}/maps") if "memfd:clime (deleted)" in line}


def option(pid, name):
    words = open(f"/proc/{pid}/cmdline").read().split("\0")
    if name not in words:  # the process is about to end
        return None
    return int(words[len(words) - 1 - words[::-1].index(name) + 1].split(",")[0])


def checked(run_dir, log):
    steps = [m for m in metrics(run_dir) if m["kind"] == "train"]
    assert steps and steps[0]["train/logprob_gap_tokens"] > 0
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps if m["train/logprob_gap_tokens"])
    return final_sha(log)


@pytest.fixture(scope="module")
def alone(model):  # noqa: F811
    return run_whole(command(model, model / "alone", "--gradient-lanes", "4", num_rollout=2, rollout_max_response_len=24), model / "alone.log")


def owners(model, name, *more):  # noqa: F811
    """Runs it to the end; whose memory each process of the servers had mapped, by server and its rank."""
    go, run_dir, log = model / f"{name}.go", model / name, model / f"{name}.log"
    p = start(command(model, run_dir, "--colocate", "--actor-num-gpus-per-node", "2", "--gradient-lanes", "4", *more, **held_until(go),
                      num_rollout=2, rollout_max_response_len=24), log)  # fmt: skip

    def processes():
        firsts = {option(pid, "--gpu"): pid for pid, of in children(p.pid).items() if of == "clime-server"}
        return {(i, r): pid for i, first in firsts.items() for r, pid in {0: first, **ranks_of(first)}.items()}

    try:
        until(lambda: p.poll() is not None or (len(processes()) == 2 and all(map(memory, processes().values()))), "weights in both processes")
        ranks = {0: p.pid, **ranks_of(p.pid)}
        return {k: [r for r, pid in ranks.items() if memory(pid) & memory(server)] for k, server in processes().items()}
    finally:
        go.touch()
        p.wait(2 * LIMIT)
        assert p.returncode == 0, log.read_text()[-2000:]


def test_a_server_for_each_rank(model, alone):  # noqa: F811
    """Whole weights on two ranks: server i computes with rank i's, on its device."""
    assert owners(model, "each", "--rollout-num-gpus", "2") == {(0, 0): [0], (1, 0): [1]}
    assert checked(model / "each", model / "each.log") == alone


def test_a_server_over_the_ranks(model, alone):  # noqa: F811
    """Parts of the weights on two ranks: each rank of the server computes with the part of the rank on its device."""
    assert owners(model, "parts", "--shard-weights", "on", "--rollout-num-gpus-per-engine", "2") == {(0, 0): [0], (0, 1): [1]}
    assert checked(model / "parts", model / "parts.log") == alone


@NOT_PRELOADED
def test_a_device_that_is_lost(model, alone, hostile):  # noqa: F811
    """Of four one is lost: the servers go on with the ranks, on their devices and no other. Whatever is started on the lost
    one is killed."""
    broken, log = broken_devices(model / "broken", _1=0), model / "lost.log"
    words = command(model, model / "lost", "--colocate", "--elastic", "1", "--actor-num-gpus-per-node", "4", "--gradient-lanes", "4",
                    "--rollout-num-gpus", "4", "--rollout-num-gpus-per-engine", "2", num_rollout=2, rollout_max_response_len=24)  # fmt: skip
    run_whole(hostile(words, DEVICES=broken), log)
    assert "2 of 4 ranks" in log.read_text() and "1 server, 2 devices each" in log.read_text()
    assert checked(model / "lost", log) == alone
