"""--eval-config, intervals, the table of versions and sets, --keep-best, and saved versions evaluated again."""

import json
import math
import shutil
import sqlite3

import pytest
from programs import LIMIT, run
from test_bad_runs import d, rl  # noqa: F401
from test_ledger import query

CONFIG = """
eval:
  defaults: {n_samples_per_eval_prompt: 4, temperature: 1.0, max_response_len: 6}
  datasets:
    - name: short          # greedy, graded by the seed
      path: HELD@[:5]
      rm_type: random
      n_samples_per_eval_prompt: 1
      max_response_len: 3
      temperature: 0
    - name: wide
      path: HELD
      rm_type: command
      metadata_overrides: {level: 3}
"""

# 1 for about half of all answers, so that versions differ; and the overrides reached it
JUDGE = ["--rm-command", """python3 -uc '
import json, sys
for line in sys.stdin:
    q = json.loads(line)
    assert q["metadata"]["level"] == 3
    print(json.dumps({"id": q["id"], "reward": sum(map(ord, q["response"])) % 2}))'"""]


@pytest.fixture(scope="module")
def trained(d):  # noqa: F811
    """Three rollouts; every version evaluated and saved."""
    config = d / "eval.yaml"
    config.write_text(CONFIG.replace("HELD", str(d / "task" / "heldout.jsonl")))
    words = rl(d, "trained", num_rollout=3, eval_config=config, eval_interval=1, save_interval=1, keep_checkpoints=0,
               keep_best="wide", lr=1e-3, rollout_seed=1)  # fmt: skip
    status, out, err = run("clime-train", *words, *JUDGE, timeout=2 * LIMIT)
    assert status == 0, err
    return d / "trained"


def evals(run_dir):
    return [m for m in map(json.loads, open(run_dir / "metrics.jsonl")) if m["kind"] == "eval"]


def test_sets_have_their_own_reward_and_sampling(trained):
    ledger = trained / "ledger.db"
    rows = query(ledger, "SELECT name, n_prompts, n_samples FROM evals WHERE step = 0 ORDER BY name")
    assert rows == [("short", 5, 5), ("wide", 8, 32)]
    longest = "SELECT max(length(ids) / 4 - n_prompt) FROM eval_samples WHERE eval_id = "
    for name, limit in (("short", 3), ("wide", 6)):
        assert query(ledger, f"{longest} (SELECT id FROM evals WHERE step = 0 AND name = '{name}')")[0][0] <= limit
    for m in evals(trained):
        rewards = query(ledger, "SELECT prompt_index, reward FROM eval_samples s JOIN evals e ON e.id = s.eval_id "
                                f"WHERE e.step = {m['eval/step']} AND e.name = 'wide'")  # fmt: skip
        by_prompt = [[r for p, r in rewards if p == i] for i in range(8)]
        means = [sum(r) / 4 for r in by_prompt]
        mean = sum(means) / 8
        spread = math.sqrt(sum((x - mean) ** 2 for x in means) / 7 / 8)
        assert m["eval/wide"] == pytest.approx(mean) and m["eval/wide-ci95"] == pytest.approx(1.96 * spread)
        one = [1 - math.comb(4 - sum(r), 2) / 6 if sum(r) <= 2 else 1 for r in map(lambda r: [int(x) for x in r], by_prompt)]
        assert m["eval/wide-pass@2"] == pytest.approx(sum(one) / 8)
        assert "eval/wide-pass@4-ci95" in m and "eval/short-pass@1" not in m


def test_the_best_is_kept_and_named(d, trained):  # noqa: F811
    scores = {m["eval/step"]: m["eval/wide"] for m in evals(trained)}
    best = max(scores, key=lambda step: (scores[step], -step))
    assert len(set(scores.values())) > 1
    events = query(trained / "ledger.db", "SELECT detail FROM events WHERE kind = 'best' ORDER BY id")
    assert f"step {best}: wide" in events[-1][0]
    # the folder is that version: evaluated again, it has the same samples
    status, out, err = run("clime-train", "eval", "--run", d / "best_again", "--hf-checkpoint", trained / "best",
                           "--eval-config", d / "eval.yaml", "--input-key", "prompt", "--label-key", "label",
                           "--apply-chat-template", "--rollout-seed", 1, "--threads", 1, "--server-threads", 1, *JUDGE,
                           timeout=2 * LIMIT)  # fmt: skip
    assert status == 0, err
    query_ids = "SELECT ids, reward FROM eval_samples s JOIN evals e ON e.id = s.eval_id WHERE e.step = {} ORDER BY e.name, prompt_index, member"
    assert query(d / "best_again" / "ledger.db", query_ids.format(0)) == query(trained / "ledger.db", query_ids.format(best))
    table = run("clime-train", "report", trained)[1].split("evaluations: ")[1].split("\n\n")[0].splitlines()
    assert sum(line.count("+-") for line in table) == 4 * 5  # versions x (short, wide, pass@1, 2, 4)
    stars = [line.split()[0] for line in table if f"{scores[best]:.4f}" in line and "*" in line]
    assert str(best) in stars


