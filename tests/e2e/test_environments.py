"""Environments: tasks leased over HTTP, sessions token-exact, rewards posted; through the real programs."""

import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time

import httpx
import pytest
import yaml
from programs import BUILD, LIMIT, ROOT, SLOW, few_threads, web

TRAIN = os.path.abspath(BUILD / "clime-train")
SPEC = yaml.safe_load((ROOT / "openapi" / "trainer.yaml").read_text())
PYTHON_CALCULATOR = f"{sys.executable} {ROOT}/examples/environments/calculator.py"


def train_calculator(d):
    rng = random.Random(1)
    pairs = [(a, b) for a in range(20) for b in range(20)]
    rng.shuffle(pairs)
    turns = lambda a, b: [("user", f"{a}+{b}"), ("assistant", f"={a}+{b}"), ("tool", a + b), ("assistant", a + b)]
    with open(d / "warm.jsonl", "w") as f:
        for a, b in pairs[:200]:
            f.write(json.dumps({"messages": [{"role": r, "content": str(c)} for r, c in turns(a, b)]}) + "\n")
    with open(d / "train.jsonl", "w") as f:
        for a, b in pairs[200:]:
            f.write(json.dumps({"prompt": f"{a}+{b}", "label": str(a + b), "metadata": {"a": a}}) + "\n")
    run = lambda *a: subprocess.run([TRAIN, *map(str, a)], check=True, capture_output=True, timeout=LIMIT)
    run("init", d / "init", "--family", "qwen3", "--hidden-size", 128, "--intermediate-size", 512, "--num-hidden-layers",
        2, "--num-attention-heads", 4, "--num-key-value-heads", 2, "--head-dim", 64, "--max-position-embeddings", 256,
        "--init-std", 0.05)  # fmt: skip
    run("sft", "--hf-checkpoint", d / "init", "--prompt-data", d / "warm.jsonl", "--messages-key", "messages",
        "--num-epoch", 60, "--global-batch-size", 16, "--lr", 3e-3, "--target-loss", 0.3, "--save-hf", d / "warm")  # fmt: skip


@pytest.fixture(scope="module")
def d(once, tmp_path_factory):
    """A small model that has seen how the calculator is used, and questions; a folder of the module's own."""
    d = tmp_path_factory.mktemp("env")
    for made in once("calculator", train_calculator).iterdir():
        (d / made.name).symlink_to(made)
    return d


def words(d, name, *more, model="warm", **change):
    options = {"run": d / name, "hf-checkpoint": d / model, "prompt-data": d / "train.jsonl", "input-key": "prompt",
               "label-key": "label", "num-rollout": 2, "rollout-batch-size": 3, "n-samples-per-prompt": 2,
               "rollout-max-response-len": 48, "rollout-max-context-len": 96, "lr": 1e-3, "max-tokens-per-gpu": 2048,
               **{k.replace("_", "-"): v for k, v in change.items()}}  # fmt: skip
    out = [TRAIN, "rl", "--apply-chat-template", "--rollout-shuffle", "--use-dynamic-batch-size"]
    for k, v in options.items():
        out += [f"--{k}", str(v)]
    return few_threads(out + list(more))


