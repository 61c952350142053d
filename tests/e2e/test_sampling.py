"""Over-sampling, filters and partial rollouts through the real programs.

What the seed decides (--accept-order prompt) must come out the same whatever happens to the programs; what timing
decides must be in the record, and nothing of it may be lost or trained twice by `kill -9`.
"""

import json
import os
import random
import sqlite3

import pytest
from programs import partly, web
from test_plugin import compile_library
from test_rl import KILLS, LIMIT, command, fails, final_sha, kill_one, metrics, model, run_whole, start, wait_watching  # noqa: F401, E501

FILTER = ["--dynamic-sampling-filter-path", "check_reward_nonzero_std"]
PROMPT = ["--over-sampling-batch-size", "9", *FILTER, "--accept-order", "prompt"]
ARRIVAL = ["--over-sampling-batch-size", "12"]
# few requests at a time and many groups, so that a full rollout finds others half done, however late the trainer looks
PARTIAL = ["--over-sampling-batch-size", "36", "--partial-rollout", "--server-max-running-requests", "5"]
ASYNC = ["--async"]
FULL = ["--fully-async", "--over-sampling-batch-size", "8", "--max-staleness", "4", "--server-max-running-requests", "5"]
POOL = ["--fully-async", "--max-rollouts-ahead", "3", "--over-sampling-batch-size", "9", "--max-staleness", "6"]
# slower than training, so that a push finds samples in flight
IN_PLACE = [*FULL[:-1], "2", "--pause-generation-mode", "in_place"]


def rollouts(run_dir):
    return [m for m in metrics(run_dir) if m["kind"] == "rollout"]


def query(run_dir, sql):
    db = sqlite3.connect(run_dir / "ledger.db")
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def check_ledger(run_dir, members=4, rollouts=8, per_rollout=6):
    """What holds at the end of every run, however its groups were chosen."""
    assert query(run_dir, "SELECT count(*) FROM steps WHERE done_us IS NULL") == [(0,)]
    assert query(run_dir, "SELECT count(*), count(DISTINCT sample_id) FROM step_samples") == [
        (rollouts * per_rollout * members,) * 2
    ]
    # whole groups are trained, each in one rollout, and they are those that are done
    trained = query(
        run_dir,
        "SELECT s.group_id, count(*), count(DISTINCT t2.rollout), min(g.state), min(g.ended_in = t2.rollout)"
        " FROM step_samples t JOIN samples s ON s.id = t.sample_id JOIN groups g ON g.id = s.group_id"
        " JOIN steps t2 ON t2.step = t.step GROUP BY s.group_id",
    )
    assert len(trained) == rollouts * per_rollout
    assert {row[1:] for row in trained} == {(members, 1, "done", 1)}
    assert query(run_dir, "SELECT count(*) FROM groups WHERE state = 'done'") == [(len(trained),)]
    assert query(run_dir, "SELECT count(*) FROM groups WHERE (state = 'dropped') <> (cause IS NOT NULL)") == [(0,)]
    assert query(run_dir, "SELECT count(*) FROM samples WHERE lease_incarnation IS NOT NULL") == [(0,)]
    for n_prompt, n, ids, logp, mask, versions in query(
        run_dir,
        "SELECT n_prompt, n_response, ids, logp, mask, versions FROM samples WHERE n_response > 0",
    ):
        assert len(ids) == 4 * (n_prompt + n) and len(logp) == 4 * n and len(mask) == n
        runs = json.loads(versions)
        assert sum(k for _, k in runs) == n and all(k > 0 for _, k in runs)
        assert [v for v, _ in runs] == sorted({v for v, _ in runs})
    # the gap, over all tokens that the trained weights sampled, is 0
    steps = [m for m in metrics(run_dir) if m["kind"] == "train"]
    assert [m["step"] for m in steps] == list(range(1, 2 * rollouts + 1))
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps if m["train/logprob_gap_tokens"])


def whole(model, name, *words):
    """A run to its end in the folder `name`, and a look at its ledger; returns the SHA-256 of the final weights."""
    sha = run_whole(command(model, model / name, *words), model / f"{name}.log")
    check_ledger(model / name)
    return sha


@pytest.fixture(scope="module")
def prompt_sha(model):
    return whole(model, "prompt", *PROMPT)


@pytest.fixture(scope="module")
def arrival_sha(model):
    return whole(model, "arrival", *ARRIVAL, *FILTER)


