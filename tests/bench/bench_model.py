"""Tokens per second of clime-server and of clime-train's step on one model folder, and of transformers beside them.

    bench_model.py BUILD MODEL_DIR STEP_TOKENS

Generation: 128 tokens in, 64 out, greedy, batches of 1, 8 and 32 distinct prompts in one request; the figure is tokens
generated over the whole time, prefill included. Training: a step of STEP_TOKENS tokens in sequences of 256, forward,
backward and AdamW; the mean of three steps. Needs only the standard library; the peer is left out, and
that is said, where torch or transformers cannot be imported.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

N_IN, N_OUT, BATCHES, SEQ = 128, 64, (1, 8, 32), 256


def prompts(n, seed):
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(N_IN)] for _ in range(n)]


def clime_generation(build, model):
    """{batch: tokens/s}"""
    with tempfile.TemporaryDirectory() as tmp:
        port_file = pathlib.Path(tmp) / "port"
        server = subprocess.Popen(
            [f"{build}/clime-server", "--model-path", model, "--port", "0", "--port-file", str(port_file)]
            + ["--max-total-tokens", "16384", "--log-level", "warn"]
        )
        try:
            while not port_file.exists():
                if server.poll() is not None:
                    sys.exit("clime-server did not start")
                time.sleep(0.05)
            url = f"http://127.0.0.1:{port_file.read_text().strip()}/generate"

            def generate(batch, seed):
                body = {
                    "input_ids": prompts(batch, seed),
                    "sampling_params": {"temperature": 0, "max_new_tokens": N_OUT, "ignore_eos": True},
                }
                request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
                t0 = time.perf_counter()
                replies = json.load(urllib.request.urlopen(request))
                seconds = time.perf_counter() - t0
                assert all(r["meta_info"]["completion_tokens"] == N_OUT for r in replies)
                return batch * N_OUT / seconds

            generate(1, 0)  # touches every page of the weights
            return {b: generate(b, b) for b in BATCHES}
        finally:
            server.terminate()
            server.wait()


def clime_step(build, model, step_tokens):
    """Tokens/s over three steps, as sft's last line says."""
    with tempfile.TemporaryDirectory() as tmp:
        n = step_tokens // SEQ
        data = pathlib.Path(tmp) / "data.jsonl"
        rng = random.Random(1)
        with open(data, "w") as f:
            for _ in range(3 * n):  # with the end token a sample is SEQ long
                text = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(SEQ - 1))
                f.write(json.dumps({"prompt": text[:1], "response": text[1:]}) + "\n")
        run = subprocess.run(
            [f"{build}/clime-train", "sft", "--hf-checkpoint", model, "--prompt-data", data, "--save-hf", f"{tmp}/out"]
            + ["--global-batch-size", str(n), "--max-tokens-per-gpu", str(min(step_tokens, 4096))],
            capture_output=True,
            text=True,
        )
        if run.returncode:
            sys.exit(run.stderr)
        return float(re.search(r"step 3/3 .* (\d+) tok/s", run.stdout).group(1))


def peer(model, step_tokens):
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    lm = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)

    def generate(batch, seed):
        ids = torch.tensor(prompts(batch, seed))
        t0 = time.perf_counter()
        with torch.inference_mode():
            out = lm.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=N_OUT, max_new_tokens=N_OUT
            )
        assert out.shape[1] == N_IN + N_OUT
        return batch * N_OUT / (time.perf_counter() - t0)

    generate(1, 0)
    speeds = {b: generate(b, b) for b in BATCHES}
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-5)
    ids = torch.randint(0, 256, (step_tokens // SEQ, SEQ))
    t0 = time.perf_counter()
    for _ in range(3):
        for i in range(0, len(ids), 16):  # micro-batches of 4096 tokens, as above
            (lm(input_ids=ids[i : i + 16], labels=ids[i : i + 16]).loss * len(ids[i : i + 16]) / len(ids)).backward()
        optimizer.step()
        optimizer.zero_grad()
    step = 3 * ids.numel() / (time.perf_counter() - t0)
    return f"transformers {transformers.__version__}, torch {torch.__version__}", speeds, step


def main():
    build, model, step_tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
    speeds, step = clime_generation(build, model), clime_step(build, model, step_tokens)
    own = [(f"generation, batch {b}", speeds[b]) for b in BATCHES] + [(f"training, {step_tokens} tokens", step)]
    print("clime, tokens/s: " + "; ".join(f"{label}: {x:.1f}" for label, x in own), flush=True)
    try:
        name, peer_speeds, peer_step = peer(model, step_tokens)
    except ImportError as e:
        print(f"no peer: {e}")
        return
    others = [peer_speeds[b] for b in BATCHES] + [peer_step]
    print(f"{name}; {len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f}")
    print(f"{'tokens/s':24}{'clime':>10}{'peer':>10}{'ratio':>8}")
    for (label, x), y in zip(own, others):
        print(f"{label:24}{x:10.1f}{y:10.1f}{x / y:8.2f}")


if __name__ == "__main__":
    main()
