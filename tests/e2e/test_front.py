"""The HTTP front of server and router under load and under hostile hands: requests that wait hold slots and never the
last threads, so that control and health are answered whatever else goes on."""

import concurrent.futures
import contextlib
import gzip
import http.client
import json
import os
import pathlib
import re
import resource
import selectors
import socket
import struct
import subprocess
import threading
import time

import httpx
import pytest
from programs import BUILD, FULL, SLOW, STORIES, free_port, program, router_to, server, tiny_model, wait_for, web


LIMIT = 30 * SLOW  # seconds; far beyond what anything here takes, but for a machine that is busy with other work
SHORT = {"input_ids": [1], "sampling_params": {"temperature": 0, "max_new_tokens": 8}}


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
    """Sent again where the connection was ended before the request had come: with no thread free a client that was slow
    to send it gives way to others."""
    while True:
        with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            reply = web.post(url, json=body, timeout=timeout)
            if reply.status_code != 408 and "its thread was needed" not in reply.text:
                return reply


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
        assert web.get(s.url + "/health", timeout=LIMIT).status_code == 200
        assert waiting(s) == 2
        assert web.post(s.url + "/continue_generation", json={}, timeout=LIMIT).status_code == 200
        assert sorted(f.result(LIMIT).status_code for f in held) == [200, 200, 429, 429]


def test_the_router_refuses_what_it_cannot_hold():
    """The same through a router, which has a limit of its own."""
    with server() as s, router_to([s.url], "--max-concurrent-requests", "2") as router:
        assert router.post("/pause_generation", {"mode": "retract"}).status_code == 200
        held = in_background([lambda: post(router.url + "/generate", SHORT)] * 4)
        done = concurrent.futures.as_completed(held, LIMIT)
        assert [next(done).result().status_code for _ in range(2)] == [429, 429]
        assert web.get(router.url + "/health", timeout=LIMIT).status_code == 200
        assert web.post(router.url + "/continue_generation", json={}, timeout=LIMIT).status_code == 200
        assert sorted(f.result(LIMIT).status_code for f in held) == [200, 200, 429, 429]


def test_a_router_of_four_threads():
    """Its limit follows from its threads, so that 429 can be reached at all."""
    with server() as s, router_to([s.url], "--http-threads", "4") as router:
        assert s.post("/pause_generation", {"mode": "retract"}).status_code == 200
        held = in_background([lambda: post(router.url + "/generate", SHORT)] * 4)
        done = concurrent.futures.as_completed(held, LIMIT)
        assert [next(done).result().status_code for _ in range(2)] == [429, 429]
        assert web.post(router.url + "/continue_generation", json={}, timeout=LIMIT).status_code == 200


@pytest.mark.parametrize("name", ["clime-server", "clime-router"])
def test_health_port(name):
    """Health and metrics on threads of their own."""
    port = free_port()
    start = server if name == "clime-server" else lambda *o: program(name, *o)
    with start("--health-port", port):
        for path in ("/health", "/metrics"):
            assert web.get(f"http://127.0.0.1:{port}{path}", timeout=LIMIT).status_code in (200, 503)
        assert web.get(f"http://127.0.0.1:{port}/generate", timeout=LIMIT).status_code == 404


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


def time_of(to, method, path):
    start = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", to.port, timeout=LIMIT)
    c.request(method, path, '{"rid": "nobody\'s"}' if path == "/abort_request" else None)
    assert c.getresponse().status == 200
    c.close()
    return time.monotonic() - start


def slowest(s, path, n=20):
    """Of n calls, each on a connection of its own."""
    return max(time_of(s, "GET", path) for _ in range(n))


