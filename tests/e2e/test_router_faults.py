"""The router over workers that freeze, die, lie, are sick or busy, and over requests that make workers sick. Workers
are mocks; those that are frozen or killed are processes of their own."""

import concurrent.futures
import contextlib
import json
import re
import resource
import socket
import subprocess
import threading
import time

import anthropic
import httpx
import openai
import pytest
from mocks import Handler, Worker, processes, workers
from programs import BUILD, LIMIT, SLOW, program, router_to, web

QUICK = ("--health-check-interval", "0.1", "--health-check-timeout", "1")
LONG = min(100 * SLOW, 600)  # seconds that nothing here should need, however busy the machine is; no probe may take longer


def fleet(router):
    return {w["url"]: w for w in router.get("/workers").json()["workers"]}


def states(router):
    return sorted(w["status"] for w in fleet(router).values())


def wait_for(what):
    deadline = time.monotonic() + LONG
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def urls(made):
    return ["--worker-urls", *(w.url for w in made)]


def ask(router, body=None, timeout=LONG):
    return web.post(router.url + "/generate", json=body or {"text": "x"}, timeout=timeout)


# ---- requests that make workers sick, and workers that are ----


def sick(handler, body):
    if b"poison" in body:
        handler.reply(500, {"message": "it broke"})
    return b"poison" in body


def test_a_poison_request_is_tried_on_two_workers_and_counts_against_none():
    with workers(6, sick) as made, router_to([w.url for w in made]) as router:
        for _ in range(4):
            reply = ask(router, {"text": "poison"})
            assert (reply.status_code, reply.json()["message"]) == (500, "it broke")
        assert sum(len(w.calls()) for w in made) == 8
        assert [(w["status"], w["failed"]) for w in fleet(router).values()] == [("ready", 0)] * 6


def test_a_request_that_breaks_the_connection_is_given_up_after_two_workers():
    def fall_over(handler, body):
        if b"poison" in body:
            raise ConnectionError
        return False

    with workers(6, fall_over) as made, router_to([w.url for w in made]) as router:
        reply = ask(router, {"text": "poison"})
        assert reply.status_code == 502
        assert sum(len({c[3] for c in w.calls()}) for w in made) == 2  # libcurl itself may ask one twice


def test_a_sick_worker_is_found_by_what_another_one_can_do():
    """It answers its probes and fails every request that others serve."""
    with workers(1, lambda h, b: h.path == "/generate" and (h.reply(500, {}) or True)) as (ill,), workers(2) as well, \
         program("clime-router", *urls([ill, *well]), "--health-success-threshold", "1000") as router:  # fmt: skip
        wait_for(lambda: ask(router).status_code == 200 and fleet(router)[ill.url]["status"] == "down")
        assert [fleet(router)[w.url]["failed"] for w in well] == [0, 0]


def test_a_worker_that_does_not_take_the_routers_key_is_out():
    """It answers at once, so it would be the least loaded one for ever; and its 401 is nothing that a client can mend."""
    stranger = lambda h, b: h.path == "/generate" and (h.reply(401, {"message": "wrong key"}) or True)
    with workers(1, stranger) as (odd,), workers(2) as well, \
         program("clime-router", "--worker-api-key", "k", *urls([odd, *well]), "--health-success-threshold", "1000") as router:  # fmt: skip
        assert [ask(router).status_code for _ in range(30)] == [200] * 30
        assert fleet(router)[odd.url]["status"] == "down" and [fleet(router)[w.url]["failed"] for w in well] == [0, 0]
    with workers(3, stranger) as made, program("clime-router", "--worker-api-key", "k", *urls(made)) as router:
        reply = ask(router)
        assert reply.status_code == 502 and "router's key" in reply.json()["message"]
    with workers(1, stranger) as made, router_to([made[0].url]) as router:  # the client's own key
        assert (ask(router).status_code, fleet(router)[made[0].url]["failed"]) == (401, 0)