@pytest.fixture(scope="module")
def partial_sha(model):
    return whole(model, "partial", *PARTIAL)


def test_filter_drops_groups_without_deviation(model, prompt_sha):
    run_dir = model / "prompt"
    dropped = query(run_dir, "SELECT id, reason FROM groups WHERE cause = 'filter'")
    assert dropped
    for group, reason in dropped:
        (values,) = query(run_dir, f"SELECT min(reward), max(reward) FROM samples WHERE group_id = {group}")
        assert values[0] == values[1] and reason == f"zero_std_{values[0]:.1f}"
    assert query(run_dir, "SELECT count(*) FROM (SELECT 1 FROM samples JOIN groups g ON g.id = group_id"
                          " WHERE g.state = 'done' GROUP BY group_id HAVING min(reward) = max(reward))") == [(0,)]  # fmt: skip
    lines = rollouts(run_dir)
    counted = {}
    for m in lines:
        for k, v in m.items():
            if k.startswith("rollout/dynamic_filter/drop_"):
                counted[k[len("rollout/dynamic_filter/drop_"):]] = counted.get(k[len("rollout/dynamic_filter/drop_"):], 0) + v
        assert not any(k.startswith("rollout/zero_std/") for k in m)
    assert counted == {r: sum(1 for _, q in dropped if q == r) for _, r in dropped}
    surplus = query(run_dir, "SELECT count(*) FROM groups WHERE cause = 'surplus'")[0][0]
    assert surplus == sum(m["rollout/surplus_groups"] for m in lines) > 0


@pytest.mark.parametrize(
    "name, more",
    [("two_servers", ["--num-servers", "2"]), ("few_at_a_time", ["--server-max-running-requests", "3"]),
     ("one_by_one", ["--server-concurrency", "1"])],
)  # fmt: skip
def test_prompt_order_gives_the_same_weights(model, prompt_sha, name, more):
    assert whole(model, name, *PROMPT, *more) == prompt_sha


def kill_now_and_then(words, run_dir, log, n_kills, rng, after_kill, victim="clime-train", longest=0.5):
    """Runs the command to its end with n_kills kills at random moments; after_kill(run_dir) looks at what they left."""
    p, killed = start(words, log), 0
    while True:
        code, _ = wait_watching(p, run_dir, log, rng.uniform(0.02, longest) if killed < n_kills else 2 * LIMIT)
        if code is not None:
            assert code == 0, open(log).read()[-2000:]
            return killed
        assert killed < n_kills, f"no end within {2 * LIMIT} s:\n" + open(log).read()[-2000:]
        if victim == "clime-train":
            p.kill()
            p.wait()
            after_kill(run_dir)
            p = start(words, log)
            killed += 1
            continue
        killed += kill_one(rng, p.pid, victim)


def test_prompt_order_survives_kills(model, prompt_sha):
    rng = random.Random("prompt order")
    killed = n = 0
    while killed < KILLS // 2:
        words = command(model, model / f"prompt-{n}", *PROMPT)
        log = model / f"prompt-{n}.log"
        killed += kill_now_and_then(words, model / f"prompt-{n}", log, 5, rng, lambda d: None)
        assert final_sha(log) == prompt_sha
        check_ledger(model / f"prompt-{n}")
        n += 1


def test_arrival_order(model, arrival_sha):
    assert query(model / "arrival", "SELECT count(*) FROM groups WHERE state = 'open'") == [(0,)]
    assert run_whole(command(model, model / "arrival", *ARRIVAL, *FILTER), model / "arrival-again.log") == arrival_sha


def test_partial_rollout(model, partial_sha):
    run_dir = model / "partial"
    lines = rollouts(run_dir)
    assert sum(m["rollout/carried_samples"] for m in lines) > 0 and sum(m["rollout/partial_samples"] for m in lines) > 0
    assert max(m["rollout/staleness/max"] for m in lines) > 0
    assert all(m["rollout/open_groups"] > 0 for m in lines)
    # what was continued was compared too: tokens of the current version behind those of an older one
    mixed = query(run_dir, "SELECT s.versions, t2.step FROM step_samples t JOIN samples s ON s.id = t.sample_id"
                           " JOIN steps t2 ON t2.step = t.step WHERE json_array_length(s.versions) > 1 AND t2.step % 2 = 1")  # noqa: E501  # fmt: skip
    assert any(json.loads(v)[-1][0] == step - 1 for v, step in mixed)


