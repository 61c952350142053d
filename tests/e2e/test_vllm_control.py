"""A server in the words of vLLM's RL clients: pause in three ways, sleep and wake, the prefix cache, versions, aborts; and the
same through a router.
"""

import contextlib
import hashlib
import json
import signal
import socket
import threading
import time

import pytest
from programs import LIMIT, router_to, server, tiny_model
from test_handover import GROUP, Sender, version

MANY = 1000  # tokens of a request that is to be met while it runs
LONG = {"max_new_tokens": MANY, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("vllm") / "m", **{"max-position-embeddings": 2048})


@pytest.fixture(scope="module")
def shared(model):
    with server("--device", "cpu", "--dtype", "bfloat16", "--weight-version", "1", model=model) as s:
        yield s


@pytest.fixture
def s(shared):
    yield shared
    shared.json("/wake_up", {})
    shared.json("/resume", {})


class Request(threading.Thread):
    def __init__(self, s, n=MANY, **more):
        super().__init__()
        self.s, self.body = s, {"input_ids": [5, 6], "sampling_params": {**LONG, "max_new_tokens": n}, "return_logprob": True, **more}
        self.start()

    def run(self):
        self.reply = self.s.post("/generate", self.body)

    def result(self):
        self.join(LIMIT)
        assert self.reply.status_code == 200, self.reply.text
        return self.reply.json()


def until(true):
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def loads(s):
    return s.get("/v1/loads").json()["loads"][0]


def waiting(s):
    """Requests that the engine has and does not run."""
    return loads(s)["num_waiting_uncached_tokens"] > 0


def frozen_one(s, **more):
    """A request that has begun and stands still."""
    s.json("/resume", {})
    for _ in range(50):
        request = Request(s, **more)
        until(lambda: loads(s)["num_running_reqs"] > 0 or not request.is_alive())
        s.json("/pause?mode=keep", {})
        if request.is_alive() and loads(s)["num_running_reqs"] > 0:
            return request
        s.json("/resume", {})
        request.join()
    raise AssertionError("every request had ended before it was met")


def test_pause_and_resume(s):
    whole = Request(s).result()
    assert s.get("/is_paused").json() == {"is_paused": False}
    request = frozen_one(s)
    assert s.get("/is_paused").json() == {"is_paused": True}
    before = loads(s)["num_running_reqs"]
    assert before == 1 and s.json("/reset_prefix_cache", {}) == {"success": False}
    assert s.json("/reset_prefix_cache?reset_running_requests=true", {}) == {"success": True}
    assert s.get("/is_paused").json() == {"is_paused": True} and loads(s)["num_running_reqs"] == 0
    assert s.json("/resume", {}) == {"status": "resumed"}
    again = request.result()
    assert again["meta_info"]["output_token_logprobs"] == whole["meta_info"]["output_token_logprobs"]
    request = frozen_one(s)
    assert s.json("/pause", {}) == {"status": "paused"}  # abort is the default, and no KV stays
    assert request.result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert loads(s)["num_used_tokens"] == 0
    held = Request(s, 3)
    until(lambda: waiting(s))
    s.json("/resume", {})
    assert held.result()["meta_info"]["completion_tokens"] == 3


def test_pause_that_waits(s):
    first = frozen_one(s)
    second = Request(s, 2)  # both are here before the pause
    until(lambda: waiting(s))
    s.json("/resume", {})
    assert s.json("/pause?mode=wait", {}) == {"status": "paused"}
    assert first.result()["meta_info"]["completion_tokens"] == MANY and second.result()["meta_info"]["completion_tokens"] == 2
    assert s.get("/is_paused").json() == {"is_paused": True} and loads(s)["num_running_reqs"] == 0
    late = Request(s, 2)
    until(lambda: waiting(s))
    assert s.json("/pause?mode=wait", {}) == {"status": "paused"}  # once more changes nothing
    s.json("/resume", {})
    assert late.result()["meta_info"]["completion_tokens"] == 2


def test_who_comes_while_a_pause_waits(model):
    """One sequence at a time: the second has not begun when the pause is asked for, and the third comes after."""
    with server("--device", "cpu", "--max-running-requests", "1", model=model) as s:
        first = frozen_one(s)
        second = Request(s, 5)
        until(lambda: waiting(s))
        s.json("/resume", {})
        late = s.post("/pause?mode=wait&timeout=0")
        assert late.status_code in (200, 504), late.text  # both may have ended already
        if late.status_code == 504:
            assert "did not end" in late.json()["message"]
        s.json("/resume", {})
        replies = []
        pause = threading.Thread(target=lambda: replies.append(s.post("/pause?mode=wait")))
        pause.start()
        third = Request(s, 2)
        pause.join(LIMIT)
        assert replies[0].status_code == 200, replies[0].text
        for request in (first, second):
            assert request.result()["meta_info"]["finish_reason"]["type"] == "length"
        assert s.get("/is_paused").json()["is_paused"]
        s.json("/resume", {})
        assert third.result()["meta_info"]["completion_tokens"] == 2


