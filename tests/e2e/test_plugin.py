"""Shared libraries in the trainer: examples/custom_algorithm.c is compiled and trains; bad libraries are refused."""

import contextlib
import json
import os
import shlex
import sqlite3
import subprocess

import pytest
from programs import ROOT
from test_rl import LIMIT, TRAIN, command, final_sha, model, run_whole, start  # noqa: F401  (model is a fixture)

EXAMPLE = ROOT / "examples" / "custom_algorithm.c"


def compile_library(source, out):
    subprocess.run([*shlex.split(os.environ.get("CC", "gcc")), "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O2",
                    "-ffp-contract=off", "-I", str(ROOT), "-o", str(out), str(source), "-lm"], check=True)  # fmt: skip
    return str(out)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return compile_library(EXAMPLE, tmp_path_factory.mktemp("plugin") / "example.so")


def train(model, name, *more, **change):  # noqa: F811
    """Trains four rollouts; returns the SHA-256 of the weights and rows (advantage, reward, truncated, group)."""
    words = command(model, model / name, *more, num_rollout=4, **change)
    sha = run_whole(words, model / f"{name}.log")
    db = sqlite3.connect(model / name / "ledger.db")
    rows = db.execute(
        "SELECT t.advantage, s.reward, s.status = 'truncated', s.group_id FROM step_samples t "
        "JOIN samples s ON s.id = t.sample_id ORDER BY t.step, t.position").fetchall()  # fmt: skip
    db.close()
    return sha, rows


def test_a_filter(model, example):  # noqa: F811
    """With rewards of 0 and 1 the example's filter keeps what the built-in one keeps."""
    more = ["--accept-order", "prompt", "--dynamic-sampling-filter-path"]
    assert train(model, "filter-mine", *more, example) == train(model, "filter", *more, "check_reward_nonzero_std")
    db = sqlite3.connect(model / "filter-mine" / "ledger.db")
    reasons = {r for (r,) in db.execute("SELECT reason FROM groups WHERE cause = 'filter'")}
    assert reasons and reasons <= {"all_right", "all_wrong"}


BUFFER = r"""
#include "trainer/plugin/plugin.h"
#include <stdio.h>
static int buffer(int64_t rollout, int64_t version, const struct clime_plugin_group *const *g, int32_t n, int32_t *order,
                  int32_t *n_order, char *e, size_t b) {
    if (*n_order != n || version != 2 * rollout) return snprintf(e, b, "version %d", (int)version);
    for (int i = 0; i < n; i++)
        if (order[i] != i) return snprintf(e, b, "not preset");
    *n_order = 0;
    for (int i = n - 1; i >= 0; i--) {
        if ((i && g[i - 1]->group >= g[i]->group) || g[i]->n_samples != 4)
            return snprintf(e, b, "order");
        for (int m = 0; m < 4; m++) {
            const struct clime_plugin_sample *s = g[i]->samples[m];
            if (s->member != m || s->group != g[i]->group || (s->n_response > 0) != (s->oldest >= 0))
                return snprintf(e, b, "sample %d", m);
            if (s->newest >= version && rollout > g[i]->rollout) return snprintf(e, b, "newest %d", (int)s->newest);
        }
        if (g[i]->group % 2) order[(*n_order)++] = i;
    }
    if (BROKEN && n > 1) { order[0] = order[1] = 0; *n_order = 2; }
    return 0;
}
const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .buffer = buffer};
"""


def test_a_buffer_filter(model, example, tmp_path):  # noqa: F811
    """The library sees what is left over and says what goes on: odd groups here, the newest first; the rest stays open
    and is not sampled any further. The example's own filter trains."""
    for name, broken in (("odd", 0), ("twice", 1)):
        (tmp_path / f"{name}.c").write_text(BUFFER.replace("BROKEN", str(broken)))
    partial = ["--partial-rollout", "--over-sampling-batch-size", "12", "--buffer-filter-path"]
    train(model, "odd", *partial, compile_library(tmp_path / "odd.c", tmp_path / "odd.so"))
    db = sqlite3.connect(model / "odd" / "ledger.db")
    carried = db.execute("SELECT DISTINCT s.group_id, p.rollout FROM step_samples t JOIN samples s ON s.id = t.sample_id "
                         "JOIN steps p ON p.step = t.step WHERE s.rollout < p.rollout").fetchall()  # fmt: skip
    assert carried and all(group % 2 for group, _ in carried)
    left = {g % 2 for (g,) in db.execute("SELECT id FROM groups WHERE state = 'open' AND rollout < 3")}
    assert 0 in left
    later = db.execute("SELECT count(*) FROM samples s JOIN groups g ON g.id = s.group_id WHERE g.id % 2 = 0 AND "
                       "g.ended_in > g.rollout").fetchone()  # fmt: skip
    assert later == (0,)
    train(model, "buffer-example", *partial, example)
    words = command(model, model / "twice", *partial, compile_library(tmp_path / "twice.c", tmp_path / "twice.so"),
                    num_rollout=4)  # fmt: skip
    p = subprocess.run(words, capture_output=True, timeout=LIMIT, text=True)
    assert p.returncode == 1 and "its order names a group twice" in p.stdout + p.stderr