def test_partial_rollout_masks_old_tokens(model):
    run_dir = model / "masked"
    more = ["--mask-offpolicy-in-partial-rollout", "--buffer-filter", "pop_most_complete"]
    whole(model, "masked", *PARTIAL, *more)
    rows = query(run_dir, "SELECT t.step, s.versions FROM step_samples t JOIN samples s ON s.id = t.sample_id")
    for m in metrics(run_dir):
        if m["kind"] == "train":
            version = (m["step"] - 1) // 2 * 2  # with which training on the rollout began
            runs = [run for step, versions in rows if step == m["step"] for run in json.loads(versions)]
            assert m["train/trained_tokens"] == sum(n for v, n in runs if v == version)
    assert any(len(json.loads(versions)) > 1 for _, versions in rows)
    assert all(m["rollout/staleness/max"] == 0 for m in rollouts(run_dir))


@pytest.mark.parametrize("name, options", [("arrival", [*ARRIVAL, *FILTER]), ("partial", PARTIAL)])
def test_replay_gives_the_same_weights(model, name, options, request):
    """The record alone makes the weights again, bit for bit; a kill in between changes nothing."""
    source, run_dir, log = model / name, model / f"{name}-replay", model / f"{name}-replay.log"
    sha = request.getfixturevalue(f"{name}_sha")
    words = command(model, run_dir, *options, "--replay", source)
    words = list(map(str, words))
    p = start(words, log)
    wait_watching(p, run_dir, log, 0.1)
    p.kill()
    p.wait()
    assert run_whole(words, log) == sha
    assert "every loss, gradient norm and SHA-256 as recorded" in open(log).read()
    assert metrics(run_dir) == metrics(source)
    assert not (run_dir / "logs").exists()  # no server was started


def pure_tokens(run_dir):
    """Trained tokens whose context is of the one version that began their sample."""
    rows = query(run_dir, "SELECT s.versions, s.mixed_kv FROM step_samples t JOIN samples s ON s.id = t.sample_id")
    return sum(min(json.loads(v)[0][1], kept - 1 if kept else 1 << 30) for v, kept in rows)


@pytest.mark.parametrize("name, options", [("prompt", PROMPT), ("partial", PARTIAL), ("async", ASYNC)])
def test_replay_generates_the_same_tokens(model, async_sha, partial_sha, prompt_sha, name, options):
    """What servers sampled, others sample again, bit for bit, by the weights that the record alone makes."""
    run_dir, log = model / f"{name}-generate", model / f"{name}-generate.log"
    words = command(model, run_dir, *options, "--replay", str(model / name), "--replay-generate", "--num-servers", "2")
    run_whole(words, log)
    assert f"{pure_tokens(model / name)} tokens generated again, all as recorded" in open(log).read()


def without_checksums(db):
    """As an older schema wrote it: what the test changed is found by the run itself, not before it."""
    db.execute("UPDATE sample_rows SET checksum = NULL")
    db.execute("UPDATE steps SET checksum = NULL")


def test_replay_generate_compares(model, partial_sha):
    bad = model / "bad-generate"
    os.makedirs(bad)
    db = sqlite3.connect(model / "partial" / "ledger.db")
    db.execute(f"VACUUM INTO '{bad / 'ledger.db'}'")
    db.close()
    db = sqlite3.connect(bad / "ledger.db")
    (sample, logp), = db.execute("SELECT s.id, s.logp FROM step_samples t JOIN samples s ON s.id = t.sample_id"
                                 " WHERE t.step = 1 AND t.position = 3").fetchall()  # fmt: skip
    db.execute("UPDATE sample_streams SET data = ? WHERE sample_id = ? AND name = 'logp'",
               (bytes([logp[0] ^ 1]) + logp[1:], sample))  # fmt: skip
    without_checksums(db)
    db.commit()
    db.close()
    words = command(model, model / "bad-generate-1", *PARTIAL, "--replay", str(bad), "--replay-generate")
    assert "--replay-generate: token 0 of sample" in fails(words, model / "bad-generate-1.log")