def test_a_pause_that_does_not_come_to_its_end(s):
    frozen = Request(s, MANY, sampling_params={**LONG, "n": 8})
    late = s.post("/pause?mode=wait&timeout=0")
    assert late.status_code in (200, 504), late.text  # all eight may have ended already
    if late.status_code == 504:
        assert "did not end" in late.json()["message"]
        assert s.get("/is_paused").json() == {"is_paused": False}
        assert Request(s, 2).result()["meta_info"]["completion_tokens"] == 2  # the door is open again
    s.json("/resume", {})
    frozen.result()


def pause_beside(s, request, other):
    """The reply to a pause that waits for the request, while other() is done."""
    replies = []
    pause = threading.Thread(target=lambda: replies.append(s.post("/pause?mode=wait")))
    pause.start()
    other()
    pause.join(LIMIT)
    ended = request.result()["meta_info"]
    assert ended["finish_reason"]["type"] == "length" and loads(s)["num_running_reqs"] == 0
    return replies[0]


def test_a_cache_that_is_emptied_under_a_pause_that_waits(s):
    """Who runs computes its KV anew; it has not ended by that, and nobody has paused or resumed."""
    request = frozen_one(s)
    s.json("/resume", {})
    empty = lambda: [s.json("/reset_prefix_cache?reset_running_requests=true", {}) for _ in range(10)]  # noqa: E731
    reply = pause_beside(s, request, empty)
    assert reply.json() == {"status": "paused"} and s.get("/is_paused").json()["is_paused"], reply.text


def test_two_pauses_that_wait(s):
    """One gives up; the door stays shut for the other."""
    request = frozen_one(s)
    s.json("/resume", {})
    reply = pause_beside(s, request, lambda: [s.post(f"/pause?mode=wait&timeout={t}") for t in (0.03, 0)])
    assert reply.json() == {"status": "paused"} and s.get("/is_paused").json()["is_paused"], reply.text


@contextlib.contextmanager
def asking(s, path, body=b""):
    """Somebody who asks, and goes unanswered."""
    host, port = s.url.split("//")[1].split(":")
    with socket.create_connection((host, int(port)), LIMIT) as c:
        c.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body))
        yield


def kept_out(s):
    """A request that waits at the door."""
    while True:
        request = Request(s, 2)
        until(lambda: waiting(s) or not request.is_alive())
        if request.is_alive():
            return request


def test_who_waits_and_goes(tmp_path):
    """A pause whose client has left does not come later; nor does a group, for which other updates would have to wait."""
    n = 1 << 17
    model = tiny_model(tmp_path / "m", **{"max-position-embeddings": n})
    from_disk = lambda: s.post("/update_weights_from_disk", {"model_path": str(model)}).status_code
    with server("--device", "cpu", "--max-total-tokens", str(n), model=model) as s:
        endless = Request(s, n - 8, rid="endless")
        until(lambda: loads(s)["num_running_reqs"] > 0)
        with asking(s, "/pause?mode=wait"):
            second = kept_out(s)
        assert second.result()["meta_info"]["completion_tokens"] == 2
        assert s.get("/is_paused").json() == {"is_paused": False} and endless.is_alive()
        s.json("/abort_request", {"rid": "endless"})
        endless.result()
        quiet = Sender()
        with asking(s, "/init_weights_update_group", json.dumps(GROUP | {"nccl_id": quiet.id(), "timeout": 3600}).encode()):
            peer, _ = quiet.listener.accept()  # it has come, and nobody says go
            assert from_disk() == 429
        until(lambda: from_disk() == 200)


def test_who_has_left_before_it_began(shared):
    """A server that stood still does not do at last what nobody waits for any more, and nobody would take back."""
    s, paths = shared, ("/pause?mode=keep", "/pause_generation", "/sleep?level=2", "/release_memory_occupation")
    s.process.send_signal(signal.SIGSTOP)
    for path in paths:
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    s.process.send_signal(signal.SIGCONT)
    until(lambda: s.log().count("had left before it began") == len(paths))
    assert not s.get("/is_paused").json()["is_paused"] and not s.get("/is_sleeping").json()["is_sleeping"]
    assert s.json("/generate", {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}})["output_ids"]


