"""What a trainer waits for, asked from outside: each wait has a name, a limit and its blocker."""

import asyncio
import re
import signal

from many_mocks import Many
from programs import LIMIT, program
from programs import run as run_program
from test_fleet import Run, d, rl  # noqa: F401
from test_many_servers import wait_until


def waits(run):
    """{name: (how many, "at most 60.0 s", blocker)}"""
    status, out, err = run_program("clime-train", "report", "--now", run.dir)
    assert status == 0, err
    rows = re.findall(r"^ *(\d+)  (\S.*?\S) +[\d.]+ s, (at most [\d.]+ s|no limit of its own): (.*)$", out, re.MULTILINE)
    return {name: (int(n), limit, on) for n, name, limit, on in rows}


def wait_for(run, name, on=""):
    """That it waits for this; what it waits for then."""
    now = {}

    def it_does():
        now.clear()
        now.update(waits(run))
        return name in now and on in now[name][2]

    wait_until(it_does, run)
    return now


def test_a_push_that_hangs_and_a_reward_that_does(d, tmp_path):  # noqa: F811
    go, lock = tmp_path / "go", tmp_path / "run" / "lock"
    command = (f'until [ -e {go} ]; do sleep 0.05; done; while IFS= read -r line; do id=${{line#*\\"id\\":}}; '
               'echo "{\\"id\\":${id%%,*},\\"reward\\":1}"; done')  # fmt: skip
    many = Many(2)
    late = many.mocks[1]
    late.held = asyncio.Event()
    try:
        with program("clime-router", "--worker-urls", *(m.url for m in many.mocks)) as router:
            run = Run(rl(d, tmp_path / "run", "--router-url", router.url, "--allow-difference", "identity", server_threads=None, rm_type="command",
                         rm_command=command, rm_timeout=5 * LIMIT))  # fmt: skip
            try:
                wait_until(lambda: lock.exists() and lock.read_text(), run)
                now = wait_for(run, "the next reward")
                n, limit, on = now["the next reward"]
                assert n == 1 and limit == f"at most {5 * LIMIT:.1f} s" and re.fullmatch(r"\d+ samples are graded", on)
                assert now["the samples of a rollout"][2].startswith("rollout 0")
                go.touch()
                now = wait_for(run, "a quorum of servers to serve", late.url)  # the other one may be named first
                assert now["a quorum of servers to serve"][1] == "at most 60.0 s"
                assert now["a server to have the weights"][2].startswith(late.url)
                run.process.send_signal(signal.SIGUSR1)  # the log says it too, and the run goes on
                run.wait_for("a quorum of servers to serve")
                many.loop.call_soon_threadsafe(late.held.set)
                run.end()
            finally:
                run.stop()
    finally:
        many.close()
    status, _, err = run_program("clime-train", "report", "--now", run.dir)
    assert status == 1 and "no trainer works on" in err