def test_replay_compares(model, partial_sha):
    bad = model / "bad-replay"
    os.makedirs(bad)
    db = sqlite3.connect(model / "partial" / "ledger.db")
    db.execute(f"VACUUM INTO '{bad / 'ledger.db'}'")
    db.close()
    db = sqlite3.connect(bad / "ledger.db")
    db.execute("UPDATE step_samples SET advantage = advantage + 0.01 WHERE step = 3 AND position = 0")
    without_checksums(db)
    db.commit()
    db.close()
    words = command(model, model / "bad-1", *PARTIAL, "--replay", bad)
    assert "step 3 ran again with loss" in fails(list(map(str, words)), model / "bad-1.log")
    words = command(model, model / "bad-2", *PARTIAL, "--replay", bad, lr=1e-3)
    assert "--lr differs" in fails(list(map(str, words)), model / "bad-2.log")
    words = command(model, model / "bad-3", *PARTIAL, "--replay", model / "nowhere")
    assert "--replay: no ledger at" in fails(list(map(str, words)), model / "bad-3.log")
    words = command(model, bad, *PARTIAL, "--replay", bad)
    assert "is the run folder itself" in fails(list(map(str, words)), model / "bad-4.log")


class Witness:
    """What the ledger held at each kill: it must be there at the end, unchanged."""

    def __init__(self):
        self.steps, self.versions, self.tokens = {}, {}, {}

    def look(self, run_dir):
        if not (run_dir / "ledger.db").exists():
            return
        try:
            steps = query(run_dir, "SELECT t.step, t.position, t.sample_id, t.advantage, k.loss, k.grad_norm FROM"
                                   " step_samples t JOIN steps k ON k.step = t.step")  # fmt: skip
            for step, position, *row in steps:
                was = self.steps.setdefault((step, position), row)
                assert was[:2] == row[:2] and (was[2] is None or was == row)
                self.steps[step, position] = row
            self.versions.update(query(run_dir, "SELECT version, sha256 FROM versions"))
            for sample, ids, logp, status in query(run_dir, "SELECT id, ids, logp, status FROM samples WHERE n_response > 0"):
                was = self.tokens.get(sample)
                if was:
                    assert ids[: len(was[0])] == was[0] and logp[: len(was[1])] == was[1]
                self.tokens[sample] = (ids, logp)
        except sqlite3.OperationalError as e:
            assert "no such table" in str(e)  # killed before the schema was there

    def confirm(self, run_dir):
        steps, versions = dict(self.steps), dict(self.versions)
        self.look(run_dir)
        for key, row in steps.items():
            assert self.steps[key][:2] == row[:2] and (row[2] is None or self.steps[key] == row)
        assert all(self.versions[v] == sha for v, sha in versions.items())


@pytest.mark.parametrize("victim", ["clime-train", "clime-server"])
def test_partial_rollout_survives_kills(model, victim):
    rng = random.Random(f"partial {victim}")
    killed = n = 0
    while killed < KILLS // 2:
        name = f"partial-{victim}-{n}"
        witness = Witness()
        words = command(model, model / name, *PARTIAL, "--num-servers", "2" if victim == "clime-server" else "1")
        killed += kill_now_and_then(words, model / name, model / f"{name}.log", 5, rng, witness.look, victim)
        witness.confirm(model / name)
        check_ledger(model / name)
        n += 1


def test_a_filter_that_keeps_nothing_ends_the_run_with_its_name(model):
    """The reward is always 0: every group is dropped, and the run says so instead of going on for ever."""
    body = 'while IFS= read -r line; do id=${line#*\\"id\\":}; id=${id%%,*}; printf \'{"id":%s,"reward":0}\\n\' $id; done'
    words = command(model, model / "nothing", *FILTER, "--rm-command", body, rm_type="command", rollout_batch_size=2,
                    rollout_max_response_len=4)  # fmt: skip
    log = fails(words, model / "nothing.log")
    assert "the filter dropped 201 groups of rollout 0, the last one for zero_std_0.0" in log
    assert query(model / "nothing", "SELECT count(*) FROM steps") == [(0,)]


def staleness(run_dir):
    """(step of training, oldest version) of every trained sample; a rollout's steps count from its first one."""
    rows = query(run_dir, "SELECT (t.step - 1) / 2 * 2, s.versions FROM step_samples t JOIN samples s ON s.id = t.sample_id")
    return [step - min(v for v, _ in json.loads(versions)) for step, versions in rows]


@pytest.fixture(scope="module")
def async_sha(model):
    return whole(model, "async", *ASYNC)