@pytest.mark.parametrize("path, name", [
    ("/pause?mode=" + "w" * 300, "mode"), ("/pause?timeout=" + "1" * 300, "timeout"), ("/pause?clear_cache=" + "t" * 99, "clear_cache"),
    ("/flush_cache?timeout=" + "0" * 300, "timeout"), ("/flush_cache?timeout=", "timeout"), ("/pause?mode=wait&timeout=", "timeout"),
    ("/flush_cache?timeout=nan", "timeout"), ("/sleep?level=" + "1" * 40, "level"),
])  # fmt: skip
def test_values_that_are_no_values(s, path, name):
    """One that is too long is not one that is absent."""
    reply = s.post(path)
    assert reply.status_code == 400 and name in reply.json()["message"], reply.text
    assert s.get("/is_paused").json() == {"is_paused": False}


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_and_wake(s, model, level):
    before = Request(s, 8).result()["meta_info"]
    request = frozen_one(s)
    assert s.get("/is_sleeping").json() == {"is_sleeping": False}
    assert s.json(f"/sleep?level={level}", {}) == {"is_sleeping": True}  # ends what runs
    assert request.result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert s.json(f"/sleep?level={level}", {}) == {"is_sleeping": True}  # asleep as it is
    assert s.get("/is_sleeping").json() == {"is_sleeping": True}
    assert s.post("/generate", {"input_ids": [5]}).status_code == 503
    assert s.json("/wake_up?tags=weights", {}) == {"is_sleeping": True}
    if level == 2:
        s.json("/update_weights_from_disk", {"model_path": str(model)})
    assert s.json("/wake_up?tags=kv_cache&tags=weights", {}) == {"is_sleeping": False}
    assert s.get("/is_paused").json() == {"is_paused": False}
    after = Request(s, 8).result()["meta_info"]
    assert after["output_token_logprobs"] == before["output_token_logprobs"]
    assert after["weight_version"] == before["weight_version"] == "1"


def test_what_was_kept_does_not_hide_new_weights(s, model, tmp_path):
    other = tiny_model(tmp_path / "o", **{"seed": 77, "max-position-embeddings": 2048})
    s.json("/update_weights_from_disk", {"model_path": str(other)})
    want = Request(s, 8).result()["meta_info"]["output_token_logprobs"]
    s.json("/update_weights_from_disk", {"model_path": str(model)})
    s.json("/sleep", {})  # level 1 keeps the weights
    s.json("/update_weights_from_disk", {"model_path": str(other)})
    s.json("/wake_up", {})
    assert Request(s, 8).result()["meta_info"]["output_token_logprobs"] == want
    s.json("/update_weights_from_disk", {"model_path": str(model)})


def test_what_was_kept_comes_back_in_sglangs_words_too(s):
    before = Request(s, 8).result()["meta_info"]["output_token_logprobs"]
    s.json("/sleep", {})
    s.json("/resume_memory_occupation", {})
    assert s.get("/is_sleeping").json() == {"is_sleeping": False}
    assert s.json("/sleep", {}) == {"is_sleeping": True}  # what is kept is kept on
    s.json("/wake_up", {})
    assert Request(s, 8).result()["meta_info"]["output_token_logprobs"] == before


def test_weights_that_were_dropped_are_taken_again(model):
    """A body that was in force is that no more when sleep has dropped the weights."""
    body = (model / "model.safetensors").read_bytes()
    with server("--device", "cpu", "--dtype", "bfloat16", model=model) as s:

        def put():
            reply = s.client.put("/weights/1", content=body, headers={"X-Clime-SHA256": hashlib.sha256(body).hexdigest()})
            assert reply.status_code == 200, reply.text
            return reply.json()["message"]

        assert put() == "Weights updated." and "already" in put()
        s.json("/sleep?level=2", {})
        s.json("/wake_up", {})
        assert put() == "Weights updated."
        assert Request(s, 2).result()["meta_info"]["completion_tokens"] == 2


