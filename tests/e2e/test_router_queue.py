"""Requests that wait in the router: for others to end, for workers that are full; in order, as long as they may, and no longer than
their clients."""

import concurrent.futures
import contextlib
import json
import signal
import threading

import pytest
from mocks import workers
from programs import program
from test_front import dial
from test_router_faults import LONG, QUICK, ask, fleet, states, urls, wait_for
from test_router_fleet import loads


def metric(router, name):
    return next(float(line.split()[1]) for line in router.get("/metrics").text.splitlines() if line.startswith(name + " "))


def waiting(router):
    return metric(router, "clime_router_requests_waiting")


class Held:
    """What workers answer only when they are let; who has come, in order."""

    def __init__(self):
        self.seen, self.let = [], threading.Semaphore(0)

    def __call__(self, handler, body):
        if handler.path == "/generate":
            self.seen.append(json.loads(body).get("text"))
            assert self.let.acquire(timeout=LONG)
        return False


@contextlib.contextmanager
def full(*options, n_going=1):
    """A router whose one worker has all that it may have at a time: (router, held, pool, the answers to come)."""
    held = Held()
    with workers(1, held) as made, concurrent.futures.ThreadPoolExecutor(40) as pool, \
         program("clime-router", "--max-concurrent-requests", n_going, *options, *QUICK, *urls(made)) as router:  # fmt: skip
        wait_for(lambda: states(router) == ["ready"])
        going = [pool.submit(ask, router, {"text": f"going {i}"}) for i in range(n_going)]
        wait_for(lambda: len(held.seen) == n_going)
        yield router, held, pool, going
        held.let.release(1000)


def test_first_come_first_served():
    with full("--queue-size", "8", n_going=2) as (router, held, pool, asked):
        for i in range(8):
            asked.append(pool.submit(ask, router, {"text": f"waiting {i}"}))
            wait_for(lambda i=i: waiting(router) == i + 1)
        refused = ask(router)
        assert refused.status_code == 429 and refused.headers["retry-after"]
        for i in range(8):
            held.let.release()
            wait_for(lambda i=i: len(held.seen) == i + 3)
        assert held.seen[2:] == [f"waiting {i}" for i in range(8)]
        held.let.release(2)
        assert [a.result(LONG).status_code for a in asked] == [200] * 10
        assert waiting(router) == 0
        wait_for(lambda: metric(router, "clime_http_slots_held") == 0)  # each is given back behind its answer
        assert router.get("/v1/models").status_code == 200  # holds no slot, and waits for nobody


def test_who_leaves_is_out_of_the_queue():
    with full("--queue-size", "4") as (router, held, pool, asked):
        body = b'{"text": "left"}'
        with dial(router, b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body):
            wait_for(lambda: waiting(router) == 1)
            asked.append(pool.submit(ask, router, {"text": "stays"}))
            wait_for(lambda: waiting(router) == 2)
        wait_for(lambda: waiting(router) == 1)
        held.let.release(2)
        assert [a.result(LONG).status_code for a in asked] == [200, 200]
        assert held.seen == ["going 0", "stays"]


def test_a_turn_that_does_not_come():
    with full("--queue-size", "4", "--queue-timeout", "0.2") as (router, held, _, asked):
        reply = ask(router)
        assert reply.status_code == 429 and reply.headers["retry-after"] and "--queue-timeout" in reply.json()["message"]
        held.let.release()
        assert asked[0].result(LONG).status_code == 200 and held.seen == ["going 0"]


