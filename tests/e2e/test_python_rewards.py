"""Rewards in Python: as many processes as asked for, and the examples."""

import http.server
import json
import sqlite3
import sys
import threading

import pytest
from programs import LIMIT, ROOT, run
from test_bad_runs import d, rl  # noqa: F401

REWARDS = ROOT / "examples" / "rewards"


def grade(command, rows, *more):
    stdin = "".join(json.dumps(r) + "\n" for r in rows).encode()
    status, out, err = run("clime-train", "grade", "--rm-type", "command", "--rm-command", command, *more, stdin=stdin,
                           timeout=2 * LIMIT)  # fmt: skip
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()], err


def test_workers(d, tmp_path):  # noqa: F811
    """Three processes work at a time: none of them answers its first question before all three have one."""
    script = tmp_path / "meet.py"
    script.write_text("""
import json, os, pathlib, sys, time
met = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    (met / str(os.getpid())).touch()
    while len(list(met.iterdir())) < 3:
        time.sleep(0.01)
    print(json.dumps({"id": json.loads(line)["id"], "reward": 1}), flush=True)
""")
    met = tmp_path / "met"
    met.mkdir()
    words = rl(d, "workers", rm_type="command", rm_command=f"{sys.executable} {script} {met}", rm_workers=3, num_rollout=1,
               rm_timeout=LIMIT)  # fmt: skip
    status, out, err = run("clime-train", *words, timeout=3 * LIMIT)
    assert status == 0, err
    assert len(list(met.iterdir())) == 3
    assert (out + err).count("gave its first answer") == 3


def test_how_near_a_number_is():
    solution = "Natalia sold 48+24 = <<48+24=72>>72 clips altogether.\n#### 72"
    rows = [("72", "72"), ("so 48 + 24 = 72", solution), ("71", "72"), ("145", "72"), ("0", "72"), ("-72", "72"), ("I do not know", "72"), ("1,200", "1200")]  # fmt: skip
    graded, _ = grade(f"{sys.executable} {REWARDS / 'close_reward.py'}", [{"response": r, "label": a} for r, a in rows])
    got = [g["reward"] for g in graded]
    assert got[:2] == [1, 1] and got[6:] == [0, 1]
    assert 0.5 > got[2] > got[3] == 0.25 > got[4] > got[5] > 0  # 146 is twice 73


BATCHES = """
import json, sys, time
time.sleep(0.3)  # the others come to wait meanwhile
for line in sys.stdin:
    q = json.loads(line)
    print(len(q["batch"]), file=open(sys.argv[1], "a"))
    answers = [{"error": "odd"} if one["label"] % 2 else {"reward": {"score": one["label"]}} for one in q["batch"]]
    if any(one["label"] == 40 for one in q["batch"]):
        answers.pop()
    print(json.dumps({"id": q["id"], "answers": answers}), flush=True)
"""


def test_batches(d, tmp_path):  # noqa: F811
    """Every answer of a batch has its own reward or error; a batch of the wrong length fails whole, the next is well."""
    script, sizes = tmp_path / "batches.py", tmp_path / "sizes"
    script.write_text(BATCHES)
    more = ["--rm-workers", 1, "--rm-batch-size", 8, "--reward-key", "score"]
    rewards, _ = grade(f"{sys.executable} {script} {sizes}", [{"response": "r", "label": i} for i in range(39)], *more)
    for i, r in enumerate(rewards):
        assert ("odd" in r["error"]) if i % 2 else (r == {"reward": i}), (i, r)
    seen = list(map(int, open(sizes)))
    assert sum(seen) == 39 and 1 < max(seen) <= 8
    rewards, _ = grade(f"{sys.executable} {script} {sizes}", [{"response": "r", "label": i} for i in (2, 40, 4, 40, 6)], *more)
    assert len(rewards) == 5 and any("answers to a batch of" in r.get("error", "") for r in rewards)
    assert all(r == {"reward": label} or "answers to a batch of" in r["error"] for r, label in zip(rewards, (2, 40, 4, 40, 6)))
    # weighted sums, groups and other types are as they were
    status, out, err = run("clime-train", *rl(d, "batches", rm_type="command", rm_batch_size=8, num_rollout=1, rm_command=(
        f"{sys.executable} -uc 'import json, sys\n"
        'for line in sys.stdin:\n q = json.loads(line)\n print(json.dumps({"id": q["id"], "answers": [{"reward": len(x["response"]) % 3} '
        "for x in q[\"batch\"]]}))'")), timeout=2 * LIMIT)  # fmt: skip
    assert status == 0, err


@pytest.fixture
def endpoint():
    """A judge that says 7, but at first that it is full; it counts what it is asked."""
    asked = []

    class Judge(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body["messages"][0]["content"])
            said = "no idea" if "odd" in asked[-1] else "7"
            reply = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
            self.send_response(429 if len(asked) == 1 else 200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_as_judge(endpoint, tmp_path):
    url, asked = endpoint
    command = f"{sys.executable} {REWARDS / 'judge_reward.py'} --url {url} --cache {tmp_path / 'judge.db'} --per-minute 6000"
    rows = [{"prompt": f"q{i % 4}", "label": "l", "response": "r"} for i in range(12)]
    rewards, _ = grade(command, rows, "--rm-workers", 1)
    assert rewards == [{"reward": 0.7}] * 12 and len(asked) == 5  # four questions, one of them twice: it was full
    again, _ = grade(command, rows, "--rm-workers", 2)
    assert again == rewards and len(asked) == 5  # the file knows them
    odd, _ = grade(command, [{"prompt": "odd", "label": "l", "response": "r"}])
    assert "no number" in odd[0]["error"] and odd[0]["state"]
    with sqlite3.connect(tmp_path / "judge.db") as db:
        assert db.execute("SELECT count(*) FROM answers").fetchone() == (5,)


def test_math_verify(tmp_path):
    command = f"{sys.executable} {REWARDS / 'math_verify_reward.py'}"
    pytest.importorskip("math_verify")
    rows = [{"response": r"so \boxed{\frac{2}{4}}", "label": "0.5"}, {"response": "it is 3", "label": "4"}]
    rewards, _ = grade(command, rows, "--rm-workers", 1)
    assert rewards == [{"reward": 1.0}, {"reward": 0.0}]
