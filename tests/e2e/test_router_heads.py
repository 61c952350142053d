"""The head of a worker's answer, as a client of the router sees it. Workers are mocks that write theirs byte for byte."""

import gzip
import http.client

from mocks import workers
from programs import LIMIT, router_to


def says(head, body=b"{}", status=b"200 OK"):
    """A worker that has this head, with its own address for %PORT%, and a length, for its answers."""
    def answer(handler, asked):
        if handler.path != "/generate":
            return False
        lines = head.replace(b"%PORT%", str(handler.server.server_port).encode())
        handler.wfile.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s" % (status, len(body), lines, body))
        return True

    return answer


def ask(router, **headers):
    """(status, [(name in small letters, value)], body), the body as it came."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=LIMIT)
    try:
        connection.request("POST", "/generate", b"{}", headers)
        reply = connection.getresponse()
        return reply.status, [(name.lower(), value) for name, value in reply.getheaders()], reply.read()
    finally:
        connection.close()


def test_what_a_worker_says_of_its_answer_reaches_the_client():
    packed = gzip.compress(b'{"text":"packed"}')
    head = (b"Content-Type: application/x; " + b"a" * 300 + b"\r\nContent-Encoding: gzip\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
            b"ETag: \"7\"\r\nVary: Accept\r\nRetry-After: 9\r\nCache-Control: max-age=3\r\nX-Of-Worker: yes\r\n")  # fmt: skip
    with workers(1, says(head, packed)) as made, router_to([w.url for w in made]) as router:
        status, got, body = ask(router)
        assert (status, body) == (200, packed)
        for name, value in [("content-type", "application/x; " + "a" * 300), ("content-encoding", "gzip"), ("set-cookie", "a=1"),
                            ("set-cookie", "b=2"), ("etag", '"7"'), ("vary", "Accept"), ("retry-after", "9"),
                            ("cache-control", "max-age=3"), ("x-of-worker", "yes")]:  # fmt: skip
            assert got.count((name, value)) == 1, name
        assert made[0].calls()[0][2]["Accept-Encoding"] == "identity"


def test_a_redirection_leads_to_the_same_place_on_the_router():
    for there, here in [("http://127.0.0.1:%PORT%/v1/models?x=1", "/v1/models?x=1"), ("/v1/models", "/v1/models"),
                        ("http://127.0.0.1:%PORT%0/a", None), ("https://elsewhere.test/", None),
                        ("http://127.0.0.1:%PORT%//a.test/", None)]:  # fmt: skip
        head = b"Location: %s\r\n" % there.encode()
        with workers(1, says(head, b"", b"307 X")) as (worker,), router_to([worker.url]) as router:
            status, got, _ = ask(router)
            assert (status, dict(got)["location"]) == (307, here or there.replace("%PORT%", str(worker.port)))


def test_what_is_of_the_connection_to_the_worker_or_the_routers_to_say_stays_behind():
    head = (b"Connection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nTrailer: X-T\r\nUpgrade: h2c\r\nX-Request-ID: its\r\n"
            b"Alt-Svc: h3=\":1\"\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nAccess-Control-Allow-Origin: *\r\n"
            b"X-Clime-Stream: generate\r\nX No: 1\r\n X-Folded: 1\r\nX-Bad\r: 1\r\n")  # fmt: skip
    with workers(1, says(head)) as made, router_to([w.url for w in made]) as router:
        _, got, _ = ask(router, **{"X-Request-ID": "mine"})
        assert {name for name, _ in got} == {"date", "content-type", "content-length", "x-request-id"}
        assert "1970" not in dict(got)["date"] and dict(got)["x-request-id"] == "mine"


def test_a_stream_keeps_its_workers_head_and_one_that_is_packed_comes_whole():
    event = b'data: {"n": 1}\n\n'
    typed = b"Content-Type: text/event-stream\r\nX-Of-Worker: yes\r\n"
    packed = gzip.compress(event * 3)
    for head, body, cache in [(typed, event, "no-cache"), (typed + b"Cache-Control: no-store\r\n", event, "no-store"),
                              (typed + b"Content-Encoding: gzip\r\n", packed, None)]:  # fmt: skip
        with workers(1, says(head, body)) as made, router_to([w.url for w in made]) as router:
            _, got, read = ask(router)
            assert read == body and ("x-of-worker", "yes") in got
            assert [value for name, value in got if name == "cache-control"] == ([cache] if cache else [])


def test_a_head_that_is_too_large_is_no_failure_of_the_worker():
    head = b"".join(b"X-%d: %s\r\n" % (i, b"a" * 8000) for i in range(5))
    for body in b"{}", b"":
        with workers(1, says(head, body)) as made, router_to([w.url for w in made]) as router:
            status, _, told = ask(router)
            assert status == 502 and b"larger than 32768 bytes" in told
            worker, = router.get("/workers").json()["workers"]  # fmt: skip
            assert (worker["status"], worker["failed"]) == ("ready", 0)


def test_an_answer_with_two_lengths_is_none():
    """Of two that differ one reads the first and another the second: what is left over would be the next client's answer."""
    for head in b"Content-Length: 5\r\n", b"Content-Length: +2\r\n", b"content-length: 2, 3\r\n", b"Content-Length: 2x\r\n":
        with workers(1, says(head)) as (liar,), workers(1) as (other,), \
             router_to([liar.url, other.url], "--policy", "round_robin") as router:  # fmt: skip
            for _ in range(4):
                assert str(other.port).encode() in ask(router)[2]
            failed = {w["url"]: w["failed"] for w in router.get("/workers").json()["workers"]}
            assert failed[liar.url] > 0 and failed[other.url] == 0
    with workers(1, says(b"Content-Length: 2\r\n")) as made, router_to([w.url for w in made]) as router:
        assert ask(router)[0] == 200  # twice the same
    with workers(1, says(b"Content-Length: 3\r\n")) as made, router_to([w.url for w in made]) as router:
        assert ask(router)[0] == 502


def test_a_head_that_begins_by_going_on_with_the_one_before():
    """Its first line begins with a blank. libcurl took it for more of the last head's last line, which was free by then."""
    turn = []

    def answer(handler, asked):
        if handler.path != "/generate":
            return False
        turn.append(1)
        odd = len(turn) % 2
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"X-A: " if odd else b" goes: ") + b"a" * 3000 + b"\r\nContent-Length: 2\r\n\r\n{}")
        return True

    with workers(1, answer) as made, router_to([w.url for w in made]) as router:
        assert [ask(router)[0] for _ in range(20)] == [200, 502] * 10
        assert router.process.poll() is None