class Run:
    """A trainer whose tasks the test plays itself."""

    def __init__(self, d, name, *more, **change):
        self.dir, self.log = d / name, d / f"{name}.log"
        command = words(d, name, "--environment", *more, **change)
        self.process = subprocess.Popen(command, stdout=open(self.log, "a"), stderr=subprocess.STDOUT)
        port, deadline = self.dir / "ports" / "environments", time.monotonic() + LIMIT
        while not port.exists() or not port.read_text().endswith("\n"):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        self.http = web.Client(base_url=f"http://127.0.0.1:{int(port.read_text())}", timeout=LIMIT)

    def lease(self, wait_s=20):
        reply = self.http.post("/tasks/lease", json={"wait_s": wait_s})
        if reply.status_code == 200:
            self.check(reply, "/tasks/lease")
            return reply.json()
        assert reply.status_code in (204, 503), reply.text
        return None

    def chat(self, task, messages, status=200, **more):
        reply = self.http.post(f"{task['session']}/v1/chat/completions", json={"messages": messages, **more})
        assert reply.status_code == status, reply.text
        self.check(reply, "/sessions/{id}/v1/chat/completions")
        return reply.json()["choices"][0]["message"]["content"] if status == 200 else reply.json()["message"]

    def generate(self, task, status=200, **body):
        reply = self.http.post(f"{task['session']}/generate", json=body)
        assert reply.status_code == status, reply.text
        self.check(reply, "/sessions/{id}/generate")
        return reply.json() if status == 200 else reply.json()["message"]

    def end(self, task, status=200, **result):
        reply = self.http.post(f"/tasks/{task['task']}", json=result)
        assert reply.status_code == status, reply.text
        return reply

    def check(self, reply, path):
        """The members that the spec requires are there."""
        answer = SPEC["paths"][path]["post"]["responses"][str(reply.status_code)]
        answer = answer if "$ref" not in answer else SPEC["components"]["responses"]["Error"]
        schema = answer["content"]["application/json"]["schema"]
        name = schema["$ref"].rsplit("/", 1)[1]
        assert set(SPEC["components"]["schemas"][name]["required"]) <= set(reply.json())

    def play_out(self, play):
        """Plays every task until the trainer ends; its exit status must be 0."""
        while self.process.poll() is None:
            try:
                task = self.lease(1)
                if task:
                    play(task)
            except httpx.TransportError:
                break
        assert self.process.wait(LIMIT) == 0, self.log.read_text()[-3000:]
        return self

    def stop(self):
        self.process.kill()
        self.process.wait()

    def samples(self, columns="ids, n_prompt, n_response, logp, mask, status, reward, error"):
        db = sqlite3.connect(self.dir / "ledger.db")
        rows = db.execute(f"SELECT {columns} FROM samples ORDER BY id").fetchall()
        db.close()
        return rows

    def gaps(self):
        lines = [json.loads(x) for x in open(self.dir / "metrics.jsonl")]
        steps = [m for m in lines if m["kind"] == "train"]
        assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps)
        return [m["train/logprob_gap_tokens"] for m in steps]


def ids_of(blob):
    return list(struct.unpack(f"<{len(blob) // 4}I", blob))


def floats_of(blob):
    return list(struct.unpack(f"<{len(blob) // 4}f", blob))


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def test_every_token_is_the_sampled_one(d):
    """Three turns by ids and text: what the ledger holds is what was answered, token by token."""
    played, first = {}, {}
    run = Run(d, "exact")

    def play(task):
        ids, mask, logp = list(task["input_ids"]), [], []
        first[task["rid"]] = len(ids)
        for turn in range(3):
            body = {"input_ids": ids} if turn % 2 else ({"text": "<|tool|>7<|end|><|assistant|>"} if turn else {})
            if turn % 2:
                ids += [50, 51]
                mask += [0, 0]
                logp += [0.0, 0.0]
                body = {"input_ids": ids}
            got = run.generate(task, sampling_params={"max_new_tokens": 5}, **body)
            if turn and not turn % 2:
                glue = got["meta_info"]["prompt_tokens"] - len(ids)
                assert glue > 0
                ids += [None] * glue
                mask += [0] * glue
                logp += [0.0] * glue
            assert got["meta_info"]["prompt_tokens"] == len(ids)
            ids += got["output_ids"]
            mask += [1] * len(got["output_ids"])
            logp += [f32(x[0]) for x in got["meta_info"]["output_token_logprobs"]]
            assert [x[1] for x in got["meta_info"]["output_token_logprobs"]] == got["output_ids"]
        played[task["rid"]] = ids, mask, logp
        run.end(task, reward=len(played) % 2)

    run.play_out(play)
    assert len(played) == 12 and sum(run.gaps()) == sum(sum(m) for _, m, _ in played.values())
    stored = run.samples()
    assert len(stored) == 12
    left = list(played.items())
    for ids, n_prompt, n_response, logp, mask, status, reward, error in stored:
        ids, mask = ids_of(ids), list(mask)
        match = [rid for rid, (i, m, l) in left if len(i) == len(ids) and m == mask and l == floats_of(logp)
                 and all(a is None or a == b for a, b in zip(i, ids))]  # fmt: skip
        assert match, (status, error)  # two members of a group may have said the same
        assert n_prompt == first[match[0]] and n_prompt + n_response == len(ids) and reward in (0, 1)
        left = [x for x in left if x[0] != match[0]]


