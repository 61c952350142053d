"""What the router hands on of a request, byte for byte: path, query, headers. Workers are mocks that write it down."""

import http.client

import pytest
from mocks import workers
from programs import LIMIT, program, router_to
from test_router_faults import QUICK, wait_for


def raw(router, method, path, headers=None, body=None):
    """A request whose path nobody has made tidy."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=LIMIT)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"Host": "x"} | (headers or {})).items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def status(router):
    return [(w["status"], w["failed"]) for w in router.get("/workers").json()["workers"]]


@pytest.mark.parametrize("path", ["/v1/models/../../flush_cache", "/v1/models/%2e%2e/%2e%2e/flush_cache",
                                  "/v1/models/..%2f..%2fflush_cache", "/v1/models/a/./b", "/v1/models/..",
                                  "/v1/models/a/../..//flush_cache"])  # fmt: skip
def test_no_path_leads_to_another_endpoint(path):
    """With the router's own key for workers, a path that climbs would be a user's way to an admin's calls."""
    with workers(1) as (w,), program("clime-router", "--api-key", "user", "--admin-api-key", "boss",
                                     "--worker-api-key", "admin", "--worker-urls", w.url) as router:  # fmt: skip
        code, _ = raw(router, "GET", path, {"Authorization": "Bearer user"})
        assert code in (400, 404)
        assert w.calls() == []


@pytest.mark.parametrize("path, passed", [
    ("/v1/models/a%20b", "/v1/models/a%20b"),
    ("/v1/models/org/name-1.5_x~", "/v1/models/org/name-1.5_x~"),
    ("/v1/models/100%25", "/v1/models/100%25"),
    ("/v1/models/%C3%A9?x=%3F", "/v1/models/%C3%A9?x=%3F"),
    ("/v1/models/a%3Fb%23c", "/v1/models/a%3Fb%23c"),
    ("/v1/models?q={1}|%20", "/v1/models?q=%7B1%7D%7C%20"),
])  # fmt: skip
def test_a_path_reaches_the_worker_as_it_was_meant(path, passed):
    with workers(1) as (w,), router_to([w.url]) as router:
        for _ in range(4):
            code, _ = raw(router, "GET", path)
            assert code == 200
        assert [c[1] for c in w.calls()] == [passed] * 4
        assert status(router) == [("ready", 0)]


def test_a_head_alone_has_the_length_of_the_whole():
    with workers(1) as (w,), router_to([w.url]) as router:
        for path in ("/v1/models", "/get_weight_version", "/engine_metrics"):  # of one worker, and of all
            whole, head = [router.client.request(method, path) for method in ("GET", "HEAD")]
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == whole.headers["content-length"] == str(len(whole.content))


def test_headers_whole_and_both_forms_of_a_key():
    long = "x" * 3000
    with workers(1) as (w,), router_to([w.url]) as router:
        sent = {"X-Session-ID": long, "X-Api-Key": "k" * 2000, "Content-Type": "application/json; charset=utf-8"}
        assert raw(router, "POST", "/generate", sent, b"{}")[0] == 200
        assert raw(router, "POST", "/generate", {"Authorization": "Bearer " + long}, b"{}")[0] == 200
        assert raw(router, "GET", "/get_weight_version", {"X-Api-Key": "abc"})[0] == 200
        first, second = [c[2] for c in w.calls()]
        assert {k: first[k] for k in sent} == sent
        assert second["Authorization"] == "Bearer " + long
        assert "abc" in [c[2].get("X-Api-Key") for c in w.calls("/get_weight_version")]


def test_a_clients_key_stays_here_when_workers_have_their_own():
    with workers(1) as (w,), router_to([w.url], "--worker-api-key", "inner") as router:
        raw(router, "POST", "/generate", {"X-Api-Key": "outer", "Authorization": "Bearer outer"}, b"{}")
        (_, _, headers, _), = w.calls()  # fmt: skip
        assert headers["Authorization"] == "Bearer inner" and "X-Api-Key" not in headers


def test_workers_that_lead_back():
    """A router that has itself for a worker, or one whose worker it is: each round asked everybody again, until no thread was left."""
    with workers(1) as (w,), program("clime-router", "--worker-urls", w.url) as a, program("clime-router", "--worker-urls", a.url) as b:
        for url in (a.url, b.url):
            a.json("/workers", {"url": url}, 202)
        for _ in range(6):
            assert a.json("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}})
        said = {r["url"]: r for r in a.json("/abort_request", {"abort_all": True}, 207)["workers"]}
        assert [said[u]["status"] for u in (w.url, a.url, b.url)] == [200, 503, 502]
        assert "leads back" in said[a.url]["body"]["message"] and "leads back" in str(said[b.url]["body"])
        assert b.json("/abort_request", {"abort_all": True}, 207)["workers"][0]["status"] == 207  # a's, of whose workers only one did it
        assert len(w.calls("/abort_request")) == 2


def test_a_router_of_routers_believes_no_half():
    """What a router behind this one has done in part is not done, and what it has heard of some of its workers is heard."""
    def answer(handler, body):
        if handler.path.startswith("/v1/loads"):
            handler.reply(200, {"loads": [{"dp_rank": 0, "max_total_num_tokens": 100}]})
        return handler.path.startswith("/v1/loads")

    with workers(2, answer) as (a, b), program("clime-router", *QUICK, "--worker-urls", a.url, "http://127.0.0.1:9") as inner, \
         program("clime-router", *QUICK, "--worker-urls", inner.url, b.url) as outer:  # fmt: skip
        said = outer.json("/continue_generation", {}, 207)
        assert not said["success"] and [w["status"] for w in said["workers"]] == [207, 200]
        loads = outer.get("/v1/loads")
        assert loads.status_code == 207 and loads.json()["dp_rank_count"] == 2
        a.version, b.version = "6", "7"
        assert outer.get("/get_weight_version").json()["weight_version"] is None
        outer.client.put("/weight_version", json={"weight_version": "7"})
        told = lambda: [w["status"] for w in outer.get("/workers").json()["workers"]]
        wait_for(lambda: told() == ["stale", "ready"])
        assert [w["capacity"] for w in outer.get("/workers").json()["workers"]] == [100, 100]
    with workers(2) as made, router_to([w.url for w in made]) as inner, router_to([inner.url]) as outer:
        made[0].version = "6"  # of no version together
        assert outer.get("/get_weight_version").json()["weight_version"] is None


def test_the_way_so_far_in_several_lines():
    """All of them are looked at for a loop, and handed on as one."""
    with workers(1) as (w,), router_to([w.url]) as router:
        me = router.get("/health").json()["instance"]

        def through(*lines):
            connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=LIMIT)
            connection.putrequest("POST", "/generate")
            for line in lines:
                connection.putheader("Via", line)
            connection.putheader("Content-Length", "2")
            connection.endheaders(b"{}")
            try:
                return connection.getresponse().status
            finally:
                connection.close()

        assert through("1.1 a", "1.1 b, 1.0 c") == 200
        assert w.calls()[-1][2]["Via"] == f"1.1 a, 1.1 b, 1.0 c, 1.1 {me}"
        assert through("1.1 a", f"1.1 {me}") == 503 and len(w.calls()) == 1
