"""Tasks that end with several samples: over HTTP and by a generate hook; stored, counted, and the same after kills."""

import itertools
import json
import random
import sqlite3
import statistics
import struct
import subprocess

import pytest
from programs import LIMIT, ROOT, server
from test_environments import Run, d, final, floats_of, hook, hook_run, ids_of  # noqa: F401  (d is a fixture)
from test_generate_hook import compile_library, rows, run


@pytest.fixture(scope="module")
def library(d):  # noqa: F811
    out = d / "custom_fan_out.so"
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O2", "-I", ROOT, "-o", out,
                    ROOT / "examples/custom_fan_out.c"], check=True, timeout=LIMIT)  # fmt: skip
    return str(out)


COLUMNS = "group_id, member, part, ids, n_prompt, logp, mask, reward, status, metadata, response, id"


def check_steps(folder, members_in_step):
    """Steps have whole members; advantages compare each part with its group, in which members count once."""
    db = sqlite3.connect(folder / "ledger.db")
    steps = db.execute("SELECT t.step, s.group_id, s.member, s.part, s.reward, t.advantage FROM step_samples t "
                       "JOIN samples s ON s.id = t.sample_id ORDER BY t.step, t.position").fetchall()  # fmt: skip
    batch = dict(db.execute("SELECT step, global_batch FROM steps"))
    db.close()
    place = {}
    for step, group, member, part, _, _ in steps:
        assert place.setdefault((group, member), step) == step
    for step, list_ in itertools.groupby(sorted((s, m) for m, s in place.items()), key=lambda x: x[0]):
        assert len(list(list_)) == members_in_step == batch[step]
    groups = {}
    for _, group, member, _, reward, advantage in steps:
        groups.setdefault(group, {}).setdefault(member, []).append((reward, advantage))
    seen = 0
    for members in groups.values():
        own = {m: statistics.mean(r for r, _ in parts) for m, parts in members.items()}
        mean = statistics.mean(own.values())
        squares = sum(statistics.mean((r - mean) ** 2 for r, _ in parts) for parts in members.values())
        for parts in members.values():
            for reward, advantage in parts:
                expected = (reward - mean) / ((squares / (len(members) - 1)) ** 0.5 + 1e-6)
                assert advantage == pytest.approx(expected, abs=1e-4)
                seen += advantage != 0
    assert seen
    return steps


def gaps(folder):
    steps = [m for m in map(json.loads, open(folder / "metrics.jsonl")) if m["kind"] == "train"]
    assert all(m.get("train/train_rollout_logprob_abs_diff", 0) == 0 for m in steps)
    return sum(m["train/logprob_gap_tokens"] for m in steps)