def test_what_one_worker_does_not_have_is_asked_of_one_more():
    here = {"/generate": 404, "/v1/completions": 405, "/v1/chat/completions": 403, "/v1/responses": 501, "/v1/messages": 307}

    def missing(handler, body):
        if handler.path in here:
            handler.reply(here[handler.path], {"message": "not here"})
        return handler.path in here

    with workers(1, missing) as (odd,), workers(2) as well, router_to([odd.url, *(w.url for w in well)]) as router:
        for _ in range(10):
            assert {router.post(path, {}).status_code for path in here} == {200}
        assert odd.calls() and f"what {odd.url} has not" in router.log()
        assert {w["status"] for w in fleet(router).values()} == {"ready"}
    with workers(3, missing) as made, router_to([w.url for w in made]) as router:
        reply = ask(router)
        assert (reply.status_code, reply.json()["message"]) == (404, "not here")
        assert sum(len(w.calls()) for w in made) == 2 and "not" not in router.log().split("serving on")[1]


def test_a_busy_worker_is_no_failed_one_and_its_answer_stays():
    def busy(handler, body):
        if handler.path == "/generate":
            handler.reply(429, {"message": "full"}, Retry_After="7")
        return handler.path == "/generate"

    with workers(2, busy) as made, router_to([w.url for w in made]) as router:
        for _ in range(5):
            reply = ask(router)
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
        assert [(w["status"], w["failed"]) for w in fleet(router).values()] == [("ready", 0)] * 2


def test_an_answer_over_the_limit_says_so_and_counts_against_nobody():
    def large(handler, body):
        if handler.path == "/generate":
            handler.reply(200, b"x" * 100_000)
        return handler.path == "/generate"

    with workers(3, large) as made, router_to([w.url for w in made], "--max-payload-size", "50k") as router:
        for _ in range(4):
            reply = ask(router)
            assert reply.status_code == 502 and "51200 bytes" in reply.json()["message"]
        assert router.log().count("is larger than 51200 bytes") == 4
        assert sum(len(w.calls()) for w in made) == 4
        assert [(w["status"], w["failed"]) for w in fleet(router).values()] == [("ready", 0)] * 3


def test_a_worker_that_lies_about_its_answer_is_not_believed():
    """Fewer bytes than declared, a chunk that is none, a status line that is none, an end inside the head, a status that is no
    answer's: another worker is asked."""
    def short(handler, body):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
        raise ConnectionError

    def no_chunk(handler, body):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n")
        raise ConnectionError

    def no_status(handler, body):
        handler.wfile.write(b"\x16\x03\x01 200 OK\r\n\r\n{}")
        raise ConnectionError

    def half_head(handler, body):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
        raise ConnectionError

    def switches(handler, body):
        handler.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n{}")
        raise ConnectionError

    def past_all(handler, body):
        handler.reply(999)
        return True

    def endless(handler, body):
        """A trailer of more lines than anybody wants to keep."""
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        handler.wfile.write((b"X-A: " + b"a" * 1000 + b"\r\n") * 300 + b"\r\n")
        return True

    for lie in short, no_chunk, no_status, half_head, switches, past_all, endless:
        def answer(handler, body, lie=lie):
            return handler.path == "/generate" and lie(handler, body)

        with workers(1, answer) as (liar,), workers(1) as (other,), \
             router_to([liar.url, other.url], "--policy", "round_robin") as router:  # fmt: skip
            for _ in range(4):
                assert ask(router).json()["port"] == other.port
            assert fleet(router)[liar.url]["failed"] > 0 and fleet(router)[other.url]["failed"] == 0


def test_a_workers_head_is_what_its_head_says():
    """A line of its trailer is none of it, nor is what stands behind a lone CR; and answers before the answer say nothing of it."""
    def answer(handler, body):
        if handler.path == "/generate":
            handler.wfile.write(
                b"HTTP/1.1 103 Early Hints\r\nContent-Type: text/event-stream\r\n\r\nHTTP/1.1 503 X\r\nContent-Type: text/x\r\n"
                b"Retry-After: 7\rX-More: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nContent-Type: text/y\r\n\r\n"
            )
        return handler.path == "/generate"

    with workers(1, answer) as made, router_to([w.url for w in made]) as router:
        for _ in range(3):
            reply = ask(router)
            assert (reply.status_code, reply.text, reply.headers["content-type"]) == (503, "{}", "text/x")
            assert reply.headers["retry-after"] == "7 X-More: 1" and "x-more" not in reply.headers


