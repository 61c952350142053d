"""The whole loop through the real three programs: same weights whatever happens to them.

One undisturbed run gives the SHA-256 of the final weights. Every other run has the same seed and must end with the same
one: with two servers, with other server limits, and after `kill -9` of trainer, server or router at seeded random
moments with a restart of the same command. CLIME_KILLS is the number of kills of each kind.
"""

import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import struct
import subprocess
import time
import urllib.request

import pytest
from programs import DATA, FULL, ROOT, SLOW, STORIES, few_threads, need, needs_stories, partly

BUILD = os.path.abspath(os.environ.get("CLIME_BUILD", "build"))
TRAIN = os.path.join(BUILD, "clime-train")
KILLS = int(os.environ.get("CLIME_KILLS", 20 if FULL else 2))
LIMIT = 60 * SLOW  # seconds: no wait of a run may be longer


def make_model(d):
    """A tiny random model and a task; the reward is random by seed, so that every rollout has a gradient."""
    run = lambda *a: subprocess.run([TRAIN, *map(str, a)], check=True, capture_output=True, timeout=LIMIT)
    run("init", d / "init", "--family", "qwen3", "--hidden-size", 64, "--intermediate-size", 192,
        "--num-hidden-layers", 2, "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 64,
        "--max-position-embeddings", 256)  # fmt: skip
    run("task", d / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 40, "--num-heldout", 20)
    return d


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("rl"))


def command(model, run_dir, *more, **change):
    options = {
        "run": run_dir, "hf-checkpoint": model / "init", "prompt-data": model / "task" / "train.jsonl",
        "input-key": "prompt", "label-key": "label", "rm-type": "random", "num-rollout": 8, "rollout-batch-size": 6,
        "n-samples-per-prompt": 4, "num-steps-per-rollout": 2, "rollout-max-response-len": 96, "lr": 5e-4,
        "max-tokens-per-gpu": 512, "save-interval": 3, "eval-interval": 4,
        **{k.replace("_", "-"): v for k, v in change.items()},
    }  # fmt: skip
    words = [TRAIN, "rl", "--apply-chat-template", "--rollout-shuffle", "--use-dynamic-batch-size",
             "--eval-prompt-data", "heldout", str(model / "task" / "heldout.jsonl@[0:4]")]  # fmt: skip
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return few_threads(words + list(more))


def start(words, log):
    return subprocess.Popen(words, stdout=open(log, "a"), stderr=subprocess.STDOUT)


def run_whole(words, log):
    """Runs to the end; returns the SHA-256 of the final weights."""
    p = start(words, log)
    assert p.wait(timeout=2 * LIMIT) == 0, open(log).read()[-2000:]
    return final_sha(log)


def final_sha(log):
    found = re.findall(r"^done .*sha256 ([0-9a-f]{64})$", open(log).read(), re.M)
    return found[-1] if found else None