def test_async_is_one_rollout_behind(model, async_sha):
    behind = staleness(model / "async")
    assert set(behind[:24]) == {0} and set(behind[24:]) == {2}
    lines = rollouts(model / "async")
    assert [m["rollout/staleness/max"] for m in lines] == [0] + [2] * 7
    assert [m["eval/step"] for m in metrics(model / "async") if m["kind"] == "eval"] == [0, 8, 16]
    whole(model, "async-2", *ASYNC, "--update-weights-interval", "2", "--max-staleness", "4")
    assert [m["rollout/staleness/max"] for m in rollouts(model / "async-2")] == [0, 2, 4, 2, 4, 2, 4, 2]


@pytest.mark.parametrize(
    "name, more",
    [("two_servers", ["--num-servers", "2"]), ("few_at_a_time", ["--server-max-running-requests", "3"])],
)
def test_async_gives_the_same_weights(model, async_sha, name, more):
    assert whole(model, f"async-{name}", *ASYNC, *more) == async_sha


@pytest.mark.parametrize("victim", ["clime-train", "clime-server"])
def test_async_survives_kills(model, async_sha, victim):
    rng = random.Random(f"async {victim}")
    killed = n = 0
    while killed < KILLS // 2:
        name = f"async-{victim}-{n}"
        witness = Witness()
        words = command(model, model / name, *ASYNC, "--num-servers", "2" if victim == "clime-server" else "1")
        killed += kill_now_and_then(words, model / name, model / f"{name}.log", 5, rng, witness.look, victim)
        assert final_sha(model / f"{name}.log") == async_sha
        witness.confirm(model / name)
        check_ledger(model / name)
        n += 1


# Its first call, in the first step of a run, waits for a file.
LOSS = """#include <poll.h>
#include <stdio.h>
#include <unistd.h>
#include "trainer/plugin/plugin.h"
static int f(const struct clime_plugin_loss *l, double *pg, double *g, char *e, size_t n) {
    (void)e, (void)n;
    if (access("RUN.begun", F_OK)) {
        fclose(fopen("RUN.begun", "w"));
        while (access("RUN.go", F_OK)) poll(NULL, 0, 10);
    }
    for (int k = 0; k < l->n; k++) pg[k] = 0, g[k] = -l->w[k] * (double)l->adv[k];
    return 0;
}
const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .loss = f};
"""


def loss_that_waits(run_dir):
    """The options of a run that waits in its first step."""
    source = run_dir.with_suffix(".c")
    source.write_text(LOSS.replace("RUN", str(run_dir)))
    return ["--loss-type", "custom_loss", "--custom-loss-function-path", compile_library(source, run_dir.with_suffix(".so"))]


def wait_until(there, p, run_dir, log):
    while not there():
        assert wait_watching(p, run_dir, log, 0.02)[0] is None, open(log).read()[-2000:]


def push_to_samples_in_flight(run_dir, p, log):
    """The first push of a run of loss_that_waits finds samples in flight, whoever is faster: its first step begins when the
    server is paused over some, and the server goes on when it has the new weights."""
    wait_until(run_dir.with_suffix(".begun").exists, p, run_dir, log)
    port, key = ((run_dir / "ports" / name).read_text().strip() for name in ("server-0", "api-key"))
    with web.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}) as server:
        do = lambda path, **body: server.post(path, json=body).raise_for_status()

        def paused_over_some():
            do("/pause_generation", mode="in_place")
            if server.get("/v1/loads").json()["loads"][0]["num_running_reqs"]:
                return True
            do("/continue_generation")
            return False

        wait_until(paused_over_some, p, run_dir, log)
        run_dir.with_suffix(".go").touch()
        wait_until(lambda: not server.get("/get_weight_version").json()["weight_version"].startswith("0@"), p, run_dir, log)
        do("/continue_generation")


def ended(p, log):
    """The SHA-256 of the final weights of a run that goes on to its end."""
    assert p.wait(timeout=2 * LIMIT) == 0, open(log).read()[-2000:]
    return final_sha(log)


