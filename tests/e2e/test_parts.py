"""Weights from ranges to ranges: each device of a server copies what it needs out of the memory of a sharded trainer's ranks,
for any two numbers of them. The owners of the parts are a trainer's ranks; then processes of this test, which die and freeze."""

import json
import os
import re
import signal
import struct
import subprocess
import sys

import pytest
from programs import SLOW, Program, server, tiny_model
from test_handover import checksum, generate, ipc, tensors, version
from test_ranks import ranks_of, until
from test_rl import LIMIT, TRAIN, command, final_sha, held_until, metrics, run_whole, start

SHAPE = {"hidden-size": 64, "intermediate-size": 192, "num-hidden-layers": 2, "num-attention-heads": 4, "num-key-value-heads": 2,
         "head-dim": 32, "max-position-embeddings": 256}  # fmt: skip
EXPERTS = {"family": "qwen3_moe", "num-experts": 8, "num-experts-per-tok": 2, "moe-intermediate-size": 64}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Heads, rows and experts that one, two and four devices can share; the folders `dense` and `experts`, as homes of runs."""
    d = tmp_path_factory.mktemp("parts")
    run = lambda *a: subprocess.run([TRAIN, *map(str, a)], check=True, capture_output=True, timeout=LIMIT)
    for name, shape in (("dense", {"family": "qwen3", **SHAPE}), ("experts", {**SHAPE, **EXPERTS})):
        run("init", d / name / "init", *(w for k, v in shape.items() for w in (f"--{k}", v)))
        run("task", d / name / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 40, "--num-heldout", 20)
    return d


def rl(home, name, *more, ranks=1):
    """A run whose second rollout is of weights that were trained: its log and the SHA-256 of the last."""
    log = home / f"{name}.log"
    words = command(home, home / name, "--gradient-lanes", "4", "--actor-num-gpus-per-node", str(ranks), *more,
                    num_rollout=2, rollout_max_response_len=24, eval_interval=100)  # fmt: skip
    run_whole(words, log)
    steps = [m for m in metrics(home / name) if m["kind"] == "train" and m["train/logprob_gap_tokens"]]
    assert len(steps) == 2 and not any(m["train/train_rollout_logprob_abs_diff"] for m in steps)
    return log.read_text(), final_sha(log)


@pytest.fixture(scope="module")
def dense(models):
    return models / "dense", rl(models / "dense", "http", "--update-weight-transport", "http")[1]


def devices(n):
    return ["--rollout-num-gpus-per-engine", str(n), "--rollout-num-gpus", str(n)]


@pytest.mark.parametrize("ranks, of_server", [(2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (4, 4)])
def test_ranks_to_devices(dense, ranks, of_server):
    home, sha = dense
    ipc_way = ["--shard-weights", "on", "--update-weight-transport", "ipc", *devices(of_server)]
    log, got = rl(home, f"{ranks}-{of_server}", *ipc_way, ranks=ranks)
    assert got == sha and "weights go to server-0 by a copy from the trainer's device memory" in log


@pytest.mark.parametrize("ranks, of_server, servers", [(2, 1, 2), (2, 4, 1), (4, 2, 2)])
def test_servers_on_the_ranks_devices(dense, ranks, of_server, servers):
    """--colocate: they are no shares of the trainer's, so they have weights of their own."""
    home, sha = dense
    more = ["--colocate", "--rollout-num-gpus-per-engine", str(of_server), "--rollout-num-gpus", str(of_server * servers)]
    log, got = rl(home, f"colocated-{ranks}-{of_server}", "--shard-weights", "on", *more, ranks=ranks)
    assert got == sha
    assert len(re.findall("weights go to server-[01] by a copy from the trainer's device memory", log)) == servers


