"""What the masks of constrained outputs cost a step: 32 requests at once, free and under a JSON schema, with a real tokenizer.

    python3 tests/gpu/grammar_cost.py BUILD TOKENIZER [qwen3-4b]

TOKENIZER: a folder with tokenizer.json and tokenizer_config.json, of the shape's vocabulary. Prints tokens per second of
both, in turn, and how much longer a step is.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

from ranks import deepen
from shared import SHAPES

BUILD = pathlib.Path(sys.argv[1])
TOKENIZER = pathlib.Path(sys.argv[2])
SHAPE = sys.argv[3] if len(sys.argv) > 3 else "qwen3-4b"
DEVICE = os.environ.get("DEVICE", "cuda")
N, NEW, ROUNDS = 32, 256, 3
SCHEMA = {"type": "array", "minItems": 500, "items": {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}, "kind": {"enum": ["apple", "pear", "plum"]},
    "tags": {"type": "array", "maxItems": 3, "items": {"type": "boolean"}}},
    "required": ["name", "count", "kind", "tags"], "additionalProperties": False}}  # fmt: skip


def folder(root):
    """A layer of random weights, as many times as the shape has layers, with the real tokenizer."""
    words = SHAPES[SHAPE].copy()
    at = words.index("--num-hidden-layers") + 1
    layers, words[at] = words[at], 1
    subprocess.run([BUILD / "clime-train", "init", root / "one", *map(str, words)], check=True, capture_output=True)
    deepen(root / "one", root / "model", layers)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, root / "model")
    return root / "model"


def ask(url, seed, schema):
    params = {"max_new_tokens": NEW, "temperature": 1.0, "sampling_seed": seed, "ignore_eos": True}
    if schema:
        params["json_schema"] = json.dumps(SCHEMA)
    body = json.dumps({"input_ids": [seed % 1000 + k for k in range(32)], "sampling_params": params}).encode()
    request = urllib.request.Request(url + "/generate", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=120))


def rate(url, schema, base):
    start = time.time()
    with concurrent.futures.ThreadPoolExecutor(N) as pool:
        said = list(pool.map(lambda i: ask(url, base + i, schema), range(N)))
    took = time.time() - start
    return sum(len(r["output_ids"]) for r in said) / took, said


def main():
    with tempfile.TemporaryDirectory() as root:
        model = folder(pathlib.Path(root))
        log = open(pathlib.Path(root) / "log", "w+")
        port = pathlib.Path(root) / "port"
        server = subprocess.Popen([BUILD / "clime-server", "--model-path", model, "--device", DEVICE, "--port", "0", "--port-file",
                                   port, "--max-running-requests", str(N), "--disable-radix-cache"], stderr=log)  # fmt: skip
        try:
            while not port.exists() or not port.read_text().strip():
                if server.poll() is not None:
                    return 1
                time.sleep(0.1)
            url = f"http://127.0.0.1:{port.read_text().strip()}"
            for i in range(ROUNDS):
                free, _ = rate(url, False, 1000 * i)
                bound, said = rate(url, True, 1000 * i + 500)
                print(f"round {i}: free {free:.0f} tok/s, {1e6 * N / free:.0f} us a step of {N}; under the schema {bound:.0f}, "
                      f"{1e6 * N / bound:.0f} us: {100 * (free / bound - 1):.1f} % longer; begins {said[0]['text'][:60]!r}", flush=True)
        finally:
            server.kill()
            log.seek(0)
            print(log.read()[-1500:])


if __name__ == "__main__":
    sys.exit(main())