# ---- workers that freeze ----


def test_what_a_frozen_worker_held_is_answered_by_another():
    with processes(2) as (a, b), program("clime-router", *QUICK, *urls([a]), "--control-timeout", "600") as router, \
         concurrent.futures.ThreadPoolExecutor(8) as pool:  # fmt: skip
        wait_for(lambda: states(router) == ["ready"])
        began = threading.Event()

        def stream():
            with web.stream("POST", router.url + "/generate", json={"stream": 100_000}, timeout=LONG) as reply:
                return [began.set() or line for line in reply.iter_lines()]

        asked = [pool.submit(ask, router, {"wait": 10_000, "at": a.port}) for _ in range(3)]
        streamed = pool.submit(stream)
        wait_for(lambda: fleet(router)[a.url]["load"] == 4)
        assert began.wait(LONG)
        a.freeze()
        router.post("/workers", {"url": b.url})
        for reply in asked:
            assert reply.result(LONG).json()["port"] == b.port
        events = [json.loads(line[6:]) for line in streamed.result(LONG) if line.startswith("data: {")]
        assert len(events) > 1 and "n" in events[0]
        assert events[-1]["error"]["code"] == 502 and a.url in events[-1]["error"]["message"]
        assert fleet(router)[a.url]["status"] == "down"
        assert router.post("/pause_generation").status_code == 207  # and it did not wait for the frozen one


def test_a_control_call_does_not_wait_for_a_worker_that_freezes_under_it():
    with processes(2) as made, program("clime-router", *QUICK, *urls(made)) as router:
        wait_for(lambda: states(router) == ["ready", "ready"])
        made[0].freeze()
        reply = web.post(router.url + "/pause_generation", json={}, timeout=LONG)
        assert reply.status_code == 207
        by_url = {w["url"]: w["status"] for w in reply.json()["workers"]}
        assert by_url == {made[0].url: 0, made[1].url: 200}


def test_a_control_call_has_the_time_that_it_asks_for():
    given_up = threading.Event()

    def answer(handler, body):
        if handler.path.startswith("/pause"):
            if "timeout" in handler.path:
                time.sleep(1.5)
            else:
                given_up.wait(LONG)
            handler.reply(200, {"status": "paused"})
        return handler.path.startswith("/pause")

    with workers(1, answer) as made, program("clime-router", *QUICK, *urls(made), "--control-timeout", "1") as router:
        wait_for(lambda: states(router) == ["ready"])
        assert web.post(router.url + "/pause?mode=wait", timeout=LONG).status_code == 502
        given_up.set()
        assert web.post(router.url + "/pause?mode=wait&timeout=60", timeout=LONG).status_code == 200


def test_what_all_workers_refuse_alike_is_the_clients_fault():
    """Else it would ask again, or look for what is wrong with the fleet."""

    def answer(handler, body):
        said = json.loads(body) if body.startswith(b"{") else {}
        by = said.get(str(handler.server.server_port), said.get("all"))
        return bool(by and (handler.reply(by, {"message": f"no: {by}"}) or True))

    with workers(2, answer) as made, router_to([w.url for w in made]) as router, \
         program("clime-router", "--worker-api-key", "k", *urls(made)) as keyed:  # fmt: skip
        a, b = (str(w.port) for w in made)
        for said, status in [({"all": 400}, 400), ({"all": 404}, 404), ({"all": 401}, 401), ({a: 400}, 207), ({a: 400, b: 404}, 502),
                             ({"all": 500}, 502), ({"all": 503}, 502), ({a: 400, b: 500}, 502), ({a: 500, b: 400}, 502)]:  # fmt: skip
            reply = router.post("/update_weights", said)
            assert reply.status_code == status, said
            assert [w["status"] for w in reply.json()["workers"]] == [said.get(p, said.get("all", 200)) for p in (a, b)]
        assert reply.json()["workers"][1]["body"] == {"message": "no: 400"} and reply.json()["success"] is False
        # the router's own key is nothing that a client can mend
        assert [keyed.post("/update_weights", {"all": n}).status_code for n in (401, 403, 400)] == [502, 502, 400]


