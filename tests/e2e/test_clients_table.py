"""The table of clients: other people's packages, unmodified, each in an environment of its own (tests/e2e/clients/rows.txt) and run by
its script beside it, against a server, a router and a trainer's session. `make clients` makes the environments; the tests' own has none
of these packages, so here what is absent is skipped."""

import contextlib
import json
import os
import sqlite3
import subprocess

import pytest
from programs import BUILD, LIMIT, ROOT, router_to, server
from test_environments import Run
from tool_user import ANSWER, CALL, OPTIONS, QUESTION, call_of, taught

ROWS = [[cell.strip() for cell in line.split("|")] for line in (ROOT / "tests/e2e/clients/rows.txt").read_text().splitlines()
        if line and not line.startswith("#")]  # fmt: skip
POLICIES = {  # what it calls first, and says or calls then
    "add": {},
    "final": {"answer": call_of("final_answer", '{"answer": "It is 42."}')},
    "bash": {"call": call_of("Bash", '{"command": "echo 42", "description": "adds"}')},
    "exec": {"call": call_of("exec_command", '{"cmd": "echo 42"}')},
    "shell": {"call": call_of("bash", '{"command": "echo 42"}')},
    "terminal": {"call": call_of("terminal", '{"command": "echo 42"}'), "answer": call_of("finish", '{"message": "It is 42."}')},
    "submit": {"call": call_of("bash", '{"command": "echo 42"}'),
               "answer": call_of("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}')},
}
PLACES = {"S": "server", "R": "router", "E": "session", "T": "run"}
CASES = [(name, place, policy) for name, places, policy, *_ in ROWS for place in places]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """By its name; each is taught once. In a session the template shows the conversation, so that its turns go on from each other."""
    made = {}

    def get(name, bare):
        if (name, bare) not in made:
            model = taught(tmp_path_factory.mktemp(name), bare=bare, positions=4096, **POLICIES[name])
            config = model / "generation_config.json"  # agents name no temperature; at 1 the policy errs in one answer of three
            known = json.loads(config.read_text()) if config.exists() else {}
            config.write_text(json.dumps(known | {"temperature": 0.01}))
            made[name, bare] = model
        return made[name, bare]

    return get


@contextlib.contextmanager
def session(model, folder):
    """A task of a training run that ends well: the gap is 0 over what the client's turns have sampled."""
    (folder / "train.jsonl").write_text(json.dumps({"prompt": QUESTION, "label": ANSWER}))
    run = Run(folder, "run", "--rollout-temperature", "0.01", hf_checkpoint=model, num_rollout=1, rollout_batch_size=1, n_samples_per_prompt=1,
              rollout_max_response_len=3000, rollout_max_context_len=4000, environment_lease_timeout=5 * LIMIT)  # fmt: skip
    try:
        task = run.lease()
        yield f"{run.http.base_url}".rstrip("/") + task["session"]
        run.end(task, reward=1, paths="all")
        assert run.process.wait(LIMIT) == 0, run.log.read_text()[-3000:]
    finally:
        run.stop()
    with contextlib.closing(sqlite3.connect(run.dir / "ledger.db")) as db:
        turns = json.loads(db.execute("SELECT line FROM metrics WHERE kind = 'rollout'").fetchone()[0])
    assert turns["rollout/turns/first"] >= 1 and sum(run.gaps()) > 0, turns


@contextlib.contextmanager
def place(kind, model, folder):
    if kind == "T":
        yield str((BUILD / "clime-train").resolve())
        return
    if kind == "E":
        with session(model, folder) as url:
            yield url
        return
    with server(*OPTIONS, "*", model=model) as s:
        if kind == "S":
            yield s.url
        else:
            with router_to([s.url]) as router:
                yield router.url


@pytest.mark.parametrize("name, kind, taught_as", CASES, ids=[f"{n}-{PLACES[p]}" for n, p, _ in CASES])
def test_client(policy, tmp_path, name, kind, taught_as):
    python = BUILD.resolve() / "clients-rows" / name / "bin/python"
    if not python.exists():
        pytest.skip(f"{name} is not here: make clients")
    script = ROOT / "tests/e2e/clients" / ("run_" + name.replace("-", "_") + ".py")
    model = policy(taught_as, kind != "E")
    quiet = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    with place(kind, model, tmp_path) as url:
        done = subprocess.run([python, script, url, model, PLACES[kind]], capture_output=True, text=True, timeout=5 * LIMIT, cwd=tmp_path,
                              env={**os.environ, **quiet, **home, "PYTHONPATH": str(script.parent)}, stdin=subprocess.DEVNULL)  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
