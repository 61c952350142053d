"""How many bytes and seconds a version takes to reach 1, 8, 64 and 512 servers, pushed, pulled from the trainer alone, and pulled from
each other; and how large a version is beside the one before.

    python tests/bench/bench_pull.py [--servers 1 8 64 512] [--hidden 512] [--layers 4] [--lr 1e-6] [--rollouts 6]

Servers are mocks in this process (one thread for all), which fetch, check and hand on, behind a real router and trainer; so with
many of them the seconds are this process's. The first version, whole, is not counted. Not a test: its times are this machine's.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))

from many_mocks import Many
from programs import program, tiny_model
from programs import run as run_program
from test_fleet import Run, rl


def measure(folder, n, name, words, o):
    many = Many(n, 0.01)
    try:
        with program("clime-router", "--health-check-interval", 5, "--max-concurrent-requests", 4096, "--worker-urls", *(m.url for m in many.mocks)) as router:
            run = Run(rl(folder, folder / f"{name}-{n}", "--router-url", router.url, "--allow-difference", "identity", "--server-concurrency", "4", *words, server_threads=None,
                         num_rollout=o.rollouts, update_quorum=1, lr=o.lr, threads=2))  # fmt: skip
            run.end(limit=3600)
    finally:
        many.close()
    log = run.log()
    perf = [json.loads(line) for line in open(run.dir / "metrics.jsonl")]
    seconds = [m["perf/update_weights_time"] for m in perf if "perf/update_weights_time" in m][1:]
    made = [(m["perf/update_weights_density"], m["perf/update_weights_wire_bytes"]) for m in perf if "perf/update_weights_wire_bytes" in m]
    sent = re.search(r"weights: (\d+) bytes were handed out", log)
    relayed = sum(m.n_sent for m in many.mocks)
    print(f"{name:22} {n:4} servers: {statistics.median(seconds):7.3f} s a version"
          + (f"; trainer {int(sent[1]) / 1e6:9.2f} MB, servers {relayed / 1e6:9.2f} MB in {o.rollouts} versions and the first" if sent else ""), flush=True)  # fmt: skip
    return made


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--servers", type=int, nargs="+", default=[1, 8, 64, 512])
    for name, default in (("hidden", 512), ("layers", 4), ("rollouts", 6)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--lr", default="1e-6")
    o = p.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pull-"))
    tiny_model(folder / "init", **{"hidden-size": o.hidden, "intermediate-size": 3 * o.hidden, "num-hidden-layers": o.layers})
    run_program("clime-train", "task", folder / "task", "--kind", "add", "--max-operand", 99)
    whole = (folder / "init" / "model.safetensors").stat().st_size
    print(f"{whole / 1e6:.1f} MB of weights, AdamW, lr {o.lr}")
    for n in o.servers:
        measure(folder, n, "push", ["--update-weight-transport", "http"], o)
        measure(folder, n, "pull, trainer alone", ["--update-weight-transport", "pull", "--update-weight-fanout", "0"], o)
        made = measure(folder, n, "pull, relayed", ["--update-weight-transport", "pull"], o)
    for i, (density, size) in enumerate(made):
        print(f"version {i + 1}: {100 * density:.3f} % of the elements changed, {size / 1e3:.1f} kB, {100 * size / whole:.3f} % of the whole")


if __name__ == "__main__":
    main()