def test_a_control_call_ends_with_the_client_that_made_it():
    """Or a worker that works on it for an hour holds the router's thread as long."""
    asked, ended = threading.Event(), threading.Event()

    def works(handler, _):
        if handler.path != "/pause":
            return False
        asked.set()
        if handler.connection.recv(1) == b"":
            ended.set()
        raise ConnectionError

    with workers(1, works) as made, router_to([w.url for w in made]) as router:
        with socket.create_connection(("127.0.0.1", router.port)) as client:
            client.sendall(b"POST /pause HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            assert asked.wait(LIMIT)
        assert ended.wait(LIMIT)


def test_long_answers_of_a_control_call_are_whole():
    """A model of a hundred experts a layer has names for megabytes."""
    said = {"per_engine_checksum": "ab" * 32, "checksums": {f"model.layers.{i}.mlp.experts.up_proj.weight": "cd" * 32 for i in range(30_000)}}

    def names(handler, _):
        if handler.path != "/weights_checker":
            return False
        handler.reply(200, said)
        return True

    with workers(2, names) as made, router_to([w.url for w in made]) as router:
        reply = router.post("/weights_checker", {"action": "checksum"})
        assert reply.status_code == 200, reply.text[:300]
        assert reply.json()["per_engine_checksum"] == "ab" * 32
        assert [w["body"] for w in reply.json()["workers"]] == [said, said]


def test_an_answer_without_end_takes_little_memory():
    """Of a control call: one that is declared as a terabyte, one in chunks that never stop. The others' are there. All that are
    held at a time share 512 MiB."""
    def declared(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
        while True:
            handler.wfile.write(b" " * (1 << 20))

    def in_chunks(handler):
        handler.stream(iter(lambda: b" " * (1 << 20), None))

    def highest(pid):
        return int(re.search(r"VmHWM:\s*(\d+) kB", open(f"/proc/{pid}/status").read())[1]) << 10

    def lies(how):
        return lambda handler, _: handler.path == "/is_paused" and (how(handler), True)[1]

    with workers(1, lies(declared)) as (a,), workers(1, lies(in_chunks)) as (b,), workers(38) as honest, \
         router_to([w.url for w in (a, b, *honest)]) as router:  # fmt: skip
        before = highest(router.process.pid)
        reply = router.get("/is_paused")
        assert reply.status_code == 207, reply.text[:300]
        said = {w["url"]: w for w in reply.json()["workers"]}
        assert all(said[w.url]["status"] == 200 and said[w.url]["body"]["port"] == w.port for w in honest)
        for liar in a, b:
            assert said[liar.url]["status"] == 0 and f"the reply is larger than {(512 << 20) // 40} bytes" in said[liar.url]["body"]
        assert highest(router.process.pid) - before < 128 << 20


def test_workers_are_asked_together():
    """Each answers its first probe only when all six have been asked: one after another, silent ones would take the
    time limit of each to be found."""
    together = threading.Barrier(6)

    def meet(handler, body):
        worker = handler.server.worker
        if handler.path == "/health" and not worker.healthy:
            together.wait(LONG)
            worker.healthy = True
        return False

    with workers(6, meet) as made:
        for w in made:
            w.healthy = False
        with program("clime-router", "--health-check-timeout", str(LONG), *urls(made)) as router:
            wait_for(lambda: states(router) == ["ready"] * 6)


def last_events(lines):
    """The last event of a stream and the one before it, which has the error."""
    events = [line[6:] for line in lines if line.startswith("data: ")]
    return json.loads(events[-2])["error"], events[-1]


def test_a_worker_killed_in_a_stream_ends_it_with_an_error():
    for path in "/generate", "/v1/chat/completions":
        with processes(1) as (w,), program("clime-router", *QUICK, *urls([w])) as router:
            lines = []
            with web.stream("POST", router.url + path, json={"stream": 1000}, timeout=LONG) as reply:
                for line in reply.iter_lines():
                    lines.append(line)
                    if len(lines) == 4:
                        w.kill()
            error, end = last_events(lines)
            assert error["code"] == 502 and error["message"] and end == "[DONE]"


def test_a_stream_cut_inside_an_event_still_ends_with_a_whole_one():
    def cut(handler, body):
        if handler.path == "/generate":
            handler.stream(iter_then_break([b'data: {"n": 1}\n\n', b'data: {"n": 2, "te']))
        return handler.path == "/generate"

    def iter_then_break(events):
        yield from events
        raise ConnectionError

    with workers(1, cut) as made, router_to([w.url for w in made]) as router:
        blocks = [b for b in ask(router, {"stream": True}).text.split("\n\n") if b]
        assert blocks[0] == 'data: {"n": 1}' and blocks[2] == "data: [DONE]"
        assert json.loads(blocks[1][6:])["error"]["code"] == 502


def test_clients_of_other_forms_meet_the_error_of_a_cut_stream():
    """Anthropic's package takes no event without a name: it would end such a message in silence."""
    begin = {"/v1/messages": {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [], "usage": {}}},
             "/v1/responses": {"type": "response.in_progress", "sequence_number": 0, "response": {}}}  # fmt: skip

    def cut(handler, body):
        def events(first):
            yield f"event: {first['type']}\ndata: {json.dumps(first)}\n\n".encode()
            raise ConnectionError

        if handler.path in begin:
            handler.stream(events(begin[handler.path]))
        return handler.path in begin

    with workers(1, cut) as made, router_to([w.url for w in made], *QUICK) as router:
        with anthropic.Anthropic(base_url=router.url, api_key="none", max_retries=0) as c, pytest.raises(anthropic.APIStatusError) as e:
            for _ in c.messages.create(model="", max_tokens=4, messages=[{"role": "user", "content": "a"}], stream=True):
                pass
        assert e.value.type == "api_error" and e.value.body["type"] == "error"
        with openai.OpenAI(base_url=router.url + "/v1", api_key="none", max_retries=0) as c, pytest.raises(openai.APIError):
            for _ in c.responses.create(model="", input="a", stream=True):
                pass


# ---- who is ready ----


def test_a_dead_worker_just_added_is_not_ready():
    with program("clime-router", "--health-check-interval", "0.1") as router:
        reply = router.post("/workers", {"url": "http://127.0.0.1:9"})
        assert reply.status_code == 202
        assert states(router) == ["down"]
        assert router.get("/readiness").status_code == 503
        with workers(1) as (w,):
            w.healthy = False
            router.post("/workers", {"url": w.url})
            assert states(router) == ["down", "down"]
            w.healthy = True
            wait_for(lambda: states(router) == ["down", "ready"])
            assert router.get("/readiness").json() == {"status": "ready", "healthy_workers": 1, "total_workers": 2}
            assert router.get("/liveness").status_code == 200


def test_a_worker_is_ready_when_its_registration_is_answered():
    with workers(1) as (w,), program("clime-router", "--health-check-interval", "60") as router:
        router.post("/workers", {"url": w.url})
        assert states(router) == ["ready"]


def test_probes_go_to_a_workers_health_port():
    """A worker whose main port is full of requests says how it is on another one, and does so when it registers."""
    def only_health(handler, body):
        handler.reply(200)
        return True

    with workers(1) as (w,), workers(1, only_health) as (h,), program("clime-router", *QUICK) as router:
        w.healthy = False
        assert router.post("/workers", {"url": w.url, "health_port": h.port}).status_code == 202
        assert states(router) == ["ready"]
        assert router.post("/workers", {"url": w.url, "health_port": 0}).status_code == 400
        assert ask(router).json()["port"] == w.port
        router.post("/workers", {"url": w.url})
        wait_for(lambda: states(router) == ["down"])


def test_a_worker_with_older_weights_than_the_fleet_is_not_ready():
    with workers(2) as (a, b), program("clime-router", *QUICK, *urls([a, b])) as router:
        def announce(version):
            return router.client.put("/weight_version", json={"weight_version": version}).status_code

        a.version = b.version = "7"
        assert announce("7") == 200
        wait_for(lambda: states(router) == ["ready", "ready"])
        b.version = "default"  # it was started again
        wait_for(lambda: fleet(router)[b.url]["status"] == "stale")
        for _ in range(6):
            assert ask(router).json()["port"] == a.port
        b.version = "8"  # newer than announced: an update that is under way
        wait_for(lambda: states(router) == ["ready", "ready"])
        assert announce("8") == 200
        wait_for(lambda: fleet(router)[a.url]["status"] == "stale")
        assert fleet(router)[a.url]["weight_version"] == "7"
        with workers(1) as (c,):  # what registers by itself is asked as well
            router.post("/workers", {"url": c.url})
            assert fleet(router)[c.url]["status"] == "stale"
        assert announce(None) == 200
        wait_for(lambda: fleet(router)[a.url]["status"] == "ready")
        assert announce(5) == 400


def test_half_an_answer_to_a_probe_is_none():
    """A head without its body says nothing, and who answers /health and not which weights it has keeps to its last word."""
    hung = threading.Event()

    def half(handler, body):
        if handler.path == "/health":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok")
            hung.wait(LONG)
            raise ConnectionError
        return False

    def mute(handler, body):
        if handler.path == "/get_weight_version" and (hung.wait(0) or handler.server.worker.version is None):
            raise ConnectionError
        return False

    with workers(1, half) as (a,), workers(3, mute) as (b, c, d), program("clime-router", *QUICK, *urls([a, b, c, d])) as router:
        b.version, c.version, d.version = "7", "6", None
        wait_for(lambda: states(router) == ["down", "ready", "ready", "ready"])
        router.client.put("/weight_version", json={"weight_version": "7"})
        told = lambda: [fleet(router)[w.url]["status"] for w in (a, b, c, d)]
        wait_for(lambda: told() == ["down", "ready", "stale", "down"])
        hung.set()
        n = len(c.seen)
        wait_for(lambda: len(c.seen) > n + 12)  # some probes on
        assert told() == ["down", "ready", "stale", "down"]
        hung.clear()
        d.version = "7"
        wait_for(lambda: told() == ["down", "ready", "stale", "ready"])


def test_new_weights_wait_for_no_round_of_probes():
    """Whose version is announced, by name or by an update for all, is asked at once: the next round is far."""
    def update(handler, body):
        if handler.path == "/update_weights_from_disk":
            handler.server.worker.version = json.loads(body)["weight_version"]
        return False

    with workers(2, update) as (a, b), program("clime-router", "--health-check-interval", "600", *urls([a, b])) as router:
        announce = lambda version: router.client.put("/weight_version", json={"weight_version": version})
        for version in ("7", "8", "9"):
            a.version = version
            assert announce(version).status_code == 200
            assert ask(router).status_code == 200  # nobody is held back by what he had before
            wait_for(lambda: fleet(router)[a.url]["weight_version"] == version and fleet(router)[b.url]["status"] == "stale")
            assert ask(router).json()["port"] == a.port
        assert router.post("/update_weights_from_disk", {"model_path": "/x", "weight_version": "10"}).status_code == 200
        wait_for(lambda: states(router) == ["ready", "ready"] and fleet(router)[a.url]["weight_version"] == "10")
        probed = len(a.calls("/get_weight_version"))
        assert [announce("10").status_code for _ in range(5)] == [200] * 5  # nothing new: nobody is asked
        assert ask(router).status_code == 200 and len(a.calls("/get_weight_version")) == probed


def test_an_update_for_the_whole_fleet_sets_its_version():
    def update(handler, body):
        if handler.path == "/update_weights_from_disk":
            handler.server.worker.version = json.loads(body)["weight_version"]
        return False

    with workers(2, update) as (a, b), program("clime-router", *QUICK, *urls([a, b])) as router:
        wait_for(lambda: states(router) == ["ready", "ready"])
        assert router.post("/update_weights_from_disk", {"model_path": "/x", "weight_version": "a"}).status_code == 200
        assert router.get("/get_weight_version").json()["weight_version"] == "a"
        b.version = "default"
        wait_for(lambda: fleet(router)[b.url]["status"] == "stale")


def test_loads_and_version_in_the_shape_of_one_server():
    def loads(handler, body):
        if handler.path.startswith("/v1/loads"):
            handler.reply(200, {"timestamp": "t", "version": "v", "dp_rank_count": 1,
                                "loads": [{"dp_rank": 0, "num_running_reqs": 3, "token_usage": 0.5}]})  # fmt: skip
            return True
        return False

    with workers(2, loads) as made, router_to([w.url for w in made]) as router:
        reply = router.get("/v1/loads").json()
        assert reply["dp_rank_count"] == 2 and reply["version"] and reply["timestamp"]
        assert [(rank["dp_rank"], rank["num_running_reqs"], rank["token_usage"]) for rank in reply["loads"]] == \
            [(0, 3, 0.5), (1, 3, 0.5)]  # fmt: skip
        assert {rank["worker"] for rank in reply["loads"]} == {w.url for w in made}
        assert [w["status"] for w in reply["workers"]] == [200, 200]
        made[0].version = made[1].version = "3"
        assert router.get("/get_weight_version").json()["weight_version"] == "3"
        made[0].version = "4"
        reply = router.get("/get_weight_version").json()
        assert reply["weight_version"] is None and reply["success"]


# ---- descriptors ----


def few_descriptors(n):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))


