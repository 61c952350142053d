"""Generate hooks: what a library can do in a session, what it cannot, and what becomes of one that fails or hangs."""

import contextlib
import json
import sqlite3
import subprocess

from programs import LIMIT, ROOT
from test_environments import d, floats_of, ids_of, words  # noqa: F401  (d is a fixture)


def compile_library(d, name, source):  # noqa: F811
    (d / f"{name}.c").write_text('#include "trainer/plugin/plugin.h"\n' + source)
    subprocess.run(["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O1", "-I", ROOT, "-o",
                    d / f"{name}.so", d / f"{name}.c"], check=True, timeout=LIMIT)  # fmt: skip
    return str(d / f"{name}.so")


def run(d, name, library, *more, env=None, status=0, **change):  # noqa: F811
    p = subprocess.run(words(d, name, "--custom-generate-function-path", library, *more, **change), env=env, text=True,
                       capture_output=True, timeout=LIMIT)  # fmt: skip
    assert p.returncode == status, (p.stdout + p.stderr)[-3000:]
    return p.stdout + p.stderr


def rows(d, name, query):  # noqa: F811
    with contextlib.closing(sqlite3.connect(d / name / "ledger.db")) as db:
        return db.execute(query).fetchall()


# Three turns, the second by whole ids and the third after appended ones, each written down. Then it scribbles over what
# it was given.
PROBE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define DO(call) do { if (call) { snprintf(e, n, "line %d: %s", __LINE__, c->why(s)); return 1; } } while (0)
static int generate(const struct clime_plugin_task *t, char *e, size_t n) {
    const struct clime_plugin_calls *c = t->calls;
    const struct clime_plugin_turn *turn;
    const char *text, *stop[] = {"\x01"};
    void *s = t->session;
    int32_t all[512], n_all = t->n_ids, n_ids;
    const int32_t *ids;
    char name[512];
    snprintf(name, sizeof name, "%s/%d.%d.%d", getenv("PROBE"), (int)t->rollout, (int)t->group, t->member);
    FILE *f = fopen(name, "w");
    memcpy(all, t->ids, sizeof *all * (size_t)n_all);
    if (!strstr(t->prompt, "+") || !t->input || t->max_response_len != 48 || t->max_context_len != 96 ||
        t->temperature != 1 || t->evaluation) { snprintf(e, n, "the task"); return 1; }
    DO(c->tokenize(s, "12+7", &ids, &n_ids));
    DO(c->detokenize(s, ids, n_ids, &text));
    if (strcmp(text, "12+7")) { snprintf(e, n, "text"); return 1; }
    if (c->append(s, (int32_t[]){99999}, 1) != CLIME_PLUGIN_BAD || !strstr(c->why(s), "vocabulary")) return 1;
    if (c->set_reward(s, 0.0 / 0.0) != CLIME_PLUGIN_BAD || c->set_metadata(s, "[1]") != CLIME_PLUGIN_BAD ||
        c->set_metadata(s, "{") != CLIME_PLUGIN_BAD || c->generate(s, all, 0, 0, NULL, 0, &turn) != CLIME_PLUGIN_BAD ||
        c->generate(s, all, n_all, -1, NULL, 0, &turn) != CLIME_PLUGIN_BAD ||
        c->generate(s, all, n_all, 0, (const char *[]){""}, 1, &turn) != CLIME_PLUGIN_BAD) { snprintf(e, n, "bad"); return 1; }
    for (int k = 0; k < 3; k++) {
        if (k) { all[n_all++] = 50; all[n_all++] = 51; }
        if (k == 2) { DO(c->append(s, all + n_all - 2, 1)); DO(c->append_text(s, "")); DO(c->append(s, all + n_all - 1, 1)); }
        DO(c->generate(s, k == 1 ? all : NULL, n_all, 5, stop, 1, &turn));
        if (turn->number != k || turn->n_context != n_all || turn->n < 1 || turn->n > 5) { snprintf(e, n, "turn"); return 1; }
        for (int i = 0; i < turn->n; i++) {
            fprintf(f, "%d %d %a\n", n_all, turn->ids[i], turn->logp[i]);
            all[n_all++] = turn->ids[i];
            ((int32_t *)turn->ids)[i] = 1;
            ((float *)turn->logp)[i] = -9;
        }
    }
    if (c->generate(s, NULL, 0, 0, NULL, 0, &turn) != CLIME_PLUGIN_LIMIT) { snprintf(e, n, "limit"); return 1; }
    fclose(f);
    if (t->member) { DO(c->set_reward_json(s, "{\"score\": 0.5, \"other\": 1}")); DO(c->set_truncated(s)); }
    else DO(c->set_metadata(s, "{\"seen\": true}"));
    return 0;
}
static int reward(const struct clime_plugin_question *const *q, int32_t k, double *r, char *e, size_t n) {
    (void)e, (void)n;
    for (int i = 0; i < k; i++) r[i] = !strcmp(q[i]->metadata, "{\"seen\": true}");
    return 0;
}
const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .generate = generate, .reward = reward};
"""


def test_every_token_is_the_sampled_one(d, monkeypatch):  # noqa: F811
    """What the ledger holds is what the server sampled, whatever the library does to its copy; the rest has mask 0."""
    library = compile_library(d, "probe", PROBE)
    (d / "probe-out").mkdir()
    monkeypatch.setenv("PROBE", str(d / "probe-out"))
    run(d, "probe", library, "--custom-rm-path", library, "--reward-key", "score", "--environment-max-turns", "3")
    found = rows(d, "probe", "SELECT rollout, group_id, member, ids, n_prompt, logp, mask, reward, status, metadata, "
                             "reward_json FROM samples")  # fmt: skip
    assert len(found) == 12
    trained = 0
    for rollout, group, member, ids, n_prompt, logp, mask, reward, status, metadata, reward_json in found:
        ids, logp, said = ids_of(ids), floats_of(logp), {}
        for line in open(d / "probe-out" / f"{rollout}.{group}.{member}"):
            at, token, number = line.split()
            said[int(at)] = (int(token), float.fromhex(number))
        assert len(said) == sum(mask) and len(ids) == n_prompt + len(mask)
        trained += len(said)
        for k, bit in enumerate(mask):
            if bit:
                assert said[n_prompt + k] == (ids[n_prompt + k], logp[k])
            else:
                assert logp[k] == 0 and ids[n_prompt + k] in (50, 51)
        if member:
            assert (reward, status, metadata) == (0.5, "truncated", None) and "other" in reward_json
        else:
            assert reward == 1 and json.loads(metadata) == {"seen": True}  # judged by --custom-rm-path, which saw it
    steps = [m for m in map(json.loads, open(d / "probe" / "metrics.jsonl")) if m["kind"] == "train"]
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps)
    assert sum(m["train/logprob_gap_tokens"] for m in steps) == trained


# One turn; then where the first number is above 15 it fails, hangs, ends without a turn, or is well.
BAD = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int generate(const struct clime_plugin_task *t, char *e, size_t n) {
    const struct clime_plugin_turn *turn;
    int a = atoi(strchr(t->metadata, ':') + 1);
    if (a < 16) a = 0;
    if (a % 5 == 1) return 0;
    t->calls->generate(t->session, NULL, 0, 3, NULL, 0, &turn);
    if (a % 5 == 2) { snprintf(e, n, "no luck with %d", a); return 1; }
    if (a % 5 == 3) for (;;) pause();
    if (a % 5 == 4) { sleep(3); a = t->calls->generate(t->session, NULL, 0, 3, NULL, 0, &turn); return a != CLIME_PLUGIN_OVER; }
    return t->calls->set_reward(t->session, t->member);
}
const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .generate = generate};
"""