def test_kv_kept_over_an_update(model):
    """Samples in flight keep their KV: marked, left out of the gap, trained the same by the record."""
    run_dir, log = model / "kept", model / "kept.log"
    more = ["--fully-async", "--pause-generation-mode", "in_place", "--over-sampling-batch-size", "200",
            "--server-max-running-requests", "2", *loss_that_waits(run_dir)]  # fmt: skip
    p = start(command(model, run_dir, *more), log)
    push_to_samples_in_flight(run_dir, p, log)
    sha = ended(p, log)
    check_ledger(run_dir)
    rows = query(run_dir, "SELECT t.step, s.versions, s.mixed_kv, s.n_response FROM step_samples t"
                          " JOIN samples s ON s.id = t.sample_id")  # fmt: skip
    marked = [(json.loads(v), kept) for _, v, kept, _ in rows if kept]
    assert marked and sum(m["rollout/mixed_kv_samples"] for m in rollouts(run_dir)) == len(marked)
    for runs, kept in marked:  # the first token behind older KV is the first of its version
        assert kept in [1 + sum(n for _, n in runs[:k]) for k in range(len(runs))]
    for m in metrics(run_dir):
        if m["kind"] == "train":
            compared = [run for step, v, kept, _ in rows if step == m["step"] and not kept for run in json.loads(v)]
            assert m["train/logprob_gap_tokens"] == sum(n for v, n in compared if v == m["step"] - 1)

    words = list(map(str, command(model, model / "kept-replay", *more, "--replay", run_dir)))
    assert run_whole(words, model / "kept-replay.log") == sha
    # an update during the prefill of a sample: nothing of it can be generated again
    bad = model / "kept-prefill"
    os.makedirs(bad)
    db = sqlite3.connect(run_dir / "ledger.db")
    db.execute(f"VACUUM INTO '{bad / 'ledger.db'}'")
    db.close()
    db = sqlite3.connect(bad / "ledger.db")
    db.execute("UPDATE sample_rows SET mixed_kv = 1 WHERE id IN (SELECT sample_id FROM step_samples WHERE step = 1)")
    without_checksums(db)
    db.commit()
    db.close()
    for source in (run_dir, bad):
        again = model / f"{source.name}-generate"
        run_whole(command(model, again, *more, "--replay", str(source), "--replay-generate"), f"{again}.log")
        assert f"{pure_tokens(source)} tokens generated again, all as recorded" in open(f"{again}.log").read()
    assert pure_tokens(bad) < pure_tokens(run_dir)


def test_rollouts_ahead(model):
    """Rollouts wait for the trainer, not one only; what is left over is not cut between them; the bound holds. The trainer
    waits in its first step until the three after it are there, so that they do, whoever is faster."""
    run_dir = model / "ahead"
    more = ["--max-rollouts-ahead", "3", "--max-staleness", "6", "--update-weights-interval", "1",
            *loss_that_waits(run_dir)]  # fmt: skip
    words = command(model, run_dir, "--fully-async", *more, num_rollout=16, eval_interval=8, rollout_max_response_len=8)
    p, log = start(words, model / "ahead.log"), model / "ahead.log"
    wait_until((model / "ahead.begun").exists, p, run_dir, log)
    rewarded = "SELECT count(*) FROM samples WHERE reward IS NOT NULL"
    wait_until(lambda: query(run_dir, rewarded) == [(4 * 24,)], p, run_dir, log)
    (model / "ahead.go").touch()
    sha = ended(p, log)
    check_ledger(run_dir, rollouts=16)
    assert [m["eval/step"] for m in metrics(run_dir) if m["kind"] == "eval"] == [0, 16, 32]
    ready = [m["perf/rollouts_ready"] for m in metrics(run_dir) if m["kind"] == "perf"]
    assert max(ready) >= 2 and max(ready) <= 3
    behind = staleness(run_dir)
    assert 2 < max(behind) <= 6 and max(m["rollout/staleness/max"] for m in rollouts(run_dir)) == max(behind)
    # no prompt is taken twice or left out, and not more than were wanted
    groups = query(run_dir, "SELECT id, rollout FROM groups ORDER BY id")
    assert [g for g, _ in groups] == list(range(16 * 6))
    assert run_whole([*map(str, words), "--replay", str(run_dir), "--run", str(model / "ahead-replay")],
                     model / "ahead-replay.log") == sha  # fmt: skip


# Its first question waits until step 8 is trained, and from then on no other is answered before that one.
HELD = """
run=$1
trained() { grep -q '"kind":"train".*"step":8,' "$run/metrics.jsonl" 2>/dev/null; }
while IFS= read -r line; do
    id=${line#*\\"id\\":}; id=${id%%,*}; reward=0; held=
    if mkdir "$run.held" 2>/dev/null; then
        held=yes
        until trained; do sleep 0.05; done
    elif [ ! -e "$run.answered" ] && trained; then
        until [ -e "$run.answered" ]; do sleep 0.05; done
    fi
    case $id in *[357]) reward=1;; esac
    case $line in *\\"group\\":\\[*) printf '{"id":%s,"rewards":[0,1,2,3]}\\n' "$id";;
    *) printf '{"id":%s,"reward":%s}\\n' "$id" "$reward";; esac
    [ -z "$held" ] || : >"$run.answered"
done
"""


