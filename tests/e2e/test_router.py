"""clime-router between real clients and real servers: the same answers as direct, balance, stickiness, retries on another
worker, replies of control calls, streams unbuffered, bad input."""

import concurrent.futures
import contextlib
import json
import signal
import socket
import threading
import time

import pytest
from mocks import workers
from programs import LIMIT, STORIES, Program, needs_stories, program, server


@contextlib.contextmanager
def fleet(n, *options):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(server()) for _ in range(n)]
        router = stack.enter_context(program("clime-router", *options))
        for s in servers:
            assert router.post("/workers", {"url": s.url}).status_code == 202
        yield router, servers


def wait_for(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


GREEDY = {"input_ids": [1], "sampling_params": {"temperature": 0, "max_new_tokens": 40}, "return_logprob": True}


def core(reply):
    return reply["text"], reply["output_ids"], reply["meta_info"]["output_token_logprobs"]


@needs_stories
def test_the_answer_of_a_server_streamed_or_not():
    golden = json.loads((STORIES / "greedy_200.json").read_text())["ids"]
    body = GREEDY | {"sampling_params": {"temperature": 0, "max_new_tokens": 200}}
    with fleet(1) as (router, servers):
        direct, routed = servers[0].json("/generate", body), router.json("/generate", body)
        assert core(direct) == core(routed)
        assert [1] + routed["output_ids"] == golden
        events = router.events("/generate", body | {"stream": True})
        assert events[-1] == "[DONE]"
        assert core(json.loads(events[-2])) == core(direct)


def test_streams_are_not_held_back():
    """The first event arrives while the worker still waits before its second."""
    came = threading.Event()

    def answer(handler, body):
        def events():
            yield "first"
            assert came.wait(LIMIT)
            yield "second"

        if handler.path == "/generate":
            handler.stream(events())
        return handler.path == "/generate"

    with workers(1, answer) as made, program("clime-router", "--worker-urls", made[0].url) as router:
        with router.client.stream("POST", "/generate", json={"text": "x", "stream": True}) as reply:
            for line in filter(None, reply.iter_lines()):
                if not came.is_set():
                    assert line == "data: first"
                came.set()
    assert line == "data: second"


def test_seeded_samples_are_the_same_with_two_servers():
    bodies = [
        {"text": "Once upon a time", "return_logprob": True,
         "sampling_params": {"max_new_tokens": 20, "sampling_seed": i}} for i in range(24)
    ]
    with fleet(2, "--policy", "round_robin") as (router, servers), concurrent.futures.ThreadPoolExecutor(8) as pool:
        direct = [servers[0].json("/generate", b) for b in bodies]
        routed = list(pool.map(lambda b: router.json("/generate", b), bodies))
        assert [core(r) for r in direct] == [core(r) for r in routed]
        served = [w["served"] for w in router.get("/workers").json()["workers"]]
        assert served == [12, 12]


def test_a_session_stays_on_its_worker():
    with fleet(3) as (router, _):
        for _ in range(6):
            reply = router.client.post("/generate", json=GREEDY, headers={"X-Session-ID": "episode-1"})
            assert reply.status_code == 200
        assert sorted(w["served"] for w in router.get("/workers").json()["workers"]) == [0, 0, 6]


def test_a_prompt_goes_where_its_beginning_went():
    with fleet(3, "--policy", "prefix") as (router, _):
        ids = [1 + i % 400 for i in range(300)]
        for more in range(5):  # a conversation that grows, without a session's header
            router.json("/generate", {"input_ids": ids[: 150 + 30 * more], "sampling_params": {"max_new_tokens": 1}})
        assert sorted(w["served"] for w in router.get("/workers").json()["workers"]) == [0, 0, 5]
        router.json("/generate", {"input_ids": ids[::-1], "sampling_params": {"max_new_tokens": 1}})
        assert sorted(w["served"] for w in router.get("/workers").json()["workers"]) == [0, 1, 5]


def test_a_killed_worker_is_left_out_and_its_requests_go_elsewhere():
    with contextlib.ExitStack() as stack:
        router = stack.enter_context(program("clime-router", "--health-check-interval", "0.2"))
        alive = stack.enter_context(server())
        dying = Program("clime-server", "--model-path", STORIES)
        for s in (dying, alive):
            router.post("/workers", {"url": s.url})
        expected = core(alive.json("/generate", GREEDY))
        dying.stop(signal.SIGKILL)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: router.json("/generate", GREEDY), range(16)))
        assert all(core(r) == expected for r in replies)
        status = lambda: {w["url"]: w["status"] for w in router.get("/workers").json()["workers"]}
        wait_for(lambda: status() == {dying.url: "down", alive.url: "ready"})


