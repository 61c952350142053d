"""clime-train grade from outside: lines in, lines out, and rewards that hang or fail."""

import json
import subprocess
import sys
import time

import pytest
from mocks import workers
from programs import BUILD, DATA, LIMIT, need

CHILD = """
import json, sys, time
for line in sys.stdin:
    q = json.loads(line)
    if q["response"] == "hang":
        time.sleep(60)
    print(json.dumps({"id": q["id"], "reward": {"length": len(q["response"]), "label": q["label"]}}), flush=True)
"""


def grade(lines, *options, timeout=LIMIT):
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(
        [str(BUILD / "clime-train"), "grade", *options], input=text, capture_output=True, text=True, timeout=timeout
    )
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def test_lines_in_order():
    lines = [{"response": f"\\boxed{{{i % 7}}}", "label": str(i % 5)} for i in range(3000)]
    done, out = grade(lines, "--rm-type", "math")
    assert done.returncode == 0
    assert [r["reward"] for r in out] == [float(i % 7 == i % 5) for i in range(3000)]


def test_bad_lines_keep_their_place():
    lines = ["nonsense\n", {"label": "1"}, "\n", {"response": "1", "label": "1"}, '{"response": "1", "label": "1"}']
    done, out = grade(lines, "--rm-type", "exact")
    assert done.returncode == 0
    assert [sorted(r) for r in out] == [["error", "state"], ["error", "state"], ["reward"], ["reward"]]
    assert "line 1" in out[0]["error"] and "line 2" in out[1]["error"]


def test_objects_and_keys():
    line = {"response": "Answer: 7", "label": 7}
    assert grade([line], "--rm-type", "dapo")[1] == [{"reward": {"score": 1.0, "acc": True, "pred": "7"}}]
    assert grade([line], "--rm-type", "dapo", "--reward-key", "score")[1] == [{"reward": 1.0}]
    assert grade([line], "--rm-type", "dapo", "--reward-key", "points")[1][0]["state"] == "INPUT"


@pytest.mark.parametrize(
    "options, says",
    [
        (["--rm-type", "nope"], "unknown reward type"),
        (["--rm-type", "command"], "--rm-command"),
        (["--rm-type", "url"], "--rm-url"),
        (["--rm-typ", "math"], "rm-type"),
        (["--rm-type", "math", "--rm-timeout", "0"], "rm-timeout"),
    ],
)
def test_bad_options(options, says):
    done, out = grade([], *options)
    assert done.returncode != 0 and out == [] and says in done.stderr


def test_an_answer_before_the_next_line():
    """A program may use grade as a service: each answer comes without waiting for more input."""
    p = subprocess.Popen(
        [str(BUILD / "clime-train"), "grade", "--rm-type", "exact"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    for i in range(20):
        p.stdin.write(json.dumps({"response": str(i), "label": "7"}) + "\n")
        p.stdin.flush()
        assert json.loads(p.stdout.readline()) == {"reward": float(i == 7)}
    p.stdin.close()
    assert p.wait(timeout=LIMIT) == 0


def test_command(tmp_path):
    script = tmp_path / "reward.py"
    script.write_text(CHILD)
    lines = [{"response": r, "label": 1} for r in ("abc", "hang", "abcd")]
    start = time.monotonic()
    done, out = grade(
        lines, "--rm-command", f"exec {sys.executable} {script}", "--rm-timeout", "2", "--reward-key", "length"
    )
    assert done.returncode == 0
    assert out[0] == {"reward": 3.0} and out[2] == {"reward": 4.0}
    assert out[1]["state"] == "TIMEOUT" and "rm-timeout" in out[1]["error"]
    assert time.monotonic() - start < 30


def test_a_command_that_prints_a_log():
    done, out = grade([{"response": "x"}], "--rm-command", "while read -r line; do echo loading the model...; done")
    assert done.returncode == 0 and out[0]["state"] == "INTERNAL"
    assert out[0]["error"].endswith("it wrote: loading the model..."), out


def test_url_that_nobody_serves():
    done, out = grade([{"response": "x"}], "--rm-url", "http://127.0.0.1:9/reward", "--rm-timeout", "1")
    assert done.returncode == 0
    assert out[0]["state"] == "TIMEOUT" and "127.0.0.1:9" in out[0]["error"]


def test_a_url_that_asks_for_patience():
    """It is not asked again before it wants to be: here that is too late."""

    def busy(handler, _):
        handler.reply(429, {"error": "busy"}, Retry_After="3600")
        return True

    with workers(1, busy) as (w,):
        _, out = grade([{"response": "x"}], "--rm-url", w.url + "/reward", "--rm-timeout", "8")
        assert len(w.calls()) == 1
    assert "429" in out[0]["error"] and "1 try" in out[0]["error"]


def test_slime_rows():
    """The published calls of whole graders, through the program."""
    path = DATA / "graders" / "slime.jsonl"
    need(path)
    types = {
        "get_deepscaler_rule_based_reward": "deepscaler",
        "grade_answer_verl": "math",
        "compute_gpqa_reward": "gpqa",
    }
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [r for r in rows if r.get("func") in types]
    lines = []
    for r in rows:
        values = dict(zip(("response", "label"), r["args"])) | r["kwargs"]
        values["metadata"] = (values.get("metadata") or {}) | {"rm_type": types[r["func"]]}
        lines.append(values)
    done, out = grade(lines)
    assert len(rows) == 14
    assert [x.get("reward") for x in out] == [float(r["expected"]) for r in rows], done.stderr
