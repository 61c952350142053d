#!/usr/bin/env python3
"""The torture test as a program: `make chaos`, or tests/chaos/chaos.py --rounds 100 --seed 1 [--only ROUND].

Each round is a run of clime-train with its fleet, to which faults happen at random moments; which and when follow from the seed
and the round's number. A round is good when the run ends, its weights' SHA-256 and every trained sample are the undisturbed
run's, the ledger is whole, and nothing was silent for longer than LIMIT. Prints a line a round and the count of each fault.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import record
from machine import HERE, Machine

KINDS = ("own fleet", "outside fleet", "environments")
LIMIT = 60 * float(os.environ.get("CLIME_SLOW", 1))  # seconds without a sign of life, and for the end once the last fault is over
BUILD = pathlib.Path(os.environ.get("CLIME_BUILD", "build")).resolve()


def make_model(folder):
    run = lambda *a: subprocess.run([BUILD / "clime-train", *map(str, a)], check=True, capture_output=True, timeout=LIMIT)
    run("init", folder / "init", "--family", "qwen3", "--hidden-size", 64, "--intermediate-size", 192, "--num-hidden-layers", 2,
        "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 64, "--max-position-embeddings", 256)  # fmt: skip
    run("task", folder / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 40, "--num-heldout", 20)
    hostile = folder / "hostile.so"
    subprocess.run(["cc", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-o", hostile, HERE.parent / "e2e" / "hostile_machine.c", "-ldl"],
                   check=True, timeout=LIMIT)  # fmt: skip
    return hostile


def outcome(m):
    """What the run came to: its last SHA-256 and its record."""
    found = re.findall(r"^done .*sha256 ([0-9a-f]{64})$", m.log.read_text(errors="replace"), re.M)
    assert found, "no SHA-256"
    return {"sha256": [found[-1]], **record.read(m.run_dir)}


def last_sign(m):
    """When the run last wrote something. A file may go at any moment: SQLite takes its -wal away when the last one closes."""
    times = []
    for name in ("run/ledger.db", "run/ledger.db-wal", "run/metrics.jsonl", "log"):
        with contextlib.suppress(FileNotFoundError):
            times.append((m.folder / name).stat().st_mtime)
    return max(times, default=time.time())


def play(m, n_faults):
    """The round, until the run is done; (count of each fault, longest silence in seconds)."""
    counts, longest, due = collections.Counter(), 0.0, time.time() + m.rng.uniform(0, 0.5)
    fresh = time.time()
    while m.keep_trainer() is None:
        m.keep_outside()
        now = time.time()
        silence = now - max(last_sign(m), m.stopped_until, fresh)
        longest = max(longest, silence)
        assert silence < LIMIT, f"no sign of life for {silence:.0f} s"
        if n_faults and now >= due:
            weights, what = zip(*m.faults())
            name = m.rng.choices(what, weights)[0]()
            counts.update([name] if name else [])
            n_faults -= 1
            due = time.time() + m.rng.uniform(0, 0.6)
            fresh = time.time()
        time.sleep(0.01)
    return counts, longest


def one_round(folder, model, hostile, kind, seed, size, want):
    n_rollouts, n_faults = size
    folder.mkdir()
    m = Machine(BUILD, model, folder, kind, random.Random(seed), hostile, n_rollouts)
    begun = time.monotonic()
    try:
        counts, longest = play(m, n_faults)
        came = outcome(m)
    except BaseException:
        print(f"{kind}, seed {seed}: see {folder}\n" + m.log.read_text(errors="replace")[-3000:], flush=True)
        raise
    finally:
        m.close()
    if want:
        found = record.differences(want, came)
        assert not found, f"{kind}, seed {seed}: {found}: see {folder}"
    return came, counts, longest, m.restarts, time.monotonic() - begun


def chaos(folder, rounds, seed, n_rollouts, n_faults, kinds=KINDS, only=None):
    """All rounds; the count of each fault. The folders of good rounds are removed."""
    model = folder / "model"
    model.mkdir()
    hostile = make_model(model)
    total, want, silence = collections.Counter(), {}, 0.0
    for i in range(rounds) if only is None else [only]:
        kind = kinds[i % len(kinds)]
        as_one = "environments" if kind == "environments" else "own fleet"  # who serves changes no bit
        if as_one not in want:
            want[as_one] = one_round(folder / f"undisturbed {as_one}", model, hostile, as_one, "calm", (n_rollouts, 0), None)[0]
        where = folder / f"round-{i}"
        _, counts, longest, restarts, seconds = one_round(where, model, hostile, kind, f"{seed} {i}", (n_rollouts, n_faults), want[as_one])
        total += counts
        silence = max(silence, longest)
        said = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        print(f"round {i}: {kind}, {seconds:.1f} s, longest silence {longest:.1f} s, {restarts} ends with a word; {said}", flush=True)
        shutil.rmtree(where)
    print(f"{rounds if only is None else 1} rounds: the same weights and records in all; longest silence {silence:.1f} s; {sum(total.values())} faults:")
    for name, n in sorted(total.items()):
        print(f"{n:6} {name}")
    return total


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=100)
    p.add_argument("--seed", default="1")
    p.add_argument("--rollouts", type=int, default=40, help="of a round; an undisturbed one takes 25 ms each")
    p.add_argument("--faults", type=int, default=12, help="of a round")
    p.add_argument("--only", type=int, help="this round alone")
    o = p.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        chaos(folder, o.rounds, o.seed, o.rollouts, o.faults, only=o.only)
    except AssertionError as e:
        sys.exit(f"chaos: {e}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