NONE = """#include "trainer/plugin/plugin.h"
static int f(int64_t rollout, const struct clime_plugin_sample *const *s, int32_t n, uint8_t *remove, char *e, size_t b) {
    (void)s, (void)e, (void)b;
    for (int i = 0; i < n; i++) remove[i] = rollout == 1;
    return 0;
}
const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .sample_filter = f};
"""


def test_a_sample_filter(model, example, tmp_path):  # noqa: F811
    """At most two right answers of a group are trained on; the others still count in their groups and steps. The same
    after a kill, from the record; a rollout of which nothing is left changes no weight by its gradient."""
    words = ["--rollout-sample-filter-path", example]
    sha, _ = train(model, "removed", *words)
    db = sqlite3.connect(model / "removed" / "ledger.db")
    removed = db.execute("SELECT t.removed, s.group_id, s.reward FROM step_samples t JOIN samples s ON "
                         "s.id = t.sample_id ORDER BY s.group_id, s.member").fetchall()  # fmt: skip
    right = {}
    for gone, group, reward in removed:
        right[group] = right.get(group, 0) + (reward > 0.5)
        assert gone == (reward > 0.5 and right[group] > 2)
    lines = [json.loads(line) for line in open(model / "removed" / "metrics.jsonl")]
    counted = [m["rollout/removed_samples"] for m in lines if m["kind"] == "rollout"]
    assert sum(counted) == sum(gone for gone, *_ in removed) > 0
    assert train(model, "not-removed")[0] != sha
    trained = [m["train/trained_tokens"] for m in lines if m["kind"] == "train"]
    lengths = dict(db.execute("SELECT t.step, sum(s.n_response * (1 - t.removed)) FROM step_samples t JOIN samples s ON "
                              "s.id = t.sample_id GROUP BY 1"))  # fmt: skip
    assert trained == [lengths[k + 1] for k in range(len(trained))]
    for seconds in (0.6, 1.0):
        p = start(command(model, model / "removed-killed", *words, num_rollout=4), model / "removed-killed.log")
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.wait(timeout=seconds)
        p.kill()
        p.wait()
    assert train(model, "removed-killed", *words)[0] == sha
    (tmp_path / "none.c").write_text(NONE)
    train(model, "none-left", "--rollout-sample-filter-path", compile_library(tmp_path / "none.c", tmp_path / "none.so"))
    lines = [json.loads(line) for line in open(model / "none-left" / "metrics.jsonl")]
    assert [m["train/trained_tokens"] > 0 for m in lines if m["kind"] == "train"] == [True] * 2 + [False] * 2 + [True] * 4


REWARD = ROOT / "examples" / "custom_reward.c"


def check_ranks(folder):
    """Every answer's reward is its rank within its group, as the example computes it."""
    db = sqlite3.connect(folder / "ledger.db")
    rows = db.execute("SELECT group_id, response, reward FROM samples WHERE reward IS NOT NULL").fetchall()
    groups = {}
    for group, response, reward in rows:
        groups.setdefault(group, []).append((len(response.encode()), reward))
    for members in groups.values():
        assert len(members) == 4
        for length, reward in members:
            assert reward == pytest.approx(sum(other > length for other, _ in members) / 3)
    assert len({reward for _, _, reward in rows}) > 2


def test_rewards_of_groups(model, tmp_path):  # noqa: F811
    """--group-rm: the library sees whole groups; a run that is killed gets the same rewards and weights; with the
    surplus of partial rollouts no group is rewarded in pieces."""
    more = ["--group-rm", "--custom-rm-path", compile_library(REWARD, tmp_path / "reward.so")]
    sha, _ = train(model, "groups", *more)
    check_ranks(model / "groups")
    for seconds in (0.7, 1.1, 1.5):
        p = start(command(model, model / "groups-killed", *more, num_rollout=4), model / "groups-killed.log")
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.wait(timeout=seconds)
        p.kill()
        p.wait()
    assert train(model, "groups-killed", *more)[0] == sha
    check_ranks(model / "groups-killed")
    train(model, "groups-partial", *more, "--partial-rollout", over_sampling_batch_size=9)
    check_ranks(model / "groups-partial")


