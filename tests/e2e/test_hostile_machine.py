"""A machine that lets its programs down: a full disk, a ledger that cannot be written, a clock that leaps, names that
nobody knows an address for. The machine is a library that is preloaded (hostile_machine.c)."""

import hashlib
import pathlib
import subprocess
import time

import pytest
from programs import BUILD, LIMIT, SLOW
from test_rl import command, fails, final_sha, model, run_whole, start  # noqa: F401  the fixture

pytestmark = pytest.mark.skipif(SLOW > 1, reason="a sanitizer's library must be the first that is loaded")
SHORT = {"num_rollout": 4, "eval_interval": 0, "rollout_max_response_len": 24}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    library = tmp_path_factory.mktemp("hostile") / "hostile.so"
    source = pathlib.Path(__file__).with_name("hostile_machine.c")
    subprocess.run(["cc", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"],
                   check=True, timeout=LIMIT)  # fmt: skip
    return lambda words, **what: ["env", f"LD_PRELOAD={library}", *(f"HOSTILE_{k}={v}" for k, v in what.items()), *words]


@pytest.fixture(scope="module")
def calm(model):  # noqa: F811
    return run_whole(command(model, model / "calm", **SHORT), model / "calm.log")


def test_a_clock_that_leaps(model, hostile, calm):  # noqa: F811
    words = hostile(command(model, model / "leaps", **SHORT), CLOCK=1)
    assert run_whole(words, model / "leaps.log") == calm
    days = {line[:10] for line in open(model / "leaps.log") if line[:2] == "20"}
    assert len(days) > 1  # it did


def test_a_disk_that_is_full_for_a_time(model, hostile, calm):  # noqa: F811
    """The run ends with a word each time, nothing that was kept is lost, and with room enough the same command comes to
    the same weights."""
    run, log, room, text = model / "no-room", model / "no-room.log", 0, ""
    while not text or final_sha(log) is None:
        p = start(hostile(command(model, run, **SHORT), FULL=run, ROOM=room), log)
        status, text = p.wait(LIMIT), open(log).read()
        last = text.splitlines()[-1]
        assert status == 0 or (status == 1 and ("disk is full" in last or "No space left" in last)), last
        room = room * 3 // 2 + 100_000
    assert final_sha(log) == calm
    assert "\nresumed  at step" in text  # it was full in the midst, too


def test_threads_that_are_not_to_be_had(model, hostile, calm):  # noqa: F811
    """Each program goes on without, or ends with a word; a run that comes to its end comes to the same weights."""
    run, log, most = model / "threads", model / "threads.log", 0
    log.touch()
    while final_sha(log) is None:
        status = start(hostile(command(model, run, **SHORT), THREADS=most), log).wait(LIMIT)
        last = open(log).read().splitlines()[-1]
        assert status == 0 or (status == 1 and "thread" in last), (most, last)
        most += 1 + most // 4  # the first ones are needed for the start
    assert final_sha(log) == calm
    serve = ["clime-server", "--port", "0", "--model-path", model / "init"]
    route = ["clime-router", "--port", "0", "--worker-urls", "http://127.0.0.1:1"]
    for program, *words in serve, route, ["clime-train", "page", run]:
        for most in range(8):
            done = subprocess.run(hostile([BUILD / program, *words], THREADS=most), capture_output=True, timeout=LIMIT)
            last = done.stderr.decode().splitlines()[-1]
            assert done.returncode == 1 and "thread" in last and "no address" not in last, (program, most, last)
            assert program != "clime-train" or "--" not in last, last  # it has no option that makes them fewer


def test_threads_for_environments_that_are_not_to_be_had(model, hostile):  # noqa: F811
    """As many as requests in flight need, which the option for these makes fewer; router and server have enough."""
    words = command(model, model / "many", "--environment", **SHORT, rollout_max_context_len=128, server_concurrency=1024)
    last = fails(hostile(words, THREADS=1500), model / "many.log").splitlines()[-1]
    assert "threads that answer requests" in last and last.endswith("or lower --server-concurrency"), last


def test_a_ledger_that_cannot_be_written(model, hostile, calm):  # noqa: F811
    run, log = model / "calm", model / "readonly.log"
    before = hashlib.sha256((run / "ledger.db").read_bytes()).hexdigest()
    text = fails(hostile(command(model, run, **SHORT | {"num_rollout": 5}), READONLY=1), log)
    assert "ledger" in text.splitlines()[-1], text[-2000:]
    assert hashlib.sha256((run / "ledger.db").read_bytes()).hexdigest() == before


def test_a_router_does_not_wait_for_a_name_at_its_end(hostile, tmp_path):
    """A probe has asked for its worker's address, and nothing is heard."""
    asked = tmp_path / "asked"
    words = [BUILD / "clime-router", "--port", "0", "--worker-urls", "http://worker.invalid:1", "--health-check-timeout", "600"]
    router = subprocess.Popen(hostile(words, NAMES=asked))
    try:
        deadline = time.monotonic() + LIMIT
        while not asked.exists():
            assert router.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        router.terminate()
        assert router.wait(LIMIT) == 0
    finally:
        router.kill()
        router.wait()