def test_branches_of_a_session(d):  # noqa: F811
    """Three branches, two of one answer and one with a beginning of its own; each kept, the shared answer once. With a
    temperature, which the trainer needs too."""
    r = Run(d, "branches-kept", "--rollout-temperature", "0.7", "--rm-type", "random")
    played = {}

    def turn(task, ids):
        got = r.generate(task, input_ids=ids, sampling_params={"max_new_tokens": 4})
        logp = [x[0] for x in got["meta_info"]["output_token_logprobs"]]
        return got["meta_info"]["turn"], got["output_ids"], logp

    def play(task):
        prompt = task["input_ids"]
        t0, a, _ = turn(task, prompt)
        t1, b, _ = turn(task, prompt + a + [50])
        t2, c, _ = turn(task, prompt + a + [51, 52])
        t3, e, _ = turn(task, [60, 61] + prompt)
        assert (t0, t1, t2, t3) == (0, 1, 2, 3)
        for samples, says in [([], "must be one"), ([{"reward": 1}], "its turn"), ([{"turn": 4}], "has had 4 turns"),
                              ([{"turn": 1}, {"turn": 1}], "twice"), ([{"turn": 1, "metadata": 3}], "metadata")]:  # fmt: skip
            assert says in r.end(task, 400, samples=samples).text
        assert "give one of" in r.end(task, 400, samples=[{"turn": 1}], reward=1).text
        r.end(task, samples=[{"turn": t1, "reward": len(played) % 2, "truncated": True},
                             {"turn": t2, "reward": 0.5, "metadata": {"k": 1}}, {"turn": t3, "reward": None}])  # fmt: skip
        played[task["rid"]] = prompt, a, b, c, e

    r.play_out(play)
    db = sqlite3.connect(r.dir / "ledger.db")
    stored = db.execute(f"SELECT {COLUMNS} FROM samples ORDER BY group_id, member, part").fetchall()
    db.close()
    assert len(stored) == 3 * len(played) == 36
    trained = 0
    for rid, (prompt, a, b, c, e) in played.items():
        group, member = map(int, rid.split("/")[2:4])
        one, two, three = [x for x in stored if x[:2] == (group, member)]
        assert ids_of(one[3]) == prompt + a + [50] + b and one[4] == len(prompt)
        assert list(one[6]) == [1] * len(a) + [0] + [1] * len(b)
        assert ids_of(two[3]) == prompt + a + [51, 52] + c
        assert list(two[6]) == [0] * len(a) + [0, 0] + [1] * len(c) and not any(floats_of(two[5])[: len(a) + 2])
        assert ids_of(three[3]) == [60, 61] + prompt + e and three[4] == len(prompt) + 2 and set(three[6]) == {1}
        assert one[7] in (0, 1) and two[7] == 0.5 and three[7] in (0, 1)  # the last by --rm-type
        assert one[8] == "truncated" and json.loads(two[9]) == {"k": 1} and one[9] is None
        trained += len(a + b + c + e)
    check_steps(r.dir, 6)
    assert gaps(r.dir) == trained


def test_a_hook_that_fans_out_trains_and_resumes(d, library):  # noqa: F811
    """The example: two samples a task, their rewards, and the same weights after kills, from another process."""
    calm = hook_run(d, "fan-calm", library, 3, "--num-steps-per-rollout", "2")
    assert calm.wait(LIMIT) == 0, (d / "fan-calm.log").read_text()[-3000:]
    steps = check_steps(d / "fan-calm", 32)
    assert 3 * 64 < len(steps) <= 6 * 64 and gaps(d / "fan-calm") > 0
    rng = random.Random(11)
    p = hook_run(d, "fan-killed", library, 3, "--num-steps-per-rollout", "2")
    for _ in range(5):
        try:
            p.wait(rng.uniform(0.2, 0.8))
            break
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
            p = hook_run(d, "fan-killed", library, 3, "--num-steps-per-rollout", "2")
    assert p.wait(2 * LIMIT) == 0, (d / "fan-killed.log").read_text()[-3000:]
    assert final(d, "fan-killed") == final(d, "fan-calm")
    assert check_steps(d / "fan-killed", 32) == steps


def test_stored_parts_train_alone_and_replay(d, library):  # noqa: F811
    """--debug-rollout-only stores them, --load-debug-rollout-data trains on them, --replay repeats it bit by bit."""
    run(d, "fan-stored", library, "--debug-rollout-only")
    words = ["--load-debug-rollout-data", str(d / "fan-stored"), "--debug-train-only"]
    log = run(d, "fan-loaded", library, *words)
    stored = "SELECT group_id, member, part, ids, mask, reward FROM samples ORDER BY 1, 2, 3"
    assert rows(d, "fan-stored", stored) == rows(d, "fan-loaded", stored)
    assert rows(d, "fan-loaded", "SELECT count(*) FROM step_samples") == rows(d, "fan-stored", "SELECT count(*) FROM samples")
    run(d, "fan-run", library, "--async")
    replay = run(d, "fan-replayed", library, "--async", "--replay", str(d / "fan-run"))
    sha = "SELECT version, sha256 FROM versions ORDER BY version"
    assert rows(d, "fan-replayed", sha) == rows(d, "fan-run", sha) and log and replay