def test_few_descriptors_are_never_a_workers_fault(tmp_path):
    """200 clients, 8 workers, 512 descriptors: fewer at a time, and a line that says so. The mocks share one Python with
    the clients, so that their answers to probes may take long."""
    def slow(handler, body):
        if handler.path == "/generate":
            time.sleep(0.05)
        return False

    with workers(8, slow) as made:
        log, port_file = tmp_path / "log", tmp_path / "port"
        with open(log, "wb") as out:
            process = subprocess.Popen([BUILD / "clime-router", "--port", "0", "--port-file", str(port_file),
                                        "--health-check-timeout", "60", *urls(made)],
                                       stderr=out, preexec_fn=few_descriptors(512))  # fmt: skip
        wait_for(port_file.exists)
        url = f"http://127.0.0.1:{int(port_file.read_text())}"
        counts, lock = {}, threading.Lock()

        def client(_):
            for _ in range(3):
                code = None
                while code in (None, 408, 503):  # threads are short: what had sent nothing for a while gave way to others
                    with contextlib.suppress(httpx.RemoteProtocolError):
                        code = web.post(url + "/generate", json={"text": "x"}, timeout=LONG).status_code
                with lock:
                    counts[code] = counts.get(code, 0) + 1

        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            list(pool.map(client, range(200)))
        listed = web.get(url + "/workers", timeout=LONG).json()["workers"]
        process.terminate()
        assert process.wait(LONG) == 0
        assert set(counts) <= {200, 429} and counts[200] > 0, counts
        assert [(w["status"], w["failed"]) for w in listed] == [("ready", 0)] * 8
        assert "descriptors" in log.read_text()