def resets(run_dir):
    if not (run_dir / "metrics.jsonl").exists():
        return 0
    lines = [json.loads(line) for line in open(run_dir / "metrics.jsonl") if line.endswith("\n")]
    return sum(m["rollout/staleness/reset_samples"] for m in lines if m["kind"] == "rollout")


@pytest.mark.parametrize("how", partly(["grouped", "alone", "filtered"], 3))
def test_pool_with_a_bound_that_bites(model, how):
    """What grew too old is sampled anew, alone or with its group, and kills before and after that change nothing.

    Whoever is faster: the held sample is of version 0 and comes back when rollout 4 or a later one is filled, whose first
    step is 8 or more behind it; and the last rollout wants samples of a version that is not there yet, so it is not full.
    """
    name, more = f"bites-{how}", {"alone": [], "filtered": FILTER, "grouped": ["--group-rm"]}[how]
    run_dir, log, asked, answered = model / name, model / f"{name}.log", model / f"{name}.asked", model / f"{name}.answered"
    (model / "held.sh").write_text(HELD)

    def words(reward):
        return command(model, run_dir, *POOL, "--over-sampling-batch-size", "60", "--eval-rm-type", "random", *more,
                       "--allow-difference", "rm-command",
                       rm_type="command", rm_command=reward, rm_timeout=LIMIT, num_rollout=10, eval_interval=5)  # fmt: skip

    def killed_when(there, reward):
        p = start(words(reward), log)
        while not there():
            code, _ = wait_watching(p, run_dir, log, 0.02)
            assert code is None or code == 0 and there(), open(log).read()[-2000:]  # it may end before we look
        p.kill()
        p.wait()

    held = f"sh {model / 'held.sh'} {run_dir}"
    killed_when(asked.exists, f"read line; : >{asked}; cat >{os.devnull}")  # sampled, and never rewarded
    killed_when(lambda: answered.exists() and resets(run_dir), held)
    run_whole(words(held), log)
    check_ledger(run_dir, rollouts=10)
    if how == "grouped":
        assert query(run_dir, "SELECT count(*) FROM samples WHERE reward <> member") == [(0,)]
    assert max(staleness(run_dir)) <= 6


@pytest.mark.parametrize("victim, mode, options", [  # in the fast tier each mode and each victim once at least
    ("clime-train", "retract", FULL), ("clime-server", "in_place", IN_PLACE), ("clime-server", "pool", POOL),
    *(pytest.param(*p, marks=pytest.mark.full) for p in [("clime-server", "retract", FULL), ("clime-train", "in_place", IN_PLACE),
                                                         ("clime-train", "pool", POOL)])])  # fmt: skip
def test_fully_async_survives_kills(model, victim, mode, options):
    """Nothing lost, nothing trained twice, no token older than the bound; and the record gives the same weights."""
    rng = random.Random(f"fully async {victim} {mode}")
    killed = n = 0
    while killed < KILLS // 2:
        name = f"full-{mode}-{victim}-{n}"
        words = command(model, model / name, *options, "--num-servers", "2" if victim == "clime-server" else "1")
        killed += kill_now_and_then(words, model / name, model / f"{name}.log", 5, rng, lambda d: None, victim)
        check_ledger(model / name)
        behind = staleness(model / name)
        assert max(behind) <= int(options[options.index("--max-staleness") + 1])
        assert max(m["rollout/staleness/max"] for m in rollouts(model / name)) == max(behind)
        n += 1
    sha = final_sha(model / f"{name}.log")
    words = list(map(str, command(model, model / f"{name}-replay", *options, "--replay", model / name)))
    assert run_whole(words, model / f"{name}-replay.log") == sha


def test_staleness_bound_samples_anew(model):
    """With a bound of 0 a partial rollout carries over prompts, but no tokens."""
    run_dir = model / "bound"
    whole(model, "bound", *PARTIAL, "--max-staleness", "0")
    assert set(staleness(run_dir)) == {0}
    assert sum(m["rollout/staleness/reset_samples"] for m in rollouts(run_dir)) > 0
    assert sum(m["rollout/carried_samples"] for m in rollouts(run_dir)) > 0


