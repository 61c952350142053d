"""The whole loop of reinforcement learning on N GPUs of one host, through the real programs: rollouts of full length, training
by as many ranks, servers that compute with the trainer's own memory: with whole weights, one for each GPU, or with parts of
them, one over all. Time by stage, response tokens a GPU and second, peak memory, milliseconds of a hand-over; the gap must be 0
and the weights of all ways the same.

    python3 tests/gpu/whole_loop.py BUILD SHAPE RANKS [PROMPTS [WAY ...]]

SHAPE: of shared.py. PROMPTS of a rollout, 8 answers each (default: 8 for each rank). WAYs: below (default: the two that are
colocated). In the environment: LAYERS=N cuts the model; LENGTH=N tokens of an answer (1,024); ROLLOUTS=N (2); MORE="--words of
the trainer"; LIMIT=seconds of a way (150); DEVICE=cpu, or fewer GPUs, which the ranks share, with the tiny shapes. Exit status 1 when something is wrong.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time

from ranks import BUILD, DEVICE, deepen, train
from shared import SHAPES, check, checks, own_gpus

SHAPE, RANKS = sys.argv[2], int(sys.argv[3])
PROMPTS = int(sys.argv[4]) if len(sys.argv) > 4 else 8 * RANKS
LENGTH, ROLLOUTS, LIMIT = (int(os.environ.get(k, v)) for k, v in (("LENGTH", 1024), ("ROLLOUTS", 2), ("LIMIT", 150)))
SAMPLES = 8
OWN = own_gpus(RANKS)
KV = [] if OWN else ["--server-max-total-tokens", 2 * LENGTH * SAMPLES * PROMPTS]  # no part of a GPU that others plan with, too
WAYS = {
    "replicated": ["--shard-weights", "off", "--colocate", "--rollout-num-gpus", RANKS],
    "sharded": ["--shard-weights", "on", "--colocate", "--rollout-num-gpus", RANKS, "--rollout-num-gpus-per-engine", RANKS],
    "pushed": ["--shard-weights", "on", "--rollout-num-gpus", RANKS, "--rollout-num-gpus-per-engine", RANKS],
}  # fmt: skip
# the fields of a rollout's lines in metrics.jsonl, in seconds
STAGES = {"rollout": "perf/rollout_time", "wait": "perf/train_wait_time", "train": "perf/train_time", "forward": "perf/forward_time",
          "backward": "perf/backward_time", "optimizer": "perf/optimizer_time", "hand-over": "perf/update_weights_time",
          "all": "perf/step_time"}  # fmt: skip


class Peaks(threading.Thread):
    """The most that each GPU had in use, and all processes of a run in memory of their own or shared, in GiB."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.gpus, self.host, self.ended = pid, [], 0, threading.Event()

    def of_host(self):
        parents, all_of = {}, {self.pid}
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        for _ in range(4):
            all_of |= {pid for pid, parent in parents.items() if parent in all_of}
        kib = 0
        for pid in all_of:
            with contextlib.suppress(OSError):
                kib += sum(map(int, re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())))
        return kib / 2**20

    def run(self):
        while not self.ended.wait(0.25):
            self.host = max(self.host, self.of_host())
            if OWN:
                said = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
                now = [int(x) / 1024 for x in said.stdout.split()]
                self.gpus = [max(a, b) for a, b in zip(now, self.gpus or now)]


def make(root):
    """A layer's weights are drawn once, and stand for all."""
    words = [str(w) for w in SHAPES[SHAPE]]
    at = words.index("--num-hidden-layers") + 1
    layers, words[at] = int(words[at]), "1"
    t0 = time.time()
    train("init", root / "one", *words, "--max-position-embeddings", max(4096, 2 * LENGTH))
    drawn = time.time()
    deepen(root / "one", root / "model", layers)
    shutil.rmtree(root / "one")
    train("task", root / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 8, "--num-heldout", 8)
    size = sum(f.stat().st_size for f in (root / "model").iterdir()) / 2**30
    print(f"{SHAPE}, {layers} layers: {size:.1f} GiB, drawn in {drawn - t0:.1f} s, written in {time.time() - drawn:.1f} s", flush=True)