def test_connections_that_are_kept_are_few():
    """After a burst of 200 there are no 200 connections left that hold a thread of a worker each."""
    def slow(handler, body):
        if handler.path == "/generate":
            time.sleep(0.3)
        return False

    with workers(2, slow) as made, router_to([w.url for w in made], "--max-concurrent-requests", 200) as router:
        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            assert {r.status_code for r in pool.map(lambda _: ask(router), range(200))} == {200}
        ports = {w.port for w in made}

        def kept():
            return sum(1 for line in open(f"/proc/{router.process.pid}/net/tcp").readlines()[1:]
                       if int(line.split()[2].split(":")[1], 16) in ports and line.split()[3] == "01")  # fmt: skip

        assert kept() <= 64
        wait_for(lambda: kept() == 0)


def test_a_second_burst_does_not_wait_for_connections_that_the_first_has_left(monkeypatch):
    """A worker with a thread for each connection, as servers have: an idle one kept by somebody else holds it until the
    worker ends it. Servers do after 20 s, and bursts took up to 21; this one takes so long that nothing else can."""
    monkeypatch.setattr(Handler, "timeout", 300)

    def slow(handler, body):
        if handler.path == "/generate":
            time.sleep(0.1)
        return False

    with workers(1, slow) as (w,), router_to([w.url], "--max-retries", "0") as router:
        threads = 40
        w.listener.limit_threads(threads)
        took = []
        for _ in range(5):
            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                began = time.monotonic()
                assert {r.status_code for r in pool.map(lambda _: ask(router), range(160))} == {200}
                took.append(time.monotonic() - began)
        print("bursts took", [f"{t:.1f}" for t in took])
        assert max(took) < 150