def children(pid):
    """Pid by name of the trainer's children."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as f:
                name, rest = f.read().rsplit(")", 1)
            if int(rest.split()[1]) == pid and rest.split()[0] != "Z":
                found[int(entry)] = name.split("(", 1)[1]
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def reward_command(body):
    return 'while IFS= read -r line; do id=${line#*\\"id\\":}; id=${id%%,*}; ' + body + " done"


def held_until(go, n=0):
    """Options of a run with the weights of --rm-type random that cannot end before the file is there: its reward has a part
    without weight, of one process, which answers n questions at once and the others when it is."""
    body = f'[ $id -le {n} ] || until [ -e {go} ]; do sleep 0.02; done; echo "{{\\"id\\":$id,\\"reward\\":0}}";'
    return {"rm_type": "random:1,command:0", "rm_command": reward_command(body), "rm_workers": 1, "rm_timeout": 2 * LIMIT}


def metrics(run_dir):
    return [json.loads(line) for line in open(run_dir / "metrics.jsonl")]


def check_record(run_dir):
    """What must hold in every finished run's folder."""
    lines = metrics(run_dir)
    steps = [m for m in lines if m["kind"] == "train"]
    assert [m["step"] for m in steps] == list(range(1, 17))
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps if m.get("train/logprob_gap_tokens"))
    assert all(m["train/logprob_gap_tokens"] > 0 for m in steps if m["step"] % 2 == 1 and "train/pg_loss" in m)
    assert [m["eval/step"] for m in lines if m["kind"] == "eval"] == [0, 8, 16]
    db = sqlite3.connect(run_dir / "ledger.db")
    one = lambda sql: db.execute(sql).fetchone()[0]
    assert one("SELECT count(*) FROM steps WHERE done_us IS NULL") == 0
    assert one("SELECT count(*) FROM step_samples") == 8 * 24
    assert one("SELECT count(*) FROM samples WHERE status NOT IN ('completed', 'truncated') OR reward IS NULL") == 0
    assert one("SELECT count(*) FROM samples WHERE lease_incarnation IS NOT NULL") == 0
    ids, n_prompt, n_response, logp, mask = db.execute(
        "SELECT ids, n_prompt, n_response, logp, mask FROM samples ORDER BY id LIMIT 1").fetchone()  # fmt: skip
    assert len(ids) == 4 * (n_prompt + n_response) and len(logp) == 4 * n_response and len(mask) == n_response
    assert all(v <= 0 for v in struct.unpack(f"<{n_response}f", logp))
    db.close()


@pytest.fixture(scope="module")
def undisturbed(model):
    """(final SHA-256, seconds) of the run that nothing happens to."""
    t0 = time.monotonic()
    sha = run_whole(command(model, model / "undisturbed"), model / "undisturbed.log")
    check_record(model / "undisturbed")
    return sha, time.monotonic() - t0


@pytest.mark.parametrize(
    "name, more",
    [
        ("other_limits", ["--server-max-running-requests", "3", "--server-chunked-prefill-size", "7"]),
        ("no_cache", ["--server-disable-radix-cache", "--server-concurrency", "2"]),
        ("offloaded", ["--colocate", "--offload-rollout"]),
        ("broadcast", ["--update-weight-transport", "nccl", "--num-servers", "2"]),
        *partly([
            ("copied", ["--update-weight-transport", "ipc", "--num-servers", "2"]),
            ("two_servers", ["--num-servers", "2"]),
            ("colocated", ["--colocate", "--num-servers", "2"]),
            ("two_threads", ["--threads", "1", "--sglang-threads", "2"]),
        ]),
    ],
)
def test_same_weights(model, undisturbed, name, more):
    assert run_whole(command(model, model / name, *more), model / f"{name}.log") == undisturbed[0]
    check_record(model / name)


def test_weights_of_other_builds(undisturbed, model):
    """The run ends with the weights that other builds gave on this kind of device. A change that means to change them writes
    the new ones down."""
    known = json.loads((ROOT / "tests" / "golden" / "rl_weights.json").read_text())
    device = re.search(r"bf16 on (cpu [\w-]+)", open(model / "undisturbed.log").read())[1]
    if device not in known:
        pytest.skip(f"nothing is written down for {device}")
    assert undisturbed[0] == known[device]


def test_another_seed_gives_other_weights(model, undisturbed):
    words = command(model, model / "seed", rollout_seed=7)
    assert run_whole(words, model / "seed.log") != undisturbed[0]


def test_resume_of_a_finished_run_changes_nothing(model, undisturbed):
    before = metrics(model / "undisturbed")
    words = command(model, model / "undisturbed")
    assert run_whole(words, model / "again.log") == undisturbed[0]
    assert metrics(model / "undisturbed") == before


def test_damaged_checkpoints_are_passed_over(model, undisturbed):
    """With every checkpoint cut short the run is repeated from the initial weights, untouched by the bad ones."""
    run_dir, log = model / "damaged", model / "damaged.log"
    words = command(model, run_dir)
    assert run_whole(words, log) == undisturbed[0]
    moments = list((run_dir / "checkpoints").glob("*/moment2.f32"))
    assert len(moments) >= 2
    for path in moments:
        os.truncate(path, path.stat().st_size - 4)
    assert run_whole(words, log) == undisturbed[0]
    assert "16 steps run again, all bits as recorded" in open(log).read()
    check_record(run_dir)


