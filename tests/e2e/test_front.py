"""The HTTP front of server and router under load and under hostile hands: requests that wait hold slots and never the
last threads, so that control and health are answered whatever else goes on."""

import concurrent.futures
import json
import resource
import socket
import struct
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


# ---- connections that only hold a thread -----------------------------------------------------------------------------

MANY = 2000


@pytest.fixture(scope="module", autouse=True)
def descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY + 500:
        pytest.skip(f"only {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY + 500), hard))


def dial(s, say=b""):
    c = socket.create_connection(("127.0.0.1", s.port), timeout=LIMIT)
    c.sendall(say)
    return c


def answer_to(c):
    """The head of the next answer; the body must have a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = c.recv(4096)
        assert piece, "closed without an answer"
        data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += c.recv(4096)
    return head


def slowest(s, path, n=20):
    """Of n calls, each on a connection of its own."""
    worst = 0
    for _ in range(n):
        start = time.monotonic()
        assert httpx.get(s.url + path, timeout=LIMIT).status_code == 200
        worst = max(worst, time.monotonic() - start)
    return worst


@pytest.mark.parametrize("kind", ["silent", "half a head", "kept alive"])
@pytest.mark.parametrize("threads", [80, 1088])
def test_idle_connections(kind, threads):
    """2,000 clients that send nothing, half a head, or one request: others do not notice them."""
    say = {"silent": b"", "half a head": b"GET /health HTTP/1.1\r\nHost: a\r\nX-Slow: ", "kept alive":
           b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"}[kind]  # fmt: skip
    with server("--http-threads", str(threads)) as s:
        idle, begun = [], time.monotonic()
        for _ in range(MANY):
            idle.append(dial(s, say))
            if kind == "kept alive":
                answer_to(idle[-1])
        opened = time.monotonic() - begun
        worst = slowest(s, "/health")
        print(f"{MANY} connections, {kind}: opened in {opened:.2f} s, slowest of 20 calls {worst * 1e3:.0f} ms")
        for c in idle:
            c.close()
    assert worst < 15 * SLOW


# ---- clients that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closes", "resets"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_not_served(how, stream):
    """Whatever its request waits for: here a pause, during which nothing is written to a stream."""
    with server("--http-threads", "8") as s:
        assert s.post("/pause_generation", {"mode": "retract"}).status_code == 200
        body = json.dumps(SHORT | {"stream": stream}).encode()
        c = dial(s, b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_for(lambda: waiting(s) == 1)
        if how == "resets":
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
        wait_for(lambda: waiting(s) == 0)
