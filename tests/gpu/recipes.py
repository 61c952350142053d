"""One of the recipe scripts, shortened, on a random-weight checkpoint of the model's real shape: to a saved Hugging Face
folder that transformers loads. Prints the time of each stage, tokens/s and the most memory that was in use.

    python3 tests/gpu/recipes.py BUILD qwen3-4b|glm4-9b TOKENIZER PROMPTS [options of clime-train rl]

TOKENIZER is a folder with the model's tokenizer, PROMPTS JSON lines with "prompt" and "label". LAYERS=N cuts the model.
Needs a GPU, torch and transformers. Rewards are drawn, since random weights solve nothing. Exit status 1 when something
is wrong.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

from shared import SHAPES, check, checks

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = {"qwen3-4b": "run-qwen3-4B.sh", "glm4-9b": "run-glm4-9B.sh"}
SHORT = ["--num-rollout", 2, "--rollout-max-response-len", 1024, "--rm-type", "random", "--no-save-optim"]


class Watch(threading.Thread):
    """The most memory in use: on the device by everybody, on the host by the trainer."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.device, self.host, self.ended = pid, 0, 0, False

    def run(self):
        while not self.ended:
            used = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                                  capture_output=True, text=True).stdout.split()  # fmt: skip
            self.device = max([self.device, *(int(x) for x in used if x.isdigit())])
            try:
                rss = re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.pid}/status").read_text())
                self.host = max(self.host, int(rss.group(1)) if rss else 0)
            except OSError:
                pass
            time.sleep(0.2)


def metric(lines, kind, name):
    return [m[name] for m in lines if m["kind"] == kind and name in m]


def table(run):
    lines = [json.loads(line) for line in open(run / "metrics.jsonl")]
    rows = [("generation, s", "perf", "perf/rollout_time"), ("generation, tokens/s", "perf", "perf/tokens_per_gpu_per_sec"),
            ("mean response, tokens", "rollout", "rollout/response_len/mean"), ("training, s", "perf", "perf/train_time"),
            ("  forward, s", "train", "perf/forward_time"), ("  backward, s", "train", "perf/backward_time"),
            ("  optimizer, s", "train", "perf/optimizer_time"), ("training, tokens/s", "train", "perf/actor_train_tok_per_s"),
            ("weights to the server, s", "perf", "perf/update_weights_time"), ("whole rollout, s", "perf", "perf/step_time"),
            ("largest |logp difference|", "train", "train/train_rollout_logprob_abs_diff"),
            ("  over tokens", "train", "train/logprob_gap_tokens"), ("gradient norm", "train", "train/grad_norm")]  # fmt: skip
    for title, kind, name in rows:
        print(f"{title:32}" + "".join(f"{x:14.6g}" for x in metric(lines, kind, name)))
    gap = metric(lines, "train", "train/train_rollout_logprob_abs_diff")
    check(len(gap) > 1 and not any(gap), f"steps without a gap: {gap}")
    check(any(metric(lines, "train", "train/grad_norm")), "there was something to learn")


def load(folder, init):
    """transformers reads the folder; the weights are the model's, and some of them moved."""
    import safetensors
    import torch
    import transformers

    t0 = time.time()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16,
                                                                    output_loading_info=True)  # fmt: skip
    model.cuda()
    n = sum(p.numel() for p in model.parameters())
    print(f"transformers {transformers.__version__} loaded {type(model).__name__}, {n / 1e9:.3f}e9 parameters, in {time.time() - t0:.1f} s")
    check(not any(info.get(k) for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), f"every weight found: {info}")
    ids = tokenizer("What is 27 + 35?", return_tensors="pt").input_ids.cuda()
    with torch.no_grad():
        logits = model(ids).logits
        out = model.generate(ids, max_new_tokens=8, do_sample=False)
    check(bool(torch.isfinite(logits).all()) and out.shape[1] > ids.shape[1], f"it answers: {out[0].tolist()}")
    moved = total = 0
    state = model.state_dict()
    for file in sorted(pathlib.Path(init).glob("*.safetensors")):
        with safetensors.safe_open(file, "pt", device="cuda") as before:
            for key in before.keys():
                if key in state:
                    moved += int((before.get_tensor(key) != state[key]).sum())
                    total += state[key].numel()
    check(0 < moved and total == n, f"{moved} of {total} weights moved at the recipe's rate")


def main():
    build, what, tokenizer, prompts, *more = sys.argv[1:]
    build = pathlib.Path(build).resolve()
    with checks("recipe") as root:
        t0 = time.time()
        made = subprocess.run([build / "clime-train", "init", root / "init", *map(str, SHAPES[what]), "--tokenizer", tokenizer,
                               "--max-position-embeddings", "32768"], check=True, capture_output=True, text=True)  # fmt: skip
        print(f"{made.stdout.strip().split(': ', 1)[-1]}; made in {time.time() - t0:.1f} s", flush=True)
        run = root / "run"
        words = [ROOT / "scripts" / SCRIPTS[what], root / "init", prompts, *SHORT, "--save-hf", root / "hf", *more]
        env = dict(os.environ, RUN=str(run), CLIME_BUILD=str(build))
        t0 = time.time()
        with open(root / "log", "w") as out:
            p = subprocess.Popen([str(w) for w in words], stdout=out, stderr=out, env=env)
        watch = Watch(p.pid)
        watch.start()
        try:
            code = p.wait(float(os.environ.get("LIMIT", 1200)))
        except subprocess.TimeoutExpired:
            p.kill()
            code = p.wait()
        watch.ended = True
        print((root / "log").read_text()[-6000:])
        check(code == 0, f"{what} ended with {code} after {time.time() - t0:.1f} s")
        print(f"most memory in use: device {watch.device / 1024:.1f} GiB, the trainer's on the host {watch.host / 2**20:.1f} GiB")
        died = " died" in (root / "log").read_text()
        check(not died, "no program died")
        if code or died:
            for log in run.glob("logs/*"):
                print(f"== {log}\n{log.read_text()[-3000:]}")
        if code:
            return
        table(run)
        load(root / "hf", root / "init")


if __name__ == "__main__":
    main()