def test_no_save_optim(model, undisturbed):
    """No checkpoints: killed late, the run goes back to its initial weights and comes to the same ones. Of its last rollout no
    sample gets its reward before that."""
    go = model / "bare.go"
    words = command(model, model / "bare", "--no-save-optim", "--save-hf", str(model / "bare-hf-{rollout_id}"),
                    **held_until(go, 7 * 24), eval_rm_type="random")  # fmt: skip
    p = start(words, model / "bare.log")
    deadline = time.monotonic() + LIMIT
    while not (model / "bare-hf-5" / "config.json").exists():  # the second of three
        assert p.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    p.kill()
    p.wait()
    go.touch()
    assert run_whole(words, model / "bare.log") == undisturbed[0]
    assert not list((model / "bare" / "checkpoints").iterdir()) and (model / "bare-hf-7" / "config.json").exists()
    db = sqlite3.connect(model / "bare" / "ledger.db")
    assert "from the initial weights" in db.execute("SELECT detail FROM events WHERE kind = 'recover'").fetchone()[0]


def last_sign(run_dir, log):
    """When the run last wrote anything: to its ledger, its metrics or the screen."""
    times = [os.stat(log).st_mtime]
    for name in ("ledger.db", "ledger.db-wal", "metrics.jsonl"):
        try:
            times.append(os.stat(run_dir / name).st_mtime)
        except FileNotFoundError:
            pass
    return max(times)


def wait_watching(p, run_dir, log, seconds):
    """Waits for the end, at most that long; (exit code or None, the longest silence seen). No silence over LIMIT."""
    longest, until = 0.0, time.monotonic() + seconds
    while True:
        silence = time.time() - last_sign(run_dir, log)
        longest = max(longest, silence)
        assert silence < LIMIT, f"no sign of life for {silence:.0f} s:\n" + open(log).read()[-2000:]
        left = until - time.monotonic()
        try:
            return p.wait(timeout=max(0.0, min(left, 0.05))), longest
        except subprocess.TimeoutExpired:
            if left <= 0:
                return None, longest


def kill_one(rng, trainer, victim, how=signal.SIGKILL):
    """Whether there was one to kill: it may end by itself before the signal comes."""
    victims = [pid for pid, comm in children(trainer).items() if comm == victim]
    with contextlib.suppress(ProcessLookupError):
        if victims:
            os.kill(rng.choice(sorted(victims)), how)
            return True
    return False


def kill_now_and_then(victim, more, model, name, seconds, n_kills, rng, how=signal.SIGKILL):
    """Runs the command until it ends, with up to n_kills kills of the victim; returns how many there were and the
    longest silence, in seconds."""
    run_dir, log = model / name, model / f"{name}.log"
    words = command(model, run_dir, "--num-servers", "2" if victim == "clime-server" else "1", *more)
    p = start(words, log)
    killed, longest, begun = 0, 0.0, time.monotonic()
    while True:
        pause = rng.uniform(0.02, max(0.2, seconds * 0.4))
        code, silence = wait_watching(p, run_dir, log, pause if killed < n_kills else 2 * LIMIT)
        longest = max(longest, silence)
        if code is not None:
            assert code == 0, open(log).read()[-2000:]
            break
        assert killed < n_kills, f"no end within {2 * LIMIT} s:\n" + open(log).read()[-2000:]
        if victim == "clime-train":
            p.kill()
            p.wait()
            p = start(words, log)
            killed += 1
        else:
            killed += kill_one(rng, p.pid, victim, how)
    assert time.monotonic() - begun < LIMIT + n_kills * seconds
    return killed, longest


