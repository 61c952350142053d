"""Several ranks train one policy: the same SHA-256 on 1, 2 and 4 of them, through losses of any of them, started by rank 0
or by a launcher; and whoever does not fit in, is missing or frozen is named."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time

import pytest
from programs import SLOW, free_port, partly
from test_hostile_machine import hostile  # noqa: F401  the fixture
from test_rl import LIMIT, TRAIN, children, command, metrics, model, run_whole  # noqa: F401  the fixture

ALL_TERMS = ["--use-kl-loss", "--kl-loss-coef", "0.01", "--ref-update-interval", "2", "--entropy-coef", "0.001",
             "--use-tis", "--gradient-lanes", "4"]  # fmt: skip


def check_ranks(lines, n):
    """Who sent how much, who waited for whom, and whose packs took longest: of ranks that there are, and of the very times."""
    for m in lines:
        of = lambda what: {int(k.rsplit("/", 1)[1]): v for k, v in m.items() if k.startswith(f"perf/{what}/")}
        packs = [m.get(f"perf/rank/{r}/forward_time", 0) + m.get(f"perf/rank/{r}/backward_time", 0) for r in range(n)]
        if n == 1:
            assert not of("rank_sent_bytes") and "perf/straggler_rank" not in m
            continue
        assert sorted(of("rank_sent_bytes")) == list(range(n)) and any(v > 0 for v in of("rank_sent_bytes").values()), m
        assert all(r != whom and whom in range(n) for r, whom in of("rank_waits_for").items()), m
        slowest = m["perf/straggler_rank"]
        assert packs[slowest] >= max(packs) - 1e-5 and m["perf/straggler_lag_time"] >= 0, m


def of_run(model, n, shard, *more):  # noqa: F811
    """A run's SHA-256, the figures of its steps, and every token's entropy."""
    name = f"ranks-{n}-{shard}" + "".join(more)
    run_dir = model / name
    words = command(model, run_dir, *ALL_TERMS, "--actor-num-gpus-per-node", str(n), "--shard-weights", shard, *more, num_rollout=3)
    sha = run_whole(words, model / f"{name}.log")
    figures = lambda m: {k: v for k, v in m.items() if k.startswith("train/")}
    with contextlib.closing(sqlite3.connect(run_dir / "ledger.db")) as db:
        entropy = db.execute("SELECT data FROM sample_streams WHERE name = 'entropy' ORDER BY sample_id").fetchall()
    assert entropy
    of_ranks = lambda m: {k: v for k, v in m.items() if k.startswith("perf/rank/")}
    times = [of_ranks(m) for m in metrics(run_dir) if m["kind"] == "train"]
    assert all(set(t) == {f"perf/rank/{r}/{w}_time" for r in range(n if n > 1 else 0) for w in ("forward", "backward", "optimizer", "wait")}
               and all(v >= 0 for v in t.values()) for t in times), times  # fmt: skip
    assert n == 1 or all(t["perf/rank/0/forward_time"] > 0 for t in times), times  # a rank may have no pack
    check_ranks([m for m in metrics(run_dir) if m["kind"] == "train"], n)
    return sha, [figures(m) for m in metrics(run_dir) if m["kind"] == "train"], entropy


def test_reinforcement_learning(model):  # noqa: F811
    """Every forward pass that there is, on all ranks: old, reference, policy. Figures and weights are those of one rank,
    whether each has all weights or a part of them; servers get them either way."""
    done = {(n, shard): of_run(model, n, shard) for n, shard in ((1, "auto"), (2, "off"), (4, "off"), (2, "on"), (4, "on"))}
    alone = done[1, "auto"]
    assert len(alone[1]) == 6 and any(m["train/kl_loss"] != 0 for m in alone[1][2:]), alone
    assert [k for k in done if done[k] != alone] == []


def test_ranks_that_share_micro_batches(model):  # noqa: F811
    """The same with rows of each micro-batch on up to four ranks. What is computed forward is what it is without."""
    share = ("--context-parallel-size", "4")
    done = {(n, shard): of_run(model, n, shard, *share) for n, shard in ((1, "auto"), (2, "on"), (4, "off"))}
    alone = done[1, "auto"]
    of_servers = [m["train/train_rollout_logprob_abs_diff"] for m in alone[1] if m["train/logprob_gap_tokens"]]
    assert of_servers and not any(of_servers), alone
    assert [k for k in done if done[k] != alone] == []


@pytest.mark.parametrize("cuts", [1, 4])
def test_a_critic(model, cuts):  # noqa: F811
    """It is another learner: alone for a rollout, then beside the policy, on all ranks, also where they share micro-batches; and
    a checkpoint of both goes on with another number of them."""
    done, more = {}, ["--advantage-estimator", "ppo", "--num-critic-only-steps", "1", "--critic-lr", "1e-3", "--kl-coef", "0.05",
                      "--gradient-lanes", "4", "--context-parallel-size", str(cuts), "--save-interval", "1"]  # fmt: skip
    for n, shard in ((1, "auto"), (2, "off"), (4, "on")):
        run_dir, log = model / f"critic-{n}-{shard}-{cuts}", model / f"critic-{n}-{shard}-{cuts}.log"
        words = lambda n, shard, rollouts: command(model, run_dir, *more, "--actor-num-gpus-per-node", str(n), "--shard-weights", shard,
                                                   num_rollout=rollouts)  # fmt: skip
        if n == 4:
            run_whole(words(2, "on", 2), log)
        sha = run_whole(words(n, shard, 3), log)
        figures = lambda m: {k: v for k, v in m.items() if k.startswith("train/")}
        done[n, shard] = sha, [figures(m) for m in metrics(run_dir) if m["kind"] == "train"]
    alone = done[1, "auto"][1]
    assert all(m["train/value_loss"] > 0 and m["train/critic-grad_norm"] > 0 for m in alone) and "train/pg_loss" in alone[-1]
    assert [k for k in done if done[k] != done[1, "auto"]] == []


def prepare(d):
    """Data, a model and a run of one rank, whose weights are those of all."""
    lines = [json.dumps({"prompt": f"{i} + {i + 1} =", "response": str(2 * i + 1)}) for i in range(200)]
    (d / "data.jsonl").write_text("\n".join(lines))
    # so deep that a ring of two layers goes round in a pass, each layer more than a block of the norm for every rank
    subprocess.run([TRAIN, "init", d / "init", *"--hidden-size 64 --intermediate-size 192 --num-hidden-layers 5 --num-attention-heads 2 "
                    "--num-key-value-heads 1 --head-dim 64 --max-position-embeddings 64".split()], check=True, capture_output=True, timeout=LIMIT)  # fmt: skip
    done = subprocess.run(words(d, "alone", 1), capture_output=True, text=True, timeout=2 * LIMIT)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def d(tmp_path_factory):
    d = tmp_path_factory.mktemp("ranks")
    prepare(d)
    return d


def words(d, name, ranks, *more, **change):
    """Supervised training: 100 steps of two rounds of four lanes."""
    options = {"hf-checkpoint": d / "init", "prompt-data": d / "data.jsonl", "save-hf": d / name / "hf", "run": d / name,
               "global-batch-size": 8, "num-epoch": 4, "lr": 1e-3, "save-interval": 10, "max-tokens-per-gpu": 16,
               "gradient-lanes": 4, **({"actor-num-gpus-per-node": ranks} if ranks else {}),
               **{k.replace("_", "-"): v for k, v in change.items()}}  # fmt: skip
    return [TRAIN, "sft", *[str(w) for k, v in options.items() for w in (f"--{k}", v)], *more]


def sha(d, name):
    return hashlib.sha256((d / name / "hf" / "model.safetensors").read_bytes()).hexdigest()


def steps_done(d, name):
    try:
        with contextlib.closing(sqlite3.connect(f"file:{d / name / 'ledger.db'}?mode=ro", uri=True)) as db:
            return db.execute("SELECT count(*) FROM steps WHERE done_us IS NOT NULL").fetchone()[0]
    except sqlite3.OperationalError:  # not there yet
        return 0


def events(d, name, kind):
    with contextlib.closing(sqlite3.connect(d / name / "ledger.db")) as db:
        return [detail for (detail,) in db.execute("SELECT detail FROM events WHERE kind = ? ORDER BY rowid", (kind,))]


def until(true, what):
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def ranks_of(pid):
    """Pids of the ranks that a trainer has started, by rank."""
    found = {}
    for child in children(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            env = open(f"/proc/{child}/environ").read().split("\0")
            found |= {int(v[5:]): child for v in env if v.startswith("RANK=")}
    return found


def popen(words, log, **env):
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=open(log, "w"), env={**os.environ, **env})


def met_behind(d, name, log, step, ranks, **change):
    """A run of several ranks that has come to the step and has others before it, rank 0 stopped: (process, pids of the other
    ranks). Begun anew where it was over before it was met."""
    for _ in range(10):
        p = popen(words(d, name, ranks, **change), log)
        over = lambda: p.poll() is not None
        until(lambda: over() or len(ranks_of(p.pid)) == ranks - 1, "the ranks")
        others = ranks_of(p.pid)
        until(lambda: over() or steps_done(d, name) >= step, "the step")
        p.send_signal(signal.SIGSTOP)  # none gets further without it
        if not over() and len(others) == ranks - 1 and steps_done(d, name) < 98:
            return p, others
        p.kill()
        p.wait()
        shutil.rmtree(d / name)
    raise AssertionError("every run was over before it was met")


@pytest.mark.parametrize("ranks, victim, then, shard", partly([(2, 1, 2, "off"), (4, 3, 4, "on"), (2, 0, 4, "on"), (4, 0, 1, "auto")]))
def test_a_killed_rank(d, ranks, victim, then, shard):
    kill_a_rank(d, "alone", f"killed-{ranks}-{victim}", ranks, victim, then, shard_weights=shard)


def test_a_killed_rank_that_shares_micro_batches(d):
    """Others wait for its rows in the middle of a layer."""
    share = {"context_parallel_size": 4}
    done = subprocess.run(words(d, "alone-shared", 1, **share), capture_output=True, text=True, timeout=2 * LIMIT)
    assert done.returncode == 0, done.stderr[-2000:]
    kill_a_rank(d, "alone-shared", "killed-shared", 4, 2, 4, **share)
    done = subprocess.run(words(d, "killed-shared", 4, context_parallel_size=2), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and "--context-parallel-size differs from what this run was begun with" in done.stderr


@pytest.fixture(scope="module")
def of_experts(d):
    """What is different in runs of a model with experts, whose micro-batches are cut; such a run of one rank."""
    subprocess.run([TRAIN, "init", d / "experts", *"--family qwen3_moe --hidden-size 64 --intermediate-size 192 --num-hidden-layers 3 "
                    "--num-experts 8 --num-experts-per-tok 2 --moe-intermediate-size 64 --num-attention-heads 2 --num-key-value-heads 1 "
                    "--head-dim 64 --max-position-embeddings 64".split()], check=True, capture_output=True, timeout=LIMIT)  # fmt: skip
    change = {"hf_checkpoint": d / "experts", "context_parallel_size": 4}
    done = subprocess.run(words(d, "alone-experts", 1, **change), capture_output=True, text=True, timeout=2 * LIMIT)
    assert done.returncode == 0, done.stderr[-2000:]
    return change


def test_a_killed_rank_with_experts_of_its_own(d, of_experts):
    """Of two that share micro-batches: others wait for its rows in attention and behind the router."""
    kill_a_rank(d, "alone-experts", "killed-experts", 4, 2, 4, expert_model_parallel_size=2, **of_experts)
    for ranks, over in ((4, 4), (2, 1)):  # what it has saved is theirs too
        done = subprocess.run(words(d, "killed-experts", ranks, expert_model_parallel_size=over, **of_experts), capture_output=True,
                              text=True, timeout=LIMIT)  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
    assert sha(d, "killed-experts") == sha(d, "alone-experts")


def test_launched_ranks_that_are_too_few_for_the_experts(d, of_experts):
    """They have the words of those that were more: rank 0 says how many would do, and the others hear of it at once."""
    port, run = free_port(), words(d, "few", None, expert_model_parallel_size=4, **of_experts)
    ranks = [popen(run, d / f"few-{r}.log", **launched(r, 2, port)) for r in (1, 0)]
    assert [p.wait(timeout=LIMIT) for p in ranks] == [1, 1]
    said = "--expert-model-parallel-size 4 must divide the trainer's 2 ranks and the 8 experts of Qwen3MoeForCausalLM: 2 would"
    for r, by in ((0, ""), (1, "rank 1: rank 0 says: ")):
        assert by + said in (d / f"few-{r}.log").read_text()


def test_launched_ranks_of_options_that_are_refused(model):  # noqa: F811
    """Rank 0 alone reads them; nobody else waits for as long as a start may take."""
    port, run = free_port(), command(model, model / "refused", "--rm-command", "no-such-program", rm_type="command")
    ranks = [popen(run, model / f"refused-{r}.log", **launched(r, 4, port)) for r in (1, 2, 3, 0)]
    assert [p.wait(timeout=LIMIT) for p in ranks] == [1] * 4
    for r in (1, 2, 3):
        assert "rank 0 says: --rm-command: there is no command no-such-program" in (model / f"refused-{r}.log").read_text()


def kill_a_rank(d, alone, name, ranks, victim, then, **more):
    """At a random step: a follower's end is said with its name, and the run goes on by itself from its checkpoint; after
    rank 0's the same command does, with any number of ranks. No other rank outlives it."""
    log = d / f"{name}.log"
    at = random.Random(victim * 8 + ranks).randrange(11, 50)
    p, others = met_behind(d, name, log, at, ranks, **more)
    os.kill(others[victim] if victim else p.pid, signal.SIGKILL)
    p.send_signal(signal.SIGCONT)
    status = p.wait(timeout=2 * LIMIT)
    if victim:
        assert status == 0, log.read_text()[-2000:]
        said = events(d, name, "rank")
        assert len(said) == 1 and f"rank {victim} of {ranks} (pid {others[victim]})" in said[0], said
    else:
        assert status == -signal.SIGKILL
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in others.values()), "the end of the others")
        done = subprocess.run(words(d, name, then), capture_output=True, text=True, timeout=2 * LIMIT)
        assert done.returncode == 0, done.stderr[-2000:]
    assert sha(d, name) == sha(d, alone)
    assert any("run again" in e for e in events(d, name, "recover"))


