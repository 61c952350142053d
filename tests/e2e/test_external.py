"""A fleet that others start: routers that are busy or restart, workers that fail a push, servers of other devices.

Proxies stand between the real programs and put the faults in.
"""

import contextlib
import http.client
import http.server
import json
import re
import shutil
import sqlite3
import threading
import urllib.request

import pytest
from programs import LIMIT, SLOW, server, tiny_model
from test_fleet import Run, d, rl  # noqa: F401
from test_ranks import until
from test_rl import external_fleet, final_sha, held_until


class Proxy:
    """Passes all on to url. fault(method, path, n): a status in the place of the n-th (from 0) answer of that kind, or
    None; change(path, body): what comes back."""

    def __init__(self, url, fault=lambda *_: None, change=lambda _, body: body):
        self.seen, self.lock = {}, threading.Lock()
        host = url.split("//")[1]
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_all(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else b""
                kind = (self.command, self.path.split("?")[0])
                with proxy.lock:
                    n = proxy.seen[kind] = proxy.seen.get(kind, -1) + 1
                status, reply = fault(*kind, n), b'{"error": "not now"}'
                if status is None:
                    try:
                        c = http.client.HTTPConnection(host, timeout=LIMIT)
                        keep = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                        c.request(self.command, self.path, body or None, keep)
                        answer = c.getresponse()
                        status, reply = answer.status, change(self.path, answer.read())
                        c.close()
                    except OSError:
                        status = 502
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(reply)

            do_GET = do_POST = do_PUT = do_DELETE = handle_all

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@contextlib.contextmanager
def fleet(folder, model, n):
    """(router's URL, workers' URLs)"""
    processes, router = external_fleet(folder, model, n)
    try:
        yield router, [w["url"] for w in workers(router)]
    finally:
        for p in processes:
            p.kill()
            p.wait()


def call(method, url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=LIMIT) as reply:
        return json.loads(reply.read() or b"null")


def workers(router):
    return call("GET", f"{router}/workers")["workers"]


def put_between(router, url, proxy):
    """The router knows the worker by its proxy."""
    worker = next(w for w in workers(router) if w["url"] == url)
    call("DELETE", f"{router}/workers/{worker['id']}")
    call("POST", f"{router}/workers", {"url": proxy.url})


def devices(run_dir):
    db = sqlite3.connect(run_dir / "ledger.db")
    rows = {r[0] for r in db.execute("SELECT DISTINCT device FROM samples")}
    db.close()
    return rows


@pytest.fixture(scope="module")
def undisturbed(d, tmp_path_factory):  # noqa: F811
    run = Run(rl(d, tmp_path_factory.mktemp("undisturbed") / "run", num_rollout=4))
    run.end()
    return final_sha(run.log_path)


def test_two_runs_on_one_server(d, undisturbed, tmp_path):  # noqa: F811
    """The second is told whose server it is and ends, a run or a copy of the first one's folder; the first trains on nothing
    but its own weights' samples, whatever name somebody else gives them. A third, after the first has ended, finds its weights
    there and goes on with its own."""
    with fleet(tmp_path, d / "init", 1) as (router, (server,)):
        go = tmp_path / "go"
        words = ["--router-url", router]
        whole = {"num_rollout": 4, **held_until(go, 12)}
        first = Run(rl(d, tmp_path / "first", *words, server_threads=None, **whole))
        first.wait_for("rollout  0 ")
        log = Run(rl(d, tmp_path / "second", *words, server_threads=None, num_rollout=1000, rollout_seed=7)).end(status=1, limit=LIMIT)
        name = re.search(r"run (\w+) drives \S+ too", log)
        assert name, log[-3000:]
        assert first.log().count("It gets those of this run again") == 1  # the second's next push finds that it did
        own_again = lambda: f"@{name[1]}." in call("GET", f"{server}/get_weight_version")["weight_version"]
        until(own_again, "the server to be the first's again")
        shutil.copytree(first.dir, tmp_path / "copy")
        log = Run(rl(d, tmp_path / "copy", *words, server_threads=None, **whole)).end(status=1, limit=LIMIT)
        assert f"run {name[1]} in a copy of its folder drives {server} too" in log, log[-3000:]
        call("POST", f"{server}/update_weight_version", {"new_version": 99 * "\u00e9"})
        until(own_again, "the label to be the run's again")
        assert "out of the router" not in first.log()
        go.touch()
        first.end()
        (own,) = sqlite3.connect(first.dir / "ledger.db").execute("SELECT name FROM runs").fetchone()
        assert name[1] == own and final_sha(first.log_path) == undisturbed
        third = Run(rl(d, tmp_path / "third", *words, server_threads=None, num_rollout=4)).end()
        assert re.search(rf'@{own}\.\w+", of another run', third) and final_sha(tmp_path / "third.log") == undisturbed


def test_a_worker_that_says_nothing_costs_no_step_much(d, tmp_path):  # noqa: F811
    """Quarantined for its pushes, it does not answer either when all are asked for their memory, and to take it back."""
    over = threading.Event()

    def fault(method, path, n):
        if path == "/release_memory_occupation" or (path == "/resume_memory_occupation" and n > 0):  # the first is at its beginning
            over.wait(LIMIT)
        return 500 if method == "PUT" else None

    with fleet(tmp_path, d / "init", 2) as (router, (first, _)), Proxy(first, fault) as p:
        put_between(router, first, p)
        words = rl(d, tmp_path / "run", "--router-url", router, "--offload-rollout", server_threads=None)
        run = Run(words)
        run.end()
        over.set()
    times = [json.loads(line).get("perf/step_time") for line in open(run.dir / "metrics.jsonl")]
    assert max(t for t in times if t is not None) < 8 * SLOW, times  # the probe's limit of 3 s, once


def test_statuses_that_pass(d, undisturbed, tmp_path):  # noqa: F811
    """Whatever a router says for a moment is no sample's fault; what it records of an external server's device is true."""
    said, statuses = set(), [408, 429, 499, 500, 503]

    def fault(method, path, n):
        if path != "/generate" or n % 3 != 1:
            return None
        said.add(statuses[n // 3 % 5])
        return statuses[n // 3 % 5]

    with fleet(tmp_path, d / "init", 1) as (router, _), Proxy(router, fault) as p:
        run = Run(rl(d, tmp_path / "run", "--router-url", p.url, server_threads=None, num_rollout=4))
        run.end()
    assert said == set(statuses)
    assert final_sha(run.log_path) == undisturbed
    assert all(name and name.startswith("cpu") for name in devices(run.dir))


def test_a_status_that_does_not_pass_is_final(d, tmp_path):  # noqa: F811
    fault = lambda method, path, n: 400 if path == "/generate" else None
    with fleet(tmp_path, d / "init", 1) as (router, _), Proxy(router, fault) as p:
        log = Run(rl(d, tmp_path / "run", "--router-url", p.url, server_threads=None)).end(status=1)
    assert "/generate answers 400" in log


def test_a_failed_push_is_tried_again(d, undisturbed, tmp_path):  # noqa: F811
    """The worker is out of the router while it lacks the version, and back in it when it has it."""
    fault = lambda method, path, n: 500 if method == "PUT" and path.startswith("/weights/1@") and n < 2 else None
    with fleet(tmp_path, d / "init", 2) as (router, (first, _)), Proxy(first, fault) as p:
        put_between(router, first, p)
        run = Run(rl(d, tmp_path / "run", "--router-url", router, server_threads=None, num_rollout=4))
        run.end()
        urls = {w["url"] for w in workers(router)}
        assert p.url in urls and len(urls) == 2, urls
    assert final_sha(run.log_path) == undisturbed
    assert f"{p.url} is out of the router" in run.log()


def test_the_only_worker_fails_a_push(d, undisturbed, tmp_path):  # noqa: F811
    fault = lambda method, path, n: 503 if method == "PUT" and path.startswith("/weights/1@") and n < 2 else None
    with fleet(tmp_path, d / "init", 1) as (router, (first,)), Proxy(first, fault) as p:
        put_between(router, first, p)
        run = Run(rl(d, tmp_path / "run", "--router-url", router, server_threads=None, num_rollout=4))
        run.end()
        assert [w["url"] for w in workers(router)] == [p.url]
    assert final_sha(run.log_path) == undisturbed


def test_a_server_by_two_names(d, undisturbed, tmp_path):  # noqa: F811
    """It takes one push at a time, and is not out for that."""
    with fleet(tmp_path, d / "init", 1) as (router, (one,)):
        call("POST", f"{router}/workers", {"url": one.replace("127.0.0.1", "localhost")})
        run = Run(rl(d, tmp_path / "run", "--router-url", router, server_threads=None, num_rollout=4))
        log = run.end()
    assert final_sha(run.log_path) == undisturbed and "out of the router" not in log and log.count("I train: worker http") == 2


def test_a_list_that_names_no_workers_is_none(d, undisturbed, tmp_path):  # noqa: F811
    """What stands before a router for a moment says 200 to anything: nobody has left for that."""
    lists = []

    def change(path, body):
        lists.append(path) if path == "/workers" else None
        return b'{"status": "starting"}' if path == "/workers" and len(lists) in (2, 3) else body

    with fleet(tmp_path, d / "init", 1) as (router, _), Proxy(router, change=change) as p:
        run = Run(rl(d, tmp_path / "run", "--router-url", p.url, server_threads=None, num_rollout=4))
        log = run.end()
    assert len(lists) > 3 and final_sha(run.log_path) == undisturbed
    assert "lists no workers" in log and "is gone" not in log, log


def test_workers_of_another_model(d, tmp_path):  # noqa: F811
    """None samples as the trainer computes: the run ends with the key that differs at its beginning. One that is alone in it
    is left out."""
    tiny_model(tmp_path / "other", **{"hidden-size": 32})
    with fleet(tmp_path, tmp_path / "other", 2) as (router, _):
        log = Run(rl(d, tmp_path / "run", "--router-url", router, server_threads=None)).end(status=1, limit=LIMIT)
        assert re.search(r" E train: rl: http://\S+ has hidden_size 32, the trainer has 64", log.splitlines()[-1]), log[-3000:]
        with server("--weight-version", "x", model=d / "init") as good:
            call("POST", f"{router}/workers", {"url": good.url})
            assert "is out of the router" in Run(rl(d, tmp_path / "again", "--router-url", router, server_threads=None)).end()


def test_anothers_weights_behind_a_push(d, undisturbed, tmp_path):  # noqa: F811
    """Somebody's came between a push and the question what is there now: the push did not fail, the worker is given it again."""
    state = {"pushed": False, "lies": 0}

    def fault(method, path, n):
        state["pushed"] = state["pushed"] or (method == "PUT" and path.startswith("/weights/1@"))

    def change(path, body):
        if path != "/get_weight_version" or not state["pushed"] or state["lies"]:
            return body
        state["lies"] += 1
        return b'{"weight_version": "7@somebody.else"}'

    with fleet(tmp_path, d / "init", 1) as (router, (first,)), Proxy(first, fault, change) as p:
        put_between(router, first, p)
        run = Run(rl(d, tmp_path / "run", "--router-url", router, server_threads=None, num_rollout=4))
        log = run.end()
    assert state["lies"] == 1 and final_sha(run.log_path) == undisturbed
    assert "run somebody drives" in log and "out of the router" not in log, log


@pytest.mark.parametrize("status", [503, 500, 403, 404])
def test_a_router_that_is_not_told_the_version(d, undisturbed, tmp_path, status):  # noqa: F811
    """What passes is said again before anything is generated, and once it did not pass for seconds (500) beside it; that it
    refuses is told, once; one that has no such call does without."""
    told = []

    def fault(method, path, n):
        if path == "/weight_version":
            told.append(status if status != 503 or n < 3 else 200)
            return told[-1] if told[-1] != 200 else None
        if path == "/generate":
            told.append("generate")
        return None

    with fleet(tmp_path, d / "init", 1) as (router, _), Proxy(router, fault) as p:
        run = Run(rl(d, tmp_path / "run", "--router-url", p.url, server_threads=None, num_rollout=4))
        log = run.end()
    assert final_sha(run.log_path) == undisturbed
    assert log.count(f"PUT {p.url}/weight_version answers {status}") == (status != 404)
    before = told[: told.index("generate")]
    assert before == [503, 503, 503, 200] if status == 503 else set(before) == {status}, told
    lines = [json.loads(line) for line in open(tmp_path / "run" / "metrics.jsonl")]
    times = [line["perf/update_weights_time"] for line in lines if "perf/update_weights_time" in line]
    assert len(times) >= 3 and max(times[1:]) < 2, times


@pytest.mark.parametrize("who", ["one of two", "the only one"])
def test_a_worker_that_does_not_take_its_memory_back(d, undisturbed, tmp_path, who):  # noqa: F811
    """It is out of the router until it does."""
    n = 2 if who == "one of two" else 1
    fault = lambda method, path, n: 500 if path == "/resume_memory_occupation" and n == 1 else None
    with fleet(tmp_path, d / "init", n) as (router, (first, *_)), Proxy(first, fault) as p:
        put_between(router, first, p)
        run = Run(rl(d, tmp_path / "run", "--router-url", router, "--offload-rollout", server_threads=None, num_rollout=4))
        run.end()
    assert final_sha(run.log_path) == undisturbed
    assert f"{p.url} is out of the router: POST {p.url}/resume_memory_occupation answers 500" in run.log()


def test_a_worker_whose_memory_is_lent_to_nobody(d, undisturbed, tmp_path):  # noqa: F811
    """Its trainer was killed while it had it: the next one gives it back."""
    with fleet(tmp_path, d / "init", 1) as (router, (first,)):
        call("POST", f"{first}/release_memory_occupation", {"tags": ["kv_cache"]})
        run = Run(rl(d, tmp_path / "run", "--router-url", router, "--offload-rollout", server_threads=None, num_rollout=4))
        run.end()
    assert final_sha(run.log_path) == undisturbed


def other_device(path, body):
    return re.sub(rb'"device_name":\s*"[^"]*"', b'"device_name":"cpu abacus"', body)


def test_servers_of_several_kinds_of_device(d, tmp_path):  # noqa: F811
    """Bits are equal within a kind of device only: another one is refused, unless it is asked for."""
    with fleet(tmp_path, d / "init", 2) as (router, (first, _)), Proxy(first, change=other_device) as p:
        put_between(router, first, p)
        refused = Run(rl(d, tmp_path / "refused", "--router-url", router, server_threads=None)).end(status=1)
        assert "cpu abacus" in refused and "--allow-mixed-devices" in refused, refused
        allowed = Run(rl(d, tmp_path / "allowed", "--router-url", router, "--allow-mixed-devices", server_threads=None, rollout_batch_size=8))
        allowed.end()
    assert len(devices(allowed.dir)) == 2 and "cpu abacus" in devices(allowed.dir), devices(allowed.dir)


def test_a_run_tells_its_device_from_the_trainers(d, tmp_path):  # noqa: F811
    """One server, but of another kind than the trainer: its numbers would not be the trainer's."""
    with fleet(tmp_path, d / "init", 1) as (router, (first,)), Proxy(first, change=other_device) as p:
        put_between(router, first, p)
        log = Run(rl(d, tmp_path / "run", "--router-url", router, server_threads=None)).end(status=1)
    assert "cpu abacus" in log and "--allow-mixed-devices" in log, log