def test_an_abort_reaches_who_waits():
    """One prompt of /generate gets a server's answer, anything else a 499; whoever is not meant goes on waiting."""
    abort = lambda path, body: router.post(path, body).json()["num_waiting_aborted"]
    with full("--queue-size", "8") as (router, held, pool, asked):
        bodies = [{"text": "a", "rid": "run/1"}, {"text": "b", "rid": "run/2", "stream": True}, {"text": ["c"], "rid": "run/3"},
                  {"text": "d", "rid": "run/12"}, {"text": "e", "rid": "other"}, {"text": "f"}]  # fmt: skip
        for n, body in enumerate(bodies):
            asked.append(pool.submit(ask, router, body))
            wait_for(lambda n=n: waiting(router) == n + 1)
        assert router.get("/v1/loads").json()["num_waiting_reqs"] == 6
        assert abort("/abort_request", {"rid": ""}) == abort("/abort_request", {"rid": 5}) == abort("/abort_requests", {"request_ids": []}) == 0
        assert abort("/abort_requests", {"request_ids": ["run/1", "other", "run"]}) == 2
        one, other = asked[1].result(LONG), asked[5].result(LONG)
        assert one.status_code == other.status_code == 200 and one.json()["output_ids"] == []
        assert (one.json()["meta_info"]["id"], one.json()["meta_info"]["finish_reason"]["type"]) == ("run/1", "abort")
        assert abort("/abort_request", {"rid": "run/"}) == 3
        event, done = asked[2].result(LONG).text.split("\n\n")[:2]
        assert json.loads(event.removeprefix("data: "))["meta_info"]["finish_reason"]["type"] == "abort" and done == "data: [DONE]"
        assert asked[3].result(LONG).status_code == 499 and asked[4].result(LONG).json()["meta_info"]["id"] == "run/12"
        assert abort("/abort_request", {"abort_all": True}) == 1 and asked[6].result(LONG).json()["meta_info"]["finish_reason"]["type"] == "abort"
        wait_for(lambda: waiting(router) == 0)
        held.let.release()
        assert asked[0].result(LONG).status_code == 200 and held.seen == ["going 0"]


def test_what_was_aborted_is_asked_of_no_other_worker():
    """Its worker is lost after the abort, which that may never have read; with a queue or without."""
    came, falls = threading.Semaphore(0), threading.Semaphore(0)

    def fall_over(handler, body):
        if handler.path == "/generate":
            came.release()
            assert falls.acquire(timeout=LONG)
            raise ConnectionError
        return False

    for options in (), ("--queue-size", "4"):
        with workers(1, fall_over) as (lost,), workers(1) as (other,), concurrent.futures.ThreadPoolExecutor(4) as pool, \
             program("clime-router", *options, *QUICK, *urls([lost])) as router:  # fmt: skip
            wait_for(lambda: states(router) == ["ready"])
            asked = []
            for rid in "run/1", "run/2":
                asked.append(pool.submit(ask, router, {"text": "x", "rid": rid}))
                assert came.acquire(timeout=LONG)
            router.post("/workers", {"url": other.url})
            assert router.post("/abort_request", {"rid": "run/1"}).json()["num_waiting_aborted"] == 0
            falls.release(100)
            ended, served = [a.result(LONG).json() for a in asked]
            assert ended["meta_info"]["finish_reason"]["type"] == "abort" and served["port"] == other.port
            assert [json.loads(c[3])["rid"] for c in other.calls("/generate")] == ["run/2"]
        while falls.acquire(blocking=False) or came.acquire(blocking=False):
            pass


def test_a_pause_that_aborts_ends_who_waits_too():
    """Or a client that pauses, waits for its requests to end and then updates would wait for ever."""
    def ended(path, body=None):
        return router.post(path, body).json()["num_waiting_aborted"]

    with full("--queue-size", "4") as (router, held, pool, asked):
        def submit(body):
            n = waiting(router)
            asked.append(pool.submit(ask, router, body))
            wait_for(lambda: waiting(router) == n + 1)
            return asked[-1]

        stays = submit({"text": "stays"})
        for path, body in (("/pause_generation", {"mode": "retract"}), ("/pause_generation", {"mode": 5}), ("/pause?mode=keep", None),
                           ("/pause?wait_for_inflight_requests=true", None), ("/sleep?mode=wait", None)):  # fmt: skip
            assert ended(path, body) == 0
        assert not stays.done()
        for path, body in (("/pause_generation", {}), ("/pause_generation", {"mode": "abort"}), ("/pause", None), ("/sleep?level=0", None)):
            last = asked[-1]
            assert ended(path, body) == 1 and last.result(LONG).json()["meta_info"]["finish_reason"]["type"] == "abort"
            submit({"text": "again"})
        held.let.release(2)
        assert asked[0].result(LONG).status_code == asked[-1].result(LONG).status_code == 200


