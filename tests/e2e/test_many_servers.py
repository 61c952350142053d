"""A trainer with dozens of servers, which come, go and lag: every sample is recorded once, and nobody waits for the last one.

The servers are mocks behind a real router.
"""

import asyncio
import json
import sqlite3
import time
import urllib.request

import pytest
from many_mocks import Many
from programs import LIMIT, program, web
from test_fleet import Run, d, rl  # noqa: F401

ROUTER = ("--health-check-interval", "0.2")


def external(d, tmp_path, router, *more, **change):  # noqa: F811
    return Run(rl(d, tmp_path / "run", "--router-url", router.url, "--allow-difference", "identity", *more, server_threads=None, server_concurrency=4, **change))


def join(router, mock):
    request = urllib.request.Request(f"{router.url}/workers", json.dumps({"url": mock.url}).encode(), method="POST")
    urllib.request.urlopen(request, timeout=LIMIT).read()


def recorded(run):
    """How often each sample of the run's rollouts is in its ledger, by (rollout, group, member)."""
    db = sqlite3.connect(run.dir / "ledger.db")
    rows = db.execute("SELECT rollout, group_id, member, status, count(*) FROM samples GROUP BY 1, 2, 3").fetchall()
    db.close()
    return rows


def wait_until(holds, run):
    deadline = time.monotonic() + 2 * LIMIT
    while True:
        over = run.process.poll() is not None  # looked at first: it may end behind our look
        if holds():
            return
        assert not over and time.monotonic() < deadline, run.log()[-3000:]
        time.sleep(0.02)


def test_servers_die_and_join_during_a_rollout(d, tmp_path):  # noqa: F811
    """Of 32 servers four die in the middle of their answers, and four others come: 500 samples, each recorded once. The last
    rollout begins, and waits until those that came are ready for it."""
    state, new, there = {}, [], asyncio.Event()

    def all_there():
        workers = {w["url"]: w for w in web.get(state["router"].url + "/workers", timeout=LIMIT).json()["workers"]}
        return len(new) == 4 and all(m.version == many.newest and workers.get(m.url, {}).get("is_healthy") for m in new)

    async def disturb(n):
        if n == 100:
            for mock in sorted(many.mocks, key=lambda m: -m.generating)[:4]:
                many.kill(mock)
        if n == 150:
            new.extend([await many.start() for _ in range(4)])
            for mock in new:
                await asyncio.to_thread(join, state["router"], mock)
        if n == 1100:  # those that were killed answer in vain: a few more than 500 a rollout
            while not await asyncio.to_thread(all_there):
                await asyncio.sleep(0.02)
            there.set()
        if n > 1100:
            await there.wait()

    many = Many(32, on_answer=disturb)
    try:
        with program("clime-router", *ROUTER, "--worker-urls", *(m.url for m in many.mocks)) as router:
            state["router"] = router
            run = external(d, tmp_path, router, num_rollout=3, rollout_batch_size=125, n_samples_per_prompt=4)
            try:
                run.end()
            finally:
                run.stop()
    finally:
        many.close()
    rows = recorded(run)
    assert all(r[4] == 1 for r in rows), [r for r in rows if r[4] != 1][:5]
    assert len(rows) == 3 * 500 and {r[3] for r in rows} == {rows[0][3]}, (len(rows), {r[3] for r in rows})
    assert len(new) == 4 and all(m.version != "initial" and m.n_generated > 0 for m in new)


def test_a_version_goes_on_with_a_quorum(d, tmp_path):  # noqa: F811
    """One of twelve servers takes no version after the first: the next rollouts are made without it, and when it can it has a
    later one. It is asked for nothing while it is behind."""
    samples, freed = 32, asyncio.Event()

    async def wait_for_it(n):
        if n > 3 * samples:  # of the fourth rollout
            await freed.wait()

    many = Many(12, on_answer=wait_for_it)
    late = many.mocks[5]
    late.held = asyncio.Event()
    try:
        with program("clime-router", *ROUTER, "--worker-urls", *(m.url for m in many.mocks)) as router:
            run = external(d, tmp_path, router, num_rollout=6, rollout_batch_size=16, n_samples_per_prompt=2)
            try:
                run.wait_for("rollout  2 ", 2 * LIMIT)
                wait_until(lambda: many.newest.startswith("3@"), run)
                assert late.number == 0
                many.loop.call_soon_threadsafe(late.held.set)
                wait_until(lambda: late.number == 3, run)
                many.loop.call_soon_threadsafe(freed.set)
                run.end()
            finally:
                run.stop()
    finally:
        many.close()
    assert late.number >= 3 and late.n_behind == 0
    assert f"{late.url} is out of the router: it lacks version 1" in run.log() and f"{late.url} is back in the router" in run.log()
    assert all(r[4] == 1 for r in recorded(run))


def test_half_of_the_servers_are_always_late(d, tmp_path):  # noqa: F811
    """With a quorum of a half servers are out and back all the time: none is lost, and none is asked too early."""
    many = Many(16, longest_s=0.005, longest_push_s=0.05)
    try:
        with program("clime-router", *ROUTER, "--worker-urls", *(m.url for m in many.mocks)) as router:
            run = external(d, tmp_path, router, num_rollout=15, rollout_batch_size=8, n_samples_per_prompt=2, update_quorum=0.5)
            try:
                log = run.end()
            finally:
                run.stop()
    finally:
        many.close()
    assert "is gone" not in log
    assert all(m.n_behind == 0 and m.number > 0 for m in many.mocks), [(m.version, m.n_behind) for m in many.mocks]


def test_a_server_that_is_dead_for_good_is_forgotten(d, tmp_path):  # noqa: F811
    """The router is told, and when it lists the server again that is a new one, which gets the weights."""
    samples, freed = 32, asyncio.Event()

    async def disturb(n):
        if n == samples // 2:
            many.kill(dead)
        if n > 3 * samples:  # of the fourth rollout
            await freed.wait()

    many = Many(12, on_answer=disturb)
    dead = many.mocks[5]
    try:
        with program("clime-router", *ROUTER, "--worker-urls", *(m.url for m in many.mocks)) as router:
            run = external(d, tmp_path, router, "--server-evict-after", "1", num_rollout=6, rollout_batch_size=16, n_samples_per_prompt=2)
            try:
                wait_until(lambda: f"{dead.url} is given up: no answer for" in run.log(), run)
                evicted = lambda: web.get(router.url + "/health", params={"worker": dead.url}).json().get("evicted")
                wait_until(evicted, run)
                back = many.call(many.start(dead.port))
                join(router, back)
                there = lambda: [w for w in web.get(router.url + "/workers").json()["workers"] if w["url"] == back.url and w["is_healthy"]]
                wait_until(lambda: back.version == many.newest and there(), run)
                many.loop.call_soon_threadsafe(freed.set)
                run.end()
            finally:
                run.stop()
    finally:
        many.close()
    assert run.log().count(f": worker {dead.url}\n") == 2
    assert back.n_behind == 0