def test_saved_versions_evaluated_again(d, trained):  # noqa: F811
    words = ["eval", "--run", d / "versions", "--hf-checkpoint", d / "init", "--eval-versions", trained,
             "--eval-config", d / "eval.yaml", "--input-key", "prompt", "--label-key", "label",
             "--apply-chat-template", "--rollout-seed", 1, "--threads", 1, "--server-threads", 1, "--keep-best", "short", *JUDGE]  # fmt: skip
    status, _, err = run("clime-train", *words, timeout=2 * LIMIT)
    assert status == 0, err
    drop = ("perf/eval_time", "rollout")
    lines = [{k: v for k, v in m.items() if k not in drop} for m in evals(d / "versions")]
    assert lines == [{k: v for k, v in m.items() if k not in drop} for m in evals(trained)] and len(lines) == 4
    assert (d / "versions" / "best" / "config.json").exists()
    # the same command does nothing twice, and does what is missing
    with sqlite3.connect(d / "versions" / "ledger.db") as db:
        db.execute("DELETE FROM eval_samples WHERE eval_id IN (SELECT id FROM evals WHERE step = 2)")
        db.execute("DELETE FROM evals WHERE step = 2")
        db.execute("DELETE FROM metrics WHERE step = 2")
    status, out, err = run("clime-train", *words, timeout=2 * LIMIT)
    assert status == 0 and (out + err).count("is recorded already") == 2, (out, err)
    again = query(d / "versions" / "ledger.db", "SELECT name, step, score FROM evals ORDER BY step, name")
    assert again == query(trained / "ledger.db", "SELECT name, step, score FROM evals ORDER BY step, name")
    # another evaluation, and another run's versions, need another folder: their scores are not those that are recorded
    shutil.copytree(trained, d / "other")
    with sqlite3.connect(d / "other" / "ledger.db") as db:
        db.execute("UPDATE runs SET name = 'other'")
    of_another_run = [d / "other" if w == trained else w for w in words]
    for other, says in (([w for w in words if w != "--apply-chat-template"], "--apply-chat-template"),
                        ([*words, "--eval-top-p", 0.5], "the evaluation"), (of_another_run, "--eval-versions")):  # fmt: skip
        status, _, err = run("clime-train", *other, timeout=2 * LIMIT)
        assert status == 1 and says in err and "another run folder" in err, err
    assert again == query(d / "versions" / "ledger.db", "SELECT name, step, score FROM evals ORDER BY step, name")


def test_samples_that_fail_are_told_with_the_reason(d, tmp_path):  # noqa: F811
    """A question that fills the model: said before the run, and with each score, which is that of the others."""
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"prompt": p, "label": "2"}) + "\n" for p in ("1+1", "1" * 500, "2+1")))
    status, out, err = run("clime-train", *rl(d, "failing", num_rollout=1, eval_prompt_data=path, eval_interval=1))
    assert status == 0 and "1 of 3 prompts of the evaluation set long leave no room" in err, err
    assert "--eval-max-prompt-len 255" in err and "1 OF 3 SAMPLES FAILED, the last one:" in out, (out, err)
    assert "maximum context length is 256" in out, out


@pytest.mark.parametrize("change, says", [
    ({"keep_best": "narrow", "eval_interval": 1}, "--keep-best narrow: no evaluation set"),
    ({"eval_versions": "x"}, "--eval-versions is for clime-train eval"),
    ({"eval_min_new_tokens": 9, "eval_max_response_len": 8}, "set heldout: no answer of at most 8 tokens has at least 9"),
])  # fmt: skip
def test_refused(d, change, says):  # noqa: F811
    status, _, err = run("clime-train", *rl(d, "refused", eval_prompt_data=d / "task" / "heldout.jsonl", **change))
    assert status == 1 and says in err, err


@pytest.mark.parametrize("names, says", [
    (["step"], 'named "step"'),
    ([""], 'named ""'),
    ([300 * "n"], "1 to 128 bytes"),
    (["a-pass@1", "a"], "named a-pass@1: a figure of the set a is"),
    (["a", "a-ci95"], "named a-ci95: a figure of the set a is"),
], ids=lambda x: x[0][:8] if isinstance(x, list) else "")  # fmt: skip
def test_names_that_figures_have(d, names, says):  # noqa: F811
    """Two figures of one name in a line of metrics would be one of them, by the reader's choice."""
    held = d / "task" / "heldout.jsonl"
    status, _, err = run("clime-train", *rl(d, "names"), "--eval-prompt-data", *(w for n in names for w in (n, held)))
    assert status == 1 and says in err, err


# of 8 samples: the first evaluation has one reward, the second all, the third all but one
FAILS = ["--rm-workers", 1, "--rm-command", """python3 -uc '
import json, sys
for n, line in enumerate(sys.stdin):
    reward = [[1.0] + 7 * [None], 8 * [0.25], 7 * [1.0] + [None]][n // 8][n % 8]
    answer = {"error": "the judge is not there"} if reward is None else {"reward": reward}
    print(json.dumps({"id": json.loads(line)["id"], **answer}))'"""]


def test_the_best_is_not_of_fewer_questions(d):  # noqa: F811
    """A mean over what was graded before the judge went away is no score to keep weights for."""
    words = rl(d, "fewer", eval_prompt_data=d / "task" / "heldout.jsonl", eval_interval=1, eval_rm_type="command", keep_best="heldout")
    status, _, err = run("clime-train", *words, *FAILS)
    assert status == 0, err
    assert query(d / "fewer" / "ledger.db", "SELECT score, n_failed FROM evals ORDER BY step") == [(1.0, 7), (0.25, 0), (1.0, 1)]
    kept = [e for (e,) in query(d / "fewer" / "ledger.db", "SELECT detail FROM events WHERE kind = 'best' ORDER BY id")]
    assert [k.split(",")[0] for k in kept] == ["step 0: heldout 1", "step 1: heldout 0.25"]
