"""Guessed rows (--speculative-algorithm NGRAM) at a model's real widths: every token and log-probability is that of a server
without, and what guessing gains on text that repeats itself and costs on text that does not.

    python3 tests/gpu/drafting.py [BUILD] [qwen3-4b|qwen3-0.6b|tiny|FOLDER] [ROUNDS]
    DEVICE=cpu with tiny or a small model's folder

The policy is random, and what attention says is not listened to (its output matrix is zero, the work is the same): a token
follows from the one before. Greedily it goes in circles, at temperature 1 nothing comes twice. Exit status 1 when something
is not the same.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

from ranks import deepen
from shared import SHAPES, check, checks, failures

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
# requests at once, temperature, new tokens, whether they go on with a text that goes in circles
LOADS = {
    "circles, 1": (1, 0.0, 384, True), "circles, 16": (16, 0.0, 384, True), "circles, 64": (64, 0.0, 384, True),
    "warm circles, 16": (16, 0.06, 384, True),
    "random, 1": (1, 1.0, 256, False), "random, 64": (64, 1.0, 256, False), "random, 192": (192, 1.0, 256, False),
}  # fmt: skip
FEW = {"circles, 1": (1, 0.0, 200, True), "circles, 8": (8, 0.0, 200, True), "random, 1": (1, 1.0, 200, False),
       "random, 8": (8, 1.0, 200, False), "random, 64": (64, 1.0, 100, False)}  # fmt: skip
SMALL = DEVICE == "cpu" or SHAPE == "tiny"
LONG = 200 if SMALL else 1500  # tokens before it is one


def silence(file):
    """Attention's output matrix becomes 0."""
    with open(file, "r+b") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        at = f.tell()
        a, b = head["model.layers.0.self_attn.o_proj.weight"]["data_offsets"]
        f.seek(at + a)
        f.write(bytes(b - a))


def folder(root):
    """A layer of random weights, as many times as the shape has layers."""
    if SHAPE not in SHAPES:
        return pathlib.Path(SHAPE)
    words = SHAPES[SHAPE].copy()
    at = words.index("--num-hidden-layers") + 1
    layers, words[at] = words[at], 1
    subprocess.run([BUILD / "clime-train", "init", root / "one", *map(str, words),
                    "--max-position-embeddings", "4096"], check=True, capture_output=True)
    silence(root / "one" / "model.safetensors")
    deepen(root / "one", root / "model", layers)
    return root / "model"


class Server:
    def __init__(self, root, model, name, words):
        self.log = root / f"{name}.log"
        port = root / f"{name}.port"
        command = [BUILD / "clime-server", "--model-path", model, "--device", DEVICE, "--port", "0", "--port-file", port,
                   "--max-running-requests", "256", "--max-total-tokens", "180000", *words]  # fmt: skip
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


def ask(server, prompts, new, temperature=0.0, base=0):
    """All at once."""
    bodies = [{"input_ids": p, "return_logprob": True, "sampling_params": {"max_new_tokens": new, "temperature": temperature,
               "sampling_seed": base + i, "ignore_eos": True}} for i, p in enumerate(prompts)]  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda b: server.call("/generate", b), bodies))


def prompts(n, base):
    return [[(base + 31 * i + k * k) % 250 for k in range(40)] for i in range(n)]


def run(server, given, temperature, new, base):
    """Tokens per second, what was said, and how it was guessed."""
    n = len(given)
    before = server.counts()
    start = time.time()
    replies = ask(server, given, new, temperature, base)
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
    with checks("drafting") as root:
        start = time.time()
        model = folder(root)
        servers = {name: Server(root, model, name, words) for name, words in SERVERS.items()}
        print(f"{SHAPE}, {len(servers)} servers ready after {time.time() - start:.1f} s", flush=True)
        try:
            loads = FEW if SMALL else LOADS
            most = max(n for n, _, _, circles in loads.values() if circles)
            first = prompts(most, 7)
            long = [p + r["output_ids"] for p, r in zip(first, ask(servers["plain"], first, LONG), strict=True)]
            for s in servers.values():
                ask(s, long, 1)
            print(f"{most} texts, {len({tuple(t[-50:]) for t in long})} ends; {time.time() - start:.1f} s", flush=True)
            for r in range(ROUNDS):
                for j, (load, (n, temperature, new, circles)) in enumerate(loads.items()):
                    said, plain = {}, 0
                    base = 10000 * r + 300 * j  # nothing is asked twice
                    given = long[:n] if circles else prompts(n, base)
                    for name, s in servers.items():
                        speed, said[name], text = run(s, given, temperature, new, base)
                        plain = plain or speed
                        print(f"{load}, round {r}, {name}: {speed:.0f} tok/s ({speed / plain:.3f}); {text}", flush=True)
                    wrong = [name for name in said if said[name] != said["plain"]]
                    check(not wrong, f"{load}, round {r}: the same tokens and log-probabilities {wrong or ''}")
        finally:
            for s in servers.values():
                s.process.kill()
            if failures:
                print(*(f"== {s.log.name}\n{s.log.read_text()[-1500:]}" for s in servers.values()), sep="\n")


if __name__ == "__main__":
    main()
