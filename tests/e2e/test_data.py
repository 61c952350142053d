"""What files would be trained on (clime-train data), sources of every form with weights, and a run's answers as data."""

import csv
import json
import sqlite3
import struct
import subprocess
import sys

import pytest
from programs import LIMIT, ROOT, run
from test_bad_runs import d, rl  # noqa: F401
from test_ledger import query


def data(*words, status=0):
    got, out, err = run("clime-train", "data", *words)
    assert got == status, (got, out[-2000:], err[-2000:])
    return out if status == 0 else out + err


def write_csv(path, rows):
    with open(path, "w", newline="") as f:
        out = csv.DictWriter(f, rows[0].keys())
        out.writeheader()
        out.writerows(rows)
    return path


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """Nine questions as a spreadsheet writes them, with what CSV makes hard."""
    rows = [{"question": f'What is "{a}" plus {a},\nin digits?', "answer": 2 * a, "note": ""} for a in range(1, 10)]
    return write_csv(tmp_path_factory.mktemp("csv") / "sums.csv", rows)


def test_what_would_be_trained_on(d, sums, tmp_path):  # noqa: F811
    assert "--input-key question? --label-key answer?" in data(sums)  # a look: what it says is no failure
    assert "--input-key question? --label-key answer?" in data(sums, "--output", tmp_path / "out.jsonl", status=1)
    assert not (tmp_path / "out.jsonl").exists()
    out = data(sums, "--input-key", "question", "--label-key", "answer", "--hf-checkpoint", d / "init",
               "--apply-chat-template", "--rm-type", "gsm8k", "--rollout-max-prompt-len", 10, "--print", 1)  # fmt: skip
    assert "9 rows" in out and "left out: 9 longer" in out
    assert 'prompt of line 2, label "2", left out' in out and '"1" plus 1,' in out  # as it stands in the file, line end and all
    label_lines = {line.split()[0]: line for line in out.splitlines() if " get 1" in line or "none is above" in line}
    assert "100.0 % get 1" in label_lines["####"] and "none is above 0" in label_lines["LABEL"]
    # a reward that no label satisfies is loud
    wrong = data(sums, "--input-key", "question", "--label-key", "note", "--hf-checkpoint", d / "init", "--rm-type",
                 "f1", status=1)  # fmt: skip
    assert "NO LABEL GETS A REWARD" in wrong and "no label gets a reward" in wrong


def test_conversion_without_what_is_evaluated(sums, tmp_path):
    held_out = tmp_path / "held.json"
    held_out.write_text(json.dumps([{"question": "what is 3 plus 3 in digits"},
                                    {"question": "One two three four five What is 7 plus 7 in digits? and more"}]))  # fmt: skip
    out = tmp_path / "out.jsonl"
    words = [sums, "--input-key", "question", "--output", out, "--against", held_out]
    assert "in the evaluation sets: 1 of 9 rows" in data(*words)
    assert "in the evaluation sets: 2 of 9 rows" in data(*words, "--ngram", 5)
    rows = [json.loads(line) for line in open(out)]
    assert [r["answer"] for r in rows] == [str(2 * a) for a in (1, 2, 4, 5, 6, 8, 9)]
    assert rows[0]["question"] == 'What is "1" plus 1,\nin digits?'
    before = sums.read_bytes()
    assert "is read too" in data(sums, "--input-key", "question", "--output", sums, status=1)
    assert sums.read_bytes() == before


