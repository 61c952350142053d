#!/usr/bin/env python3
"""Ranks of a supervised run killed at random moments: tests/chaos/ranks.py --kills 20 --seed 1

Each kill is of a random rank, one random time after the run has gone on since the last one. A follower's end the run gets over by
itself; after rank 0's the same command goes on with another number of ranks, weights whole or in parts. Good when the weights end
with the SHA-256 of a run of one rank that nobody disturbed. A line a kill: what, after which step, and how soon the run had gone on after the one before.
"""

import argparse
import contextlib
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import test_ranks as t  # noqa: E402

LIMIT = 60 * float(os.environ.get("CLIME_SLOW", 1))  # seconds from a kill to the next step


def newest(d, name):
    try:
        with contextlib.closing(sqlite3.connect(f"file:{d / name / 'ledger.db'}?mode=ro", uri=True)) as db:
            return db.execute("SELECT max(done_us) FROM steps").fetchone()[0] or 0
    except sqlite3.OperationalError:
        return 0


def start(d, rng, log, epochs):
    ranks, shard = rng.choice((1, 2, 4)), rng.choice(("on", "off"))
    p = t.popen(t.words(d, "killed", ranks, num_epoch=epochs, shard_weights=shard), log)
    return p, ranks, f"{ranks} ranks, weights {'in parts' if shard == 'on' and ranks > 1 else 'whole'}"


def main():
    o = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    o.add_argument("--kills", type=int, default=20)
    o.add_argument("--seed", type=int, default=1)
    o.add_argument("--epochs", type=int, default=40, help="of 25 steps each: as long as the kills take")
    o = o.parse_args()
    d, rng = pathlib.Path(tempfile.mkdtemp(prefix="clime-ranks-")), random.Random(o.seed)
    t.prepare(d)
    whole = subprocess.run(t.words(d, "undisturbed", 1, num_epoch=o.epochs), capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr[-2000:]
    log = d / "killed.log"
    p, ranks, how = start(d, rng, log, o.epochs)
    print(f"{how}", flush=True)
    for kill in range(o.kills):
        before, begun = newest(d, "killed"), time.monotonic()
        while newest(d, "killed") == before:
            assert p.poll() is None, f"ended before kill {kill + 1}: more --epochs, or:\n{log.read_text()[-2000:]}"
            assert time.monotonic() - begun < LIMIT, f"no step within {LIMIT:.0f} s of a kill:\n{log.read_text()[-2000:]}"
            time.sleep(0.01)
        waited = time.monotonic() - begun
        time.sleep(rng.uniform(0, 0.4))
        victim = rng.randrange(ranks)
        pid = t.ranks_of(p.pid).get(victim) if victim else p.pid
        step = t.steps_done(d, "killed")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid or p.pid, signal.SIGKILL)
        said = f"kill {kill + 1}: rank {victim if pid else 0} of {ranks} after {step} steps, having gone on {waited:.1f} s after the last kill"
        if not victim or not pid:
            p.wait(LIMIT)
            p, ranks, how = start(d, rng, log, o.epochs)
            said += f"; again with {how}"
        print(said, flush=True)
    assert p.wait(20 * LIMIT) == 0, log.read_text()[-2000:]
    same = t.sha(d, "killed") == t.sha(d, "undisturbed")
    print(f"{o.kills} kills, SHA-256 {t.sha(d, 'killed')} {'of the undisturbed run' if same else 'AND NOT ' + t.sha(d, 'undisturbed')}")
    return not same


if __name__ == "__main__":
    sys.exit(main())
