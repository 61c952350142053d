"""Training on two GPUs of one host, through the real programs: whatever the number of ranks, the way of their bytes and
who was killed, one SHA-256; a stopped rank is named. With a shape, the speed of training on one GPU and on two, and what
lanes of gradients cost.

    python3 tests/gpu/ranks.py [BUILD] [qwen3-4b]    (default: build, and no speed)

Needs two GPUs, libnccl.so.2 and nothing but Python's standard library. On one GPU, which the ranks share, and with DEVICE=cpu it
runs what needs no second. Exit status 1 when something is wrong.
"""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

from shared import SHAPES, check, checks, own_gpus, share_gpus, timed

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build")
DEVICE = os.environ.get("DEVICE", "cuda")
ON_GPUS = DEVICE == "cuda"
LIMIT = 60
COPY_BYTES = 64 << 20


def train(*words):
    return subprocess.run([BUILD / "clime-train", *map(str, words)], check=True, capture_output=True, text=True)


def deepen(one, out, layers):
    """The model of one layer again with that layer so many times: no weights need to be drawn."""
    out.mkdir()
    for file in one.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, out)
    config = json.loads((one / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    with open(one / "model.safetensors", "rb") as f, open(out / "model.safetensors", "wb") as g:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        head.pop("__metadata__", None)
        begin, parts, at = f.tell(), {}, 0
        for name, tensor in head.items():
            a, b = tensor["data_offsets"]
            for layer in range(layers if ".layers.0." in name else 1):
                parts[name.replace(".layers.0.", f".layers.{layer}.")] = tensor | {"data_offsets": [at, at + b - a]}, a
                at += b - a
        text = json.dumps({name: tensor for name, (tensor, _) in parts.items()}).encode()
        text += b" " * (-len(text) % 8)
        g.write(len(text).to_bytes(8, "little") + text)
        g.flush()
        data = 8 + len(text)

        def copy(part):
            (to, end), a = part[0]["data_offsets"], part[1]
            for i in range(0, end - to, COPY_BYTES):
                os.pwrite(g.fileno(), os.pread(f.fileno(), min(COPY_BYTES, end - to - i), begin + a + i), data + to + i)

        with concurrent.futures.ThreadPoolExecutor(16) as pool:  # one thread writes 1.5 GB/s into the page cache
            list(pool.map(copy, parts.values()))


def rows(path, n, length):
    """Samples of so many characters, which are as many tokens."""
    draw = random.Random(1)
    lines = [{"prompt": f"{i} + 1 =", "response": "".join(draw.choices("abcdefgh ", k=length))} for i in range(n)]
    path.write_text("\n".join(map(json.dumps, lines)))


def sft(root, model, data, name, ranks, *more):
    run = root / name
    return [str(w) for w in (BUILD / "clime-train", "sft", "--run", run, "--hf-checkpoint", root / model, "--prompt-data",
            root / data, "--save-hf", run / "hf", "--device", DEVICE, "--actor-num-gpus-per-node", ranks, *more)]  # fmt: skip


def finish(root, name, words, limit=LIMIT):
    """Runs it to its end; the SHA-256 of what it has saved, or None."""
    log = root / f"{name}.log"
    with open(log, "a") as out:
        p = subprocess.Popen(words, stdout=out, stderr=out)
    try:
        code = p.wait(limit)
    except subprocess.TimeoutExpired:
        p.kill()
        code = p.wait()
    if code:
        check(False, f"{name} ended with {code}: {log.read_text()[-1500:]}")
        for rank in (root / name).glob("rank-*.log"):
            print(f"== {rank}: {rank.read_text()[-1500:]}")
        return None
    return sha(root, name)


def sha(root, name):
    whole = hashlib.sha256()
    for file in sorted((root / name / "hf").glob("*.safetensors")):
        with open(file, "rb") as f:
            whole.update(hashlib.file_digest(f, "sha256").digest())
    return whole.hexdigest()


def ended(root, name):
    """When each step was done, in microseconds."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{root / name / 'ledger.db'}?mode=ro", uri=True)) as db:
            return [t for (t,) in db.execute("SELECT done_us FROM steps WHERE done_us IS NOT NULL ORDER BY step")]
    except sqlite3.OperationalError:  # not there yet
        return []


def steps_done(root, name):
    return len(ended(root, name))


def rank_of(pid, rank):
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == pid and f"RANK={rank}" in (entry / "environ").read_text().split("\0"):
                return int(entry.name)
    return 0


def hit(root, name, words, rank, number, then=None):
    """Sends a signal to a rank in the middle; where that ends the run, another command goes on with it. The SHA-256."""
    log = root / f"{name}.log"
    with open(log, "a") as out:
        p = subprocess.Popen(words, stdout=out, stderr=out)
    end = time.time() + LIMIT
    while p.poll() is None and time.time() < end and steps_done(root, name) < 15:
        time.sleep(0.005)
    victim = p.pid if rank == 0 else rank_of(p.pid, rank)
    if p.poll() is not None or not victim:
        check(False, f"{name}: nobody to hit: {log.read_text()[-1500:]}")
        p.kill()
        return None
    os.kill(victim, number)
    t0 = time.time()
    try:
        code = p.wait(LIMIT)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
        check(False, f"{name}: it hangs: {log.read_text()[-1500:]}")
        return None
    if then:
        check(code == -signal.SIGKILL, f"{name}: rank 0 ended with {code}")
        return finish(root, name, then)
    with contextlib.closing(sqlite3.connect(root / name / "ledger.db")) as db:
        said = [detail for (detail,) in db.execute("SELECT detail FROM events WHERE kind = 'rank'")]
    check(code == 0 and len(said) == 1 and f"rank {rank} of 2 (pid {victim})" in said[0],
          f"{name}: ended with {code} {time.time() - t0:.1f} s after: {said}")  # fmt: skip
    return sha(root, name) if code == 0 else None


def same(what, shas):
    check(len(set(shas.values())) == 1 and None not in shas.values(), f"{what}, one SHA-256 of {len(shas)}: {shas}")


def at_once(**jobs):
    """Of ranks that share a GPU few: each process on it has a slice of time, also where it waits for another."""
    with concurrent.futures.ThreadPoolExecutor(min(len(jobs), 3 if share_gpus() else len(jobs))) as pool:
        futures = {name: pool.submit(*job) for name, job in jobs.items()}
        return {name: f.result() for name, f in futures.items()}


def other_gpu(*more):
    return ("--actor-base-gpu-id", 1, *more) if ON_GPUS else more


def bits(root):
    own = own_gpus(2)
    small = ("--global-batch-size", 8, "--num-epoch", 1 if share_gpus() else 4, "--lr", 1e-3, "--save-interval", 10, "--max-tokens-per-gpu", 32, "--threads", 4)
    init = ("--num-hidden-layers", 2, "--num-attention-heads", 4, "--num-key-value-heads", 2, "--head-dim", 64)
    for family in ("qwen3", "glm4"):
        train("init", root / family, "--family", family, "--hidden-size", 256, "--intermediate-size", 512, *init, "--dtype", "bf16")
    rows(root / "data", 200, 12)

    def run(name, ranks, lanes, *more, model="qwen3"):
        return finish, root, name, sft(root, model, "data", name, ranks, *small, "--gradient-lanes", lanes, *more)

    ways = {f"lanes-{g}-ranks-{n}": run(f"lanes-{g}-ranks-{n}", n, g) for g in (2, 4) for n in (1, 2, 4) if n <= (2 if own else g)}
    if own:
        ways["lanes-2-nccl"] = run("lanes-2-nccl", 2, 2, "--rank-transport", "nccl")
        ways["lanes-2-gpu-1"] = run("lanes-2-gpu-1", 1, 2, *other_gpu())
        ways["lanes-4-elastic"] = run("lanes-4-elastic", 4, 4, "--elastic", 1)  # on two GPUs: ranks 2 and 3 find none
    ways["lanes-2-offload"] = run("lanes-2-offload", 2, 2, "--optimizer-cpu-offload")
    ways |= {f"glm4-{n}": run(f"glm4-{n}", n, 2, model="glm4") for n in (1, 2)}
    shas = at_once(**ways)
    if own:
        with contextlib.closing(sqlite3.connect(root / "lanes-4-elastic" / "ledger.db")) as db:
            said = [detail for (detail,) in db.execute("SELECT detail FROM events WHERE kind = 'rank'")]
        check("is left out, and the run goes on with 2 of 4 ranks" in said[-1], f"devices that are not there: {said}")
    for what in ("lanes-2", "lanes-4", "glm4"):
        same(what, {k: v for k, v in shas.items() if k.startswith(what)})

    def words(name, ranks, *more):
        return sft(root, "qwen3", "data", name, ranks, *small, "--gradient-lanes", 2, *more)

    shas = {"whole": shas["lanes-2-ranks-1"]} | at_once(
        follower=(hit, root, "follower", words("follower", 2), 1, signal.SIGKILL),
        two_then_one=(hit, root, "two_then_one", words("two_then_one", 2), 0, signal.SIGKILL, words("two_then_one", 1)),
        one_then_two=(hit, root, "one_then_two", words("one_then_two", 1), 0, signal.SIGKILL, words("one_then_two", 2)),
        frozen=(hit, root, "frozen", words("frozen", 2, "--distributed-timeout-minutes", 0.1), 1, signal.SIGSTOP),
    )  # fmt: skip
    same("through losses", shas)


def rl(root):
    """Old, reference and policy on both ranks, a server beside rank 0; the gap is 0. And a critic, where both share micro-batches."""
    train("task", root / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 40, "--num-heldout", 20)

    def words(name, ranks, *more):
        run = root / name
        return [str(w) for w in (BUILD / "clime-train", "rl", "--run", run, "--hf-checkpoint", root / "qwen3", "--prompt-data",
                root / "task" / "train.jsonl", "--input-key", "prompt", "--label-key", "label", "--rm-type", "random",
                "--num-rollout", 4, "--rollout-batch-size", 8, "--n-samples-per-prompt", 4, "--rollout-max-response-len", 48,
                "--lr", "1e-4", "--use-dynamic-batch-size", "--max-tokens-per-gpu", 512, "--apply-chat-template",
                "--use-kl-loss", "--kl-loss-coef", "0.01", "--use-tis", "--gradient-lanes", 2, "--save-hf", run / "hf",
                "--device", DEVICE, "--server-max-total-tokens", 65536, "--actor-num-gpus-per-node", ranks, *more)]  # fmt: skip

    jobs = {f"rl-{n}": (finish, root, f"rl-{n}", words(f"rl-{n}", n)) for n in (1, 2)}
    if own_gpus(2):
        jobs["rl-2-server-on-gpu-1"] = finish, root, "rl-b", words("rl-b", 2, "--server-base-gpu-id", 1)
    critic = ("--advantage-estimator", "ppo", "--critic-lr", "1e-3", "--ref-update-interval", 1, "--context-parallel-size", 2)
    jobs |= {name: (finish, root, name, words(name, n, *critic, "--shard-weights", how))
             for name, n, how in (("critic-alone", 1, "auto"), ("critic-whole", 2, "off"), ("critic-parts", 2, "on"))}  # fmt: skip
    shas = at_once(**jobs)
    for what in ("rl-", "critic-"):
        same(what, {k: v for k, v in shas.items() if k.startswith(what)})
    for run in [root / name for name in ("rl-1", "rl-2", "rl-b") if (root / name).exists()]:
        steps = [m for m in map(json.loads, open(run / "metrics.jsonl")) if m["kind"] == "train"]
        gap = [m.get("train/train_rollout_logprob_abs_diff") for m in steps]
        tokens = sum(m["train/logprob_gap_tokens"] for m in steps)
        check(tokens > 0 and not any(gap), f"{run.name}: gap {gap} over {tokens} tokens")


def steps_of(root, name, words, n, limit=None):
    """Runs it until so many steps are done, and ends it before it saves anything: when each was done in microseconds, its trained
    tokens, and what was logged."""
    log = root / f"{name}.log"
    with open(log, "w") as out:
        p = subprocess.Popen(words, stdout=out, stderr=out)
    end = time.time() + (limit or LIMIT)

    def tokens():  # written after the ledger
        return [json.loads(x)["train/trained_tokens"] for x in open(root / name / "metrics.jsonl") if x.endswith("\n")] if steps_done(root, name) else []

    while p.poll() is None and time.time() < end and (steps_done(root, name) < n or len(tokens()) < n):
        time.sleep(0.05)
    done, trained = ended(root, name)[:n], tokens()[:n]
    p.kill()
    p.wait()
    shutil.rmtree(root / name, ignore_errors=True)
    return done, trained, log.read_text()


def speed_of(root, model, data, name, ranks, packs, *more):
    """Tokens a second of the best of the last steps."""
    words = sft(root, model, data, name, ranks, "--global-batch-size", 8 * packs, "--num-epoch", 1, "--max-tokens-per-gpu", 8192,
                "--max-len", 1024, *more)  # fmt: skip
    done, tokens, text = steps_of(root, name, words, 4)
    if len(done) < 4:
        check(False, f"{name}: {text[-2500:]}")
        return 0
    rates = [round(n * 1e6 / (b - a)) for n, a, b in zip(tokens[1:], done, done[1:])]
    memory = re.search(r"memory: .*", text)
    print(f"        {name}: {rates} tok/s; {memory.group(0) if memory else ''}", flush=True)
    return max(rates[1:])


def speed(root, shape, one):
    """Of the shape, whose model of one layer is being made."""
    more = ("--recompute-granularity", "selective")
    layers = int(SHAPES[shape][SHAPES[shape].index("--num-hidden-layers") + 1])
    t0 = time.time()
    check(one.wait(LIMIT) == 0, f"a layer of {shape}'s widths")
    for name, n in (("two", 2), ("half", layers // 2), ("whole", layers)):
        deepen(root / "one", root / name, n)
    print(f"        models made in {time.time() - t0:.0f} s", flush=True)
    rows(root / "long", 8 * 8 * 4 + 64, 1000)

    step = ("--global-batch-size", 32, "--max-tokens-per-gpu", 8192, "--max-len", 1024, "--num-epoch", 1, "--lr", 1e-4)
    two = {f"two-layers-{n}": (finish, root, f"two-layers-{n}", sft(root, "two", "long", f"two-layers-{n}", n, *step,
           "--gradient-lanes", 2, "--save-interval", 1000)) for n in (1, 2)}  # fmt: skip
    same(f"two layers of {shape}'s widths", at_once(**two))

    chain = ("--gradient-lanes", 1, *more)
    alone = speed_of(root, "whole", "long", "one GPU, a chain", 1, 8, *chain)
    # GPUs differ, and clock down together: a group is as fast as its slowest
    each = at_once(**{str(g): (speed_of, root, "whole", "long", f"one GPU, a chain, GPU {g} beside the other", 1, 8, *place, *chain)
                      for g, place in ((0, ()), (1, other_gpu()))})  # fmt: skip
    least = min(each.values())
    for name, lanes, way in (("2 lanes", 2, "mapped"), ("2 lanes, NCCL", 2, "nccl"), ("8 lanes", 8, "mapped")):
        rate = speed_of(root, "whole", "long", f"two GPUs, {name}", 2, 8, "--gradient-lanes", lanes, "--rank-transport", way, *more)
        print(f"        {shape}, {name}: {rate} tok/s on two GPUs, {rate / max(1, 2 * alone):.3f} of twice {alone} on one, "
              f"{rate / max(1, 2 * least):.3f} of twice the slower's {least}", flush=True)
    chains = {}
    for lanes in ((1, 1), (2, 8), (4, 2)):
        got = at_once(**{f"GPU {i}, {g} lanes": (speed_of, root, "half", "long", f"half, {g} lanes, GPU {i}", 1, 8, "--gradient-lanes", g, *place, *more)
                         for i, (g, place) in enumerate(zip(lanes, ((), other_gpu())))})  # fmt: skip
        for name, rate in got.items():
            chain = chains.setdefault(name[:5], rate)
            print(f"        half of its layers on {name}: {rate} tok/s, {rate / max(1, chain):.3f} of a chain's", flush=True)


def main():
    shape = sys.argv[2] if len(sys.argv) > 2 else None
    with checks("ranks") as root:
        if shape:
            words = [str(w) for w in SHAPES[shape]]
            words[words.index("--num-hidden-layers") + 1] = "1"
            one = subprocess.Popen([BUILD / "clime-train", "init", root / "one", *words, "--max-position-embeddings", "4096"],
                                   stdout=subprocess.DEVNULL)  # fmt: skip
        for part in (bits, rl, *((lambda root: speed(root, shape, one),) if shape else ())):
            timed(part, root)


if __name__ == "__main__":
    main()