@pytest.mark.parametrize("kind, threads", [("silent", 1088), ("kept alive", 1088), ("half a head", 80)])
def test_idle_connections(kind, threads):
    """2,000 clients that send nothing, half a head, or one request: others do not notice them."""
    say = {"silent": b"", "half a head": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", "kept alive":
           b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"}[kind]  # fmt: skip
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
        c = dial(s, b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_for(lambda: waiting(s) == 1)
        if how == "resets":
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
        wait_for(lambda: waiting(s) == 0)


# ---- slow readers ----------------------------------------------------------------------------------------------------


def read_slowly(c, bytes_per_second, piece=1 << 18):
    """Everything until the peer closes, at most that fast."""
    parts, start, n = [], time.monotonic(), 0
    while data := c.recv(piece):
        parts.append(data)
        n += len(data)
        time.sleep(max(0, start + n / bytes_per_second - time.monotonic()))
    return b"".join(parts)


def dechunk(body):
    out, at = [], 0
    while True:
        end = body.index(b"\r\n", at)
        n = int(body[at:end], 16)
        if n == 0:
            return b"".join(out)
        out.append(body[end + 2 : end + 2 + n])
        at = end + 2 + n + 2


def stream_slowly(s, body, bytes_per_second):
    text = json.dumps(body | {"stream": True}).encode()
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # else the kernel holds megabytes for the reader
    c.settimeout(LIMIT)
    c.connect(("127.0.0.1", s.port))
    c.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
    with c:
        data = dechunk(read_slowly(c, bytes_per_second).split(b"\r\n\r\n", 1)[1])
    events = [e[len(b"data: ") :] for e in data.split(b"\n\n") if e]
    assert events[-1] == b"[DONE]"
    return events[:-1], len(data)


def outcome(reply):
    meta = reply["meta_info"]
    return reply["text"], reply["output_ids"], meta["output_token_logprobs"], meta.get("output_token_ids_logprobs")


N_SLOW = 8 if FULL else 4


@pytest.mark.parametrize("through", ["server", "router"])
def test_a_slow_reader_gets_its_stream(through):
    """A cumulative stream with log-probabilities is made far faster than 20 MB/s (10 in the fast tier): what the reader has not taken is
    joined into later events, and the end is whole."""
    body = {"input_ids": [1], "return_logprob": True, "top_logprobs_num": 64,
            "sampling_params": {"temperature": 0, "max_new_tokens": 500, "ignore_eos": True, "n": N_SLOW}}  # fmt: skip
    with contextlib.ExitStack() as stack:
        s = stack.enter_context(server())
        to = s if through == "server" else stack.enter_context(router_to([s.url]))
        whole = [outcome(reply) for reply in s.json("/generate", body)]
        events, n = stream_slowly(to, body, 2.5e6 * N_SLOW)
        print(f"{N_SLOW} times 500 tokens came in {len(events)} events, {n / 1e6:.0f} MB")
        last = {reply["index"]: reply for reply in map(json.loads, events)}
        assert [outcome(last[i]) for i in range(N_SLOW)] == whole


def test_an_event_of_many_megabytes():
    """One event that is larger than what is held back for a reader: it passes."""
    body = {"input_ids": [1], "return_logprob": True, "token_ids_logprob": list(range(512)) * 2,
            "sampling_params": {"temperature": 0, "max_new_tokens": 500, "ignore_eos": True}}  # fmt: skip
    with server() as s:
        whole = outcome(s.json("/generate", body))
        events, _ = stream_slowly(s, body, 50e6)
        print(f"the last event has {len(events[-1]) / 1e6:.1f} MB")
        assert len(events[-1]) > 8 << 20
        assert outcome(json.loads(events[-1])) == whole


# ---- requests that are not what they seem ----------------------------------------------------------------------------


def status_of(s, text):
    with dial(s, text) as c:
        return int(answer_to(c).split()[1])


def test_odd_requests():
    """What clients send by mistake gets a clear word: slashes, compressed bodies, spaces before a colon."""
    with program("clime-router") as r:
        assert r.get("/health/").status_code == 200 and r.get("/workers/").status_code == 200
        reply = r.client.post("/workers", content=gzip.compress(b'{"url": "http://a:1"}'), headers={"Content-Encoding": "gzip"})
        assert reply.status_code == 415 and "gzip" in reply.json()["message"] and reply.headers["accept-encoding"]
        assert r.client.post("/workers", content=b"{", headers={"Content-Encoding": "identity"}).status_code == 400
        assert status_of(r, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Empty:\r\n\r\n") == 200
        assert status_of(r, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A : b\r\n\r\n") == 400
        assert status_of(r, b"POST /workers HTTP/1.1\r\nHost: localhost\r\nContent-Length : 2\r\n\r\n{}") == 400


def test_a_web_page_cannot_command_a_server_without_a_key():
    """Any page that a browser shows may send a POST as text/plain to 127.0.0.1, and by a name that it makes resolve to
    that address it may even read the answers."""
    with program("clime-router") as r, program("clime-router", "--api-key", "secret") as locked:
        add = {"content": b'{"url": "http://a:1"}'}
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"},
                        {"Host": f"evil.example:{r.port}", "Origin": f"http://evil.example:{r.port}"}):  # fmt: skip
            reply = r.client.post("/workers", headers=headers | {"Content-Type": "text/plain"}, **add)
            assert reply.status_code == 403 and reply.json()["message"], headers
            assert r.client.get("/workers", headers=headers).status_code == 403
        assert r.get("/workers").json()["workers"] == []
        own = {"Host": f"localhost:{r.port}", "Origin": f"http://localhost:{r.port}"}
        assert r.client.get("/workers", headers=own).status_code == 200
        key = {"Authorization": "Bearer secret", "Origin": "https://evil.example", "Host": "behind.a.proxy"}
        assert locked.client.get("/workers", headers=key).status_code == 200


def test_a_web_page_gives_no_command_by_get():
    """<img src="http://127.0.0.1:30000/flush_cache"> sends no Origin. Browsers say where it comes from, or at least that they are one."""
    browser = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"}
    with program("clime-router") as r, program("clime-router", "--api-key", "secret") as locked:
        ask = lambda headers, at=r: at.client.get("/flush_cache", headers=headers).status_code
        for site in ("cross-site", "same-site"):
            assert ask({"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "image"}) == 403
        assert ask(browser) == 403 and r.client.head("/flush_cache", headers=browser).status_code == 403
        done = ask({})
        assert done != 403
        for site in ("none", "same-origin"):
            assert ask({**browser, "Sec-Fetch-Site": site}) == done
        assert ask({"Authorization": "Bearer secret", "Sec-Fetch-Site": "cross-site"}, locked) == done
        assert r.client.get("/workers", headers={**browser, "Sec-Fetch-Site": "cross-site"}).status_code == 200  # no command


def test_pages_that_are_let_in():
    page = "https://app.example"
    with program("clime-router", "--cors-origin", page) as r:
        ask = {"Origin": page, "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization, content-type"}  # fmt: skip
        reply = r.client.options("/v1/chat/completions", headers=ask)
        assert reply.status_code == 204 and reply.headers["access-control-allow-origin"] == page
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert reply.headers["access-control-allow-headers"] == "authorization, content-type"
        reply = r.client.get("/workers", headers={"Origin": page})
        assert reply.status_code == 200 and reply.headers["access-control-allow-origin"] == page
        assert reply.headers["vary"] == "Origin"
        assert r.client.options("/v1/chat/completions", headers=ask | {"Origin": "https://evil.example"}).status_code == 403
        assert "access-control-allow-origin" not in r.get("/workers").headers
    with program("clime-router") as r:
        assert r.client.options("/workers").status_code == 405


# ---- long steps ------------------------------------------------------------------------------------------------------


def test_an_abort_of_nobody_does_not_wait_for_a_step(tmp_path):
    """Twenty of them are answered while the engine is in one step, of 8,000 rows: there is nobody to wait for."""
    model = tiny_model(tmp_path / "model", **{"max-position-embeddings": 8192})
    options = ["--chunked-prefill-size", "8192", "--max-total-tokens", "8192"]
    with program("clime-server", "--model-path", model, *options) as s:
        def twenty_in_a_step(i):
            body = {"input_ids": [5 + i] * 8000, "sampling_params": {"max_new_tokens": 1}}
            (call,) = in_background([lambda: post(s.url + "/generate", body)])
            wait_for(lambda: call.done() or waiting(s) == 1)
            for _ in range(20):
                assert s.json("/abort_request", {"rid": "nobody's"})["num_aborted"] == 0
            before_its_end = not call.done()
            assert call.result(10 * LIMIT).status_code == 200
            return before_its_end

        assert any(map(twenty_in_a_step, range(10)))  # this test itself may sleep through one of them


# ---- 1,024 streams ---------------------------------------------------------------------------------------------------


def read_streams(streams, done):
    """Reads all of them as they come: what came of each, where it ended as it should."""
    came = {c: [] for c in streams}
    with selectors.DefaultSelector() as ready:
        for c in streams:
            c.setblocking(False)
            ready.register(c, selectors.EVENT_READ)
        while len(ready.get_map()) and not done():
            for key, _ in ready.select(1):
                data = key.fileobj.recv(1 << 16)
                came[key.fileobj].append(data)
                if not data or b"".join(came[key.fileobj][-2:]).endswith(b"0\r\n\r\n"):
                    ready.unregister(key.fileobj)
    return [b"".join(came[c]) for c in streams]


def events_of(data):
    head, body = data.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200")
    *events, done, rest = dechunk(body).split(b"\n\n")
    assert done == b"data: [DONE]" and rest == b""
    return [e.removeprefix(b"data: ") for e in events]


def tokens_of(cumulative, events):
    """The ids of a stream's events, each in its place."""
    if not cumulative:
        return [i for e in events for c in json.loads(e)["choices"] for i in c["token_ids"]]
    counts = [int(re.search(rb'"completion_tokens":(\d+)', e)[1]) for e in events]
    assert counts == sorted(set(counts))
    return json.loads(events[-1])["output_ids"]


def cpu_seconds(s):
    """Of the program, all threads, so far."""
    times = pathlib.Path(f"/proc/{s.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


class Elsewhere:
    def __init__(self, port):
        self.port = port


def time_calls(calls, done):
    """The calls one after another until then: their times, sorted."""
    times = []
    while not done.is_set():
        times += [time_of(to, method, path) for to, method, path in calls]
        done.wait(0.02)
    return sorted(times)


def thousandth(i):
    """The request of one of a thousand streams: cumulative or delta, and whose tokens it must get, by its seed."""
    if i % 2:
        return "/v1/completions", {"prompt": [1], "stream": True, "return_token_ids": True, "seed": i % 64, "temperature": 1,
                                   "max_tokens": 150, "ignore_eos": True}  # fmt: skip
    params = {"sampling_seed": i % 64, "temperature": 1, "max_new_tokens": 150, "ignore_eos": True}
    return "/generate", {"input_ids": [1], "stream": True, "sampling_params": params}


N_STREAMS = 1024 if FULL else 256
THOUSAND = ("--max-concurrent-requests", str(N_STREAMS))


def test_a_thousand_streams():
    """1,024 streams (256 in the fast tier) at a time through router and server: every token comes, once and in its place, and to whom it belongs; from
    the first connection on health, load and control calls are answered, on connections of their own. They are held until all
    are there, else a quick server would have ended the first. The figures are printed; how good they are depends on what else
    the machine does."""
    options = ["--max-running-requests", str(N_STREAMS), "--max-total-tokens", str(N_STREAMS * 384), *THOUSAND]
    aside = Elsewhere(free_port())
    with program("clime-server", "--model-path", STORIES, *options) as s, \
         program("clime-router", "--worker-urls", s.url, "--health-port", aside.port, *THOUSAND) as router:  # fmt: skip
        params = [thousandth(i - i % 2)[1]["sampling_params"] | {"sampling_seed": i} for i in range(64)]
        want = [reply["output_ids"] for reply in s.json("/generate", {"input_ids": [[1]] * 64, "sampling_params": params})]
        calls = {"main port": [(s, "GET", "/health"), (router, "GET", "/health"), (router, "GET", "/get_weight_version"),
                               (router, "POST", "/abort_request"), (s, "POST", "/abort_request")],
                 "health port": [(aside, "GET", "/health")]}  # fmt: skip
        done = threading.Event()
        s.json("/pause_generation", {"mode": "retract"})
        before = {p: (cpu_seconds(p), memory(p)) for p in (s, router)}
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            timed = {name: pool.submit(time_calls, these, done) for name, these in calls.items()}
            begun = time.monotonic()
            streams = []
            for i in range(N_STREAMS):
                path, body = thousandth(i)
                body = json.dumps(body)
                streams.append(dial(router, f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()))
            ended = pool.submit(read_streams, streams, lambda: time.monotonic() > begun + 10 * LIMIT)
            try:
                wait_for(lambda: waiting(s) == N_STREAMS)
                s.json("/continue_generation", {})
                came = ended.result()
            finally:
                done.set()
            took = time.monotonic() - begun
        after = {p: (cpu_seconds(p), memory(p)) for p in (s, router)}
        for c in streams:
            c.close()
        n_events = 0
        for i, data in enumerate(came):
            events = events_of(data)
            n_events += len(events)
            assert tokens_of(i % 2 == 0, events) == want[i % 64], i
        print(f"{N_STREAMS} streams of 150 tokens in {took:.1f} s, {n_events} events, {sum(map(len, came)) / 1e6:.0f} MB")
        for name, p in (("server", s), ("router", router)):
            cpu, rss = (b - a for a, b in zip(before[p], after[p]))
            print(f"{name}: {cpu / n_events * 1e6:.1f} us of a processor an event, {rss / 1e6:.0f} MB more than before")
        for name, future in timed.items():
            times = future.result()
            print(f"{len(times)} calls of the {name}: median {times[len(times) // 2] * 1e3:.0f} ms, slowest {times[-1] * 1e3:.0f} ms")
            assert times[-1] < 20 * SLOW and times[len(times) // 2] < 5 * SLOW


# ---- bodies that do not end ------------------------------------------------------------------------------------------


def memory(s):
    status = pathlib.Path(f"/proc/{s.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def test_half_sent_bodies():
    """Sixteen bodies of 60 MB whose last byte never comes: they share one budget, and small requests go on."""
    with program("clime-server", "--model-path", STORIES) as s:
        before, held = memory(s), []
        for _ in range(16):
            c = dial(s, b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (60 << 20))
            held.append(c)
            with contextlib.suppress(ConnectionError):  # refused in the middle
                c.sendall(b" " * ((60 << 20) - 1))
        grown = memory(s) - before
        print(f"16 half-sent bodies of 60 MB take {grown / 1e6:.0f} MB")
        assert post(s.url + "/generate", SHORT).status_code == 200
        for c in held:
            c.close()
        assert grown < (450e6 if SLOW == 1 else 675e6)  # a sanitizer keeps what was freed; without a budget it is 960e6
        large = SHORT | {"junk": "x" * (50 << 20)}
        wait_for(lambda: post(s.url + "/generate", large).status_code == 200)  # their room is free again


def test_a_body_that_pauses_is_waited_for_where_threads_are_free():
    """A second without a byte. While connections wait for a thread, who holds one so long gives it up."""
    half = b'POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{"text": '
    with program("clime-router", "--max-concurrent-requests", "8") as router:  # 72 threads
        for n_others, says in ((0, b"HTTP/1.1 503 "), (150, b"HTTP/1.1 408 ")):  # no worker; too slowly
            slow, others = dial(router, half), [dial(router, half) for _ in range(n_others)]
            time.sleep(1)
            with contextlib.suppress(ConnectionError):
                slow.sendall(b'"aaaaaaaa"}')
            assert slow.recv(13) == says
            for c in (slow, *others):
                c.close()


# ---- registration ----------------------------------------------------------------------------------------------------


def test_a_server_on_all_addresses_says_where_it_is():
    """0.0.0.0 is no address to come to: the one that leads to the router is."""
    with program("clime-router") as router, server("--host", "0.0.0.0", "--router", router.url) as s:
        wait_for(lambda: router.get("/readiness").status_code == 200)
        assert router.get("/list_workers").json()["urls"] == [s.url]
        assert router.json("/generate", SHORT)["output_ids"]


# ---- a machine without room for that many threads --------------------------------------------------------------------


@pytest.mark.skipif(SLOW > 1, reason="a sanitizer needs more address space than that to begin with")
def test_threads_that_cannot_be_started():
    """CivetWeb would go on with the threads that it got, fewer than there are slots, and leave none to others."""
    limit = 400 << 20
    command = [BUILD / "clime-router", "--port", "0", "--max-concurrent-requests", "4000"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=2 * LIMIT,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))  # fmt: skip
    print(done.stderr)
    assert done.returncode == 1 and "threads" in done.stderr.splitlines()[-1] and "invariant" not in done.stderr