def test_a_reward_alone_and_in_a_sum(tmp_path):
    library = compile_library(REWARD, tmp_path / "reward.so")
    lines = "".join(json.dumps({"response": "x" * n, "label": "x" * 100, "metadata": {"rm_type": kind}}) + "\n"
                    for n, kind in [(100, "exact"), (300, "exact:1,custom:4")])  # fmt: skip
    done = subprocess.run([TRAIN, "grade", "--custom-rm-path", library], input=lines, capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert [json.loads(line)["reward"] for line in done.stdout.splitlines()] == [0.5, 1]  # it wins over metadata
    none = subprocess.run([TRAIN, "grade", "--rm-type", "custom"], capture_output=True, text=True)
    assert none.returncode and "--custom-rm-path" in none.stderr


def test_exit_in_a_library_is_no_end_of_the_run(tmp_path):
    """Not without a word, and not with the status of a run that is done; what it forks may exit."""
    (tmp_path / "exits.c").write_text(
        '#include "trainer/plugin/plugin.h"\n#include <stdlib.h>\n#include <sys/wait.h>\n#include <unistd.h>\n'
        "static int f(const struct clime_plugin_question *const *q, int32_t n, double *r, char *e, size_t b) {\n"
        "    (void)n, (void)e, (void)b;\n    pid_t child = fork();\n    if (!child) exit(0);\n"
        "    int status = 1;\n    waitpid(child, &status, 0);\n"
        "    if (status || q[0]->response[0] == '9') exit(0);\n    r[0] = 1;\n    return 0;\n}\n"
        "const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .reward = f};\n")  # fmt: skip
    library = compile_library(tmp_path / "exits.c", tmp_path / "exits.so")
    for answer, status in (("1", 0), ("9", 1)):
        done = subprocess.run([TRAIN, "grade", "--custom-rm-path", library], input=json.dumps({"response": answer}), capture_output=True,
                              text=True)  # fmt: skip
        assert done.returncode == status and ("exit() was called" in done.stderr) == bool(status), done.stderr


def test_a_reward_that_fails_is_a_state(tmp_path):
    (tmp_path / "bad.c").write_text(
        '#include "trainer/plugin/plugin.h"\n#include <stdio.h>\n'
        "static int f(const struct clime_plugin_question *const *q, int32_t n, double *r, char *e, size_t b) {\n"
        '    r[0] = 0.0 / (q[0]->response[0] - 48); snprintf(e, b, "no taste"); return n != 1 || q[0]->response[0] == 49; }\n'
        "const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .reward = f};\n")  # fmt: skip
    library = compile_library(tmp_path / "bad.c", tmp_path / "bad.so")
    done = subprocess.run([TRAIN, "grade", "--custom-rm-path", library], capture_output=True, text=True, check=True,
                          input="".join(json.dumps({"response": r}) + "\n" for r in "012"))  # fmt: skip
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert "not finite" in out[0]["error"] and "no taste" in out[1]["error"] and out[2] == {"reward": 0}


def custom_loss(example):
    return ["--loss-type", "custom_loss", "--custom-loss-function-path", example]


def test_advantages_are_the_estimators(model, example):  # noqa: F811
    """The example's advantages are RLOO's; its loss has PPO's gradient where the ratio is 1, so with one step for a
    rollout the weights are the same bits, and with two they are not."""
    rloo = train(model, "rloo", "--advantage-estimator", "rloo", num_steps_per_rollout=1)
    mine = ["--custom-advantage-function-path", example]
    assert train(model, "rloo-mine", *mine, num_steps_per_rollout=1) == rloo
    assert train(model, "rloo-loss", *mine, *custom_loss(example), num_steps_per_rollout=1) == rloo
    two = train(model, "rloo-two", "--advantage-estimator", "rloo")
    assert train(model, "rloo-two-mine", *mine) == two
    assert train(model, "rloo-two-loss", *mine, *custom_loss(example))[0] != two[0]


def test_rewards_take_the_place_of_normalisation(model, example):  # noqa: F811
    _, rows = train(model, "rewards", "--custom-reward-post-process-path", example)
    groups = {}
    for advantage, reward, truncated, group in rows:
        groups.setdefault(group, []).append((advantage, reward - 0.5 * truncated))
    assert any(truncated for _, _, truncated, _ in rows)
    for members in groups.values():
        mean = sum(r for _, r in members) / len(members)
        assert all(abs(a - (r - mean)) < 1e-6 for a, r in members)


def test_resume_wants_the_same_library(model, example, tmp_path):  # noqa: F811
    words = ["--custom-advantage-function-path", str(tmp_path / "mine.so")]
    (tmp_path / "mine.so").write_bytes(open(example, "rb").read())
    sha, _ = train(model, "library", *words)
    changed = tmp_path / "changed.c"
    changed.write_text(EXAMPLE.read_text().replace("r->reward[k] - (sum", "2 * r->reward[k] - (sum"))
    compile_library(changed, tmp_path / "mine.so")
    p = subprocess.run(command(model, model / "library", *words, num_rollout=4), capture_output=True, timeout=LIMIT,
                       text=True)  # fmt: skip
    assert p.returncode == 1
    assert "custom-advantage-function-sha256 differs" in p.stdout + p.stderr
    assert final_sha(model / "library.log") == sha


NAN_LOSS = '''#include "trainer/plugin/plugin.h"
static int f(const struct clime_plugin_loss *l, double *pg, double *g, char *e, size_t n) {
    (void)e, (void)n;
    for (int k = 0; k < l->n; k++) pg[k] = 0, g[k] = l->sample->rollout == 1 ? 0.0 / 0.0 : -l->w[k] * (double)l->adv[k];
    return 0;
}
const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .loss = f};
'''


def test_a_gradient_that_is_not_finite_is_no_update(model, tmp_path):  # noqa: F811
    """The steps of rollout 1 are skipped and counted, the run goes on, and resumes over them to the same weights."""
    (tmp_path / "nan.c").write_text(NAN_LOSS)
    words = custom_loss(compile_library(tmp_path / "nan.c", tmp_path / "nan.so"))
    sha, _ = train(model, "nan", *words)
    lines = [json.loads(line) for line in open(model / "nan" / "metrics.jsonl")]
    assert [m["train/skipped"] for m in lines if m["kind"] == "train"] == [0, 0, 1, 1, 0, 0, 0, 0]
    run_whole(command(model, model / "nan-again", *words, num_rollout=2), model / "nan-first.log")
    db = sqlite3.connect(model / "nan-again" / "ledger.db")
    version = dict(db.execute("SELECT version, sha256 FROM versions").fetchall())
    db.close()
    assert version[4] == version[2] != version[0]
    assert train(model, "nan-again", *words)[0] == sha


HEAD = '#include "trainer/plugin/plugin.h"\n'
BAD = {
    "no library": (None, "is no shared library"),
    "nothing exported": ("int x;", "exports no"),
    "another ABI": (HEAD + "const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .abi = 99};", "plugin ABI 99"),
    "a newer struct": (
        HEAD + "const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .loss_bytes = 4000};",
        "its struct clime_plugin_loss has 4000 bytes",
    ),
    "an older struct without the member": (
        HEAD + "static int f(const struct clime_plugin_rollout *r, float *a, char *e, size_t n) "
        "{ (void)r, (void)a, (void)e, (void)n; return 0; }\n"
        "const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, "
        ".bytes = offsetof(struct clime_plugin, advantages), .advantages = f};",
        "has no `advantages`",
    ),
    "no member": (HEAD + "const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD};", "has no `advantages`"),
    "it fails": (
        HEAD + "#include <stdio.h>\nstatic int f(const struct clime_plugin_rollout *r, float *a, char *e, size_t n) "
        '{ (void)a; snprintf(e, n, "no luck with %d samples", r->n_samples); return 1; }\n'
        "const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .advantages = f};",
        "no luck with 24 samples",
    ),
    "not finite": (
        HEAD + "static int f(const struct clime_plugin_rollout *r, float *a, char *e, size_t n) "
        "{ (void)e, (void)n; for (int64_t k = 0; k < r->n_tokens; k++) a[k] = 1.0f / 0.0f; return 0; }\n"
        "const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .advantages = f};",
        "groups in a row cannot be trained on",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_libraries(model, tmp_path, name):  # noqa: F811
    source, says = BAD[name]
    library = tmp_path / "bad.so"
    library.write_text("not ELF")
    if source:
        (tmp_path / "bad.c").write_text(source)
        subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-I", str(ROOT), "-o", str(library), str(tmp_path / "bad.c")],
                       check=True)  # fmt: skip
    words = command(model, tmp_path / "run", "--custom-advantage-function-path", str(library))
    p = subprocess.run(words, capture_output=True, timeout=LIMIT, text=True)
    assert p.returncode == 1
    assert says in p.stdout + p.stderr
