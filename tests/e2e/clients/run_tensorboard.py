"""Its own reader: a run of the trainer, every figure of it."""

import json
import pathlib
import subprocess

import numpy
from asked import place
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

train, folder, where = place()
pathlib.Path("data.jsonl").write_text("".join(json.dumps({"input": str(i), "label": "x"}) + "\n" for i in range(8)))
subprocess.run([train, "rl", "--run", "run", "--hf-checkpoint", folder, "--prompt-data", "data.jsonl", "--label-key", "label", "--rm-type", "random",
                "--num-rollout", "2", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--rollout-max-response-len", "8",
                "--max-tokens-per-gpu", "512", "--use-dynamic-batch-size", "--use-tensorboard"], check=True)  # fmt: skip
events = "run/tensorboard/events.out.tfevents.clime"
reader = EventAccumulator(events, size_guidance={"scalars": 0})
reader.Reload()
for line in map(json.loads, open("run/metrics.jsonl")):
    step = line["step" if line["kind"] in ("train", "eval") else "rollout"]
    for name, value in line.items():
        if name not in ("kind", "rollout", "step"):
            assert (step, numpy.float32(value)) in [(s.step, numpy.float32(s.value)) for s in reader.Scalars(name)], name