def test_a_teacher_scores_every_part(d, library):  # noqa: F811
    """Numbers of the teacher for each part, masked tokens too, as it gives them. And a critic learns from parts."""
    with server("--device", "cpu", model=d / "init") as t:
        run(d, "fan-taught", library, "--use-opd", "--opd-type", "sglang", "--opd-teacher-url", t.url)
        taught = rows(d, "fan-taught", "SELECT ids, n_prompt, n_response, teacher_logp, part FROM samples ORDER BY part DESC")
        assert taught[0][4] == 1
        for ids, n_prompt, n_response, logp, _ in taught:
            body = {"input_ids": ids_of(ids), "sampling_params": {"max_new_tokens": 0}, "return_logprob": True,
                    "logprob_start_len": 0}  # fmt: skip
            reply = t.json("/generate", body)["meta_info"]["input_token_logprobs"]
            want = [struct.unpack("<f", struct.pack("<f", x[0]))[0] for x in reply[n_prompt:]]
            assert len(want) == n_response and floats_of(logp) == want
    run(d, "fan-critic", library, "--advantage-estimator", "ppo")
    assert gaps(d / "fan-critic") > 0


FILTER = r"""
#include <stdio.h>
static int filter(const struct clime_plugin_sample *const *s, int32_t n, struct clime_plugin_verdict *v, char *e, size_t b) {
    (void)e, (void)b;
    v->keep = n == 4 && s[1]->member == 0 && s[2]->member == 1;
    snprintf(v->reason, sizeof v->reason, "saw_%d", n);
    return 0;
}
const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .filter = filter};
"""


def test_filters_evaluations_and_partial_rollouts(d, library):  # noqa: F811
    """A filter sees the parts, an evaluation takes their mean, what is left over goes on with its parts."""
    (d / "fan-held.jsonl").write_text("".join(open(d / "train.jsonl").readlines()[:5]))
    run(d, "fan-partial", library, "--partial-rollout", "--over-sampling-batch-size", "9", "--eval-interval", "3",
        "--dynamic-sampling-filter-path", compile_library(d, "fan_filter", FILTER), "--eval-prompt-data", "held",
        str(d / "fan-held.jsonl"), num_rollout=3)  # fmt: skip
    check = rows(d, "fan-partial", "SELECT t.step, s.group_id, s.member, count(*) FROM step_samples t JOIN samples s "
                                   "ON s.id = t.sample_id GROUP BY 1, 2, 3")  # fmt: skip
    assert len(check) == 18 and {n for *_, n in check} == {2}
    assert rows(d, "fan-partial", "SELECT n_samples, n_failed FROM evals") == [(5, 0), (5, 0)]
    assert {r for (r,) in rows(d, "fan-partial", "SELECT reward FROM eval_samples")} <= {0, 0.5, 1}


def test_another_beginning_survives_a_restart(d):  # noqa: F811
    """An environment that begins with another context than the task's: stored as it is, read back, and a task that
    begins again has the dataset's prompt."""
    options = {"num_rollout": 1, "rollout_batch_size": 2}
    for attempt in range(2):
        (d / "beginning" / "ports" / "environments").unlink(missing_ok=True)  # of the first attempt
        r = Run(d, "beginning", **options)
        prompts = {}

        def play(task, r=r, prompts=prompts):
            prompts[task["rid"]] = task["input_ids"]
            r.generate(task, input_ids=[60, 61, 62] + task["input_ids"], sampling_params={"max_new_tokens": 3})
            r.end(task, reward=1)

        if attempt:
            r.play_out(play)
        else:
            for _ in range(2):
                play(r.lease())
            while len([x for x in r.samples() if x[6] is not None]) < 2:
                pass
            r.stop()
    lines = rows(d, "beginning", "SELECT ids, n_prompt, n_response FROM samples")
    assert len(lines) == 4 and all(ids_of(i)[:3] == [60, 61, 62] and ids_of(i)[3:5] != [60, 61] for i, _, _ in lines)
    assert all(len(ids_of(i)) == n + m and n > 3 for i, n, m in lines)
