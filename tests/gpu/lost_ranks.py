"""A server over two GPUs whose second rank is killed, idle and amid recorded decode steps, or frozen amid them, with rows of all
experts on both and with whole ones: requests end with an error, /health says so, the log names the rank, the program ends within
the limit, and the GPUs are free for the next server.

    python3 tests/gpu/lost_ranks.py [BUILD]

Needs two GPUs, or one that the ranks share, and nothing but Python's standard library. Exit status 1 when something is wrong.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import handover
from shared import SHAPES, check, checks, own_gpus

LIMIT_S = 3


def follower(pid):
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                    return int(entry.name)
            except OSError:
                pass
    raise AssertionError("no follower")


def healthy(s):
    try:
        with urllib.request.urlopen(s.url + "/health", timeout=10) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False


def lose(root, model, how, busy, whole):
    name = f"{how.name}, {'amid steps' if busy else 'idle'}{', whole experts' if whole > 1 else ''}"
    s = handover.Server(root, model, "--tp-size", "2", "--ep-size", str(whole), "--dist-timeout", str(LIMIT_S), "--max-total-tokens", "65536")
    before = s.logp()
    check(before == s.logp() != 503, f"{name}: a server")
    rank, said = follower(s.process.pid), []
    body = {"input_ids": [5] * 20, "sampling_params": {"max_new_tokens": 1900, "temperature": 1, "ignore_eos": True}}

    def ask():
        try:
            said.append(s.post("/generate", body))
        except (urllib.error.URLError, OSError) as e:
            said.append((0, {"message": str(e)}))

    asked = threading.Thread(target=ask)
    if busy:
        asked.start()
        time.sleep(0.05)  # some steps of 1,900
        check(not said, f"{name}: it runs")
    os.kill(rank, how)
    t0 = time.time()
    if busy:
        asked.join(60)
        check(said and said[0][0] == 503 and "dead" in str(said[0][1]), f"{name}: the request ends: {said} after {time.time() - t0:.2f} s")
    while healthy(s) and time.time() - t0 < 30:
        time.sleep(0.02)
    took = time.time() - t0
    check(took < (LIMIT_S if how == signal.SIGSTOP else 0) + 2, f"{name}: not healthy any more after {took:.2f} s")
    try:
        code = s.process.wait(30)
    except subprocess.TimeoutExpired:
        code = None
        s.process.kill()
    check(code not in (0, None), f"{name}: ended with {code} after {time.time() - t0:.2f} s")
    log = s.log.read_text()
    check(f"rank 1 of 2 (pid {rank})" in log and "the engine is dead" in log, f"{name}: the log names it: {log[-400:]}")
    for _ in range(500):
        if not os.path.exists(f"/proc/{rank}"):
            break
        time.sleep(0.01)
    check(not os.path.exists(f"/proc/{rank}"), f"{name}: no rank is left")
    return before


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    own_gpus(2)
    with checks("lost") as root:
        words = ["init", root / "m", *SHAPES["tiny-experts"], "--max-position-embeddings", 2048]
        subprocess.run([build / "clime-train", *map(str, words)], check=True, capture_output=True)
        ways = ((signal.SIGKILL, False, 1), (signal.SIGKILL, True, 1), (signal.SIGSTOP, True, 1),
                (signal.SIGKILL, True, 2), (signal.SIGSTOP, True, 2))  # fmt: skip
        seen = [lose(root, root / "m", *way) for way in ways]
        check(all(said == seen[0] for said in seen), "the servers' bits are the same")


if __name__ == "__main__":
    main()