@pytest.mark.parametrize(
    "victim, more",
    partly([("clime-train", []), ("clime-train", ["--colocate"]), ("clime-router", []), ("clime-server", ["--colocate"]),
            ("clime-server", ["--update-weight-transport", "nccl"]), ("clime-server", [])]),
)  # fmt: skip
def test_kill(model, undisturbed, victim, more):
    sha, seconds = undisturbed
    rng = random.Random(f"kill {victim}")
    killed = n_run = 0
    longest = 0.0
    while killed < KILLS:
        name = f"{victim}{''.join(more)}-{n_run}"
        kills, silence = kill_now_and_then(victim, more, model, name, seconds, min(5, KILLS - killed), rng)
        killed, longest = killed + kills, max(longest, silence)
        assert final_sha(model / f"{name}.log") == sha
        check_record(model / name)
        n_run += 1
        assert n_run < 4 * KILLS, "the victim was never there"
    print(f"{killed} kills of {victim}: the longest silence of a run was {longest:.1f} s")


def test_a_router_that_is_asked_to_end(model, undisturbed):
    """It finishes what is in flight, or says that it does not: nothing that a run would take for an answer."""
    sha, seconds = undisturbed
    rng = random.Random("router ends")
    kills = n = 0
    while kills == 0:  # the run was over before the first one
        name, n = f"asked-{n}", n + 1
        kills, _ = kill_now_and_then("clime-router", [], model, name, seconds, 3, rng, how=signal.SIGTERM)
        assert final_sha(model / f"{name}.log") == sha
        check_record(model / name)


# Each needs something that an undisturbed resume would not show: numbers of weights that are gone (old, KL in the reward,
# a reference that was refreshed between two checkpoints).
VARIANTS = {
    "reinforce_plus_plus": ["--normalize-advantages", "--gamma", "0.99", "--kl-coef", "0.1", "--kl-loss-type", "k3",
                            "--ref-update-interval", "2", "--use-tis", "--use-rs"],
    "ppo": ["--gamma", "0.99", "--lambd", "0.9", "--num-critic-only-steps", "2", "--critic-lr", "1e-3", "--use-tis",
            "--kl-coef", "0.05"],
    "gspo": ["--use-kl-loss", "--kl-loss-coef", "0.1", "--use-unbiased-kl", "--ref-update-interval", "1",
             "--get-mismatch-metrics", "--use-opsm"],
}  # fmt: skip


@pytest.fixture(scope="module")
def with_algorithm(model):
    """(SHA-256, options) of a whole run with one of VARIANTS, which is run once."""

    @functools.cache
    def whole(name):
        more = ["--advantage-estimator", name, *VARIANTS[name]]
        return run_whole(command(model, model / name, *more), model / f"{name}.log"), more

    return whole


