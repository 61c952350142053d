"""The HTTP front of server and router under load and under hostile hands: requests that wait hold slots and never the
last threads, so that control and health are answered whatever else goes on."""

import concurrent.futures
import socket
import time

import httpx
import pytest
from programs import SLOW, need_stories, program, server


@pytest.fixture(scope="module", autouse=True)
def stories():
    need_stories()


LIMIT = 30 * SLOW  # seconds; far beyond what anything here takes, but for a machine that is busy with other work
SHORT = {"input_ids": [1], "sampling_params": {"temperature": 0, "max_new_tokens": 8}}


def wait_for(condition, seconds=LIMIT):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def waiting(s):
    entry = s.get("/v1/loads?include=core", timeout=LIMIT).json()["loads"][0]
    return entry["num_running_reqs"] + entry["num_waiting_reqs"]


def in_background(calls):
    """The answers of calls that each have a thread and a connection."""
    pool = concurrent.futures.ThreadPoolExecutor(len(calls))
    answers = [pool.submit(call) for call in calls]
    pool.shutdown(wait=False)
    return answers


def post(url, body, timeout=2 * LIMIT):
    return httpx.post(url, json=body, timeout=timeout)


# ---- slots -----------------------------------------------------------------------------------------------------------


def test_control_answers_while_generation_waits():
    """Four threads, four requests that wait for a pause to end: two hold the slots, two are refused at once, and the
    calls that end the pause come through."""
    with server("--http-threads", "4") as s:
        assert s.post("/pause_generation", {"mode": "retract"}).status_code == 200
        held = in_background([lambda: post(s.url + "/generate", SHORT)] * 4)
        done = concurrent.futures.as_completed(held, LIMIT)
        refused = [next(done).result() for _ in range(2)]
        assert [r.status_code for r in refused] == [429, 429] and all(r.headers["retry-after"] for r in refused)
        assert httpx.get(s.url + "/health", timeout=LIMIT).status_code == 200
        assert waiting(s) == 2
        assert httpx.post(s.url + "/continue_generation", json={}, timeout=LIMIT).status_code == 200
        assert sorted(f.result(LIMIT).status_code for f in held) == [200, 200, 429, 429]


def test_the_router_refuses_what_it_cannot_hold():
    """The same through a router, which has a limit of its own."""
    with server() as s, program("clime-router", "--max-concurrent-requests", "2", "--worker-urls", s.url) as router:
        assert router.post("/pause_generation", {"mode": "retract"}).status_code == 200
        held = in_background([lambda: post(router.url + "/generate", SHORT)] * 4)
        done = concurrent.futures.as_completed(held, LIMIT)
        assert [next(done).result().status_code for _ in range(2)] == [429, 429]
        assert httpx.get(router.url + "/health", timeout=LIMIT).status_code == 200
        assert httpx.post(router.url + "/continue_generation", json={}, timeout=LIMIT).status_code == 200
        assert sorted(f.result(LIMIT).status_code for f in held) == [200, 200, 429, 429]


def test_a_router_of_four_threads():
    """Its limit follows from its threads, so that 429 can be reached at all."""
    with server() as s, program("clime-router", "--http-threads", "4", "--worker-urls", s.url) as router:
        assert s.post("/pause_generation", {"mode": "retract"}).status_code == 200
        held = in_background([lambda: post(router.url + "/generate", SHORT)] * 4)
        done = concurrent.futures.as_completed(held, LIMIT)
        assert [next(done).result().status_code for _ in range(2)] == [429, 429]
        assert httpx.post(router.url + "/continue_generation", json={}, timeout=LIMIT).status_code == 200


@pytest.mark.parametrize("name", ["clime-server", "clime-router"])
def test_health_port(name):
    """Health and metrics on threads of their own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start = server if name == "clime-server" else lambda *o: program(name, *o)
    with start("--health-port", port):
        for path in ("/health", "/metrics"):
            assert httpx.get(f"http://127.0.0.1:{port}{path}", timeout=LIMIT).status_code in (200, 503)
        assert httpx.get(f"http://127.0.0.1:{port}/generate", timeout=LIMIT).status_code == 404
