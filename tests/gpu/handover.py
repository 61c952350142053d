"""Weights from trainer to server on one GPU, through the real programs: in place (--colocate), copied on the device, and
over HTTP give the same weights and no gap; memory that a server lends and takes back; then the time of a hand-over for a
larger model.

    python3 tests/gpu/handover.py [BUILD] [hidden layers intermediate]    (default: build, and no larger model)

Needs a GPU and nothing but Python's standard library. Exit status 1 when something is wrong.
"""

import json
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from shared import check, checks, failures

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build")
LARGE = [int(x) for x in sys.argv[2:5]]
WAYS = {"in place": ["--colocate"], "offloaded": ["--colocate", "--offload-rollout"],
        "copy": ["--update-weight-transport", "ipc"],
"auto": [], "http": ["--update-weight-transport", "http"]}  # fmt: skip


def train(*words, **kw):
    return subprocess.run([BUILD / "clime-train", *map(str, words)], check=True, capture_output=True, text=True, **kw)


def init(folder, hidden, layers, intermediate, heads=8, kv=4, head_dim=64, vocab=()):
    train("init", folder, "--family", "qwen3", "--hidden-size", hidden, "--intermediate-size", intermediate,
          "--num-hidden-layers", layers, "--num-attention-heads", heads, "--num-key-value-heads", kv,
          "--head-dim", head_dim, "--max-position-embeddings", 1024, *vocab)  # fmt: skip


def rl(root, model, name, more, rollouts, size=(16, 4, 96)):
    prompts, samples, length = size
    run = root / name.replace(" ", "_")
    words = [BUILD / "clime-train", "rl", "--run", run, "--hf-checkpoint", model, "--prompt-data", root / "task" / "train.jsonl",
             "--input-key", "prompt", "--label-key", "label", "--rm-type", "random", "--num-rollout", rollouts,
             "--rollout-batch-size", prompts, "--n-samples-per-prompt", samples, "--rollout-max-response-len", length,
             "--lr", "1e-5", "--use-dynamic-batch-size", "--max-tokens-per-gpu", 4096, "--apply-chat-template",
             "--save-interval", 1000, "--device", "cuda", "--dtype", "bf16", "--server-max-total-tokens", 65536, *more]  # fmt: skip
    return run, [str(w) for w in words]


def no_gap(what, run):
    """Checks that the run's gap was 0; the milliseconds of its weight updates."""
    lines = [json.loads(line) for line in open(run / "metrics.jsonl")]
    steps = [m for m in lines if m["kind"] == "train"]
    gap = [m.get("train/train_rollout_logprob_abs_diff") for m in steps]
    tokens = sum(m["train/logprob_gap_tokens"] for m in steps)
    check(tokens > 0 and all(g == 0 for g in gap), f"{what}: gap {gap} over {tokens} tokens")
    return [m["perf/update_weights_time"] * 1e3 for m in lines if m["kind"] == "perf"]


def small(root):
    init(root / "small", 512, 4, 1024)
    shas = {}
    for name, more in WAYS.items():
        run, words = rl(root, root / "small", f"small {name}", more, 4)
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        sha = re.search(r"^done .*sha256 (\w{64})$", done.stdout, re.M)
        if done.returncode or not sha:
            check(False, f"{name}: {done.stdout[-1500:]} {done.stderr[-1500:]}")
            continue
        shas[name] = sha.group(1)
        ms = no_gap(name, run)
        said = re.findall(r"weights go to .*", done.stdout + done.stderr)
        print(f"        {said}; update {' '.join(f'{x:.1f}' for x in ms)} ms", flush=True)
    check(len(set(shas.values())) == 1 and len(shas) == len(WAYS), f"one SHA-256 of the weights: {shas}")


class Server:
    def __init__(self, root, model, *more, environment=None):
        self.log = root / "server.log"
        port_file = root / "port"
        port_file.unlink(missing_ok=True)
        with open(self.log, "w") as out:
            self.process = subprocess.Popen([BUILD / "clime-server", "--model-path", model, "--device", "cuda", "--port", "0",
                                             "--port-file", port_file, *more], stdout=out, stderr=out,
                                            env={**os.environ, **(environment or {})})  # fmt: skip
        while not port_file.exists():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{port_file.read_text().strip()}"

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def logp(self):
        """Four sequences, decoded in one batch: log-probabilities of their tokens, or the status."""
        body = {"input_ids": [[5 + i] * (70 + i) for i in range(4)], "return_logprob": True,
                "sampling_params": {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}}  # fmt: skip
        status, reply = self.post("/generate", body)
        return [r["meta_info"]["output_token_logprobs"] for r in reply] if status == 200 else status

    def stop(self):
        self.process.terminate()
        check(self.process.wait(30) == 0, "server ends well")