def words_of(root, way):
    return [str(w) for w in (BUILD / "clime-train", "rl", "--run", root / way, "--hf-checkpoint", root / "model", "--prompt-data",
            root / "task" / "train.jsonl", "--input-key", "prompt", "--label-key", "label", "--rm-type", "random", "--num-rollout", 1000,
            "--rollout-batch-size", PROMPTS, "--n-samples-per-prompt", SAMPLES, "--rollout-max-response-len", LENGTH, "--lr", "1e-5",
            "--use-dynamic-batch-size", "--max-tokens-per-gpu", 8 * LENGTH, "--apply-chat-template", "--save-interval", 1000, "--device", DEVICE,
            "--dtype", "bf16", "--recompute-granularity", "full", "--actor-num-gpus-per-node", RANKS, *WAYS[way], *KV,
            *shlex.split(os.environ.get("MORE", "")))]  # fmt: skip


def lines_of(root, way, kind):
    with contextlib.suppress(OSError), open(root / way / "metrics.jsonl") as f:
        return [m for m in map(json.loads, f) if m["kind"] == kind]
    return []


def shas(root, way):
    with contextlib.closing(sqlite3.connect(f"file:{root / way / 'ledger.db'}?mode=ro", uri=True)) as db:
        return dict(db.execute("SELECT version, sha256 FROM versions ORDER BY version"))


def report(root, way, peaks):
    steps, tokens = lines_of(root, way, "train"), 0
    for i, perf in enumerate(lines_of(root, way, "perf")[:ROLLOUTS]):
        m = perf | steps[i]
        stages = ", ".join(f"{name} {m[key]:.2f}" for name, key in STAGES.items() if key in m)
        print(f"        rollout {i}: {stages} s", flush=True)
        n = PROMPTS * SAMPLES * lines_of(root, way, "rollout")[i]["rollout/response_len/mean"]
        print(f"        {n:.0f} response tokens: {n / RANKS / m['perf/rollout_time']:.0f} a GPU and second of the rollout, "
              f"{n / RANKS / m['perf/step_time']:.0f} of the whole; hand-over {1e3 * m['perf/update_weights_time']:.1f} ms")  # fmt: skip
    gap = [m.get("train/train_rollout_logprob_abs_diff") for m in steps]
    tokens = sum(m["train/logprob_gap_tokens"] for m in steps)
    check(tokens > 0 and not any(gap), f"{way}: gap {gap} over {tokens} tokens")
    if "--num-experts" in SHAPES[SHAPE]:
        routed = [sum(m.get(f"train/routing_{x}", 0) for m in steps) for x in ("tokens", "wrong")]
        check(routed == [tokens, 0], f"{way}: other experts drew {routed[1]} of {routed[0]} tokens")
    print(f"        peak: GPUs {' '.join(f'{x:.1f}' for x in peaks.gpus)} GiB, host {peaks.host:.1f} GiB")


def run(root, way):
    """Until the last rollout is trained on and handed over; then it is killed, as its end would write 12 bytes a parameter. The
    SHA-256 of each version."""
    log = root / f"{way}.log"
    with open(log, "w") as out:
        p = subprocess.Popen(words_of(root, way), stdout=out, stderr=out)
    peaks, t0 = Peaks(p.pid), time.time()
    peaks.start()
    while p.poll() is None and time.time() - t0 < LIMIT and len(lines_of(root, way, "perf")) < ROLLOUTS:
        time.sleep(0.1)
    peaks.ended.set()
    peaks.join()
    p.send_signal(signal.SIGKILL)
    p.wait()
    text = log.read_text()
    print(f"== {way}: {time.time() - t0:.1f} s\n        " + "\n        ".join(re.findall(r".*(?:memory:|ranks|weights go to|loaded).*", text)))
    if len(lines_of(root, way, "perf")) < ROLLOUTS:
        for file in (log, *(root / way).glob("rank-*.log"), *(root / way).glob("logs/*.log")):
            print(f"== {file}\n{file.read_text()[-2000:]}")
        check(False, f"{way}: {ROLLOUTS} rollouts within {LIMIT} s")
        return {}
    report(root, way, peaks)
    found = shas(root, way)
    time.sleep(2)  # its children see it gone
    return {v: found[v] for v in range(ROLLOUTS) if v in found}


def main():
    ways = sys.argv[5:] or ["replicated", "sharded"]
    with checks("whole-loop") as root:
        make(root)
        all_of = {}
        for way in ways:
            all_of[way] = run(root, way)
            shutil.rmtree(root / way, ignore_errors=True)
        first = all_of[ways[0]]
        check(len(first) == ROLLOUTS and all(v == first for v in all_of.values()), f"the same weights in all ways: {all_of}")


if __name__ == "__main__":
    main()