def test_a_frozen_rank(d, of_experts):
    """It is named at the limit, and the run goes on without it having done anything. Others wait for its rows, too."""
    name, more = "frozen", {"expert_model_parallel_size": 2, **of_experts}
    p, others = met_behind(d, name, d / f"{name}.log", 12, 2, distributed_timeout_minutes=0.05 * SLOW, **more)
    frozen = others[1]
    os.kill(frozen, signal.SIGSTOP)
    p.send_signal(signal.SIGCONT)
    assert p.wait(timeout=3 * LIMIT) == 0, (d / f"{name}.log").read_text()[-2000:]
    said = events(d, name, "rank")
    assert len(said) == 1 and f"rank 1 of 2 (pid {frozen}) is not there within" in said[0], said
    assert "of --distributed-timeout-minutes" in said[0], said
    assert sha(d, name) == sha(d, "alone-experts")


# ---- devices that are lost ----

NOT_PRELOADED = pytest.mark.skipif(SLOW > 1, reason="a sanitizer's library must be the first that is loaded")


def broken_devices(folder, **receives):
    folder.mkdir()
    for device, n in receives.items():
        (folder / device[1:]).write_text(str(n))
    return folder


@NOT_PRELOADED
def test_devices_that_are_lost(d, hostile):  # noqa: F811
    """One is gone from the start, two fail later: the run goes on with as many ranks as find a device, and comes to the weights
    of one that nothing befell."""
    broken = broken_devices(d / "broken", _1=0, _2=300, _3=100)
    done = subprocess.run(hostile(words(d, "elastic", 4, "--elastic", "1"), DEVICES=broken), capture_output=True, text=True, timeout=3 * LIMIT)
    assert done.returncode == 0, done.stderr[-2000:]
    said = events(d, "elastic", "rank")
    left_out = [e for e in said if "is left out" in e]
    assert len(said) == 9 and left_out == [
        f"rank 1 was lost again before a step was done: its device, {device}, is left out, and the run goes on with {n} of 4 ranks"
        for device, n in ((1, 2), (2, 2), (3, 1))], said  # fmt: skip
    assert "rank 1" in said[0] and "signal 9" in said[0], said
    assert sha(d, "elastic") == sha(d, "alone")
    assert not events(d, "elastic", "error")