def test_a_hook_that_fails_or_hangs_is_a_state(d):  # noqa: F811
    """Its groups are dropped and counted, others take their place, and the run ends although threads never return."""
    library = compile_library(d, "bad", "#include <string.h>\n" + BAD)
    log = run(d, "bad", library, "--environment-lease-timeout", "1", num_rollout=3, rollout_batch_size=16)
    errors = rows(d, "bad", "SELECT json_extract(g.metadata, '$.a') % 5, s.error, s.reward FROM samples s JOIN groups g "
                            "ON g.id = s.group_id WHERE s.status = 'failed'")  # fmt: skip
    says = {1: "without a turn", 2: "no luck with", 3: "it made no call for", 4: "it made no call for"}
    assert {kind for kind, _, _ in errors} == set(says)
    for kind, error, reward in errors:
        assert "generate hook: " in error and says[kind] in error and reward is None
    dropped = rows(d, "bad", "SELECT count(*) FROM groups WHERE cause = 'failed'")[0][0]
    lines = [m for m in map(json.loads, open(d / "bad" / "metrics.jsonl")) if m["kind"] == "rollout"]
    assert dropped > 0 and sum(m.get("rollout/dropped_groups", 0) for m in lines) == dropped, lines[0]
    assert "calls of it have not returned" in log


def test_a_session_ends_with_its_time(d):  # noqa: F811
    library = compile_library(d, "slow", "#include <string.h>\n" + BAD.replace("int a = ", "int a = 18 + 0 * "))
    log = run(d, "slow", library, "--rollout-request-timeout", "1", status=1, num_rollout=1, rollout_batch_size=1)
    assert "it did not end the task before its deadline" in log


def test_it_can_be_evaluated_and_be_asynchronous(d):  # noqa: F811
    from test_environments import hook

    library = str(hook(d))
    run(d, "async", library, "--async", "--partial-rollout", "--over-sampling-batch-size", "6", num_rollout=3)
    assert rows(d, "async", "SELECT count(*) FROM step_samples") == [(18,)]
    (d / "held.jsonl").write_text("".join(open(d / "train.jsonl").readlines()[:5]))
    log = run(d, "evaluated", library, "--eval-interval", "2", "--eval-prompt-data", "held", str(d / "held.jsonl"))
    assert rows(d, "evaluated", "SELECT n_prompts, n_failed, score IS NULL FROM evals") == [(5, 0, 0), (5, 0, 0)], log
    assert "cannot read module.function" in run(d, "x", "module.function", status=1)