def test_sources_with_weights(d, tmp_path):  # noqa: F811
    lines = [json.loads(line) for line in open(d / "task" / "train.jsonl")][:40]
    many, few = tmp_path / "many.json", tmp_path / "few.jsonl"
    many.write_text(json.dumps(lines[:38]))
    few.write_text("".join(json.dumps(line) + "\n" for line in lines[38:]))
    options = {"rollout_shuffle": True, "num_rollout": 4, "rollout_batch_size": 10, "global_batch_size": 20,
               "rm_type": "random:0.5,none:1"}  # fmt: skip

    def train(name, weight, **change):
        words = rl(d, name, **{**options, **change})
        at = words.index("--prompt-data")
        words[at + 1 : at + 2] = [f"{many}@0.25", f"{few}@{weight}"]
        return run("clime-train", *words, timeout=2 * LIMIT)

    groups = "SELECT id, source, line, epoch FROM groups ORDER BY id"
    status, _, err = train("mixed", 0.75)
    assert status == 0, err
    whole = query(d / "mixed" / "ledger.db", groups)
    assert len(whole) == 40 and {g[3] for g in whole} == {0}
    assert sum(g[1] == "few" for g in whole) == 30 and sum(g[1] == "many" for g in whole) == 10
    for line in (1, 2):  # each of the two came as often
        assert sum(g[1:3] == ("few", line) for g in whole) == 15
    # rewards by source: their means, weighted by the samples, are the whole's
    for m in map(json.loads, open(d / "mixed" / "metrics.jsonl")):
        if m["kind"] != "rollout":
            continue
        parts = [(m[f"rollout/reward/source/{s}"], m[f"rollout/samples/source/{s}"]) for s in ("many", "few")]
        assert sum(n for _, n in parts) == 20
        assert sum(r * n for r, n in parts) / 20 == pytest.approx(m["rollout/raw_reward"])
    # a run that was stopped half way goes on with the same prompts
    assert train("resumed", 0.75, num_rollout=2)[0] == 0
    assert train("resumed", 0.75)[0] == 0
    assert query(d / "resumed" / "ledger.db", groups) == whole
    status, _, err = train("resumed", 0.5, num_rollout=5)
    assert status == 1 and "what --prompt-data says in its sources is another one" in err, err


def test_the_best_answers_of_a_run(d, tmp_path):  # noqa: F811
    words = rl(d, "best", rm_type="command", n_samples_per_prompt=4, global_batch_size=16, num_rollout=2,
               rollout_stop=None)  # fmt: skip
    # longer answers are better, so that a group's members differ
    words += ["--rm-command", """python3 -uc '
import json, sys
for line in sys.stdin:
    q = json.loads(line)
    print(json.dumps({"id": q["id"], "reward": (sum(map(ord, q["response"])) % 7) / 7}))'"""]
    status, _, err = run("clime-train", *words, timeout=2 * LIMIT)
    assert status == 0, err
    ledger = d / "best" / "ledger.db"
    out = tmp_path / "best.jsonl"
    assert "no answer" in data("--from-run", d / "best", "--best", "--min-reward", 2, "--output", out, status=1)
    # truncated answers are not taken: of a random policy most are, so some are made completed here
    with sqlite3.connect(ledger) as db:
        db.execute("UPDATE sample_rows SET status = 'completed'")
    data("--from-run", d / "best", "--best", "--output", out)
    rows = [json.loads(line) for line in open(out)]
    assert len(rows) == 8  # prompts
    for r in rows:
        (best,) = query(ledger, f"SELECT max(reward) FROM samples WHERE group_id = {r['group']}")
        where = f"group_id = {r['group']} AND member = {r['member']}"
        ((ids, mask, n_prompt, reward),) = query(ledger, f"SELECT ids, mask, n_prompt, reward FROM samples WHERE {where}")
        assert reward == best[0] == r["reward"]
        assert list(struct.unpack(f"{len(ids) // 4}I", ids)) == r["ids"]
        assert r["mask"] == [0] * n_prompt + list(mask)
    status, printed, err = run("clime-train", "sft", "--hf-checkpoint", d / "init", "--prompt-data", out, "--ids-key", "ids",
                               "--print-samples", 99)  # fmt: skip
    assert status == 0, err
    assert [json.loads(line) for line in printed.splitlines()] == [{k: r[k] for k in ("ids", "mask")} for r in rows]
    assert "trained: " in data(out, "--ids-key", "ids", "--hf-checkpoint", d / "init")


def test_parquet(tmp_path):
    script = ROOT / "scripts" / "parquet_to_jsonl"
    none = subprocess.run([sys.executable, "-S", script, "x.parquet"], capture_output=True, text=True)
    assert none.returncode == 1 and "pip install pyarrow" in none.stderr
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    rows = [{"q": [{"role": "user", "content": "é\n"}], "x": 1.5, "b": b"\x00"}, {"q": [], "x": None, "b": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    done = subprocess.run([sys.executable, script, tmp_path / "x.parquet"], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{**rows[0], "b": "AA=="}, rows[1]]
