"""A server on one GPU as its clients see it, over HTTP, and a peer beside it: decode at several batch sizes, prefill of long
prompts, a rollout. And the contract: a request says the same alone and among others, to the bit.

    python3 tests/gpu/over_http.py BUILD SHAPE [--batches 1,16,64,256] [--layers N] [--draw] [--turns N] [--peer COMMAND]

SHAPE: of shared.py. Random weights, a layer's drawn once for all layers, with --draw every layer's. A step of decode is the
difference of two lengths of generation after the same prompts, over the tokens between; the best of two turns, or of N, of
prefill of one more. Times end with the last byte of the last reply; reading it as JSON is not in them. COMMAND is a line for the shell that
runs before our server does, and begins while the weights are made; its lines of JSON are a peer's figures: {"peer": NAME, "what": "decode", "batch": N, "sampling":
"greedy"|"temp1"|"temp1+logprobs0", "tokens_per_s": X}, "what": "prefill" with tokens_per_s, "rl" with sampling and new_tokens_per_s.
What stands behind a peer's figure is ours over its. In the environment: MORE="--words of the server"; TMPDIR: a folder with room
for the weights, /dev/shm if need be; DEVICE=cpu with the tiny shapes, which are asked for less. Exit status 1 when something is
wrong.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import shlex
import shutil
import subprocess
import time

from ranks import BUILD, DEVICE, deepen, train
from shared import SHAPES, check, checks

# prompts and their tokens, new tokens; of a rollout: prompts, samples of each
DECODE = {"prompt": 900, "new": (40, 240)}
PREFILL = {"n": 8, "prompt": 8192}
ROLLOUT = {"n": 32, "samples": 8, "prompt": 250, "new": 1024}
ALONE = {"n": 256, "prompt": 500, "new": 128}
if DEVICE == "cpu":
    DECODE = {"prompt": 60, "new": (16, 144)}
    PREFILL = {"n": 2, "prompt": 1024}
    ROLLOUT = {"n": 4, "samples": 4, "prompt": 20, "new": 64}
    ALONE = {"n": 16, "prompt": 50, "new": 32}
SAMPLINGS = {"greedy": (0.0, False), "temp1": (1.0, False), "temp1+logprobs": (1.0, True)}  # temperature, log-probabilities
CONTEXT = 2 * PREFILL["prompt"]
RUNNING = 256
LIMIT = 300
PAGE = 64

draw = random.Random(1)


def prompts(n, length):
    return [[draw.randrange(1000, 150000) for _ in range(length)] for _ in range(n)]


def asked(prompt, new, how, **params):
    temperature, logprobs = how
    params |= {"temperature": temperature, "max_new_tokens": new, "ignore_eos": True}
    return json.dumps({"input_ids": prompt, "return_logprob": logprobs, "sampling_params": params}).encode()


def fits(server, n, length):
    """Whether the keys of so many sequences do."""
    return n * (length + PAGE - length % PAGE) <= server.room


class Server:
    def __init__(self, port):
        self.port, self.room = port, 0
        self.pool = concurrent.futures.ThreadPoolExecutor(RUNNING)

    def call(self, method, path, body=None):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        with contextlib.closing(link):
            link.request(method, path, body, {"Content-Type": "application/json"})
            reply = link.getresponse()
            return reply.status, reply.read()

    def generate(self, bodies, new, logprobs):
        """All at once: seconds, and of each reply, which must be whole, ids and, if wanted, log-probabilities, whose numbers are
        equal where their bits are."""
        t0 = time.perf_counter()
        got = list(self.pool.map(lambda body: self.call("POST", "/generate", body), bodies))
        took = time.perf_counter() - t0
        replies = []
        for status, text in got:
            if status != 200:
                raise RuntimeError(f"status {status}: {text[:500]}")
            reply = json.loads(text)
            meta = reply["meta_info"]
            replies.append([reply["output_ids"], *([[logprob for logprob, *_ in meta["output_token_logprobs"]]] if logprobs else [])])
            came = [meta["completion_tokens"], *map(len, replies[-1])]
            if set(came) != {new}:
                raise RuntimeError(f"of {new} tokens asked for came {came}")
        return took, replies

    def best(self, turns, given, new, sampling):
        """Of some turns at the same: seconds, and the last one's replies."""
        bodies = [asked(prompt, new, SAMPLINGS[sampling]) for prompt in given]
        done = [self.generate(bodies, new, SAMPLINGS[sampling][1]) for _ in range(turns)]
        return min(took for took, _ in done), done[-1][1]


@contextlib.contextmanager
def served(root):
    """What a user starts for this; prompts are random, so none begins as another does."""
    words = ["--model-path", root / "model", "--device", DEVICE, "--port", 0, "--port-file", root / "port", "--disable-radix-cache",
             "--max-running-requests", RUNNING, *(["--max-total-tokens", 65536] if DEVICE == "cpu" else []),
             *shlex.split(os.environ.get("MORE", ""))]  # fmt: skip
    t0, log = time.time(), root / "server.log"
    with open(log, "w") as out:
        process = subprocess.Popen([BUILD / "clime-server", *map(str, words)], stdout=out, stderr=out)
    try:
        while not (root / "port").exists() or not (root / "port").read_text().strip():
            if process.poll() is not None:
                raise RuntimeError("the server has ended")
            time.sleep(0.02)
        print(f"        ready after {time.time() - t0:.1f} s: {' '.join(map(str, words[8:]))}", flush=True)
        server = Server(int((root / "port").read_text()))
        info = json.loads(server.call("GET", "/server_info")[1])
        server.room = info["max_total_num_tokens"]
        print(f"        {info['device_name']}, keys of {server.room} tokens", flush=True)
        yield server
        check(process.poll() is None, "the server still runs")
    except BaseException:
        print(log.read_text()[-3000:])
        raise
    finally:
        process.kill()
        process.wait()


