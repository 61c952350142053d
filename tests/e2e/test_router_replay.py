"""Streams of /generate whose worker dies, freezes or ends: another one goes on, and the client sees one answer, which is
the undisturbed one bit for bit. Workers are real servers behind a gate that lets so much of each stream through, so that
what is broken off is in the middle on any machine."""

import concurrent.futures
import contextlib
import json
import signal
import socket
import threading

import pytest
from mocks import processes, workers
from programs import LIMIT, STORIES, Program, program, server, web
from test_resumed_replies import EACH_TOKEN, lasting
from test_router_faults import LONG, ask, fleet, states, urls, wait_for

LENGTHS = ("output_token_logprobs_length", "output_token_sampling_mask_length")  # of an event
QUICK = ("--health-check-interval", "0.1", "--health-check-timeout", "2", "--health-failure-threshold", "2",
         "--replay-wait", LONG)  # fmt: skip


@pytest.fixture(scope="module")
def well():
    with server() as made:
        yield made


class Gate:
    """Stands before a server; of each event stream `events` events pass, then nothing until the connection ends."""

    def __init__(self, server, events):
        self.server, self.events, self.held = server, events, 0
        self.passed = []  # output_ids of the events that the last held stream let through
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                inner, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(inner,), daemon=True).start()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.server.port))

    def serve(self, inner):
        """One request after another, as the router asks them."""
        with contextlib.suppress(OSError), inner:
            while request := self.message(inner):
                with self.connect() as outer:
                    outer.sendall(request)
                    while (how := self.pass_on(outer, inner)) == "again":
                        outer.close()
                        outer = self.connect()  # noqa: PLW2901
                        outer.sendall(request)
                    outer.close()
                    if how == "lost":
                        return

    @staticmethod
    def message(source):
        """A head and as many bytes as it says."""
        seen = b""
        while b"\r\n\r\n" not in seen:
            if not (data := source.recv(1 << 16)):
                return b""
            seen += data
        head, _, rest = seen.partition(b"\r\n\r\n")
        lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        while lengths and len(rest) < lengths[0]:
            data = source.recv(1 << 16)
            seen, rest = seen + data, rest + data
        return seen

    def pass_on(self, source, sink):
        """A stream stops behind an event, in the middle of the next; where a server that was quick has told all in fewer
        events, nothing is passed on and it is asked again. Another answer goes through."""
        seen, passed = b"", 0
        while data := source.recv(1 << 16):
            seen += data
            if b"\r\n\r\n" not in seen:
                continue
            if b"text/event-stream" not in seen:
                sink.sendall(seen[passed:])
                passed = len(seen)
                head, _, rest = seen.partition(b"\r\n\r\n")
                length = next(int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:"))
                if len(rest) >= length:
                    return "done"
                continue
            if self.events is None:  # open
                sink.sendall(seen[passed:])
                passed = len(seen)
                continue
            if b"[DONE]" in seen:
                return "again"
            at = 0
            for _ in range(self.events):
                at = seen.find(b"\n\n", at) + 2
                if at == 1:
                    break
            if at == 1 or len(seen) < at + 40 or b'"finish_reason":{' in seen:
                continue
            sink.sendall(seen[: at + 40])
            with self.lock:
                self.held += 1
                events = [json.loads(line[6:]) for line in seen[:at].split(b"\n") if line.startswith(b"data: {")]
                self.passed = [e.get("output_ids", []) for e in events]
            while source.recv(1 << 16):
                pass
            return "lost"
        return "lost"

    def close(self):
        """Nobody gets in any more."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # or accept would go on in its thread
        self.listener.close()


@contextlib.contextmanager
def gated(n, events=3, threads=40):
    """Servers behind gates, each in a process that the test may end as it likes."""
    made = [Program("clime-server", "--model-path", STORIES, "--http-threads", threads) for _ in range(n)]
    gates = [Gate(s, events) for s in made]
    try:
        yield gates
    finally:
        for g in gates:
            g.close()
            with contextlib.suppress(ProcessLookupError):
                g.server.process.send_signal(signal.SIGCONT)
            g.server.stop(signal.SIGKILL)


def bodies():
    """All that a stream may be: cumulative and incremental, text and ids, several outputs, seeds given and not."""
    for i in range(16):
        params = {"max_new_tokens": 400 + i, "stream_interval": 7, "ignore_eos": True}
        params |= {"top_k": 12, "top_p": 0.9} if i % 8 > 5 else {}
        params |= [{}, {"frequency_penalty": 0.3}, {"n": 2}, {"stop": ["zzzzzz"], "temperature": 0}][i % 4]
        yield {"sampling_params": params | ({"sampling_seed": i} if i % 5 else {}), "stream": True,
               "incremental_streaming_output": i % 2 == 1, "return_logprob": i % 3 > 0, "top_logprobs_num": i % 3,
               "token_ids_logprob": [7] if i % 3 else None, "return_sampling_mask": i % 8 > 5,
               } | ({"text": "Once upon a time"} if i % 4 else {"input_ids": [1] + [300 + i] * i})  # fmt: skip


def joined(events, incremental):
    """The outputs of a stream, whole, by index. Cumulative ones must only grow."""
    outs = {}
    for e in events:
        i = e.pop("index", 0)
        if i in outs and incremental:
            was = outs[i]
            assert was["meta_info"]["finish_reason"] is None
            e["text"] = was["text"] + e["text"]
            e["output_ids"] = was["output_ids"] + e["output_ids"]
            for name in EACH_TOKEN:
                if name in e["meta_info"]:
                    e["meta_info"][name] = was["meta_info"][name] + e["meta_info"][name]
        elif i in outs:
            assert e["output_ids"][: len(outs[i]["output_ids"])] == outs[i]["output_ids"]
            assert e["text"].startswith(outs[i]["text"]) and e["meta_info"]["id"] == outs[i]["meta_info"]["id"]
        for name in LENGTHS:
            e["meta_info"].pop(name, None)
        outs[i] = e
    return [outs[i] for i in sorted(outs)]


def stream(router, body):
    with web.stream("POST", router.url + "/generate", json=body, timeout=LONG) as reply:
        assert reply.status_code == 200, reply.read()
        data = [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return joined([json.loads(d) for d in data[:-1]], body["incremental_streaming_output"])


def undisturbed(well, body, outs):
    """The same outputs, each from its seed alone."""
    for out in outs:
        params = {k: v for k, v in body["sampling_params"].items() if k != "n"}
        alone = body | {"stream": False, "sampling_params": params | {"sampling_seed": out["meta_info"]["seed_text"]}}
        whole = well.json("/generate", alone)
        whole["meta_info"] |= {"id": out["meta_info"]["id"]}
        for name in LENGTHS:
            whole["meta_info"].pop(name, None)
        yield whole


def test_all_streams_of_a_killed_and_a_frozen_worker_are_whole(well):
    with gated(2) as (dying, freezing), program("clime-router", *QUICK) as router, \
         concurrent.futures.ThreadPoolExecutor(16) as pool:  # fmt: skip
        for g in dying, freezing:
            router.post("/workers", {"url": g.url})
        asked = [(body, pool.submit(stream, router, body)) for body in bodies()]
        wait_for(lambda: dying.held + freezing.held >= 16)
        assert dying.held and freezing.held
        router.post("/workers", {"url": well.url})
        freezing.server.process.send_signal(signal.SIGSTOP)
        dying.server.process.kill()
        for body, outs in asked:
            outs = outs.result(LONG)
            assert len(outs) == body["sampling_params"].get("n", 1)
            for out, whole in zip(outs, undisturbed(well, body, outs)):
                assert 0 < out["meta_info"]["resumed_tokens"] < len(out["output_ids"]) or len(outs) > 1
                assert lasting(out) == lasting(whole)
        assert fleet(router)[well.url]["served"] == 16
        replays = next(line for line in router.get("/metrics").text.splitlines() if "_replays_total " in line and line[0] != "#")
        assert float(replays.split()[1]) >= 16


def test_a_worker_that_stops_hands_its_streams_on(well):
    """Not a byte is lost, and nothing counts against a server that says that it is shutting down."""
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 400, "ignore_eos": True, "sampling_seed": 3},
            "stream": True, "incremental_streaming_output": False}  # fmt: skip
    with program("clime-router", *QUICK) as router, concurrent.futures.ThreadPoolExecutor(1) as pool:
        def shutting_down(handler, asked):
            if handler.path == "/generate":
                first = well.events("/generate", body | {"sampling_params": body["sampling_params"] | {"max_new_tokens": 5}})
                part = json.loads(first[-2])
                part["meta_info"]["finish_reason"] = None
                error = {"error": {"message": "the server is shutting down", "type": "server_error", "code": 503}}
                handler.send_response(200)
                for name, value in {"Content-Type": "text/event-stream", "X-Clime-Stream": "cumulative",
                                    "Connection": "close"}.items():  # fmt: skip
                    handler.send_header(name, value)
                handler.end_headers()
                handler.close_connection = True
                for event in json.dumps(part), json.dumps(error), "[DONE]":
                    handler.wfile.write(f"data: {event}\n\n".encode())
            return handler.path == "/generate"

        with workers(1, shutting_down) as (w,):
            router.post("/workers", {"url": w.url})
            asked = pool.submit(stream, router, body)
            wait_for(lambda: w.calls("/generate"))
            router.post("/workers", {"url": well.url})
            (out,) = asked.result(LONG)
            assert lasting(out) == lasting(next(undisturbed(well, body, [out])))
            assert fleet(router)[w.url]["failed"] == 0


def test_a_stream_ends_with_its_last_event(well):
    """And with nothing else. Behind a proxy that speaks HTTP/1.0 a killed worker looks like the end of an answer; one whose connection breaks, or
    hangs, behind the last event has said all."""
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 20, "ignore_eos": True, "sampling_seed": 3}, "stream": True,
            "incremental_streaming_output": False}  # fmt: skip
    part, whole = [json.loads(well.events("/generate", body | {"sampling_params": body["sampling_params"] | {"max_new_tokens": n}})[-2])
                   for n in (5, 20)]  # fmt: skip
    part["meta_info"]["finish_reason"] = None
    events = [f"data: {e}\n\n".encode() for e in (json.dumps(part), json.dumps(whole), "[DONE]")]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Clime-Stream: cumulative\r\n"

    def cut(handler, asked):
        if handler.path == "/generate":
            handler.close_connection = True
            handler.wfile.write(head + b"\r\n" + events[0])
        return handler.path == "/generate"

    def broken(wait_s):
        def answer(handler, asked):
            if handler.path == "/generate":
                handler.wfile.write(head + b"Content-Length: 9999999\r\n\r\n" + b"".join(events))
                over.wait(wait_s)
                raise ConnectionError
            return False

        return answer

    over = threading.Event()
    for worker, failed in ((cut, 1), (broken(0), 0), (broken(LONG), 0)):
        with workers(1, worker) as (w,), program("clime-router", *QUICK) as router, concurrent.futures.ThreadPoolExecutor(1) as pool:
            router.post("/workers", {"url": w.url})
            asked = pool.submit(router.events, "/generate", body)
            wait_for(lambda: w.calls("/generate"))
            router.post("/workers", {"url": well.url})
            said = asked.result(LONG)
            assert said[-1] == "[DONE]" and said.count("[DONE]") == 1
            assert json.loads(said[-2])["output_ids"] == whole["output_ids"] and len(whole["output_ids"]) == 20
            assert [fleet(router)[x.url]["failed"] for x in (w, well)] == [failed, 0] and len(w.calls()) == 1


def test_a_lone_worker_that_comes_back_goes_on():
    """The fleet is one server, which is started again at the same address."""
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 300, "ignore_eos": True, "sampling_seed": 3},
            "stream": True, "incremental_streaming_output": True, "return_logprob": True}  # fmt: skip
    with gated(1, events=2) as (gate,), program("clime-router", *QUICK) as router, \
         concurrent.futures.ThreadPoolExecutor(1) as pool:  # fmt: skip
        router.post("/workers", {"url": gate.url})
        asked = pool.submit(stream, router, body)
        wait_for(lambda: gate.held == 1)
        gate.server.process.kill()
        gate.server.process.wait(LIMIT)
        wait_for(lambda: states(router) == ["down"])
        gate.events = None
        gate.server = Program("clime-server", "--model-path", STORIES)
        (out,) = asked.result(LONG)
        assert out["meta_info"]["resumed_tokens"] == sum(map(len, gate.passed)) >= 2
        assert lasting(out) == lasting(next(undisturbed(gate.server, body, [out])))


def test_what_cannot_go_on_ends_with_an_error(well):
    """Chat has no ids to go on from; a worker that knows no `resume` would begin again; without room nothing is kept."""
    body = next(bodies())
    foreign = [{"text": "x", "output_ids": [1], "meta_info": {"finish_reason": None}}]
    for words, others in [(("--replay-memory", "10"), None), (("--replay-wait", "1"), foreign)]:
        with gated(1) as (gate,), program("clime-router", *QUICK, *words) as router, \
             workers(1, lambda h, _: h.path == "/generate" and (h.stream(map(json.dumps, foreign)) or True)) as (w,), \
             concurrent.futures.ThreadPoolExecutor(1) as pool:  # fmt: skip
            router.post("/workers", {"url": gate.url})
            asked = pool.submit(lambda: web.post(router.url + "/generate", json=body, timeout=LONG).text)
            wait_for(lambda: gate.held == 1)
            if others:
                router.post("/workers", {"url": w.url})
            gate.server.process.kill()
            events = [line[6:] for line in asked.result(LONG).split("\n\n") if line]
            assert events[-1] == "[DONE]" and json.loads(events[-2])["error"]["code"] in (502, 503)
            assert json.loads(events[-3])["meta_info"]["finish_reason"] is None and len(events) == 5


def test_workers_that_die_one_after_another(well):
    """The one that is to go on dies before it has said a word; that is no reason to give the stream up."""
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 400, "ignore_eos": True, "sampling_seed": 3,
                                                  "stream_interval": 7},
            "stream": True, "incremental_streaming_output": False}  # fmt: skip

    def die(handler, asked):
        if handler.path == "/generate":
            raise ConnectionError
        return False

    with gated(1) as (gate,), workers(1, die) as (dying,), program("clime-router", *QUICK) as router, \
         concurrent.futures.ThreadPoolExecutor(1) as pool:  # fmt: skip
        router.post("/workers", {"url": gate.url})
        asked = pool.submit(stream, router, body)
        wait_for(lambda: gate.held == 1)
        router.post("/workers", {"url": dying.url})
        gate.close()
        gate.server.process.kill()
        wait_for(lambda: dying.calls("/generate"))
        router.post("/workers", {"url": well.url})
        (out,) = asked.result(LONG)
        assert lasting(out) == lasting(next(undisturbed(well, body, [out])))


PATIENT = ("--health-check-interval", "0.1", "--health-check-timeout", LONG, "--health-suspect-after", "1",
           "--replay-wait", LONG)  # fmt: skip


def test_streams_of_a_silent_worker_do_not_wait_for_its_probe_to_end(well):
    """It is suspected while its probe is open, and back with its first answer."""
    with gated(1) as (freezing,), program("clime-router", *PATIENT) as router, \
         concurrent.futures.ThreadPoolExecutor(16) as pool:  # fmt: skip
        router.post("/workers", {"url": freezing.url})
        asked = [(body, pool.submit(stream, router, body)) for body in bodies()]
        wait_for(lambda: freezing.held >= 16)
        router.post("/workers", {"url": well.url})
        freezing.server.process.send_signal(signal.SIGSTOP)
        for body, outs in asked:
            outs = outs.result(LONG)
            for out, whole in zip(outs, undisturbed(well, body, outs)):
                assert lasting(out) == lasting(whole)
        frozen = fleet(router)[freezing.url]
        assert frozen["status"] == "down" and frozen["failed"] == 0
        freezing.server.process.send_signal(signal.SIGCONT)
        wait_for(lambda: states(router) == ["ready", "ready"])


def test_a_stream_that_is_silent_has_its_worker_probed_at_once(well):
    """No probe is due within the hour."""
    seldom = ("--health-check-interval", "3600", "--health-check-timeout", LONG, "--health-suspect-after", "1", "--replay-wait", LONG)
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 300, "ignore_eos": True, "sampling_seed": 3}, "stream": True,
            "incremental_streaming_output": True}  # fmt: skip
    short = {"text": "x", "sampling_params": {"max_new_tokens": 1}}
    with gated(1) as (freezing,), program("clime-router", *seldom) as router, \
         concurrent.futures.ThreadPoolExecutor(1) as pool:  # fmt: skip
        router.post("/workers", {"url": freezing.url})
        asked = pool.submit(stream, router, body)
        wait_for(lambda: freezing.held == 1)
        freezing.server.process.send_signal(signal.SIGSTOP)
        router.post("/workers", {"url": well.url, "labels": {"pool": "well"}})
        while not asked.done():  # another one is heard: where all are silent none is suspected
            router.client.post("/generate", json=short, headers={"X-Clime-Worker-Label": "pool=well"}).raise_for_status()
            threading.Event().wait(0.1)
        freezing.server.process.kill()  # or the router would wait for its probe to end
        (out,) = asked.result(LONG)
        assert lasting(out) == lasting(next(undisturbed(well, body, [out])))


def test_what_a_suspected_worker_alone_can_finish_stays_with_it():
    """A stream that cannot go on elsewhere; what came since it fell silent loses nothing and is asked elsewhere."""
    with processes(2) as (a, b), program("clime-router", *PATIENT, "--policy", "round_robin") as router, \
         concurrent.futures.ThreadPoolExecutor(8) as pool:  # fmt: skip
        router.post("/workers", {"url": a.url})
        seen, enough = [], threading.Event()

        def read():
            with web.stream("POST", router.url + "/generate", json={"stream": 100_000}, timeout=LONG) as reply:
                for line in filter(None, reply.iter_lines()):
                    seen.append(json.loads(line[6:])["n"])
                    if enough.is_set():
                        return

        streamed = pool.submit(read)
        wait_for(lambda: seen)
        a.freeze()
        router.post("/workers", {"url": b.url})
        late = [pool.submit(ask, router) for _ in range(6)]
        assert [r.result(LONG).json()["port"] for r in late] == [b.port] * 6
        wait_for(lambda: fleet(router)[a.url]["status"] == "down")
        assert fleet(router)[a.url]["load"] == 1 and not streamed.done()
        n = len(seen)
        a.thaw()
        wait_for(lambda: states(router) == ["ready", "ready"] and len(seen) > n)
        enough.set()
        streamed.result(LONG)
        assert seen == list(range(len(seen)))


class Silent:
    """What workers say that are silent once one probe has found them well, until they are let."""

    def __init__(self):
        self.let, self.lock, self.probed, self.asked = threading.Event(), threading.Lock(), set(), []

    def __call__(self, handler, body):
        port = handler.server.server_port
        if handler.path == "/generate":
            self.asked.append(port)
        with self.lock:
            hears_nothing = handler.path == "/generate" or (handler.path == "/health" and port in self.probed)
            self.probed |= {port} if handler.path == "/health" else set()
        if hears_nothing:
            self.let.wait(LONG)
        return False


def down(router, worker):
    return fleet(router)[worker.url]["status"] == "down"


def known(router, worker):
    """It is one that requests may be sent to, with the label that the silent ones have."""
    router.post("/workers", {"url": worker.url, "labels": {"pool": "silent"}})


def asked_of_silent(pool, router):
    headers = {"X-Clime-Worker-Label": "pool=silent"}
    return pool.submit(router.client.post, "/generate", json={"text": "x"}, headers=headers, timeout=LONG)


@pytest.mark.parametrize(("retries", "moves"), [(0, 0), (5, 2)])
def test_who_makes_workers_silent_is_not_given_to_all(retries, moves):
    """A request under which one worker after another falls silent may be the cause; and one that may be tried on no other worker
    stays where it is. Either has its answer when there is one."""
    silent, again = Silent(), ["--health-check-timeout", "3", "--health-failure-threshold", "1000"]
    with workers(moves + 2, silent) as made, workers(1) as (well,), concurrent.futures.ThreadPoolExecutor(1) as pool, \
         program("clime-router", *PATIENT, *again, "--max-retries", retries) as router:  # fmt: skip
        try:
            known(router, made[0])
            wait_for(lambda: states(router) == ["ready"])
            asked = asked_of_silent(pool, router)
            wait_for(lambda: silent.asked == [made[0].port])
            router.post("/workers", {"url": well.url})  # there is somebody now who is not silent
            for i in range(1, moves + 1):
                wait_for(lambda: down(router, made[i - 1]))  # noqa: B023
                known(router, made[i])
                wait_for(lambda: silent.asked == [w.port for w in made[: i + 1]])  # noqa: B023
            wait_for(lambda: down(router, made[moves]))
            known(router, made[-1])
            wait_for(lambda: down(router, made[-1]))  # it was ready before
            assert silent.asked == [w.port for w in made[:-1]] and not asked.done()
        finally:
            silent.let.set()
        assert asked.result(LONG).json() == {"text": "ok", "port": made[moves].port}
