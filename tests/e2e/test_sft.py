"""clime-train sft as a run: what it must not pass over."""

import json
import struct
import subprocess

from test_rl import LIMIT, TRAIN


def train(*words):
    return subprocess.run([TRAIN, *map(str, words)], capture_output=True, text=True, timeout=LIMIT)


def set_tensor(path, name, element):
    data = bytearray(path.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    begin, end = (8 + n + at for at in json.loads(data[8 : 8 + n])[name]["data_offsets"])
    data[begin:end] = element * ((end - begin) // len(element))
    path.write_bytes(data)


def test_a_run_without_an_update_fails(tmp_path):
    """Weights of which no gradient is finite: nothing was learned, and that is no success."""
    made = train("init", tmp_path / "init", "--family", "qwen3", "--hidden-size", 64, "--intermediate-size", 192,
                 "--num-hidden-layers", 2, "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 64,
                 "--max-position-embeddings", 256)  # fmt: skip
    assert made.returncode == 0, made.stderr
    set_tensor(tmp_path / "init" / "model.safetensors", "model.norm.weight", b"\x7f\x7f")  # 3.4e38: logits are infinite
    lines = [json.dumps({"prompt": f"{i} + 1 =", "response": str(i + 1)}) for i in range(8)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    p = train("sft", "--hf-checkpoint", tmp_path / "init", "--prompt-data", tmp_path / "data.jsonl", "--save-hf",
              tmp_path / "out", "--global-batch-size", 4)  # fmt: skip
    assert p.returncode == 1 and "no step changed the weights" in p.stderr, (p.returncode, p.stderr)
    assert not (tmp_path / "out").exists()