# ---- the end ----


def test_sigterm_finishes_what_is_in_flight():
    seen = threading.Event()  # by the client, that the router drains

    def answer(handler, body):
        if b"stream" in body:
            handler.stream(n for n in ("first", "last") if n == "first" or seen.wait(LONG))
        return b"stream" in body or handler.path == "/generate" and not seen.wait(LONG)

    with workers(1, answer) as (w,), program("clime-router", *QUICK, *urls([w])) as router, \
         concurrent.futures.ThreadPoolExecutor(8) as pool:  # fmt: skip
        wait_for(lambda: states(router) == ["ready"])
        plain = pool.submit(ask, router)
        stream = pool.submit(lambda: ask(router, {"stream": 2}).text)
        wait_for(lambda: fleet(router)[w.url]["load"] == 2)
        keep = web.Client(base_url=router.url, timeout=LONG)
        assert keep.get("/health").status_code == 200
        router.process.terminate()
        wait_for(lambda: keep.get("/readiness").status_code == 503)
        reply = keep.post("/generate", json={"text": "x"})
        assert reply.status_code == 503 and "retry-after" in reply.headers
        keep.close()
        seen.set()
        assert plain.result(LONG).status_code == 200
        assert "data: last" in stream.result(LONG)


def test_sigterm_ends_what_does_not_finish_with_a_503():
    with processes(1) as (w,), program("clime-router", *urls([w]), "--drain-timeout", "0.5") as router, \
         concurrent.futures.ThreadPoolExecutor(8) as pool:  # fmt: skip
        wait_for(lambda: states(router) == ["ready"])
        began = threading.Event()

        def read():
            with web.stream("POST", router.url + "/generate", json={"stream": 6000}, timeout=LONG) as reply:
                return [began.set() or line for line in reply.iter_lines()]

        plain, stream = pool.submit(ask, router, {"wait": 300}), pool.submit(read)
        wait_for(lambda: fleet(router)[w.url]["load"] == 2)
        assert began.wait(LONG)
        router.process.terminate()
        reply = plain.result(LONG)
        assert reply.status_code == 503 and "retry-after" in reply.headers
        assert last_events(stream.result(LONG))[0]["code"] == 503