def test_control_calls_reach_every_worker():
    with fleet(2) as (router, servers):
        reply = router.json("/pause_generation", {"mode": "in_place"})
        assert reply["success"] and [w["status"] for w in reply["workers"]] == [200, 200]
        assert {w["url"] for w in reply["workers"]} == {s.url for s in servers}
        assert router.json("/continue_generation", {})["success"]
        assert router.get("/flush_cache").status_code == 200
        loads = router.get("/v1/loads?include=core").json()["workers"]
        assert all(w["body"]["loads"][0]["num_running_reqs"] == 0 for w in loads)
        versions = router.get("/get_weight_version").json()["workers"]
        assert [w["body"]["weight_version"] for w in versions] == ["default", "default"]
        router.post("/workers", {"url": "http://127.0.0.1:9"})
        partial = router.post("/abort_request", {"abort_all": True})
        assert partial.status_code == 207 and not partial.json()["success"]


def test_what_clients_ask_a_server_about_itself():
    """Version, load and the older list of loads; what each server has of its own is refused with where to ask."""
    with fleet(2) as (router, servers):
        assert router.get("/version").json() == servers[0].get("/version").json()
        assert router.get("/load").json() == {"server_load": 0}
        assert router.get("/ping").json() == router.get("/health").json()
        listed = router.get("/get_load").json()
        assert [x["dp_rank"] for x in listed] == [0, 1] and {x["worker"] for x in listed} == {s.url for s in servers}
        assert {"num_reqs", "num_waiting_reqs", "num_tokens"} <= set(listed[0])
        assert router.get("/weight_info").json()["weight_version"] == "default"
        assert router.json("/weight_checker", {"action": "checksum"})["workers"][0]["body"]["checksums"]
        assert router.json("/shutdown_weight_transfer_engine", {})["success"]
        assert "one by one" in router.get("/get_world_size").json()["message"]
        for path in ("/init_weight_transfer_engine", "/init_weights_update_group"):
            assert "one by one" in router.json(path, {}, 404)["message"]
        router.post("/workers", {"url": "http://127.0.0.1:9"})
        partial = router.get("/get_load")
        assert partial.status_code == 207 and len(partial.json()) == 2


def test_errors_are_the_workers_or_clear():
    with fleet(1) as (router, servers):
        for body in ({"input_ids": [99999]}, {"text": 5}, {}):
            direct, routed = servers[0].post("/generate", body), router.post("/generate", body)
            assert direct.status_code == routed.status_code == 400
            assert direct.json() == routed.json()
        assert router.client.post("/generate", content=b"{nope").status_code == 400
        assert router.get("/nothing").status_code == 404
        assert router.get("/generate").status_code == 405
    with program("clime-router") as lonely:
        reply = lonely.post("/generate", GREEDY)
        assert reply.status_code == 503 and "no worker" in reply.json()["message"]
        assert "retry-after" in reply.headers
        assert lonely.post("/workers", {"url": "ftp://x"}).status_code == 400


def test_keys():
    with program("clime-router", "--api-key", "user", "--admin-api-key", "boss") as r:
        def status(method, path, key=None, **kw):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return r.client.request(method, path, headers=headers, **kw).status_code

        assert status("GET", "/health") == 200
        assert status("GET", "/workers") == 401
        assert status("GET", "/workers", "user") == 200
        assert status("POST", "/abort_request", "user", json={}) == 403  # known, and not an admin
        assert status("POST", "/abort_request", "boss", json={}) == 503  # allowed; there is no worker


def test_a_client_that_leaves_ends_the_work():
    """Here a pause, which nothing else would end."""
    body = json.dumps({"text": "Once", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}).encode()
    with fleet(1) as (router, servers):
        def load():
            now = servers[0].get("/v1/loads").json()["loads"][0]
            return now["num_running_reqs"] + now["num_waiting_reqs"]

        servers[0].json("/pause_generation", {"mode": "retract"})
        with socket.create_connection(("127.0.0.1", router.port)) as s:
            s.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            wait_for(lambda: load() == 1)
        wait_for(lambda: load() == 0)
        wait_for(lambda: [w["tokens"] for w in router.get("/workers").json()["workers"]] == [0])


def test_a_removed_server_stays_removed_and_a_new_router_learns_of_it():
    """A server with --router registers with each router process once."""
    def status(router):
        return [w["status"] for w in router.get("/workers").json()["workers"]]

    first = Program("clime-router")
    with server("--router", first.url):
        wait_for(lambda: status(first) == ["ready"])
        worker = first.get("/workers").json()["workers"][0]["id"]
        assert first.client.delete(f"/workers/{worker}").status_code == 202
        time.sleep(5)  # longer than two of the server's rounds
        assert status(first) == []
        port = first.port
        first.stop()
        with program("clime-router", "--port", port) as second:
            wait_for(lambda: status(second) == ["ready"])
