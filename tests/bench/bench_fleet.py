"""A trainer with hundreds of servers: one rollout of ten thousand samples, while servers die and others join.

    python tests/bench/bench_fleet.py [--servers 512] [--samples 10000] [--killed 50] [--joined 50] [--longest 2]

Servers are mocks in this process, behind a real router; each answers after a random time. Printed: how often each sample is in the
ledger, the processor time of the trainer's threads until the last answer, its memory, how long a version takes to be out.
Not a test: it takes a minute, and its times are this machine's.
"""

import argparse
import asyncio
import collections
import os
import pathlib
import re
import sqlite3
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))

from many_mocks import Many
from programs import program, tiny_model
from programs import run as run_program
from test_fleet import Run, rl
from test_many_servers import join


def threads(pid):
    """Seconds of processor time by thread name; libgomp's and other unnamed ones have the program's."""
    used = collections.Counter()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        stat = (task / "stat").read_text()
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
        name = "collector (main)" if int(task.name) == pid else name
        used[name] += (int(rest[11]) + int(rest[12])) / os.sysconf("SC_CLK_TCK")
    return used


def memory(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return {key: int(re.search(rf"{key}:\s+(\d+)", status)[1]) for key in ("VmHWM", "VmRSS", "Threads")}


def main():
    p = argparse.ArgumentParser()
    for name, default in (("servers", 512), ("samples", 10000), ("killed", 50), ("joined", 50), ("concurrency", 8)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--longest", type=float, default=2.0, help="seconds that an answer may take")
    o = p.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fleet-"))
    tiny_model(folder / "init")
    run_program("clime-train", "task", folder / "task", "--kind", "add", "--max-operand", 99)
    state = {}

    async def disturb(n):
        if n == 1:
            state["first"] = (time.monotonic(), threads(state["run"].process.pid))
        if n == o.samples // 4:
            for mock in many.mocks[: o.killed]:
                many.kill(mock)
        if n == o.samples // 3:
            new = [await many.start() for _ in range(o.joined)]
            state["new"] = new
            for mock in new:
                await asyncio.to_thread(join, state["router"], mock)
        if n == o.samples:
            state["last"] = (time.monotonic(), threads(state["run"].process.pid), memory(state["run"].process.pid))

    many = Many(o.servers, o.longest, disturb)
    try:
        urls = [m.url for m in many.mocks]
        with program("clime-router", "--max-concurrent-requests", 2 * o.servers * o.concurrency, "--worker-urls", *urls) as router:
            state["router"] = router
            state["run"] = run = Run(
                rl(folder, folder / "run", "--router-url", router.url, "--server-concurrency", str(o.concurrency), server_threads=None,
                   num_rollout=2, rollout_batch_size=o.samples // 4, n_samples_per_prompt=4, rollout_max_response_len=8,
                   max_tokens_per_gpu=8192))  # fmt: skip
            run.end(limit=3600)
    finally:
        many.close()
    log = run.log()
    db = sqlite3.connect(run.dir / "ledger.db")
    rows = db.execute("SELECT rollout, status, count(*), count(DISTINCT group_id * 4096 + member) FROM samples GROUP BY 1, 2").fetchall()
    tries = db.execute("SELECT sum(attempt) FROM samples").fetchone()[0]
    db.close()
    wall = state["last"][0] - state["first"][0]
    print(f"{o.servers} servers, {o.samples} samples a rollout, {o.killed} killed, {o.joined} joined, answers after 0 to {o.longest} s")
    for rollout, status, n, distinct in rows:
        print(f"  rollout {rollout}: {n} samples {status}, {distinct} of them different")
    print(f"  leases {tries}; answers given {many.n_answers}")
    print(f"  first to last answer of rollout 0: {wall:.1f} s")
    for name, s in (state["last"][1] - state["first"][1]).most_common(8):
        print(f"    {name:20} {s:6.2f} s of processor time, {100 * s / wall:5.1f} % of a core")
    print(f"  memory {state['last'][2]['VmRSS'] / 1024:.0f} MiB, highest {state['last'][2]['VmHWM'] / 1024:.0f}; threads {state['last'][2]['Threads']}")
    print(f"  joined servers that got weights and work: {sum(m.n_generated > 0 for m in state['new'])}")
    print("  weights out to all: " + ", ".join(f"{x} s" for x in re.findall(r"weights (\d+\.\d+)\)", log)))


if __name__ == "__main__":
    main()