def test_an_update_that_aborts_ends_who_waits_too():
    def ended(path, body):
        return router.post(path, body).json()["num_waiting_aborted"]

    with full("--queue-size", "4") as (router, held, pool, asked):
        for path, body in (("/update_weights_from_disk", {"model_path": "/m", "weight_version": "default"}),
                           ("/update_weights_from_distributed", {"names": ["a"]}), ("/update_weight_version", {"new_version": "2"})):  # fmt: skip
            asked.append(pool.submit(ask, router, {"text": "waits"}))
            wait_for(lambda: waiting(router) == 1)
            assert ended(path, body) == ended(path, body | {"abort_all_requests": False}) == 0
            assert ended(path, body | {"abort_all_requests": True}) == 1
            assert asked[-1].result(LONG).json()["meta_info"]["finish_reason"]["type"] == "abort"
        held.let.release()
        assert asked[0].result(LONG).status_code == 200 and held.seen == ["going 0"]


def test_an_abort_of_prompts_with_ids_of_their_own():
    """They wait as one, so one ends when all have been meant, by one abort or several: the others' answers are wanted."""
    with full("--queue-size", "4") as (router, held, pool, asked):
        abort = lambda path, body: router.post(path, body).json()["num_waiting_aborted"]
        for last in ("/abort_request", {"rid": "run/3"}), ("/abort_requests", {"request_ids": ["run/3"]}), ("/abort_request", {"rid": "run/"}):
            asked.append(pool.submit(ask, router, {"text": ["a", "b", "c"], "rid": ["run/1", "run/2", "run/3"]}))
            wait_for(lambda: waiting(router) == 1)
            assert abort("/abort_request", {"rid": "run/1"}) == abort("/abort_requests", {"request_ids": ["run/2", "run"]}) == 0
            assert abort("/abort_request", {"rid": "run/1"}) == 0
            assert abort(*last) == 1 and asked[-1].result(LONG).status_code == 499
        held.let.release()


@pytest.mark.parametrize(("limit", "status"), [(LONG, 200), (0, 503)])
def test_a_router_that_stops_first_serves_or_refuses_who_waits(limit, status):
    with full("--queue-size", "4", "--drain-timeout", limit) as (router, held, pool, asked):
        asked.append(pool.submit(ask, router))
        wait_for(lambda: waiting(router) == 1)
        router.process.send_signal(signal.SIGTERM)
        if limit:
            held.let.release(2)
        assert [a.result(LONG).status_code for a in asked] == [status, status]


def test_full_workers_hold_up_none_but_their_own():
    """By the tokens that they hold; who asks for a label waits for those that have it."""
    held = Held()

    def answer(handler, body):
        return loads(100)(handler, body) or held(handler, body)

    with workers(2, answer) as (a, b), concurrent.futures.ThreadPoolExecutor(8) as pool, \
         program("clime-router", "--max-worker-load", "2", "--queue-size", "8", *QUICK) as router:  # fmt: skip
        for w, pool_name in (a, "train"), (b, "eval"):
            router.post("/workers", {"url": w.url, "labels": {"pool": pool_name}})
        wait_for(lambda: [w["capacity"] for w in fleet(router).values()] == [100, 100])
        large = {"sampling_params": {"max_new_tokens": 300}}

        def submit(text, name):
            headers = {"X-Clime-Worker-Label": f"pool={name}"}
            return pool.submit(router.client.post, "/generate", json={"text": text} | large, headers=headers)

        asked = [submit("going", "train")]
        wait_for(lambda: held.seen == ["going"])
        asked.append(submit("waits", "train"))
        wait_for(lambda: waiting(router) == 1)
        asked.append(submit("passes", "eval"))
        wait_for(lambda: held.seen == ["going", "passes"])
        assert waiting(router) == 1
        held.let.release(3)
        assert [x.result(LONG).status_code for x in asked] == [200] * 3
        assert [w["load"] for w in fleet(router).values()] == [0, 0]