def make(root, shape, layers, every):
    """What was made, in words."""
    words = [str(w) for w in SHAPES[shape]]
    at = words.index("--num-hidden-layers") + 1
    layers = layers or int(words[at])
    words[at] = str(layers if every else 1)
    t0 = time.time()
    train("init", root / ("model" if every else "one"), *words, "--max-position-embeddings", CONTEXT)
    if not every:
        deepen(root / "one", root / "model", layers)
        shutil.rmtree(root / "one")
    size = sum(f.stat().st_size for f in (root / "model").iterdir()) / 2**30
    how = "every layer drawn" if every else "one layer drawn, the others are the same"
    return f"{shape}, {layers} layers, {how}: {size:.1f} GiB, made in {time.time() - t0:.1f} s"


def key(what, sampling="", batch=0):
    """By which our figure and a peer's are the same."""
    return what, sampling.removesuffix("0"), batch


def peer(command):
    """Figures by peer and key."""
    figures, t0 = collections.defaultdict(dict), time.time()
    process = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        print("peer    " + line, end="", flush=True)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            one = json.loads(line)
            rate = one["tokens_per_s"] if "tokens_per_s" in one else one["new_tokens_per_s"]
            name = " ".join(one[k] for k in ("peer", "mode") if k in one)
            figures[name or "peer"][key(one["what"], one.get("sampling", ""), one.get("batch", 0))] = rate
    check(process.wait() == 0 and figures, f"peer in {time.time() - t0:.0f} s")
    return figures


def row(figures, which, text, rate):
    beside = [f"; {name} {of[which]:,.0f} ({rate / of[which]:.2f})" for name, of in figures.items() if which in of]
    print(f"{text}: {rate:,.0f} tok/s{''.join(beside)}", flush=True)


def alone(server):
    length, new = ALONE["prompt"], ALONE["new"]
    n = max(n for n in range(1, ALONE["n"] + 1) if fits(server, n, length + new))
    given = prompts(n, length)
    for name, temperature in (("greedy", 0.0), ("temperature 1", 1.0)):
        bodies = [asked(p, new, (temperature, True), sampling_seed=i) for i, p in enumerate(given)]
        among = server.generate(bodies, new, True)[1]
        for i in sorted({n // 3, n - 1}):
            itself = server.generate(bodies[i : i + 1], new, True)[1]
            check(itself == among[i : i + 1], f"{name}, request {i} of {n}: alone the same ids and bits of log-probabilities")


def decode(server, figures, turns, n):
    length, (few, many) = DECODE["prompt"], DECODE["new"]
    if not fits(server, n, length + many):
        print(f"decode, batch {n}: no room for its keys", flush=True)
        return
    given = prompts(n, length)
    for sampling in SAMPLINGS:
        short, long = (server.best(turns, given, new, sampling)[0] for new in (few, many))
        step = max(long - short, 1e-9) / (many - few)
        row(figures, key("decode", sampling, n), f"decode, batch {n}, {sampling}, {step * 1e3:.3f} ms a step", n / step)


def prefill(server, figures, turns):
    n, length = PREFILL["n"], PREFILL["prompt"]
    took, _ = server.best(turns + 1, prompts(n, length), 1, "greedy")
    row(figures, key("prefill"), f"prefill of {n} x {length}, {took:.3f} s", n * length / took)


def rollout(server, figures, turns):
    n, samples, length, new = ROLLOUT.values()
    given, sampling = [p for p in prompts(n, length) for _ in range(samples)], "temp1+logprobs"
    took, replies = server.best(turns, given, new, sampling)
    different = len({tuple(ids) for ids, _ in replies})
    wait = "" if fits(server, len(given), length + new) else ", some wait for room"
    row(figures, key("rl", sampling), f"rollout of {n} x {samples} x {new}, {sampling}, {different} different{wait}, {took:.3f} s", len(given) * new / took)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("build")
    a.add_argument("shape", choices=SHAPES)
    a.add_argument("--batches", default="1,4,16" if DEVICE == "cpu" else "1,16,64,256")
    a.add_argument("--layers", type=int)
    a.add_argument("--draw", action="store_true")
    a.add_argument("--turns", type=int, default=2)
    a.add_argument("--peer")
    o = a.parse_args()
    batches = [int(n) for n in o.batches.split(",")]
    if max(batches) > RUNNING:
        a.error(f"--batches: {RUNNING} run together")
    with checks("over-http") as root:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            made = pool.submit(make, root, o.shape, o.layers, o.draw)
            figures = peer(o.peer) if o.peer else {}
        print(made.result(), flush=True)
        with served(root) as server:
            alone(server)
            for n in batches:
                decode(server, figures, o.turns, n)
            prefill(server, figures, o.turns)
            rollout(server, figures, o.turns)


if __name__ == "__main__":
    main()
