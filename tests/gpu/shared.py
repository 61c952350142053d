"""What the scripts for GPUs share: checks that are counted, how many GPUs there are, and the shapes of real models as words of
`clime-train init`."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time

failures = []


def check(good, what):
    print(("ok      " if good else "FAILED  ") + what, flush=True)
    if not good:
        failures.append(what)


@contextlib.contextmanager
def checks(name):
    """A folder for what the checks of a program make, removed after them. Then the verdict: how many failed, and where some did
    the program ends with status 1."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as root:
        yield pathlib.Path(root)
    print(f"{len(failures)} failed")
    if failures:
        sys.exit(1)


def timed(part, root):
    t0 = time.time()
    part(root)
    print(f"        in {time.time() - t0:.1f} s", flush=True)


def own_gpus(n):
    """Whether n ranks have a GPU each. Where they have not they share what there is, the first GPU again after the last: what they
    compute is the same, and the times say nothing, for a rank that waits for another keeps it from the GPU for a slice of time, a
    millisecond or two. NCCL, which takes a GPU once, must be left out. DEVICE=cpu: false."""
    if os.environ.get("DEVICE", "cuda") == "cpu":
        return False
    there = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU ")
    if there < n and not share_gpus():
        os.environ["CLIME_SHARE_GPUS"] = "1"  # read by the programs (kernels/cuda/device.cu)
        print(f"GPUs: {there}; ranks share, for checks alone", flush=True)
    return there >= n


def share_gpus():
    """Whether the programs that are started from here on do (own_gpus)."""
    return "CLIME_SHARE_GPUS" in os.environ


def shape(family, hidden, intermediate, layers, heads, kv, head_dim, vocab, *more):
    """LAYERS=N in the environment cuts the model."""
    return ["--family", family, "--hidden-size", hidden, "--intermediate-size", intermediate, "--num-hidden-layers",
            int(os.environ.get("LAYERS", layers)), "--num-attention-heads", heads, "--num-key-value-heads", kv,
            "--head-dim", head_dim, "--vocab-size", vocab, *more]  # fmt: skip


MOONLIGHT_LATENT = ["--kv-lora-rank", 512, "--qk-nope-head-dim", 128, "--qk-rope-head-dim", 64, "--v-head-dim", 128]

SHAPES = {
    "qwen3-0.6b": shape("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, "--rope-theta", 1000000),
    "qwen3-4b": shape("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, "--rope-theta", 1000000),
    "qwen3-14b": shape("qwen3", 5120, 17408, 40, 40, 8, 128, 151936, "--rope-theta", 1000000, "--untie-embeddings"),
    "qwen3-32b": shape("qwen3", 5120, 25600, 64, 64, 8, 128, 151936, "--rope-theta", 1000000, "--untie-embeddings"),
    "glm4-9b": shape("glm4", 4096, 13696, 40, 32, 2, 128, 151552, "--untie-embeddings"),
    "qwen3-30b-a3b": shape("qwen3_moe", 2048, 6144, 48, 32, 4, 128, 151936, "--rope-theta", 1000000, "--num-experts", 128,
                           "--num-experts-per-tok", 8, "--moe-intermediate-size", 768, "--untie-embeddings"),
    "moonlight": shape("deepseek_v3", 2048, 11264, 27, 16, 16, 128, 163840, *MOONLIGHT_LATENT, "--num-experts", 64,
                       "--num-experts-per-tok", 6, "--moe-intermediate-size", 1408, "--untie-embeddings"),
    "tiny-latent": shape("deepseek_v3", 128, 256, 3, 4, 4, 128, 151552, "--init-std", "0.05", *MOONLIGHT_LATENT,
                         "--num-experts", 16, "--num-experts-per-tok", 4, "--moe-intermediate-size", 64),
    "tiny-experts": shape("glm4_moe", 128, 256, 3, 4, 2, 64, 151552, "--init-std", "0.05", "--num-experts", 16,
                          "--num-experts-per-tok", 4, "--moe-intermediate-size", 64),
    "tiny": shape("qwen3", 128, 256, 2, 4, 2, 64, 151936, "--init-std", "0.05"),
}
