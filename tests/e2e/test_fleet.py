"""The trainer's own programs: servers that hang, come up late or die at every start; environments that do.

The servers are the real one, or a script in its place: the trainer starts what lies beside its own binary.
"""

import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import time

import pytest
from programs import BUILD, LIMIT, SLOW, few_threads, run, tiny_model, web
from test_rl import children, final_sha

PROGRAMS = ("clime-train", "clime-router", "clime-server")


@pytest.fixture(scope="module")
def d(tmp_path_factory):
    """A tiny random model and a task."""
    folder = tmp_path_factory.mktemp("fleet")
    tiny_model(folder / "init")
    status, _, err = run("clime-train", "task", folder / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 20,
                         "--num-heldout", 8)  # fmt: skip
    assert status == 0, err
    return folder


def rl(d, run_dir, *more, train=BUILD / "clime-train", **change):
    options = {
        "run": run_dir, "hf_checkpoint": d / "init", "prompt_data": d / "task" / "train.jsonl", "input_key": "prompt",
        "label_key": "label", "rm_type": "random", "num_rollout": 2, "rollout_batch_size": 4, "n_samples_per_prompt": 2,
        "rollout_max_response_len": 8, "max_tokens_per_gpu": 256, "threads": 1, "server_threads": 1, **change,
    }  # fmt: skip
    words = [str(train), "rl", "--apply-chat-template", "--use-dynamic-batch-size"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    return few_threads(words + list(more))


class Run:
    def __init__(self, words):
        self.dir = pathlib.Path(words[words.index("--run") + 1])
        self.log_path = self.dir.with_suffix(".log")
        self.process = subprocess.Popen(words, stdout=open(self.log_path, "a"), stderr=subprocess.STDOUT)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_for(self, pattern, limit=LIMIT):
        deadline = time.monotonic() + limit
        while True:
            over = self.process.poll() is not None  # looked at first: its last line may come behind our look
            if found := re.search(pattern, self.log()):
                return found
            assert not over and time.monotonic() < deadline, self.log()[-3000:]
            time.sleep(0.02)

    def end(self, status=0, limit=2 * LIMIT):
        assert self.process.wait(limit) == status, self.log()[-3000:]
        return self.log()

    def stop(self):
        self.process.kill()
        self.process.wait()


def with_programs(folder, **scripts):
    """A folder like build/, in which some programs are scripts (by the name behind clime-)."""
    folder.mkdir()
    for name in PROGRAMS:
        if name == "clime-train":
            shutil.copy(BUILD / name, folder / name)  # its own path is where it looks for the others
        elif name not in scripts:
            (folder / name).symlink_to((BUILD / name).resolve())
    for name, text in scripts.items():
        path = folder / f"clime-{name}"
        path.unlink(missing_ok=True)
        path.write_text("#!/bin/sh\n" + text.replace("REAL", str((BUILD / f"clime-{name}").resolve())))
        path.chmod(0o755)
    return folder / "clime-train"


def events(run_dir, kind):
    db = sqlite3.connect(run_dir / "ledger.db")
    rows = [r[0] for r in db.execute("SELECT detail FROM events WHERE kind = ? ORDER BY id", [kind])]
    db.close()
    return rows


@pytest.mark.parametrize("victim", ["clime-server", "clime-router"])
def test_a_program_that_hangs_is_replaced(d, tmp_path, victim):
    """It hangs when all are up and the first rollout waits for its rewards; those follow from what was answered."""
    asked, go = tmp_path / "asked", tmp_path / "go"
    reward = (f': >{asked}; until [ -e {go} ]; do sleep 0.05; done; while IFS= read -r line; do id=${{line#*\\"id\\":}}; '
              'line=${line#*,}; echo "{\\"id\\":${id%%,*},\\"reward\\":$((${#line} % 2))}"; done')
    words = lambda name: rl(d, tmp_path / name, num_rollout=3, num_servers=2, rollout_max_response_len=96, rm_type="command",
                            rm_command=reward, rm_timeout=LIMIT, rollout_batch_size=8, rollout_health_check_interval=0.2,
                            rollout_health_check_timeout=3)  # fmt: skip
    frozen = Run(words("frozen"))
    try:
        while not asked.exists():  # it cannot end before that
            assert frozen.process.poll() is None, frozen.log()
            time.sleep(0.02)
        pid = next(p for p, name in children(frozen.process.pid).items() if name == victim)
        os.kill(pid, signal.SIGSTOP)
        go.touch()
        assert f"{victim.removeprefix('clime-')}" in frozen.end()
    finally:
        frozen.stop()
    assert "has not answered /health for 3 s: it is replaced" in frozen.log()
    undisturbed = Run(words("undisturbed"))
    undisturbed.end()
    assert final_sha(frozen.log_path) == final_sha(undisturbed.log_path)


def test_a_server_that_comes_up_late(d, tmp_path):
    train = with_programs(tmp_path / "bin", server=f"until [ -e {tmp_path}/go ]; do sleep 0.05; done\nexec REAL \"$@\"\n")
    limit, short = int(60 * SLOW), max(1, int(SLOW))  # the router too must be up within the short one
    late = Run(rl(d, tmp_path / "late", train=train, num_rollout=1, server_start_timeout=limit))
    late.wait_for(rf"waiting for server-0 to come up: \d+ s of at most {limit} s")
    (tmp_path / "go").touch()
    late.end()
    (tmp_path / "go").unlink()
    never = Run(rl(d, tmp_path / "never", train=train, num_rollout=1, server_start_timeout=short))
    try:
        assert f"waiting for server-0 to come up: not within {short} s" in never.end(status=1)
    finally:
        (tmp_path / "go").touch()  # whoever waits for it ends


def test_a_server_that_is_killed_at_every_start(d, tmp_path):
    train = with_programs(tmp_path / "bin", server=f"echo x >> {tmp_path}/starts\nkill -KILL $$\n")
    run = Run(rl(d, tmp_path / "killed", train=train))
    try:
        run.wait_for("server-0 was ended by signal 9")
        time.sleep(3)  # how often it is started in this time is what is counted
        assert len((tmp_path / "starts").read_text().split()) <= 8
        run.wait_for("server-0 was ended by signal 9(.|\n)*server-0 was ended by signal 9")  # and it is, again
        assert run.process.poll() is None
    finally:
        run.stop()


def test_a_server_that_refuses_every_push(d, tmp_path):
    """It has another model than the trainer: a fresh one is tried a few times, then it is left out. When there is no other the
    run ends with what it answers."""
    other = tiny_model(tmp_path / "other", **{"hidden-size": 128})
    train = with_programs(tmp_path / "bin", server=f'exec REAL "$@" --model-path {other}\n')
    run = Run(rl(d, tmp_path / "run", "--allow-difference", "hidden_size", train=train, num_servers=2))
    try:
        log = run.end(1)
    finally:
        run.stop()
    last = re.search(r"E train: rl: (server-[01]) has not come to serve in 5 tries: pushing weights: PUT \S+ answers 400: .*shape", log)
    assert last, log[-2000:]
    assert log.count(f"{last[1]} is up at http") == 5
    (out,) = events(run.dir, "worker")
    assert out.startswith(f"server-{1 - int(last[1][-1])} is out of the router: server-") and "shape" in out


def test_servers_that_cannot_be_had(d, tmp_path):
    """One refuses every push, one ends at every start: the run goes on with the third."""
    other = tiny_model(tmp_path / "other", **{"hidden-size": 128})
    train = with_programs(tmp_path / "bin", server=f"""case "$*" in
        */server-1*) exec REAL "$@" --model-path {other};;
        */server-2*) echo no such device; exit 7;;
    esac
    exec REAL "$@"
    """)
    run = Run(rl(d, tmp_path / "run", "--allow-difference", "hidden_size", train=train, num_servers=3))
    try:
        run.end()
    finally:
        run.stop()
    why = {re.match(r"server-\d", e)[0]: e for e in events(run.dir, "worker")}
    assert "has not come to serve in 5 tries: pushing weights" in why["server-1"], why
    assert "5 times in a row" in why["server-2"] and "no such device" in why["server-2"], why
    assert set(why) == {"server-1", "server-2"}, why


def test_an_environment_that_dies_at_every_start(d, tmp_path):
    run = Run(rl(d, tmp_path / "dies", "--environment-command", "echo no such tool; exit 7", "--num-environments", "2",
                 rollout_max_context_len=64))  # fmt: skip
    try:
        log = run.end(status=1)
    finally:
        run.stop()
    assert "exited with code 7, 5 times in a row" in log and "no such tool" in log


def test_an_environments_processes_end_with_the_trainer(d, tmp_path):
    """Also those that its shell has left in the background, and however the trainer ends."""
    run = Run(rl(d, tmp_path / "orphans", "--environment-command", f"sleep 1000 & echo $! > {tmp_path}/back; sleep 1000; true",
                 rollout_max_context_len=64))  # fmt: skip
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "back").exists() or not (tmp_path / "back").read_text().endswith("\n"):
        assert time.monotonic() < deadline and run.process.poll() is None, run.log()
        time.sleep(0.02)
    run.stop()
    pid = int((tmp_path / "back").read_text())
    alive = lambda: os.path.exists(f"/proc/{pid}") and open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    while alive():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_fleets_own_key(d, tmp_path):
    """Router and servers of a run answer those who know its key, which stands in no command line."""
    run = Run(rl(d, tmp_path / "keys", num_rollout=100000, num_servers=2))
    try:
        run.wait_for("rollout  0 ")
        path = run.dir / "ports" / "api-key"
        key = path.read_text().strip()
        assert len(key) == 32 and path.stat().st_mode & 0o777 == 0o600
        pids = children(run.process.pid)
        assert len(pids) == 3 and not any(key in open(f"/proc/{pid}/cmdline").read() for pid in pids)
        for name, call in (("router", "/workers"), ("server-0", "/server_info"), ("server-1", "/model_info")):
            url = f"http://127.0.0.1:{int((run.dir / 'ports' / name).read_text())}"
            ask = lambda **headers: web.get(url + call, headers=headers, timeout=LIMIT).status_code
            assert ask() == 401 and ask(Authorization="Bearer 0") == 401 and ask(Authorization=f"Bearer {key}") == 200
            assert web.get(url + "/health", timeout=LIMIT).status_code == 200
    finally:
        run.stop()