def test_async_refuses_what_it_cannot_do(model):
    for more, says in [
        (["--async", "--colocate"], "--async cannot be honoured with --colocate"),
        (["--update-weights-interval", "2"], "needs --async"),
        (["--async", "--max-staleness", "1"], "--max-staleness 1 is below the 2 steps"),
        (["--fully-async", "--max-rollouts-ahead", "2", "--max-staleness", "3"], "is below the 4 steps"),
        (["--async", "--max-rollouts-ahead", "2"], "--max-rollouts-ahead 2 needs --fully-async"),
        (["--async", "--pause-generation-mode", "in_place"], "in_place needs --fully-async"),
        (["--async", "--update-weights-interval", "3"], "must be a multiple of"),
        (["--async", "--mask-offpolicy-in-partial-rollout"], "none would be left"),
    ]:
        assert says in fails(command(model, model / "refused", *more), model / "refused.log"), says
        os.remove(model / "refused.log")


def test_rollouts_only_then_training_only(model):
    """Rollouts without training, cut off and resumed; then training on them: with one rollout it is the usual run."""
    source, log = model / "rollouts", model / "rollouts.log"
    words = command(model, source, "--debug-rollout-only", num_rollout=3)
    p = start(words, log)
    wait_watching(p, source, log, 0.15)
    p.kill()
    p.wait()
    p = start(words, log)
    assert p.wait(timeout=LIMIT) == 0, open(log).read()[-2000:]
    assert [m["rollout"] for m in rollouts(source)] == [0, 1, 2]
    assert query(source, "SELECT count(*) FROM steps") == [(0,)] and not (source / "hf").exists()
    assert query(source, "SELECT ended_in, count(*) FROM groups WHERE state = 'done' GROUP BY 1") == [(0, 6), (1, 6), (2, 6)]
    assert query(source, "SELECT DISTINCT versions LIKE '[[0,%' FROM samples") == [(1,)]

    one = run_whole(command(model, model / "one", num_rollout=1), model / "one.log")
    load = ["--debug-train-only", "--load-debug-rollout-data", str(source)]
    words = command(model, model / "trained", *load, num_rollout=1, eval_interval=0)
    assert run_whole(words, model / "trained.log") == one
    words = command(model, model / "trained", *load, num_rollout=3, eval_interval=0)
    log = model / "trained-3.log"
    p = start(words, log)
    wait_watching(p, model / "trained", log, 0.1)
    p.kill()
    p.wait()
    sha = run_whole(words, log)
    assert sha != one and not (model / "trained" / "logs").exists()
    check_ledger(model / "trained", rollouts=3)
    words = command(model, model / "trained-again", *load, num_rollout=3, eval_interval=0)
    assert run_whole(words, model / "trained-again.log") == sha
    words = command(model, model / "trained", *load, num_rollout=4, eval_interval=0)
    assert "rollout 3 has 0 samples there, here a rollout has 24" in fails(words, model / "trained-4.log")
    words = command(model, model / "halves", "--debug-train-only")
    assert "needs --load-debug-rollout-data" in fails(words, model / "halves.log")


def test_partial_rollout_never_cuts_inside_a_stop_string(model):
    """A server that continues looks for stop strings in new text only: what was kept must not end in half of one."""
    firsts = "0123456789ABCDEFGHIJKLMNOPQRSTUV"
    stops = [c + "a" for c in firsts]
    words = command(model, model / "stops", "--partial-rollout", "--rollout-stop", *stops, over_sampling_batch_size=96,
                    server_max_running_requests=24, rollout_max_response_len=200)  # fmt: skip
    run_whole(words, model / "stops.log")
    check_ledger(model / "stops")
    rows = query(model / "stops", "SELECT status, response, ids, n_prompt, versions FROM samples WHERE n_response > 0")
    rows = [(s, t, v) for s, t, ids, n, v in rows if b"\0\0\0\0" not in ids[4 * n :]]  # SQLite's text ends at a NUL
    assert any(s == "completed" and t[-2:] in stops for s, t, _ in rows)
    assert any(s == "aborted" for s, _, _ in rows) and any(len(json.loads(v)) > 1 for _, _, v in rows)
    for status, text, _ in rows:
        assert not any(stop in text[:-1] for stop in stops)
        assert status != "aborted" or not text or text[-1] not in firsts  # ids without a text leave none
