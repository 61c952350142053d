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
