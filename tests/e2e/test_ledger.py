"""The record of a run as a file: older schemas, damage, what is kept of it and for how long."""

import contextlib
import os
import sqlite3

from test_rl import command, fails, model  # noqa: F401  the fixture

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "golden")
STREAMS = ("ids", "logp", "teacher_logp", "mask", "response")
ESTIMATES = ("advantages", "old_logp", "old_values", "returns")


def query(path, sql):
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def test_a_ledger_of_schema_8_keeps_every_value(model):  # noqa: F811
    """tests/golden/ledger_v8.sql is what the program with that schema wrote."""
    run = model / "schema-8"
    os.makedirs(run)
    path = run / "ledger.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(open(os.path.join(GOLDEN, "ledger_v8.sql")).read())
    columns = [c[1] for c in query(path, "PRAGMA table_info(samples)")]
    rows = f"SELECT {', '.join('s.' + c for c in columns)} FROM samples s ORDER BY s.id"
    steps = "SELECT t.step, t.position, t.sample_id, t.advantage, t.removed, {} FROM step_samples t JOIN samples s ON s.id = t.sample_id ORDER BY 1, 2"  # noqa: E501
    evals = "SELECT eval_id, prompt_index, member, status, n_prompt, ids, logp, response, label, reward, error FROM eval_samples"
    before = [query(path, rows), query(path, steps.format(", ".join(f"t.{c}" for c in ESTIMATES))), query(path, evals)]
    assert before[0][0][columns.index("ids")] and all(any(r[5 + i] for r in before[1]) for i in range(4))
    fails(command(model, run), model / "schema-8.log")  # of another run, but it was opened
    after = [query(path, rows), query(path, steps.format(", ".join(f"s.{c}" for c in ESTIMATES))), query(path, evals)]
    assert query(path, "PRAGMA user_version") == [(9,)] and not query(path, "PRAGMA foreign_key_check")
    assert before == after
    types = dict(query(path, "SELECT DISTINCT name, type FROM sample_streams"))
    assert types == {**{n: "f32" for n in ("logp", *ESTIMATES)}, "ids": "u32", "mask": "u8", "response": "text"}
