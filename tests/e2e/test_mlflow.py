"""A run in MLflow: against a server that checks what MLflow's REST API documents of each request, and is away at times."""

import json
import math
import re
import sqlite3
import subprocess
import urllib.parse

from mocks import Worker
from programs import BUILD, LIMIT, few_threads, run, tiny_model


class Tracking:
    """The part of a tracking server that is asked; every request is checked as the documentation has it."""

    def __init__(self):
        self.experiments, self.runs, self.away = {}, {}, set()
        self.faults, self.batches = [], 0

    def __call__(self, handler, body):
        path = urllib.parse.urlsplit(handler.path)
        name = path.path.removeprefix("/api/2.0/mlflow/")
        try:
            if handler.headers["Authorization"] != "Bearer secret":
                handler.reply(401, {"error_code": "UNAUTHENTICATED", "message": "who?"})
            elif name in self.away:
                self.away.remove(name)
                handler.reply(503, {"error_code": "TEMPORARILY_UNAVAILABLE", "message": "away"})
            elif name == "experiments/get-by-name":
                assert handler.command == "GET"
                ((key, values),) = urllib.parse.parse_qs(path.query).items()
                assert key == "experiment_name"
                if values[0] in self.experiments:
                    experiment = {"experiment_id": self.experiments[values[0]], "name": values[0]}
                    handler.reply(200, {"experiment": experiment})
                else:
                    handler.reply(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such experiment"})
            else:
                assert handler.command == "POST" and handler.headers["Content-Type"] == "application/json"
                handler.reply(200, getattr(self, name.replace("/", "_").replace("-", "_"))(**json.loads(body)))
        except ConnectionError:  # who asked was killed
            raise
        except Exception as e:  # the test says it
            self.faults.append((handler.path, repr(e), body[:500]))
            handler.reply(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": repr(e)})
        return True

    def experiments_create(self, name):
        assert name not in self.experiments
        self.experiments[name] = str(len(self.experiments) + 1)
        return {"experiment_id": self.experiments[name]}

    def runs_create(self, experiment_id, run_name, start_time, tags):
        assert experiment_id in self.experiments.values() and 0 < start_time < 1e14 and isinstance(run_name, str)
        assert all(set(t) == {"key", "value"} for t in tags)
        run_id = f"{len(self.runs):032x}"
        self.runs[run_id] = {"name": run_name, "status": "RUNNING", "params": {}, "metrics": [], "statuses": []}
        return {"run": {"info": {"run_id": run_id, "experiment_id": experiment_id}, "data": {}}}

    def runs_update(self, run_id, status, end_time=None):
        assert status in ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
        assert (end_time is not None) == (status != "RUNNING")
        self.runs[run_id]["statuses"].append(status)
        return {"run_info": {"run_id": run_id, "status": status}}

    def runs_log_batch(self, run_id, metrics=(), params=(), tags=()):
        found = self.runs[run_id]
        assert len(metrics) <= 1000 and len(params) <= 100 and len(metrics) + len(params) + len(tags) <= 1000
        for m in metrics:
            assert set(m) == {"key", "value", "timestamp", "step"} and re.fullmatch(r"[\w\-. /]{1,250}", m["key"]), m
            assert math.isfinite(m["value"]) and isinstance(m["step"], int) and isinstance(m["timestamp"], int)
            assert m["step"] >= 0 and m["timestamp"] > 0
            found["metrics"].append((m["key"], m["step"], m["value"], m["timestamp"]))
        for p in params:
            assert set(p) == {"key", "value"} and len(p["value"]) <= 500 and isinstance(p["value"], str)
            assert found["params"].setdefault(p["key"], p["value"]) == p["value"], p  # MLflow refuses another value
        self.batches += 1
        return {}


def wanted(run_dir):
    """{(key, step, value)} of the ledger's lines."""
    db = sqlite3.connect(run_dir / "ledger.db")
    lines = [json.loads(line) for (line,) in db.execute("SELECT line FROM metrics")]
    db.close()
    out = set()
    for m in lines:
        step = m["step" if m["kind"] in ("train", "eval") else "rollout"]
        out |= {(k.replace(":", "_"), step, v) for k, v in m.items() if k not in ("kind", "rollout", "step")}
    return out


def command(tmp_path, url, **change):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"input": str(i), "label": "x"}) + "\n" for i in range(64)))
    words = {"run": tmp_path / "run", "hf-checkpoint": tmp_path / "model", "prompt-data": data, "label-key": "label",
             "num-rollout": 6, "rollout-batch-size": 2, "n-samples-per-prompt": 2, "rollout-max-response-len": 8,
             "max-tokens-per-gpu": 512, "rm-type": "random", "eval-interval": 2, "eval-rm-type": "random",
             "num-steps-per-rollout": 2, "mlflow-url": url, "mlflow-experiment": "sums & more", "mlflow-token": "secret",
             **{k.replace("_", "-"): v for k, v in change.items()}}  # fmt: skip
    return few_threads(["rl", "--use-dynamic-batch-size", "--eval-prompt-data", "a:b", f"{data}@[0:2]",
                        *(str(w) for k, v in words.items() for w in (f"--{k}", v))])  # fmt: skip


def test_everything_comes_once_and_late(tmp_path):
    """A server that is away at first, a run that is killed and goes on: MLflow has every figure, at its time, in one run."""
    tiny_model(tmp_path / "model")
    server = Tracking()
    worker = Worker(server)
    try:
        server.away = {"experiments/get-by-name", "runs/log-batch"}
        words = command(tmp_path, worker.url, num_rollout=100000)
        with subprocess.Popen([BUILD / "clime-train", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True) as p:  # fmt: skip
            for line in p.stdout:
                if server.batches >= 2 and line.startswith("rollout "):
                    break
            p.kill()
            p.communicate()
        assert server.batches >= 2 and not server.faults, server.faults
        db = sqlite3.connect(tmp_path / "run" / "ledger.db")
        done = db.execute("SELECT count(*) FROM steps").fetchone()[0] // 2
        db.close()
        status, _, err = run("clime-train", *command(tmp_path, worker.url, num_rollout=done + 2), timeout=2 * LIMIT)
        assert status == 0 and "mlflow" not in err, err
    finally:
        worker.stop()
    assert not server.faults, server.faults
    assert list(server.experiments) == ["sums & more"]
    ((run_id, found),) = server.runs.items()
    assert found["statuses"][-1] == "FINISHED" and set(found["statuses"][:-1]) == {"RUNNING"}
    assert found["name"] == str(tmp_path / "run")
    assert {m[:3] for m in found["metrics"]} == wanted(tmp_path / "run")
    twice = len(found["metrics"]) - len({m[:3] for m in found["metrics"]})
    assert len(set(found["metrics"])) == len({m[:3] for m in found["metrics"]})  # what came twice has one time
    assert twice < 1000  # a batch at most, that was under way when the run was killed
    assert found["params"]["rollout-batch-size"] == "2" and "mlflow-token" not in found["params"]
    assert json.loads((tmp_path / "run" / "mlflow.json").read_text())["run_id"] == run_id


def test_a_server_that_is_not_there(tmp_path):
    """One line says so; the run does not wait."""
    tiny_model(tmp_path / "model")
    status, out, err = run("clime-train", *command(tmp_path, "http://127.0.0.1:9", num_rollout=2))
    assert status == 0 and "done " in out, err
    said = [line for line in err.splitlines() if "mlflow" in line]
    assert 1 <= len(said) <= 2 and " W train: mlflow: " in said[0], said