@pytest.mark.parametrize("name", VARIANTS)
def test_an_algorithm(model, undisturbed, with_algorithm, name):
    sha, _ = with_algorithm(name)
    assert sha != undisturbed[0]
    check_record(model / name)
    steps = [m for m in metrics(model / name) if m["kind"] == "train"]
    lines = [m for m in steps if "train/pg_loss" in m]
    assert all(m["train/tis"] == 1 and m["train/tis_abs"] == 0 and m["train/rs_masked_fraction"] == 0 for m in lines)
    if name == "ppo":  # the critic alone for two rollouts: the weights stay
        db = sqlite3.connect(model / name / "ledger.db")
        sha_of = dict(db.execute("SELECT version, sha256 FROM versions").fetchall())
        db.close()
        assert len(steps) - len(lines) == 4 and sha_of[0] == sha_of[4] != sha_of[6]
        assert steps[0]["train/value_loss"] > 0 and all(m["train/critic-grad_norm"] > 0 for m in steps)
    else:
        assert lines == steps
    if name == "gspo":  # against the policy of a rollout before, which the second step has left
        kl = [m["train/kl_loss"] for m in lines]
        assert kl[0] == kl[2] == kl[4] == 0 and kl[1] != 0 and kl[3] != 0


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
def test_kill_with_an_algorithm(model, undisturbed, with_algorithm, name):
    sha, more = with_algorithm(name)
    longer = model / f"{name}-longer"  # its first part ends with a checkpoint between two refreshes of the reference
    run_whole(command(model, longer, *more, num_rollout=5), model / "shorter.log")
    assert run_whole(command(model, longer, *more), model / "longer.log") == sha
    rng = random.Random(name)
    for i in range(max(1, KILLS // 10)):
        folder = f"{name}-killed-{i}"
        words = command(model, model / folder, *more)
        for _ in range(3):
            p = start(words, model / f"{folder}.log")
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(timeout=rng.uniform(0.3, max(0.5, undisturbed[1])))
            p.kill()
            p.wait()
        assert run_whole(words, model / f"{folder}.log") == sha
        check_record(model / folder)


def test_port_of_a_predecessors_server(model, undisturbed, tmp_path):
    """A server that a killed trainer was starting may still write its port over the file that ours is to write."""
    for name in ("clime-train", "clime-router"):
        shutil.copy(os.path.join(BUILD, name), tmp_path / name)
    late = tmp_path / "clime-server"  # nobody's port first, the server half a second later
    late.write_text('#!/bin/sh\nwords="$*"\nwhile [ "$1" != --port-file ]; do shift; done\necho 1 >"$2"\nsleep 0.5\n'
                    f"exec {os.path.abspath(BUILD)}/clime-server $words\n")  # fmt: skip
    late.chmod(0o755)
    words = command(model, model / "stale_port")
    words[0] = str(tmp_path / "clime-train")
    assert run_whole(words, model / "stale_port.log") == undisturbed[0]


def test_children_end_with_the_trainer(model):
    p = start(command(model, model / "orphans", num_rollout=100000), model / "orphans.log")
    deadline = time.monotonic() + LIMIT
    while not {"clime-server", "clime-router"} <= set(children(p.pid).values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = list(children(p.pid))
    p.kill()
    p.wait()
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline, "a child outlived its trainer"
        time.sleep(0.05)


def external_fleet(folder, model_dir, n, *options, key=None, serving=()):
    """A router with n servers that no trainer started, which have `serving` too; (processes, router's URL)."""
    processes, ports = [], []
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for name, words in [("clime-router", [])] + [("clime-server", ["--model-path", str(model_dir), *serving])] * n:
        port_file = folder / f"port-{len(ports)}"
        processes.append(subprocess.Popen([os.path.join(BUILD, name), "--port", "0", "--port-file", str(port_file), *words, *options],
                                          stderr=subprocess.DEVNULL))  # fmt: skip
        deadline = time.monotonic() + LIMIT
        while not port_file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        ports.append(int(port_file.read_text()))
    router = f"http://127.0.0.1:{ports[0]}"
    for port in ports[1:]:
        body = json.dumps({"url": f"http://127.0.0.1:{port}"}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{router}/workers", body, headers), timeout=LIMIT).read()
    return processes, router


def test_external_router(model, undisturbed, tmp_path):
    processes, router = external_fleet(tmp_path, model / "init", 2)
    try:
        words = command(model, model / "external", "--router-url", router)
        p = start(words, model / "external.log")
        time.sleep(undisturbed[1] / 3)
        p.kill()  # its requests stay behind on the servers; the next trainer aborts them
        p.wait()
        assert run_whole(words, model / "external.log") == undisturbed[0]
        check_record(model / "external")
        assert all(q.poll() is None for q in processes)  # they are not the trainer's to end
        # The router was told the version, so it asks for it: a worker that starts again is not ready with the first.
        deadline = time.monotonic() + LIMIT
        while True:
            workers = json.loads(urllib.request.urlopen(f"{router}/workers", timeout=LIMIT).read())["workers"]
            if len(workers) == 2 and all(w["weight_version"] not in (None, "default") for w in workers):
                break
            assert time.monotonic() < deadline, workers
            time.sleep(0.1)
    finally:
        for q in processes:
            q.kill()
            q.wait()


def test_external_fleet_with_keys_that_loses_a_worker(model, undisturbed, tmp_path):
    """The router forgets a worker during the run, and its server dies: the run goes on with the other."""
    keys = ["--api-key", "user", "--admin-api-key", "admin"]
    processes, router = external_fleet(tmp_path, model / "init", 2, *keys, key="admin")
    try:
        go = model / "keys.go"
        words = command(model, model / "keys", "--router-url", router, **held_until(go, 2 * 24), eval_rm_type="random")
        assert "--router-url" in fails(words, model / "keys.log")  # without a key
        assert "401" in open(model / "keys.log").read()
        p = start([*words, "--fleet-api-key", "admin"], model / "keys.log")
        deadline = time.monotonic() + LIMIT
        while "rollout  0 " not in open(model / "keys.log").read():  # it knows both workers
            assert p.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        p.send_signal(signal.SIGSTOP)
        send = lambda method, path: urllib.request.urlopen(
            urllib.request.Request(router + path, method=method, headers={"Authorization": "Bearer admin"}), timeout=LIMIT).read()  # fmt: skip
        first = json.loads(send("GET", "/workers"))["workers"][0]
        send("DELETE", f"/workers/{first['id']}")
        processes[1].kill()
        go.touch()
        p.send_signal(signal.SIGCONT)
        assert p.wait(timeout=2 * LIMIT) == 0, open(model / "keys.log").read()[-2000:]
        assert final_sha(model / "keys.log") == undisturbed[0]
        # Whoever is first: the router's list lacks it, or the push to it fails.
        log = open(model / "keys.log").read()
        assert f"worker {first['url']} is gone" in log or f"{first['url']}: it is tried again" in log, log[-2000:]
        check_record(model / "keys")
    finally:
        for q in processes:
            q.kill()
            q.wait()


def fails(words, log):
    """Runs a command that must end with an error; returns its output."""
    p = start(words, log)
    assert p.wait(timeout=LIMIT) == 1
    return open(log).read()


def test_other_options_on_the_same_run(model, undisturbed):
    words = command(model, model / "undisturbed", lr=1e-3)
    assert "--lr differs from what this run was begun with" in fails(words, model / "differs.log")


def test_the_length_of_a_run_decides_where_the_rate_falls(model):
    falling = {"lr_decay_style": "linear", "min_lr": 1e-4, "num_rollout": 1}
    log = model / "falling.log"
    assert run_whole(command(model, model / "falling", **falling), log)
    falling["num_rollout"] = 2
    assert "--num-rollout differs" in fails(command(model, model / "falling", **falling), log)


def test_two_trainers_on_one_run(model, undisturbed):
    go = model / "twice.go"
    words = command(model, model / "twice", **held_until(go), eval_rm_type="random")
    p = start(words, model / "twice.log")
    deadline = time.monotonic() + LIMIT
    while not (model / "twice" / "ledger.db").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "another clime-train works on" in fails(words, model / "second.log")
    go.touch()
    assert p.wait(timeout=LIMIT) == 0 and final_sha(model / "twice.log") == undisturbed[0]


def test_reward_that_hangs_ends_the_run_with_its_name(model):
    words = command(model, model / "hangs", "--rm-command", "sleep 1000", rm_type="command", rm_timeout=0.2,
                    rollout_batch_size=2)  # fmt: skip
    log = fails(words, model / "hangs.log")
    assert "groups of rollout 0 failed" in log and "TIMEOUT" in log
    db = sqlite3.connect(model / "hangs" / "ledger.db")
    assert db.execute("SELECT count(*) FROM samples WHERE reward IS NOT NULL").fetchone()[0] == 0
    assert db.execute("SELECT count(*) FROM samples WHERE status = 'failed' AND error LIKE '%TIMEOUT%'").fetchone()[0]
    assert db.execute("SELECT count(*) FROM steps").fetchone()[0] == 0


def test_failed_groups_are_dropped_and_replaced(model):
    """The reward fails for prompts that begin with one digit: their groups are dropped, the next ones come in."""
    digit = json.loads(open(model / "task" / "train.jsonl").readline())["prompt"][0]
    bad = f"user|>{digit}"
    body = (f'case $line in *user\\|\\>{digit}*) printf \'{{"id":%s,"error":"no"}}\\n\' $id;; '
            '*) printf \'{"id":%s,"reward":%s}\\n\' $id $((id % 2));; esac;')  # fmt: skip
    more = ["--rm-command", reward_command(body)]
    words = command(model, model / "dropped", *more, rm_type="command", num_rollout=4, rollout_batch_size=5)
    p = start(words, model / "dropped.log")
    assert p.wait(timeout=LIMIT) == 0, open(model / "dropped.log").read()[-2000:]
    db = sqlite3.connect(model / "dropped" / "ledger.db")
    groups = db.execute("SELECT id, rollout, state, prompt, reason FROM groups ORDER BY id").fetchall()
    assert [g[0] for g in groups] == list(range(len(groups)))  # dataset order, no prompt skipped
    for _, _, state, prompt, reason in groups:
        assert (state == "dropped") == (bad in prompt) and (state == "dropped") == ("no" in (reason or ""))
    assert any(g[2] == "dropped" for g in groups)
    for rollout in range(4):
        assert sum(g[1] == rollout and g[2] == "done" for g in groups) == 5
    assert sum(m["rollout/dropped_groups"] for m in metrics(model / "dropped") if m["kind"] == "rollout") == len(groups) - 20


def test_group_rewards_from_a_command(model):
    """The command gets a line for each group, with all its answers, and rewards them in the order of members."""
    body = ('case $line in *\\"group\\":\\[*) printf \'{"id":%s,"rewards":[0,1,2,3]}\\n\' $id;; '
            '*) exit 1;; esac;')  # fmt: skip
    words = command(model, model / "grouped", "--group-rm", "--rm-command", reward_command(body), rm_type="command",
                    num_rollout=2, server_concurrency=1)  # fmt: skip
    run_whole(words, model / "grouped.log")
    db = sqlite3.connect(model / "grouped" / "ledger.db")
    rows = db.execute("SELECT member, reward FROM samples").fetchall()
    assert len(rows) == 48 and all(member == reward for member, reward in rows)
    assert "one type" in fails(command(model, model / "grouped-sum", "--group-rm", rm_type="math:1,exact:1"),
                               model / "grouped-sum.log")  # fmt: skip


def test_weighted_sum(model):
    """Each part of a sum is in the ledger and in the metrics, and the sum is the reward."""
    words = command(model, model / "sum", rm_type="random:0.5,exact:0.25,format:4", num_rollout=1)
    run_whole(words, model / "sum.log")
    rows = sqlite3.connect(model / "sum" / "ledger.db").execute("SELECT reward, reward_json FROM samples").fetchall()
    parts = [json.loads(text)["parts"] for _, text in rows]
    for (reward, _), p in zip(rows, parts):
        assert reward == 0.5 * p["random"] + 0.25 * p["exact"] + 4 * p["format"]
    line = next(m for m in metrics(model / "sum") if m["kind"] == "rollout")
    for name in ("random", "exact", "format"):
        assert line[f"rollout/reward/{name}"] == pytest.approx(sum(p[name] for p in parts) / len(parts))
    assert 0 < line["rollout/reward/random"] < 1


def test_bad_input_is_named(model):
    for change, says in [
        ({"prompt_data": "/nowhere.jsonl"}, "cannot open the prompt data /nowhere.jsonl"),
        ({"hf_checkpoint": "/nowhere"}, "--hf-checkpoint /nowhere: no such folder"),
        ({"input_key": "question"}, '"question" (--input-key)'),
        ({"router_url": "http://127.0.0.1:9"}, "--router-url"),
        ({"rm_type": "wishful"}, "wishful"),
        ({"rm_type": "math:1,wishful:1"}, "wishful"),
        ({"server_no_such_option": "1"}, "no-such-option"),
    ]:
        assert says in fails(command(model, model / "bad", **change), model / "bad.log"), says
        os.remove(model / "bad.log")


def test_evaluate(model):
    words = [TRAIN, "eval", "--run", model / "eval", "--hf-checkpoint", model / "init", "--apply-chat-template",
             "--eval-prompt-data", "held", model / "task" / "heldout.jsonl", "--eval-input-key", "prompt",
             "--eval-label-key", "label", "--rm-type", "random", "--eval-max-response-len", 8,
             "--n-samples-per-eval-prompt", 4, "--eval-temperature", 0.7]  # fmt: skip
    words = list(map(str, words))
    p = start(words, model / "eval.log")
    assert p.wait(timeout=LIMIT) == 0, open(model / "eval.log").read()
    (line,) = metrics(model / "eval")
    assert 0 < line["eval/held"] < 1 and line["eval/held-pass@1"] == pytest.approx(line["eval/held"])
    assert line["eval/held-pass@1"] < line["eval/held-pass@2"] < line["eval/held-pass@4"]
    assert "holds an evaluation already" in fails(words, model / "eval.log")


def test_report(model, undisturbed):
    text = subprocess.run([TRAIN, "report", model / "undisturbed"], check=True, capture_output=True, text=True).stdout
    assert undisturbed[0] in text and "at most 0, over" in text and "mean reward by rollout" in text
    wrong = subprocess.run([TRAIN, "report", model], capture_output=True, text=True)
    assert wrong.returncode == 1 and "no ledger at" in wrong.stderr


@needs_stories
@pytest.mark.full
def test_stories260k_learns(tmp_path):
    env = os.environ | {"NUM_ROLLOUT": "8"}
    script = [ROOT / "scripts" / "run-stories260k.sh", STORIES, "a run"]  # of the folder that one stands in
    subprocess.run(script, check=True, env=env, timeout=180 * SLOW, capture_output=True, cwd=tmp_path)
    lines = metrics(tmp_path / "a run")
    reward = [m["rollout/raw_reward"] for m in lines if m["kind"] == "rollout"]
    assert reward[-1] >= 2 * reward[0] > 0
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in lines if m["kind"] == "train")


def test_gsm8k_two_rollouts(tmp_path):
    need(DATA)
    subprocess.run(["tar", "xzf", DATA / "tokenizers" / "qwen3.tgz", "-C", tmp_path], check=True)
    tokenizer = next(tmp_path.glob("*/tokenizer.json")).parent
    run = lambda *a: subprocess.run([TRAIN, *map(str, a)], check=True, capture_output=True, timeout=4 * LIMIT)
    run("init", tmp_path / "model", "--tokenizer", tokenizer, "--hidden-size", 32, "--intermediate-size", 64,
        "--num-hidden-layers", 1, "--num-attention-heads", 1, "--num-key-value-heads", 1, "--head-dim", 32)  # fmt: skip
    run("rl", "--run", tmp_path / "run", "--hf-checkpoint", tmp_path / "model",
        "--prompt-data", f"{DATA}/datasets/gsm8k_train.jsonl@[0:200]", "--input-key", "prompt", "--label-key", "label",
        "--apply-chat-template", "--rollout-shuffle", "--rm-type", "deepscaler", "--num-rollout", 2,
        "--rollout-batch-size", 4, "--n-samples-per-prompt", 2, "--rollout-max-response-len", 32,
        "--use-dynamic-batch-size", "--max-tokens-per-gpu", 1024)  # fmt: skip
    db = sqlite3.connect(tmp_path / "run" / "ledger.db")
    rows = db.execute("SELECT g.prompt, s.n_response, s.reward FROM samples s JOIN groups g ON g.id = s.group_id").fetchall()  # noqa: E501
    assert len(rows) == 16 and all("<|im_start|>assistant" in p and n > 0 and r == 0 for p, n, r in rows)
