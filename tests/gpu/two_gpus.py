"""Weights from a trainer on GPU 0 to a server on GPU 1 of the same host, through the real programs: by NCCL (chosen by
itself), by CUDA IPC and over HTTP give the same weights and no gap; a peer that never comes is an error within its limit
and a killed server is replaced; then the broadcast of a larger model against the link's own rate.

    python3 tests/gpu/two_gpus.py [BUILD] [hidden layers intermediate]    (default: build, and no larger model)

Needs two GPUs and libnccl.so.2; torch for the link's rate. Exit status 1 when something is wrong.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import handover
from handover import LARGE, init, no_gap, rl, rollouts
from shared import check

ON_GPU_1 = ["--server-base-gpu-id", "1"]
WAYS = {"auto": [], "ipc": ["--update-weight-transport", "ipc"], "http": ["--update-weight-transport", "http"],
        "killed": []}  # fmt: skip


def kill_a_server(trainer, log):
    """SIGKILL to the trainer's server once a rollout is done."""
    while trainer.poll() is None and "rollout  1 " not in log.read_text():
        time.sleep(0.02)
    for entry in pathlib.Path("/proc").iterdir():
        try:
            name, rest = (entry / "stat").read_text().rsplit(")", 1)
        except (OSError, ValueError):
            continue
        if name.endswith("(clime-server") and int(rest.split()[1]) == trainer.pid:
            os.kill(int(entry.name), signal.SIGKILL)
            return


def run(words, log, killed, timeout):
    with open(log, "w") as out:
        p = subprocess.Popen(words, stdout=out, stderr=out)
    if killed:
        threading.Thread(target=kill_a_server, args=(p, log)).start()
    try:
        return p.wait(timeout)
    except subprocess.TimeoutExpired:
        p.kill()
        return p.wait()


def small(root):
    init(root / "small", 512, 4, 1024)
    shas = {}
    for name, more in WAYS.items():
        run_dir, words = rl(root, root / "small", f"small {name}", ON_GPU_1 + more, 6)
        log = root / f"{name}.log"
        code = run(words, log, name == "killed", 60)
        text = log.read_text()
        sha = re.search(r"^done .*sha256 (\w{64})$", text, re.M)
        if code or not sha:
            check(False, f"{name}: {text[-3000:]}")
            continue
        shas[name] = sha.group(1)
        ms = no_gap(name, run_dir)
        print(f"        {set(re.findall(r'weights go to .*', text))}; update {' '.join(f'{x:.1f}' for x in ms)} ms", flush=True)
        if name == "killed":
            check("server-0 died" in text, "killed: the server died and came again")
        if name in ("auto", "killed"):  # a push to a server that is dying tries the other ways; its successor begins anew
            last = re.findall(r"weights go to .*", text)[-1]
            check("by broadcast" in last, f"{name}: it went by NCCL to the end: {last}")
    check(len(set(shas.values())) == 1 and len(shas) == len(WAYS), f"one SHA-256 of the weights: {shas}")


def nobody_comes(root):
    s = handover.Server(root, root / "small", "--gpu", "1", "--max-total-tokens", "65536")
    before = s.logp()
    t0 = time.time()
    status, reply = s.post("/init_weights_update_group",
                           {"rank_offset": 1, "world_size": 2, "nccl_id": os.urandom(128).hex(), "timeout": 3})  # fmt: skip
    took = time.time() - t0
    check(status in (503, 504) and took < 10, f"a group that nobody leads: {status} after {took:.1f} s: {reply['message']}")
    check(s.logp() == before, "the server serves on")
    s.stop()


LINK = """
import torch, time
n = 8 << 30
a = torch.empty(n, dtype=torch.uint8, device="cuda:0").random_(0, 255); b = torch.empty(n, dtype=torch.uint8, device="cuda:1")
best = 1e9
for i in range(6):
    torch.cuda.synchronize(0); torch.cuda.synchronize(1); t = time.time()
    b.copy_(a); torch.cuda.synchronize(0); torch.cuda.synchronize(1); best = min(best, time.time() - t)
print(f"link: peer copy of 8 GiB at {n / best / 1e9:.1f} GB/s")
"""


def large(root):
    hidden, layers, intermediate = LARGE
    link = subprocess.run([sys.executable, "-c", LINK], capture_output=True, text=True)
    print(link.stdout + link.stderr[-300:], flush=True)
    init(root / "large", hidden, layers, intermediate, heads=32, kv=8, head_dim=128, vocab=("--vocab-size", 151936))
    for name in ("auto", "ipc"):
        run_dir, words = rl(root, root / "large", f"large {name}", ON_GPU_1 + WAYS[name], 1000, (8, 4, 64))
        log = root / f"large {name}.log"
        text = rollouts(name, words, log, 3, 60)
        if not text:
            continue
        ms = no_gap(f"large, {name}", run_dir)
        print("        trainer, ms a hand-over: " + " ".join(f"{x:.2f}" for x in ms))
        for line in re.findall(r"weights of version .*", text) + re.findall(r"^rollout  .*", text, re.M):
            print("        " + line, flush=True)
        time.sleep(1)


if __name__ == "__main__":
    handover.main(small, nobody_comes, large=large)