def test_a_history_goes_on_or_branches(d):
    """Repeated history: the same tokens. Edited, cut, reordered, with other tools: a branch, and the rest untouched."""
    run = Run(d, "branches", num_rollout=1)
    try:
        task = run.lease()
        assert task["input"] == task["prompt"].replace("<|user|>", "").replace("<|end|><|assistant|>", "")
        a, b = map(int, task["input"].split("+"))
        assert task["metadata"] == {"a": a} and task["label"] == str(a + b)
        m = [{"role": "user", "content": task["input"]}]
        a1 = run.chat(task, m, max_tokens=6)
        m1 = m + [{"role": "assistant", "content": a1, "refusal": None}, {"content": "5", "role": "tool"}]
        a2 = run.chat(task, m1, max_tokens=6)
        for messages in (
            m + [{"role": "assistant", "content": a1 + "!"}, {"role": "tool", "content": "5"}],  # edited
            m1[2:],  # cut
            [m1[2], m1[1], m1[0]],  # reordered
            m + [{"role": "assistant", "content": "never said"}] + m1,  # inserted
        ):
            run.chat(task, messages, max_tokens=4)
        m2 = m1 + [{"role": "assistant", "content": a2}, {"role": "tool", "content": "6"}]
        whole = run.http.post(f"{task['session']}/v1/chat/completions", json={"messages": m2, "max_tokens": 4}).json()
        run.end(task, reward=True)  # a comparison's, as from a reward command
        run.end(task, status=404, reward=1)
        deadline = time.monotonic() + LIMIT
        while not (rows := [r for r in run.samples() if r[6] is not None]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ids, n_prompt, n_response, logp, mask = rows[0][:5]
        assert rows[0][6] == 1 and n_prompt + n_response == whole["usage"]["total_tokens"]
        assert ids_of(ids)[:n_prompt] == task["input_ids"]
        runs = "".join(str(b) for b in mask)
        assert runs.startswith("1") and runs.endswith("1") and runs.count("01") == 2  # three answers, glue between them
    finally:
        run.stop()


def test_limits_and_bad_requests(d):
    run = Run(d, "limits", "--environment-max-turns", "3", "--environment-api-key", "secret", num_rollout=1)
    try:
        assert run.http.post("/tasks/lease", json={}).status_code == 401
        assert run.http.get("/health").status_code == 200
        assert run.http.get("/openapi.json").json() == SPEC
        run.http.headers["Authorization"] = "Bearer secret"
        assert run.http.post("/tasks/lease", json={"wait_s": 61}).status_code == 400
        assert run.http.post("/tasks/lease", content=b"{").status_code == 400
        assert '"wait" is no member' in run.http.post("/tasks/lease", json={"wait": 20}).json()["error"]["message"]
        task = run.lease()
        assert "wait" not in task and task["max_turns"] == 3
        for body, says in [({"messages": []}, "messages"), ({"messages": "x"}, ""), ({}, "messages: missing"),
                           ({"messages": [{"role": 1}]}, ""), ({"messages": [{"role": "user", "content": "x"}], "n": 2}, "one answer"),
                           ({"messages": [{"role": "user", "content": "x"}], "stop": [""]}, "stop"),
                           ({"messages": [{"role": "user", "content": "x"}], "functions": [{"name": "f"}]}, "functions: a session does not"),
                           ({"messages": [{"role": "user", "content": "x"}], "documents": [{"text": "a"}]}, "documents: a session does not")]:  # fmt: skip
            reply = run.http.post(f"{task['session']}/v1/chat/completions", json=body)
            assert reply.status_code == 400 and says in reply.json()["message"], reply.text
        for body, says in [({"input_ids": [1, 99999]}, "vocabulary"), ({"input_ids": []}, "empty"), ({"text": "a", "input_ids": [1]}, "one of"),
                           ({"input_ids": [-1]}, ""), ({"stream": True}, "whole"), ({"sampling_params": {"max_new_tokens": 0}}, ""),
                           ({"max_new_tokens": 3}, "belongs in sampling_params"), ({"sampling_params": {"stop_token_ids": [1]}}, "stop_token_ids")]:  # fmt: skip
            assert says in run.generate(task, status=400, **body)
        assert "maximum context length is 96 tokens" in run.generate(task, status=400, input_ids=[65] * 96)
        for result in ({}, {"reward": 1, "error": "x"}, {"reward": "1"}, {"renew": False}):
            run.end(task, status=400, **result)
        for result, says in [({"reward": 1, "trunc": True}, '"trunc" is no member of a result'),
                             ({"samples": [{"turn": 0, "score": 1}]}, '"score" is no member of a sample'),
                             ({"reward": [True]}, "reward: must be a number")]:  # fmt: skip
            assert says in run.end(task, status=400, **result).json()["message"]
        twice = run.http.post(f"/tasks/{task['task']}", content=b'{"samples": [], "samples": []}')
        assert twice.status_code == 400 and "twice" in twice.json()["message"]
        run.end(task, renew=True)
        unknown = {"session": "/sessions/0123", "task": "0123"}
        assert "no such lease" in run.generate(unknown, status=404)
        run.end(unknown, status=404, reward=1)
        events = run.http.post(f"{task['session']}/v1/chat/completions",
                               json={"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 3}).text  # fmt: skip
        chunks = [x[6:] for x in events.split("\n\n") if x]
        deltas = [json.loads(x)["choices"][0] for x in chunks[:-1]]
        assert chunks[-1] == "[DONE]" and deltas[0]["delta"]["role"] == "assistant" and deltas[-1]["finish_reason"]
        for _ in range(2):
            run.generate(task, sampling_params={"max_new_tokens": 1})
        assert "has had its 3 turns" in run.generate(task, status=413)
        run.end(task, error="the tool broke")
        deadline = time.monotonic() + LIMIT
        while not (rows := [r for r in run.samples() if r[7]]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "environment: the tool broke" in rows[0][7] and rows[0][6] is None  # a state, never reward 0
    finally:
        run.stop()


def test_escapes_in_any_key_and_strings_without_end(d):
    """An escape may stand in any key or string, whatever its reader expects; a string may be of any length."""
    run = Run(d, "escapes", num_rollout=1)
    try:
        post = lambda path, body: run.http.post(path, content=body)
        reply = post("/tasks/lease", b'{"wait_s": 0, "a\\nb": "\\t"}')
        assert reply.status_code == 400 and '"a\nb" is no member' in reply.json()["message"], reply.text
        reply = post("/tasks/lease", b'{"wait\\u005fs": 20}')
        assert reply.status_code == 200, reply.text
        task = reply.json()
        assert post("/tasks/lease", b'{"wait_s": 0, "' + b"x\\n" * 600_000 + b'": 1}').status_code == 413
        for path, long in (("v1/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "stop": "%s"}'),
                           ("generate", b'{"sampling_params": {"stop": ["%s"]}}')):  # fmt: skip
            reply = post(f"{task['session']}/{path}", long % (b"\\n" + b"x" * (40 << 20)))
            assert reply.status_code == 413 and "memory" in reply.json()["message"], reply.text
            reply = post(f"{task['session']}/{path}", long % b"a\\u0000b")
            assert reply.status_code == 400 and "NUL" in reply.json()["message"], reply.text
        reply = post(f"/tasks/{task['task']}", b'{"re\\u0077ard": 1, "meta\\u0064ata": {"a\\"": 1}}')
        assert reply.status_code == 200, reply.text
        assert run.http.get("/health").status_code == 200 and run.process.poll() is None
    finally:
        run.stop()


def test_a_lost_environment_loses_its_lease(d):
    run = Run(d, "lost", "--environment-lease-timeout", "1", num_rollout=1, rollout_batch_size=1)
    lost = run.lease()
    run.generate(lost, sampling_params={"max_new_tokens": 2})
    seen = [lost["task"]]

    def play(task):
        if task["rid"] == lost["rid"]:
            assert task["task"] != lost["task"]
            assert "no such lease" in run.generate(lost, status=404)
            run.end(lost, status=404, reward=0)
        seen.append(task["task"])
        run.generate(task, sampling_params={"max_new_tokens": 3})
        run.end(task, reward=1)

    run.play_out(play)
    assert len(set(seen)) == len(seen) == 3
    assert [r[2] <= 3 for r in run.samples()] == [True, True]  # nothing of the lost session is left


@pytest.mark.parametrize("what", ["never taken", "never ended", "ended wrongly"])
def test_a_task_that_nobody_ends_fails_by_name(d, what):
    more = ["--environment-lease-timeout", "1", "--environment-attempts", "1", "--rollout-request-timeout",
            "2" if what == "never taken" else str(LIMIT)]  # fmt: skip
    run = Run(d, what.replace(" ", "-"), *more, num_rollout=1, rollout_batch_size=1)
    while what != "never taken" and run.process.poll() is None:
        try:
            task = run.lease(1)
            if task and what == "ended wrongly":
                run.end(task, status=400, reward="high")
        except httpx.TransportError:
            break
    assert run.process.wait(LIMIT) == 1
    log = run.log.read_text()
    assert ("no environment took the task before its deadline (--rollout-request-timeout)" if what == "never taken" else "every lease expired") in log
    if what == "ended wrongly":
        assert log.count("is refused, and others may be: JSON at byte") == 1
        assert "without a result; a result that was posted is refused: JSON at byte 10: reward: must be a number" in log


def test_hundreds_of_connections(d):
    """Environments that wait for tasks, and many that only keep a connection, take nothing from those that have one."""
    run = Run(d, "many", num_rollout=1, rollout_batch_size=1, n_samples_per_prompt=2)
    idle, waiting = [], []
    try:
        task, other = run.lease(), run.lease()
        port = run.http.base_url.port
        for i in range(600):
            s = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
            idle.append(s)
            if i % 2:  # half of them have asked something before, the others never do
                s.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        body = b'{"wait_s": 60}'
        for _ in range(150):
            s = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
            waiting.append(s)
            s.sendall(b"POST /tasks/lease HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n%s" % (len(body), body))  # fmt: skip
        with web.Client(base_url=run.http.base_url, timeout=20 * SLOW) as fresh:
            slowest = 0
            for _ in range(20):
                before = time.monotonic()
                assert fresh.post(f"/tasks/{task['task']}", json={"renew": True}).status_code == 200
                slowest = max(slowest, time.monotonic() - before)
            print(f"slowest renewal beside {len(idle)} idle connections and {len(waiting)} that wait: {slowest:.3f} s")
            for t in (task, other):
                reply = fresh.post(f"{t['session']}/generate", json={"sampling_params": {"max_new_tokens": 2}})
                assert reply.status_code == 200, reply.text
                assert fresh.post(f"/tasks/{t['task']}", json={"reward": 1}).status_code == 200
        assert run.process.wait(2 * LIMIT) == 0, run.log.read_text()[-3000:]
    finally:
        for s in idle + waiting:
            s.close()
        run.stop()


def test_options_are_checked(d):
    command = words(d, "x", "--environment")
    at = command.index("--rollout-max-context-len")
    p = subprocess.run(command[:at] + command[at + 2 :], capture_output=True, text=True, timeout=LIMIT)
    assert p.returncode == 1 and "--environment needs --rollout-max-context-len" in p.stderr


def calculator_run(d, name, command, rollouts, **change):
    more = ["--environment-command", command, "--num-environments", "4"]
    options = {"num_rollout": rollouts, "rollout_batch_size": 8, "n_samples_per_prompt": 8, "lr_decay_style": "linear",
               "min_lr": 5e-5, "adam_beta2": 0.98, **change}  # fmt: skip
    with open(d / f"{name}.log", "a") as log:
        p = subprocess.Popen(words(d, name, *more, **options), stdout=log, stderr=log)
    return p


def final(d, name):
    log = (d / f"{name}.log").read_text()
    shas = [x.rsplit(" ", 1)[1] for x in log.splitlines() if x.startswith("done ")]
    return shas[-1] if shas else None


def check_calculator(d, name, rollouts):
    lines = [json.loads(x) for x in open(d / name / "metrics.jsonl")]
    rewards, sha = [m["rollout/raw_reward"] for m in lines if m["kind"] == "rollout"], final(d, name)
    assert len(rewards) == rollouts and sha
    # a batch is 8 questions, and one of them lowers it by an eighth: ten are what a threshold can be held against
    assert sum(rewards[-10:]) / 10 >= 0.8 > sum(rewards[:10]) / 10 + 0.1, rewards
    steps = [m for m in lines if m["kind"] == "train"]
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 and m["train/logprob_gap_tokens"] > 0 for m in steps)
    db = sqlite3.connect(d / name / "ledger.db")
    masks = [m for (m,) in db.execute("SELECT mask FROM samples WHERE reward = 1 ORDER BY id DESC LIMIT 50")]
    assert sum(b"\x00" in m for m in masks) > 25  # the tool was used: context lies between the answers
    return sha


def versions(run_dir, n):
    """The hashes of the run's first n versions of weights, as far as there are any."""
    if not (run_dir / "ledger.db").exists():
        return []
    with contextlib.closing(sqlite3.connect(f"file:{run_dir}/ledger.db?mode=ro", uri=True, timeout=LIMIT)) as db:
        try:
            return [sha for (sha,) in db.execute("SELECT sha256 FROM versions ORDER BY version LIMIT ?", [n])]
        except sqlite3.OperationalError:  # it is being made
            return []


def begin(d, name, process, n=13):
    """Lets a run go on until it has n versions of weights and kills it; their hashes."""
    deadline = time.monotonic() + 4 * LIMIT
    try:
        while len(versions(d / name, n)) < n:
            assert process.poll() is None and time.monotonic() < deadline, (d / f"{name}.log").read_text()[-3000:]
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    return versions(d / name, n)


@pytest.fixture(scope="module")
def python_begins(d):
    """The first versions of the calculator's run in Python; what comes after them need not be computed by others."""
    return begin(d, "python", calculator_run(d, "python", PYTHON_CALCULATOR, 80))


@pytest.mark.full
def test_the_calculator_in_python_trains(d, python_begins):
    p = calculator_run(d, "python", PYTHON_CALCULATOR, 80)  # goes on where it was killed
    try:
        assert p.wait(4 * LIMIT) == 0, (d / "python.log").read_text()[-3000:]
    finally:
        p.kill()  # on a machine that is too slow for it the other tests have their turn
    assert len(check_calculator(d, "python", 80)) == 64


def test_the_calculator_in_c_trains_to_the_same_weights(d, python_begins):
    """Another language, ids and text instead of messages: the same tokens, so the same weights."""
    subprocess.run(["cc", "-O1", "-o", d / "calculator", ROOT / "examples/environments/calculator.c", "-lcurl", "-lcjson"],
                   check=True, timeout=LIMIT)  # fmt: skip
    assert begin(d, "c", calculator_run(d, "c", str(d / "calculator"), 80)) == python_begins


def hook(d):
    """examples/custom_generate.c, compiled."""
    out = d / "custom_generate.so"
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O2", "-I", ROOT, "-o", out,
                    ROOT / "examples/custom_generate.c"], check=True, timeout=LIMIT)  # fmt: skip
    return out


def hook_run(d, name, library, rollouts, *more, **change):
    options = {"num_rollout": rollouts, "rollout_batch_size": 8, "n_samples_per_prompt": 8, "lr_decay_style": "linear",
               "min_lr": 5e-5, "adam_beta2": 0.98, **change}  # fmt: skip
    with open(d / f"{name}.log", "a") as log:
        return subprocess.Popen(words(d, name, "--custom-generate-function-path", str(library), *more, **options),
                                stdout=log, stderr=log)  # fmt: skip


def test_the_calculator_as_a_generate_hook_trains_to_the_same_weights(d, python_begins):
    """The same turns from a shared library, without HTTP."""
    assert begin(d, "hook", hook_run(d, "hook", hook(d), 80)) == python_begins


def test_kills_change_nothing_for_a_hook(d):
    library = hook(d)
    assert hook_run(d, "hook-calm", library, 4).wait(LIMIT) == 0
    rng = random.Random(7)
    p = hook_run(d, "hook-killed", library, 4)
    for _ in range(5):
        try:
            p.wait(rng.uniform(0.2, 0.9))
            break
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
            p = hook_run(d, "hook-killed", library, 4)
    assert p.wait(2 * LIMIT) == 0, (d / "hook-killed.log").read_text()[-3000:]
    assert final(d, "hook-killed") == final(d, "hook-calm")


def test_kills_change_nothing(d):
    """Trainer and environments are killed at random moments; the run ends with the same weights."""
    subprocess.run(["cc", "-O1", "-o", d / "calculator", ROOT / "examples/environments/calculator.c", "-lcurl", "-lcjson"],
                   check=True, timeout=LIMIT)  # fmt: skip
    assert calculator_run(d, "calm", str(d / "calculator"), 4).wait(LIMIT) == 0
    rng = random.Random(5)
    p = calculator_run(d, "killed", str(d / "calculator"), 4)
    for kill in range(6):
        try:
            p.wait(rng.uniform(0.1, 0.8))
            break
        except subprocess.TimeoutExpired:
            pass
        if kill % 2:
            p.kill()
            p.wait()
            p = calculator_run(d, "killed", str(d / "calculator"), 4)
        else:
            kill_copies(d)
    assert p.wait(2 * LIMIT) == 0, (d / "killed.log").read_text()[-3000:]
    assert final(d, "killed") == final(d, "calm")


def kill_copies(d):
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if open(f"/proc/{entry}/cmdline", "rb").read().startswith(os.fsencode(d / "calculator")):
                os.kill(int(entry), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass


@pytest.mark.parametrize("mode, ahead", [("retract", 1), ("in_place", 1), ("retract", 3)])
def test_weights_change_within_a_session(d, mode, ahead):
    """--fully-async: a session's turns, and tokens of one turn, may be of several versions; each has its own."""
    how = ["--fully-async", "--max-staleness", "4", "--pause-generation-mode", mode, "--over-sampling-batch-size", "6",
           "--max-rollouts-ahead", ahead]  # fmt: skip
    name = f"full-{mode}-{ahead}"
    run = Run(d, name, *map(str, how), num_rollout=6)
    played, lock, rng, first = [], threading.Lock(), random.Random(2), threading.Lock()

    def hold_one():
        """The first session goes on when weights were pushed after its first turn: one lasts over a push, whoever is faster."""
        log = run.dir / "metrics.jsonl"
        if first.acquire(blocking=False):
            while run.process.poll() is None and not (log.exists() and '"kind":"perf"' in log.read_text()):
                time.sleep(0.01)

    def play():
        try:
            while task := run.lease(1):
                versions = []
                for turn in range(3):
                    body = {"text": "<|tool|>7<|end|><|assistant|>"} if turn else {}
                    got = run.generate(task, sampling_params={"max_new_tokens": 12}, **body)
                    versions.append(int(got["meta_info"]["weight_version"]))
                    hold_one()
                    time.sleep(rng.uniform(0, 0.1))
                run.end(task, reward=len(played) % 2)
                with lock:
                    played.append((got["meta_info"]["prompt_tokens"] + len(got["output_ids"]), versions))
        except (AssertionError, httpx.TransportError):
            pass  # its task was stopped, or the run is at its end

    def plays():
        while run.process.poll() is None:
            play()

    players = [threading.Thread(target=plays) for _ in range(8)]
    for t in players:
        t.start()
    assert run.process.wait(2 * LIMIT) == 0, run.log.read_text()[-3000:]
    for t in players:
        t.join()
    db = sqlite3.connect(run.dir / "ledger.db")
    rows = db.execute("SELECT t.step, s.n_prompt, s.n_response, s.mask, s.versions, s.mixed_kv FROM step_samples t"
                      " JOIN samples s ON s.id = t.sample_id").fetchall()  # fmt: skip
    db.close()
    assert len(rows) == 36 and any(len(set(v)) > 1 for _, v in played)
    mixed = 0
    for step, n_prompt, n, mask, versions, kept in rows:
        runs = json.loads(versions)
        assert sum(k for _, k in runs) == n and [v for v, _ in runs] == sorted({v for v, _ in runs})
        assert step - 1 - runs[0][0] <= 4 and (not kept or mode == "in_place")
        assert any(length == n_prompt + n and said[-1] == runs[-1][0] for length, said in played)
        mixed += len(runs) > 1
    assert mixed, "no session lasted over a push"
    steps = [m for m in map(json.loads, open(run.dir / "metrics.jsonl")) if m["kind"] == "train"]
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps if m["train/logprob_gap_tokens"])
    # the record gives the same weights
    again = words(d, f"again-{name}", "--environment", *map(str, how), "--replay", str(run.dir), num_rollout=6)
    with open(d / f"again-{name}.log", "w") as log:
        assert subprocess.run(again, stdout=log, stderr=log, timeout=LIMIT).returncode == 0, open(log.name).read()[-2000:]
    assert final(d, f"again-{name}") == final(d, name)


def test_search_asks_several_queries(d):
    """Two hops: a shelf names a box, the box holds a number."""
    rng = random.Random(3)
    boxes = {f"b{i}": rng.randrange(10, 100) for i in range(10, 40)}
    shelves = {f"s{i}": rng.choice(sorted(boxes)) for i in range(10, 70)}
    with open(d / "corpus.jsonl", "w") as f:
        for shelf, box in shelves.items():
            f.write(json.dumps({"text": f"{shelf} {box}"}) + "\n")
        for box, number in boxes.items():
            f.write(json.dumps({"text": f"{box} holds {number}"}) + "\n")
    with open(d / "search-warm.jsonl", "w") as warm, open(d / "search.jsonl", "w") as train:
        for shelf, box in shelves.items():
            # A box's own document is the best for its name: shorter ones that name it come first, so ask for "holds".
            turns = [("user", shelf), ("assistant", f"?{shelf}"), ("tool", f"{shelf} {box}"),
                     ("assistant", f"?{box} holds"), ("tool", f"{box} holds {boxes[box]}"), ("assistant", str(boxes[box]))]  # fmt: skip
            warm.write(json.dumps({"messages": [{"role": r, "content": c} for r, c in turns]}) + "\n")
            train.write(json.dumps({"prompt": shelf, "label": str(boxes[box])}) + "\n")
    subprocess.run([TRAIN, "sft", "--hf-checkpoint", d / "init", "--prompt-data", d / "search-warm.jsonl", "--messages-key",
                    "messages", "--num-epoch", "200", "--global-batch-size", "20", "--lr", "3e-3", "--target-loss", "0.05",
                    "--save-hf", d / "searcher"], check=True, capture_output=True, timeout=LIMIT)  # fmt: skip
    command = f"{sys.executable} {ROOT}/examples/environments/search.py {d}/corpus.jsonl"
    run = words(d, "search", "--environment-command", command, model="searcher", prompt_data=d / "search.jsonl",
                num_rollout=2, rollout_batch_size=16, rollout_max_response_len=96, rollout_max_context_len=128, lr=1e-4)  # fmt: skip
    with open(d / "search.log", "w") as log:
        assert subprocess.run(run, stdout=log, stderr=log, timeout=2 * LIMIT).returncode == 0, open(d / "search.log").read()
    db = sqlite3.connect(d / "search" / "ledger.db")
    rows = db.execute("SELECT mask, reward FROM samples").fetchall()
    answers = lambda mask: sum(a and not b for a, b in zip(mask, mask[1:] + b"\x00"))
    right = [answers(mask) for mask, reward in rows if reward == 1]
    assert len(right) > len(rows) / 2 and sum(n == 3 for n in right) > len(right) / 2, (len(rows), right)