def test_a_rank_that_dies(dense):
    """Before the version that is made of its part: the run goes on by itself, its servers with parts that are elsewhere now."""
    home, sha = dense
    go, log = home / "go", home / "dies.log"
    words = command(home, home / "dies", "--gradient-lanes", "4", "--actor-num-gpus-per-node", "2", "--shard-weights", "on",
                    "--update-weight-transport", "ipc", *devices(4), **held_until(go), num_rollout=2, rollout_max_response_len=24,
                    eval_interval=100)  # fmt: skip
    p = start(words, log)
    try:
        until(lambda: p.poll() is not None or "by a copy from" in log.read_text(), "the first version")
        os.kill(ranks_of(p.pid)[1], signal.SIGKILL)
    finally:
        go.touch()
        assert p.wait(2 * LIMIT) == 0, log.read_text()[-2000:]
    assert final_sha(log) == sha and "rank 1 of 2" in log.read_text()


def test_experts(models):
    """That stay with the trainer's ranks, to servers with rows of each and with whole ones."""
    home = models / "experts"
    _, sha = rl(home, "http", "--update-weight-transport", "http")
    for name, more in {"rows": [], "whole": ["--server-ep-size", "4"]}.items():
        stay = ["--expert-model-parallel-size", "2", "--update-weight-transport", "ipc", *devices(4)]
        log, got = rl(home, name, *stay, *more, ranks=2)
        assert got == sha and "by a copy from the trainer's device memory" in log


# An owner of parts that is another process, so that it can die and freeze: a memfd with `n` bytes, whose handle it says.
OWNER = """
import os, struct, sys
n, bf16 = int(sys.argv[1]), int(sys.argv[2])
fd = os.memfd_create("part")
os.write(fd, struct.pack("<H", bf16) * (n // 2))
print(struct.pack("<QQqq", 0x314D454D454D4C43, n, os.getpid(), fd).ljust(64, b"\\0").hex(), flush=True)
sys.stdin.read()
"""