@NOT_PRELOADED
def test_a_device_that_comes_back(d, hostile):  # noqa: F811
    """Fewer ranks than are wanted at least are none. The next start tries all devices again."""
    broken, command = broken_devices(d / "away", _2=0), words(d, "back", 4, "--elastic", "3")
    done = subprocess.run(hostile(command, DEVICES=broken), capture_output=True, text=True, timeout=2 * LIMIT)
    assert done.returncode == 1 and "given up, for --elastic wants more ranks than would be left" in done.stderr, done.stderr[-2000:]
    (broken / "2").unlink()
    done = subprocess.run(hostile(command, DEVICES=broken), capture_output=True, text=True, timeout=2 * LIMIT)
    assert done.returncode == 0 and "4 ranks are together" in done.stderr, done.stderr[-2000:]
    assert len(events(d, "back", "rank")) == 4 and sha(d, "back") == sha(d, "alone")


# ---- a launcher's ranks ----


def launched(rank, world, port):
    return dict(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def test_launched_ranks(d):
    """The same command once for each rank, with torch's variables; nobody starts any more."""
    port = free_port()
    ranks = [popen(words(d, "launched", None), d / f"launched-{r}.log", **launched(r, 2, port)) for r in (1, 0)]
    assert [p.wait(timeout=2 * LIMIT) for p in ranks] == [0, 0], (d / "launched-0.log").read_text()[-2000:]
    assert sha(d, "launched") == sha(d, "alone")


@NOT_PRELOADED
def test_ranks_of_a_host_that_nobody_knows(d, hostile):  # noqa: F811
    """Those that one has started are on its host; others are not taken for it, and ranks on CPUs must be on one."""
    done = subprocess.run(hostile(words(d, "nameless", 2, num_epoch=1), HOST=1), capture_output=True, text=True, timeout=2 * LIMIT)
    assert done.returncode == 0, done.stderr[-2000:]
    port = free_port()
    ranks = [subprocess.Popen(hostile(words(d, "unknown", None, num_epoch=1), HOST=1), stderr=subprocess.PIPE, text=True,
                              env={**os.environ, **launched(r, 2, port)}) for r in (0, 1)]  # fmt: skip
    said = [p.communicate(timeout=2 * LIMIT)[1] for p in ranks]
    assert [p.returncode for p in ranks] == [1, 1] and "all must run on one host" in said[0], said


def test_launched_ranks_at_sigterm(model):  # noqa: F811
    """A launcher tells all of a job's processes to end: rank 0 obeys behind the rollout, the others go when it does."""
    port, logs = free_port(), [model / f"told-{r}.log" for r in (0, 1)]
    run = command(model, model / "told", "--gradient-lanes", "2", num_rollout=1000, eval_interval=0)
    ranks = [popen(run, log, **launched(r, 2, port)) for r, log in enumerate(logs)]
    until(lambda: steps_done(model, "told") >= 2, "a step")
    for p in ranks[::-1]:
        p.send_signal(signal.SIGTERM)
    assert [p.wait(timeout=2 * LIMIT) for p in ranks] == [0, 0], [log.read_text()[-1000:] for log in logs]
    assert events(model, "told", "order")[-1].startswith("stop: by SIGTERM after")


def test_another_build(d):
    other = d / "other-build"
    shutil.copy(TRAIN, other)
    with open(other, "ab") as f:
        f.write(b"\n")
    port = free_port()
    one = popen([other, *words(d, "other", None)[1:]], d / "other-1.log", **launched(1, 2, port))
    zero = popen(words(d, "other", None), d / "other-0.log", **launched(0, 2, port))
    assert zero.wait(timeout=LIMIT) == 1 and one.wait(timeout=LIMIT) == 1
    for log in ("other-0.log", "other-1.log"):
        assert f"rank 1 (pid {one.pid} on" in (d / log).read_text() and "is another build" in (d / log).read_text()


def ends_with_a_word(d, name, zero, one, *said):
    """Two launched ranks, of which rank 1 cannot go on: both end, and rank 0 says who and why."""
    port = free_port()
    ranks = [popen(w, d / f"{name}-{r}.log", **launched(r, 2, port)) for r, w in ((1, one), (0, zero))]
    assert [p.wait(timeout=2 * LIMIT) for p in ranks] == [1, 1]
    text = (d / f"{name}-0.log").read_text()
    assert all(s in text for s in (f"rank 1 of 2 (pid {ranks[0].pid})", *said)), text[-2000:]


@pytest.mark.skipif(SLOW > 1, reason="a sanitizer maps more than any limit")
def test_a_full_device(d):
    """One rank's memory does not hold the plan, which it notices in the middle of its start."""
    run = words(d, "full", None, max_tokens_per_gpu=100_000)
    ends_with_a_word(d, "full", run, ["sh", "-c", 'ulimit -v 1500000; exec "$@"', "sh", *run], "training needs", "bytes")


def test_weights_that_one_rank_does_not_have(d):
    """It says so when rank 0 is far ahead already."""
    (d / "elsewhere" / "init").mkdir(parents=True)
    shutil.copy(d / "init" / "config.json", d / "elsewhere" / "init")
    run = words(d, "no-weights", None, hf_checkpoint="init", prompt_data=d / "data.jsonl")
    there = lambda folder: ["env", "-C", folder, *run]
    ends_with_a_word(d, "no-weights", there(d), there(d / "elsewhere"), "init holds neither")


def test_a_missing_rank(d):
    zero = popen(words(d, "missing", None, distributed_timeout_minutes=0.02), d / "missing.log", **launched(0, 4, free_port()))
    assert zero.wait(timeout=LIMIT) == 1
    assert "ranks 1, 2, 3 of 4 did not come to 127.0.0.1:" in (d / "missing.log").read_text()


@pytest.mark.parametrize("more, why", [
    (["--actor-num-nodes", "2"], "--actor-num-nodes 2 needs a launcher"),
    (["--actor-num-gpus-per-node", "3"], "3 ranks"),
    (["--gradient-lanes", "2", "--actor-num-gpus-per-node", "4"], "--gradient-lanes 2 cannot be shared by 4 ranks"),
    (["--tensor-model-parallel-size", "2"], "the trainer has 1 rank"),
    (["--actor-num-gpus-per-node", "2", "--elastic", "2"], "--elastic 2: the trainer has 2 ranks"),
    (["--expert-model-parallel-size", "2"], "--expert-model-parallel-size 2: Qwen3ForCausalLM has no experts"),
    (["--context-parallel-size", "3"], "--context-parallel-size 3: a power of two"),
    (["--context-parallel-size", "2", "--max-tokens-per-gpu", "16777216"], "--max-tokens-per-gpu 16777216 of 2 ranks is over 2^24 tokens"),
    (["--actor-num-gpus-per-node", "2", "--rank-transport", "nccl", "--device", "cpu"], "--rank-transport nccl is of GPUs"),
])  # fmt: skip
def test_what_cannot_be_is_said(d, more, why):
    done = subprocess.run(words(d, "refused", None, *more), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and why in done.stderr, done.stderr


@pytest.mark.parametrize("more", [["--actor-num-gpus-per-node", "3"], ["--context-parallel-size", "3"], ["--gradient-lanes", "3"]])
def test_numbers_that_cannot_be_begin_no_run(d, more):
    done = subprocess.run(words(d, "unbegun", None, *more), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and more[0] in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert not (d / "unbegun").exists()


def test_the_lanes_of_a_run_stay(d):
    """They decide the weights: begun with four, the run does not go on with two; as many ranks as one likes do."""
    done = subprocess.run(words(d, "alone", 1, gradient_lanes=2), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and "--gradient-lanes differs from what this run was begun with" in done.stderr
    for ranks, shard in ((2, "off"), (4, "on"), (1, "on")):  # of one rank a part is the whole
        done = subprocess.run(words(d, "alone", ranks, shard_weights=shard), capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stderr[-2000:]