def test_sigterm_waits_for_no_probe():
    """One is open to a worker that says nothing, and may be for ten minutes."""
    asked, over = threading.Event(), threading.Event()

    def silent(handler, _):
        asked.set()
        over.wait(LONG)
        raise ConnectionError

    with workers(1, silent) as made, program("clime-router", *urls(made), "--health-check-timeout", "600") as router:
        assert asked.wait(LIMIT)
        router.process.terminate()
        assert router.process.wait(LIMIT) == 0
        over.set()


# ---- starting ----


@pytest.mark.parametrize("words, says", [
    (["--port", "70000"], "port"),
    (["--polcy", "random"], "--policy"),
    (["--worker-urls", "localhost:1"], "http://host:port"),
    (["--host", "1.2.3"], "1.2.3"),
])  # fmt: skip
def test_bad_options_are_one_line_at_once(words, says):
    done = subprocess.run([BUILD / "clime-router", *words], capture_output=True, text=True, timeout=LONG)
    assert done.returncode != 0 and done.stderr.count("\n") == 1 and says in done.stderr


def test_a_port_in_use_is_one_line():
    with workers(1) as (w,):
        done = subprocess.run([BUILD / "clime-router", "--port", str(w.port)], capture_output=True, text=True,
                              timeout=LONG)  # fmt: skip
        assert done.returncode != 0 and done.stderr.count("\n") == 1 and str(w.port) in done.stderr


def test_version():
    done = subprocess.run([BUILD / "clime-router", "--version"], capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0 and done.stdout.startswith("clime-router ")
