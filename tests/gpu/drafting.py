"""Guessed rows (--speculative-algorithm NGRAM) at a model's real widths: every token and log-probability is that of a server
without, and what guessing gains on text that repeats itself and costs on text that does not.

    python3 tests/gpu/drafting.py [BUILD] [qwen3-4b|qwen3-0.6b|tiny] [ROUNDS]

The policy is random: greedily it goes in circles, at temperature 1 no token follows from the text. Exit status 1 when
something is not the same.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from ranks import deepen
from shared import SHAPES, check, failures

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
SHAPE = sys.argv[2] if len(sys.argv) > 2 else "qwen3-4b"
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 2
DEVICE = os.environ.get("DEVICE", "cuda")
NGRAM = ["--speculative-algorithm", "NGRAM"]
SERVERS = {
    "plain": [],
    "adaptive": NGRAM,
    "all of 4": [*NGRAM, "--no-speculative-adaptive", "--speculative-num-draft-tokens", "4"],
}
# requests at once, temperature, new tokens
LOADS = {
    "circles, 1": (1, 0.0, 512), "circles, 16": (16, 0.0, 512), "circles, 64": (64, 0.0, 384),
    "random, 1": (1, 1.0, 384), "random, 16": (16, 1.0, 384), "random, 64": (64, 1.0, 384), "random, 192": (192, 1.0, 256),
}  # fmt: skip


def folder(root):
    """A layer of random weights, as many times as the shape has layers."""
    words = SHAPES[SHAPE].copy()
    at = words.index("--num-hidden-layers") + 1
    layers, words[at] = words[at], 1
    subprocess.run([BUILD / "clime-train", "init", root / "one", *map(str, words)], check=True, capture_output=True)
    deepen(root / "one", root / "model", layers)
    return root / "model"


class Server:
    def __init__(self, root, name, words):
        self.log = root / f"{name}.log"
        port = root / f"{name}.port"
        command = [BUILD / "clime-server", "--model-path", root / "model", "--device", DEVICE, "--port", "0", "--port-file", port,
                   "--max-running-requests", "256", "--max-total-tokens", "131072", "--disable-radix-cache", *words]  # fmt: skip
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(list(map(str, command)), stderr=log)
        while not port.exists() or not port.read_text().strip():
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text()[-2000:])
            time.sleep(0.05)
        self.url = f"http://127.0.0.1:{port.read_text().strip()}"

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=100) as reply:
            return json.load(reply)

    def counts(self):
        return self.call("/server_info")["internal_states"][0]


def run(server, n, temperature, new, base):
    """All at once; tokens per second, what was said, and how it was guessed."""
    bodies = [{"input_ids": [(base + 31 * i + k * k) % 250 for k in range(40)], "return_logprob": True,
               "sampling_params": {"max_new_tokens": new, "temperature": temperature, "sampling_seed": base + i,
                                   "ignore_eos": True}} for i in range(n)]  # fmt: skip
    before = server.counts()
    start = time.time()
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        replies = list(pool.map(lambda b: server.call("/generate", b), bodies))
    took = time.time() - start
    after = server.counts()
    meta = [r["meta_info"] for r in replies]
    steps = after["num_steps"] - before["num_steps"]
    host = sum(after[k] - before[k] for k in ("step_start_us", "step_result_us")) / steps
    wait = (after["step_wait_us"] - before["step_wait_us"]) / steps
    text = f"{steps} steps, {after['num_overlapped_steps'] - before['num_overlapped_steps']} overlapped, {host:.0f} us host, {wait:.0f} waiting"
    if "spec_verify_ct" in meta[0]:
        guessed, right = (sum(m[f"spec_num_{k}_drafts"] for m in meta) for k in ("proposed", "correct"))
        text += f"; {guessed} guessed, {right} right, {n * new / sum(m['spec_verify_ct'] for m in meta):.2f} tokens a step"
    return n * new / took, [(r["output_ids"], r["meta_info"]["output_token_logprobs"]) for r in replies], text


def main():
    with tempfile.TemporaryDirectory(prefix="drafting-") as root:
        root = pathlib.Path(root)
        start = time.time()
        folder(root)
        servers = {name: Server(root, name, words) for name, words in SERVERS.items()}
        print(f"{SHAPE}, {len(servers)} servers ready after {time.time() - start:.1f} s", flush=True)
        try:
            for s in servers.values():
                run(s, 4, 0.0, 32, 5)
            for load, (n, temperature, new) in LOADS.items():
                for r in range(ROUNDS):
                    said = {}
                    plain = 0
                    for name, s in servers.items():
                        speed, said[name], text = run(s, n, temperature, new, 1000 * r + n)
                        plain = plain or speed
                        print(f"{load}, round {r}, {name}: {speed:.0f} tok/s ({speed / plain:.3f}); {text}", flush=True)
                    wrong = [name for name in said if said[name] != said["plain"]]
                    check(not wrong, f"{load}, round {r}: the same tokens and log-probabilities {wrong or ''}")
        finally:
            for s in servers.values():
                s.process.kill()
            if failures:
                print(*(f"== {s.log.name}\n{s.log.read_text()[-1500:]}" for s in servers.values()), sep="\n")
    print(f"{len(failures)} failed")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