class Owners:
    """Processes with a part of the weights each, all of one value, cut at bytes that are no tensor's edge."""

    def __init__(self, n, size, bf16):
        self.cuts = [size * i // n // 8 * 8 for i in range(n)] + [size]
        sizes = [b - a for a, b in zip(self.cuts, self.cuts[1:])]
        words = [[sys.executable, "-c", OWNER, str(size), str(bf16)] for size in sizes]
        self.processes = [subprocess.Popen(w, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for w in words]
        self.handles = [p.stdout.readline().strip() for p in self.processes]
        self.ranges = [[i, a, b, 0] for i, (a, b) in enumerate(zip(self.cuts, self.cuts[1:]))]
        self.says = {"handles": self.handles, "ranges": self.ranges, "checksum": checksum(struct.pack("<H", bf16) * (size // 2))}

    def end(self):
        for p in self.processes:
            p.kill()
            p.wait()


@pytest.fixture(params=[1, 2])
def served(request, tmp_path):
    """A server over so many devices without weights, and what `handover` says of it."""
    folder = tiny_model(tmp_path / "m", **{"head-dim": 64})
    with server("--load-format", "none", "--device", "cpu", "--dtype", "bfloat16", "--tp-size", str(request.param), model=folder) as s:
        yield s, *handover(s, folder)


def handover(s, folder):
    """How many bytes a server has, and the fields of every handover."""
    says = ipc(s, 400, mode="share", weight_version="1", layout="0" * 16, dtype="bf16")["message"]
    sizes = [len(data) for _, _, data in tensors(folder)]
    assert all(n % 128 == 0 for n in sizes)  # of this shape nothing lies between tensors
    return sum(sizes), {"layout": re.search(r"this one's is (\w{16})", says).group(1), "dtype": "bf16"}


def test_owners_that_freeze_and_die(served):
    """A copy needs nothing of them but their memory; what is gone is refused by its number, and the old version serves."""
    s, n, same = served
    frozen, dead = Owners(3, n, 0x3C00), Owners(3, n, 0x3C80)
    try:
        for p in frozen.processes:
            p.send_signal(signal.SIGSTOP)
        copy = {"mode": "copy", **same}
        assert ipc(s, weight_version="1", **copy, **frozen.says)["weight_version"] == "1"
        before = generate(s, return_logprob=True)["meta_info"]["output_token_logprobs"]
        for p in frozen.processes:
            p.kill()
        dead.processes[1].kill()
        dead.processes[1].wait()
        said = ipc(s, 400, weight_version="2", **copy, **dead.says)["message"]
        assert "part 1 of 3: the handle does not map" in said
        assert version(s) == "1"
        assert generate(s, return_logprob=True)["meta_info"]["output_token_logprobs"] == before
    finally:
        frozen.end()
        dead.end()


def test_a_device_that_freezes(tmp_path):
    """The others wait for it up to the limit: then the server ends, and its log names the rank."""
    s = Program("clime-server", "--model-path", tiny_model(tmp_path / "m", **{"head-dim": 64}), "--tp-size", "2", "--dist-timeout",
                str(1.5 * SLOW), "--device", "cpu", "--dtype", "bfloat16")  # fmt: skip
    n, same = handover(s, tmp_path / "m")
    owners, frozen = Owners(2, n, 0x3C00), ranks_of(s.process.pid)[1]
    try:
        os.kill(frozen, signal.SIGSTOP)
        said = ipc(s, 504, mode="copy", weight_version="1", **same, **owners.says)["message"]
        assert f"taking weights that lie in parts: rank 1 of 2 (pid {frozen}) is not there within" in said
        assert s.process.wait(LIMIT) != 0
    finally:
        owners.end()
    _, log = s.stop()
    assert f"rank 1 of 2 (pid {frozen})" in log, log


def test_parts_that_are_refused(served):
    s, n, same = served
    owners, nan = Owners(2, n, 0x3C00), Owners(2, n, 0x7FC0)
    a, b = owners.ranges
    copy = {"mode": "copy", "weight_version": "1", **same, **owners.says}
    try:
        ipc(s, **copy)
        for change, says in [
            ({"checksum": "0" * 16}, f"the copy's checksum is {owners.says['checksum']}, the request says 0000000000000000"),
            ({"checksum": None}, "checksum must be 16"),
            ({"ranges": None}, "need ranges"),
            ({"ranges": []}, "need ranges"),
            ({"handles": None, "handle": owners.handles[0]}, "need ranges"),
            ({"handle": owners.handles[0]}, "only one of them"),
            ({"ranges": [a]}, "is left out"),
            ({"ranges": [b]}, "model.embed_tokens.weight is left out"),
            ({"ranges": [a, a]}, "is there twice"),
            ({"ranges": [a, [2, *b[1:]]]}, "ranges[1] is of handle 2, and there are 2"),
            ({"ranges": [a, [64, *b[1:]]]}, "each of them is [handle, from, to, at]"),
            ({"ranges": [a, b[:3]]}, "each of them is [handle, from, to, at]"),
            ({"ranges": [a, [*b, 0]]}, "each of them is [handle, from, to, at]"),
            ({"ranges": [a, [-1, *b[1:]]]}, "expected an integer from 0 to"),
            ({"ranges": [a, [*b[:3], 4]]}, "part 1 of 2: the handle maps"),
            ({"ranges": [[0, 0, a[2] + 4, 0], [1, b[1] + 4, b[2], 0]]}, "part 0 of 2: the handle maps"),
            ({"handles": owners.handles[:1]}, "ranges[1] is of handle 1, and there are 1"),
            ({"handles": [owners.handles[0], "0" * 128]}, "part 1 of 2: the handle is none of a CPU's"),
            (nan.says, "model.embed_tokens.weight"),
            ({"layout": "0" * 16}, "another model's"),
        ]:
            assert says in ipc(s, 400, **copy | {"weight_version": "2"} | change)["message"], change
        many = json.dumps([a] * 100_000)
        twice = '{"mode":"copy","ranges":%s,"ranges":%s}' % (json.dumps([a] * 64), many)  # the last one counts, and lies in its own memory
        assert s.client.post("/update_weights_from_ipc", content=twice).status_code == 400
        too_many = '{"mode":"copy","ranges":[%s[0,0,1,0]]}' % ("[0,0,1,0]," * (1 << 20))
        assert "more of them than 1048576" in s.client.post("/update_weights_from_ipc", content=too_many).json()["message"]
        assert version(s) == "1" and generate(s)["meta_info"]["weight_version"] == "1"
        ipc(s, **copy | {"weight_version": "3"})
        assert generate(s)["meta_info"]["weight_version"] == "3"
    finally:
        owners.end()
        nan.end()