@pytest.mark.parametrize("words, room", [(["--server-max-running-requests", "700"], 1400), (["--vllm-max-num-seqs=600"], 1200),
                                         (["--server-concurrency", "4096"], 4096)])  # fmt: skip
def test_router_has_room(d, tmp_path, words, room):
    """For as many requests as the servers run together, or as the option says; no more than are ever in flight."""
    run = Run(rl(d, tmp_path / "run", *words, num_servers=2))
    try:
        run.wait_for("router is up")
        router = next(pid for pid, name in children(run.process.pid).items() if name == "clime-router")
        line = pathlib.Path(f"/proc/{router}/cmdline").read_text().split("\0")
        assert line[line.index("--max-concurrent-requests") + 1] == str(room)
    finally:
        run.stop()


def test_few_descriptors(d, tmp_path):
    """A low soft limit is raised; where the hard one is low too there are fewer requests at a time, and a line says so."""
    limit = lambda n: ["prlimit", f"--nofile={n}", "--"]
    many = Run(limit("256:") + rl(d, tmp_path / "soft", num_servers=6, server_concurrency=100, num_rollout=1,
                                       rollout_batch_size=64))  # fmt: skip
    assert "need more open files" not in many.end()
    few = Run(limit("512:512") + rl(d, tmp_path / "hard", num_servers=2, server_concurrency=400, num_rollout=1,
                                    rollout_batch_size=64))  # fmt: skip
    assert "need more open files than the limit of 512 allows: 128 at a time" in few.end()
    own = Run(limit("512:512") + rl(d, tmp_path / "own", "--server-max-running-requests", "90", num_servers=2, server_concurrency=None,
                                    num_rollout=1, rollout_batch_size=64))  # fmt: skip
    assert "180 requests in flight need more open files than the limit of 512 allows: 128 at a time" in own.end()
