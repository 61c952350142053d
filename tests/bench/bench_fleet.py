"""A trainer with hundreds of servers: a rollout of ten thousand samples, while a new version goes round by relay, servers die and
others join.

    python tests/bench/bench_fleet.py [--servers 512] [--samples 10000] [--killed 50] [--joined 50] [--longest 20]

Servers are mocks in this process (one thread for all), behind a real router; each answers after a random time. The trainer is
--fully-async: version 1 goes out in the second rollout, when a tenth of it is answered (mocks take it then), and while it does
servers are killed, with the requests and the pulls that they have, and others join. Printed: how often each sample is in the ledger, when the version is with all,
the processor time of the trainer's threads, its memory.
Not a test: it takes minutes, and its times are this machine's.
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


class Fleet(Many):
    """Kills and starts servers while version 1 is on its way, and notes when who has it."""

    def __init__(self, o, router):
        self.o, self.router, self.run, self.begun = o, router, None, None
        self.killed, self.joined, self.had_us, self.joins, self.go = [], [], {}, set(), asyncio.Event()
        super().__init__(o.servers, o.longest, self.count)

    async def count(self, n):
        if n in self.marks:
            self.marks[n] = (time.monotonic(), threads(self.run.process.pid), memory(self.run.process.pid))
        if n == self.o.samples * 11 // 10:
            self.begun = time.monotonic()
            self.generating = sum(m.generating for m in self.mocks)
            self.go.set()

    async def pull(self, mock, ask, reader):
        if ask["version"] == 1:
            await self.go.wait()
        reply = await super().pull(mock, ask, reader)
        self.had_us.setdefault(ask["version"], {})[mock.port] = time.monotonic()
        n = len(self.had_us.get(1, {}))
        if ask["version"] == 1 and mock.port not in self.killed and n % 4 == 0 and len(self.killed) < self.o.killed:
            victim = next(m for m in self.mocks if m.port not in self.killed and m not in self.joined and m is not mock)
            self.killed.append(victim.port)
            self.kill(victim)
        if ask["version"] == 1 and n % 4 == 2 and len(self.joins) < self.o.joined:
            self.joins.add(asyncio.create_task(self.add()))
        return reply

    async def add(self):
        self.joined.append(await self.start())
        await asyncio.to_thread(join, self.router, self.joined[-1])


def counts(db):
    rows = db.execute("SELECT rollout, status, count(*), count(DISTINCT group_id * 4096 + member) FROM samples GROUP BY 1, 2").fetchall()
    for rollout, status, n, distinct in rows:
        print(f"  rollout {rollout}: {n} samples {status}, {distinct} of them different")


def main():
    p = argparse.ArgumentParser()
    for name, default in (("servers", 512), ("samples", 10000), ("killed", 50), ("joined", 50), ("concurrency", 8)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--longest", type=float, default=20.0, help="seconds that an answer may take")
    o = p.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fleet-"))
    tiny_model(folder / "init")
    run_program("clime-train", "task", folder / "task", "--kind", "add", "--max-operand", 99)
    with program("clime-router", "--max-concurrent-requests", 2 * o.servers * o.concurrency) as router:
        many = Fleet(o, router)
        many.marks = dict.fromkeys((1, o.samples, 2 * o.samples))
        try:
            for mock in many.mocks:
                join(router, mock)
            many.run = run = Run(
                rl(folder, folder / "run", "--fully-async", "--router-url", router.url, "--allow-difference", "identity", "--update-weight-transport", "pull",
                   server_concurrency=o.concurrency, server_threads=None, num_rollout=3, rollout_batch_size=o.samples // 4,
                   n_samples_per_prompt=4, rollout_max_response_len=8, max_tokens_per_gpu=8192))  # fmt: skip
            run.end(limit=3600)
            n_end = many.n_answers
        finally:
            many.close()
    log = run.log()
    print(f"{o.servers} servers, {o.samples} samples a rollout, {len(many.killed)} killed, {len(many.joined)} joined, answers after 0 to {o.longest} s, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    db = sqlite3.connect(run.dir / "ledger.db")
    counts(db)
    tries = db.execute("SELECT sum(attempt) FROM samples").fetchone()[0]
    db.close()
    print(f"  leases {tries}; answers given {n_end}")
    first, middle, last = (many.marks[n] for n in sorted(many.marks))
    for name, a, b in ("first", first, middle), ("second", middle, last):
        wall = b[0] - a[0]
        print(f"  {name} rollout's answers: {wall:.1f} s")
        for thread, s in (b[1] - a[1]).most_common(6):
            print(f"    {thread:20} {s:6.2f} s of processor time, {100 * s / wall:5.1f} % of a core")
    print(f"  memory {last[2]['VmRSS'] / 1024:.0f} MiB, highest {last[2]['VmHWM'] / 1024:.0f}; threads {last[2]['Threads']}")
    had = sorted(t - many.begun for port, t in many.had_us[1].items() if port not in many.killed)
    began = many.begun - middle[0]
    print(f"  version 1 began to go out {began:.1f} s after the first rollout's last answer, with {many.generating} answers under way; "
          f"90 % had it after {had[int(0.9 * len(had)) - 1]:.2f} s, all {len(had)} after {had[-1]:.2f} s")  # fmt: skip
    sent = re.search(r"weights: (\d+) bytes were handed out", log)
    print(f"  weights: {int(sent[1]) / 1e6:.2f} MB by the trainer, {sum(m.n_sent for m in many.mocks) / 1e6:.2f} MB from server to server")
    print(f"  joined servers that got weights and work: {sum(m.n_generated > 0 for m in many.joined)}")


if __name__ == "__main__":
    main()