def memory(root):
    s = Server(root, root / "small", "--max-total-tokens", "1048576")
    print("        " + re.search(r"memory: .*", s.log.read_text()).group(0))
    before = [s.logp() for _ in range(3)]  # by the third time decode steps are replayed
    check(before[0] == before[1] == before[2] != 503, "the same bits when recorded")
    for tags in (["kv_cache"], ["kv_cache", "weights"]):
        status, r = s.post("/release_memory_occupation", {"tags": tags})
        given = r["free_bytes_after"] - r["free_bytes_before"]
        check(status == 200 and abs(given - r["kv_cache_bytes"] - r["weights_bytes"]) < 8 << 20 and given > 1 << 30,
              f"released {tags}: {r}")  # fmt: skip
        check(s.logp() == 503, "503 meanwhile")
        t0 = time.time()
        status, r = s.post("/resume_memory_occupation", {"tags": tags})
        check(status == 200 and r["free_bytes_before"] - r["free_bytes_after"] == given, f"taken back: {r}")
        print(f"        in {(time.time() - t0) * 1e3:.1f} ms")
        if "weights" in tags:
            check(s.logp() == 503, "no weights yet")
            check(s.post("/update_weights_from_disk", {"model_path": str(root / "small")})[0] == 200, "a full update")
        check(all(s.logp() == before[0] for _ in range(3)), f"the same bits after {tags}")
    s.stop()
    p = subprocess.run([BUILD / "clime-server", "--model-path", root / "small", "--device", "cuda", "--port", "0",
                        "--max-total-tokens", "900000000"], capture_output=True, text=True, timeout=60)  # fmt: skip
    check(p.returncode == 1 and "does not fit" in p.stderr, "too much KV: " + p.stderr.strip()[-400:])


class Asker(threading.Thread):
    """Asks the run's server for one token again and again; keeps when the first of each version of the weights came."""

    def __init__(self, log):
        super().__init__(daemon=True)
        self.log, self.first, self.ended = log, {}, False

    def run(self):
        url = None
        body = json.dumps({"input_ids": [5] * 64, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}).encode()
        while not self.ended:
            try:
                url = url or re.search(r"server-0 is up at (\S+)", self.log.read_text()).group(1)
                request = urllib.request.Request(url + "/generate", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=30) as reply:
                    version = json.load(reply)["meta_info"]["weight_version"]
                self.first.setdefault(int(version.split("@")[0]), time.time())  # "STEP@RUN"
            except (AttributeError, OSError, ValueError):  # not up, or its weights are being written
                time.sleep(0.0002)

    def delays(self, ledger):
        """From the end of each step (its optimizer's, as the ledger has it) to the first token of its weights, ms."""
        steps = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True).execute("SELECT step, done_us FROM steps ORDER BY step")
        return [1e3 * self.first[v] - done / 1e3 for v, done in steps.fetchall() if done and v in self.first]


def rollouts(name, words, log, n, limit):
    """Runs until the n-th rollout is done or the limit (s) is over, then kills the run, whose end would write 12 bytes a
    parameter. Its log; None when the rollouts were not done."""
    with open(log, "w") as out:
        p = subprocess.Popen(words, stdout=out, stderr=out)
    deadline = time.time() + limit
    while p.poll() is None and time.time() < deadline and log.read_text().count("\nrollout  ") < n:
        time.sleep(0.1)
    p.send_signal(signal.SIGKILL)
    p.wait()
    text = log.read_text()
    done = text.count("\nrollout  ") >= n
    if not done:
        check(False, f"{name}: {text[-2000:]}")
    return text if done else None


def large(root):
    hidden, layers, intermediate = LARGE
    t0 = time.time()
    init(root / "large", hidden, layers, intermediate, heads=32, kv=8, head_dim=128, vocab=("--vocab-size", 151936))
    print(f"large model made in {time.time() - t0:.1f} s", flush=True)
    for name in ("in place", "copy"):
        run, words = rl(root, root / "large", f"large {name}", WAYS[name], 1000, (8, 4, 64))
        log = root / f"large {name}.log"
        log.touch()
        asker = Asker(log)
        asker.start()
        text = rollouts(name, words, log, 4, 100)
        asker.ended = True
        if not text:
            continue
        ms = no_gap(f"large, {name}", run)
        print("        " + re.findall(r"memory: .*", text)[-1])
        print("        trainer, ms a hand-over: " + " ".join(f"{x:.2f}" for x in ms))
        print("        optimizer's end to the first new token, ms: " +
              " ".join(f"{x:.1f}" for x in asker.delays(run / "ledger.db")))  # fmt: skip
        server = (run / "logs" / "server-0.log").read_text()
        print("        server: " + re.search(r"ready on .* after [\d.]+ s", server).group(0))
        print("        server, ms in the engine: " + " ".join(re.findall(r"in flight, ([\d.]+) ms", server)))
        for line in re.findall(r"^rollout  .*", text, re.M):
            print("        " + line, flush=True)
        time.sleep(2)  # the children see their parent gone


def main(*parts, large):
    """Each part in turn with one folder of runs, the large model where one was asked for and nothing has failed."""
    with checks("handover") as root:
        try:
            train("task", root / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 40, "--num-heldout", 20)
            for part in parts:
                part(root)
            if LARGE and not failures:
                large(root)
        finally:
            for log in sorted(root.glob("*/logs/server-0.log")) if failures else []:
                print(f"== {log}\n{log.read_text()[-1500:]}")


if __name__ == "__main__":
    main(small, memory, large=large)
