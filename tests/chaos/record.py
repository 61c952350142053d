"""What a run's folder holds when it is over, for comparing a disturbed run with the undisturbed one: nothing lost, doubled or half
written."""

import contextlib
import hashlib
import json
import sqlite3

TRAINED = """SELECT t.step, t.position, s.rollout, s.member, t.advantage, t.removed, s.status, s.reward, s.n_prompt, s.n_response,
    s.ids, s.logp, s.mask, s.response, s.seed, s.error FROM step_samples t JOIN samples s ON s.id = t.sample_id ORDER BY 1, 2"""
GROUPS = "SELECT rollout, epoch, line, state, reason, cause, ended_in FROM groups ORDER BY id"
STEPS = "SELECT step, rollout, loss, grad_norm, checksum, done_us IS NOT NULL FROM steps ORDER BY 1"
BROKEN = {
    "samples that are not done or have no reward": "SELECT count(*) FROM samples WHERE status NOT IN ('completed', 'truncated') OR reward IS NULL",
    "samples that somebody still holds": "SELECT count(*) FROM samples WHERE lease_incarnation IS NOT NULL",
    "samples whose tokens and numbers differ in length": "SELECT count(*) FROM samples WHERE length(ids) <> 4 * (n_prompt + n_response) "
                                                         "OR length(logp) <> 4 * n_response OR length(mask) <> n_response",
    "samples that are trained twice": "SELECT count(*) FROM (SELECT 1 FROM step_samples GROUP BY sample_id HAVING count(*) > 1)",
    "members of a group that are there twice": "SELECT count(*) FROM (SELECT 1 FROM samples GROUP BY group_id, member HAVING count(*) > 1)",
    "samples without a group": "SELECT count(*) FROM samples WHERE group_id NOT IN (SELECT id FROM groups)",
}  # fmt: skip


def read(run_dir):
    """The record as a value to compare; what is broken in it by itself is an assertion."""
    with contextlib.closing(sqlite3.connect(run_dir / "ledger.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        for what, sql in BROKEN.items():
            n = db.execute(sql).fetchone()[0]
            assert n == 0, f"{n} {what}"
        trained = [hashlib.sha256(repr(row).encode()).hexdigest() for row in db.execute(TRAINED)]
        record = {"trained": trained, "groups": db.execute(GROUPS).fetchall(), "steps": db.execute(STEPS).fetchall()}
    lines = [json.loads(line) for line in open(run_dir / "metrics.jsonl")]
    record["train lines"] = [m["step"] for m in lines if m["kind"] == "train"]
    return record


def differences(a, b):
    """In words; empty when both say the same."""
    found = []
    for name in a:
        if a[name] != b[name]:
            at = next((i for i, (x, y) in enumerate(zip(a[name], b[name])) if x != y), min(len(a[name]), len(b[name])))
            found.append(f"{name}: {len(a[name])} and {len(b[name])}, first different at {at}")
    return found