def test_sleep_beside_requests(s):
    request = frozen_one(s)
    busy = s.post("/sleep?mode=keep")
    assert busy.status_code == 429 and "in flight" in busy.json()["message"], busy.text
    assert s.get("/is_paused").json() == {"is_paused": True}  # as it was, of whoever paused it
    s.json("/resume", {})
    assert request.result() and s.get("/is_sleeping").json() == {"is_sleeping": False}
    running = Request(s)
    until(lambda: loads(s)["num_running_reqs"] > 0 or not running.is_alive())
    said = s.post("/sleep?mode=keep")
    if said.status_code == 429:
        assert s.get("/is_paused").json() == {"is_paused": False}  # it goes on, and so does the request
    else:
        assert said.json() == {"is_sleeping": True}  # the request had ended
        s.json("/wake_up", {})
    assert running.result()["meta_info"]["completion_tokens"] == MANY
    assert s.json("/sleep?level=0&mode=keep", {}) == {"is_sleeping": False} and s.get("/is_paused").json()["is_paused"]
    assert s.json("/wake_up", {}) == {"is_sleeping": False} and not s.get("/is_paused").json()["is_paused"]
    for path in ("/sleep?level=3", "/sleep?mode=never", "/pause?mode=retract", "/pause?clear_cache=maybe", "/pause?mode=wait&timeout=x",
                 "/wake_up?tags=dreams", "/reset_prefix_cache?reset_running_requests=2"):  # fmt: skip
        assert s.post(path).status_code == 400, path
    assert not s.get("/is_paused").json()["is_paused"]


def test_aborts_and_versions(s):
    first = frozen_one(s, rid="one")
    held = Request(s, 2, rid="two")
    until(lambda: waiting(s))
    for part in ("t", "tw", "on", "two_", "_0"):  # ids are whole: request 1 is not request 10
        assert s.json("/abort_requests", {"request_ids": [part]}) == {"status": "aborted", "aborted": 0}
    assert s.json("/abort_requests", {"request_ids": ["two"]}) == {"status": "aborted", "aborted": 1}
    assert held.result()["meta_info"]["finish_reason"]["type"] == "abort"
    batch = Request(s, 2, rid="three", input_ids=[[5], [6]])
    until(lambda: s.json("/abort_requests", {"request_ids": ["three"]})["aborted"] == 2)
    assert [r["meta_info"]["finish_reason"]["type"] for r in batch.result()] == ["abort", "abort"]
    assert s.json("/update_weight_version", {"new_version": "renamed"})["new_version"] == "renamed"
    assert s.get("/weight_info").json()["weight_version"] == version(s) == "renamed"
    s.json("/resume", {})
    runs = first.result()["meta_info"]["token_versions"]
    assert [r[0] for r in runs] == ["1", "renamed"] and sum(r[1] for r in runs) == MANY  # no weights changed: no KV is lost
    request = frozen_one(s)
    assert s.json("/update_weight_version", {"new_version": "1", "abort_all_requests": True})["success"]
    assert request.result()["meta_info"]["finish_reason"]["type"] == "abort"
    request = frozen_one(s)
    assert s.json("/abort_requests", {"request_ids": []}) == {"status": "aborted", "aborted": 0}  # as in vLLM, nobody
    assert s.json("/abort_requests", {}) == {"status": "aborted", "aborted": 1}
    assert request.result()["meta_info"]["finish_reason"]["type"] == "abort"
    for body in ({}, {"new_version": ""}, {"new_version": 5}, {"new_version": "\n"}):
        s.json("/update_weight_version", body, 400)
    s.json("/abort_requests", {"request_ids": "two"}, 400)
    assert s.get("/get_world_size?include_dp=true").json() == {"world_size": 1}


def test_through_a_router(s):
    with router_to([s.url]) as router:
        until(lambda: router.get("/readiness").status_code == 200)
        for path, worker in [
            ("/pause?mode=keep&clear_cache=false", {"status": "paused"}),
            ("/resume", {"status": "resumed"}),
            ("/sleep?level=1", {"is_sleeping": True}),
            ("/wake_up?tags=weights", {"is_sleeping": True}),
            ("/wake_up", {"is_sleeping": False}),
            ("/reset_prefix_cache", {"success": True}),
            ("/abort_requests", {"status": "aborted", "aborted": 0}),
        ]:
            said = router.json(path, {})
            assert said["success"] and [w["body"] for w in said["workers"]] == [worker], said
        assert router.json("/update_weight_version", {"new_version": "1"})["workers"][0]["body"]["new_version"] == "1"
        assert router.json("/release_memory_occupation", {"tags": ["kv_cache"]})["success"]
        assert router.get("/is_sleeping").json()["workers"][0]["body"] == {"is_sleeping": True}
        assert router.json("/resume_memory_occupation", {})["success"]
        assert router.get("/is_paused").json()["workers"][0]["body"] == {"is_paused": False}
        body = {"group_name": "none", "names": [], "dtypes": [], "shapes": []}
        said = router.json("/update_weights_from_distributed", body, 400)
        assert "no group" in said["workers"][0]["body"]["message"]
