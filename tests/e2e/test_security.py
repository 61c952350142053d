"""The lines of docs/security.md that no other test holds: keys with limits, an admin port, files that requests may name, TLS in both
directions, and clients that want nothing but to be in the way."""

import concurrent.futures
import contextlib
import json
import re
import socket
import ssl
import threading
import time

import httpx
import pytest
from mocks import workers
from programs import LIMIT, ROOT, SLOW, STORIES, free_port, program, router_to, run, server, tiny_model, web
from test_fleet import rl
from test_front import dial, in_background, waiting
from test_tls import certificate  # noqa: F401  the fixture

SHORT = {"input_ids": [1], "sampling_params": {"temperature": 0, "max_new_tokens": 4}}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def wait_for(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---- the document ----------------------------------------------------------------------------------------------------


def test_every_line_has_its_tests():
    """Each row of the tables of docs/security.md names tests, and all of them are there."""
    text = (ROOT / "docs" / "security.md").read_text().split("## Figures")[0]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    rows = [r for r in rows if r[-1].strip() not in ("test", "---")]
    assert len(rows) > 20
    for what, *_, tests in rows:
        named = re.findall(r"`(test_\w+\.(?:py|c)) (test_\w+)`", tests)
        assert named, what
        for file, name in named:
            (path,) = ROOT.glob(f"tests/*/**/{file}")
            assert re.search(rf"\b{name}\(", path.read_text()), f"{what}: {file} {name}"


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_keys_with_names_and_limits(tmp_path):
    """One client that is past its limits is told so, the others go on, and none of them may command."""
    keys = tmp_path / "keys"
    keys.write_text("# who  key\nalice  one  concurrent=1\nbob  two  per-minute=1\n")
    words = ["--api-keys", keys, "--admin-api-key", "boss", "--api-key", "plain"]
    with server(*words) as s:
        ask = lambda key, path="/generate", body=SHORT: web.post(s.url + path, json=body, headers=bearer(key), timeout=LIMIT)
        held_by = lambda n: f'clime_http_key_held{{key="alice"}} {n}' in web.get(s.url + "/metrics", headers=bearer("boss"), timeout=LIMIT).text
        assert [ask(k).status_code for k in ("one", "plain", "boss", "three", "on", "one two")] == [200, 200, 200, 401, 401, 401]
        assert web.post(s.url + "/generate", json=SHORT, timeout=LIMIT).status_code == 401
        assert [ask(k, "/flush_cache").status_code for k in ("one", "two", "plain", "boss")] == [403, 403, 403, 200]
        assert ask("two").status_code == 200
        late = ask("two")
        assert late.status_code == 429 and "bob" in late.json()["message"] and 1 < int(late.headers["retry-after"]) <= 61
        assert web.get(s.url + "/v1/models", headers=bearer("two"), timeout=LIMIT).status_code == 200  # makes no work
        assert ask("boss", "/pause_generation").status_code == 200
        (held,) = in_background([lambda: ask("one")])
        wait_for(lambda: held_by(1))
        second = ask("one")
        assert second.status_code == 429 and "alice" in second.json()["message"]
        assert ask("boss", "/continue_generation").status_code == 200
        assert held.result(LIMIT).status_code == 200
        wait_for(lambda: held_by(0))  # it is given back behind its answer
        assert ask("one").status_code == 200
        said = web.get(s.url + "/metrics", headers=bearer("boss"), timeout=LIMIT).text
        assert 'clime_http_key_refused_total{key="bob"} 1' in said and 'clime_http_key_refused_total{key="alice"} 1' in said
        assert "two" not in re.findall(r'key="(\w+)"', said)
    status, _, err = run("clime-router", "--port", 0, "--api-keys", keys)
    assert status == 1 and "need an admin key" in err
    keys.write_text("alice boss\n")
    status, _, err = run("clime-router", "--port", 0, "--api-keys", keys, "--admin-api-key", "boss")
    assert status == 1 and f"{keys} has the admin key" in err
    keys.write_text("alice one fast\n")
    status, _, err = run("clime-router", "--port", 0, "--api-keys", keys, "--admin-api-key", "boss")
    assert status == 1 and f"{keys}:1: 'fast'" in err


def test_an_admin_port(tmp_path):
    """With a port of their own control calls are refused on the other, whoever asks."""
    port = free_port()
    with program("clime-router", "--admin-port", port, "--api-key", "user", "--admin-api-key", "boss") as r:
        ask = lambda at, key: web.post(f"http://127.0.0.1:{at}/workers", json={"url": "http://127.0.0.1:9"}, headers=bearer(key), timeout=LIMIT)  # noqa: E501
        refused = ask(r.port, "boss")
        assert refused.status_code == 403 and "admin port" in refused.json()["message"]
        assert [ask(port, key).status_code for key in ("user", "no", "boss")] == [403, 401, 202]
        for at in (r.port, port):
            assert web.get(f"http://127.0.0.1:{at}/workers", headers=bearer("user"), timeout=LIMIT).status_code == 200
        assert web.get(f"http://127.0.0.1:{r.port}/metrics", timeout=LIMIT).status_code == 200
    status, _, err = run("clime-router", "--port", 0, "--admin-host", "127.0.0.1")
    assert status != 0 and "--admin-port" in err


def test_an_admin_port_has_room_for_all(tmp_path):
    """Who may command may generate there too, a trainer say: as many as on the other port, and together no more."""
    port, many = free_port(), 60
    together = threading.Barrier(many)

    def meet(handler, body):
        if handler.path == "/generate":
            together.wait(LIMIT)
        return False

    with workers(1, meet) as (w,), program("clime-router", "--admin-port", port, "--max-concurrent-requests", many,
                                           "--worker-urls", w.url) as r, \
         concurrent.futures.ThreadPoolExecutor(many) as pool:  # fmt: skip
        ask = lambda at: web.post(f"http://127.0.0.1:{at}/generate", json=SHORT, timeout=LIMIT).status_code
        wait_for(lambda: r.get("/readiness").status_code == 200)
        begun = [pool.submit(ask, at) for at in [port] * (many - 1)]
        wait_for(lambda: any("slots_held 59" in line for line in r.get("/metrics").text.splitlines()))
        assert [b.result() for b in [*begun, pool.submit(ask, r.port)]] == [200] * many


def test_a_named_key_stays_at_the_router(tmp_path):
    """Workers do not know it: they get the key that they have in common with the router, or none."""
    (tmp_path / "keys").write_text("alice one\n")
    words = ["--api-keys", tmp_path / "keys", "--admin-api-key", "boss"]
    for more, sent in [((), None), (("--api-key", "plain"), "Bearer plain"), (("--worker-api-key", "inner"), "Bearer inner")]:
        with workers(1) as (w,), program("clime-router", *words, *more, "--worker-urls", w.url) as r:
            wait_for(lambda: web.get(f"{r.url}/readiness", timeout=LIMIT).status_code == 200)
            for headers in bearer("one"), {"X-Api-Key": "one"}:
                assert web.post(f"{r.url}/generate", json=SHORT, headers=headers, timeout=LIMIT).status_code == 200
            assert web.get(f"{r.url}/is_paused", headers=bearer("one"), timeout=LIMIT).status_code == 200
            seen = [headers for _, path, headers, _ in w.calls()]
            assert [h.get("Authorization") for h in seen] == [sent] * 3 and not any("X-Api-Key" in h for h in seen)


def test_a_worker_that_anybody_adds_gets_no_key_of_clients():
    """At a router without any key a worker may add itself: a client's key goes only to those that an option names."""
    key = bearer("for-my-worker") | {"X-Api-Key": "for-my-worker"}
    for words, told in [((), None), (("--admin-api-key", "boss"), "Bearer for-my-worker")]:
        with workers(2) as (mine, added), program("clime-router", "--worker-urls", mine.url, *words, "--policy", "round_robin") as r:
            reply = web.post(f"{r.url}/workers", json={"url": added.url}, headers=bearer("boss"), timeout=LIMIT)
            assert reply.status_code == 202
            wait_for(lambda: web.get(f"{r.url}/readiness", timeout=LIMIT).json()["healthy_workers"] == 2)
            for _ in range(4):
                assert web.post(f"{r.url}/generate", json=SHORT, headers=key, timeout=LIMIT).status_code == 200
            assert web.get(f"{r.url}/is_paused", headers=key, timeout=LIMIT).status_code == 200
            sent = lambda w: {h.get("Authorization") for _, _, h, _ in w.calls()}
            assert sent(mine) == {"Bearer for-my-worker"} and sent(added) == {told} and len(added.calls()) == 3
            assert told or not any("X-Api-Key" in h for _, _, h, _ in added.calls())


def test_metrics_tell_strangers_no_names(tmp_path):
    """Without a key where there is one: sums, but neither workers' addresses nor the names of keys."""
    (tmp_path / "keys").write_text("alice one\n")
    with workers(1) as (w,), program("clime-router", "--api-keys", tmp_path / "keys", "--admin-api-key", "boss", "--health-port", 0,
                                     "--worker-urls", w.url) as r, program("clime-router", "--worker-urls", w.url) as free:  # fmt: skip
        at = int(re.search(r"health on [^ ]*:(\d+)", r.log())[1])
        for port in (r.port, at):
            said = lambda **more: web.get(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT, **more).text
            strange = said() + said(headers=bearer("wrong"))
            assert "clime_http_slots" in strange and w.url not in strange and "alice" not in strange
            for key, name in (("one", 'worker="1"'), ("boss", w.url)):
                assert name in said(headers=bearer(key)) and 'key="alice"' in said(headers=bearer(key))
        assert w.url in free.get("/metrics").text


def test_workers_have_no_address_for_clients():
    with workers(1) as (w,):
        for words, strange, knows in ((("--api-key", "k", "--admin-api-key", "boss"), "k", "boss"), (("--api-key", "k"), None, "k"), ((), None, None)):
            with program("clime-router", *words, "--worker-urls", w.url) as r:
                ask = lambda path, key: web.get(r.url + path, headers=bearer(key), timeout=LIMIT)
                assert ask("/list_workers", knows).json() == {"urls": [w.url]}
                (whole,) = ask("/workers", knows).json()["workers"]
                assert whole["url"] == w.url
                if strange:
                    assert ask("/list_workers", strange).status_code == 403
                    for path in ("/workers", f"/workers/{whole['id']}"):
                        reply = ask(path, strange)
                        assert reply.status_code == 200 and str(w.port) not in reply.text and whole["id"] in reply.text, reply.text


def test_no_endpoint_of_a_router_gives_addresses_to_clients():
    """Each of the contract's, with a worker that answers and one that is lost. Who commands reads both, or all do without an admin key."""
    names = lambda reply: "127.0.0.1" in reply.text + str(reply.headers)
    listing = ("/workers", "/is_paused", "/is_sleeping", "/v1/loads", "/get_load", "/engine_metrics", "/metrics", "/get_weight_version", "/server_info")
    lost = f"http://127.0.0.1:{free_port()}"
    with server("--api-key", "w") as s:
        for words, strange, knows in ((("--api-key", "k", "--admin-api-key", "boss"), "k", "boss"), (("--api-key", "k"), None, "k"), ((), None, None)):
            with program("clime-router", *words, "--worker-api-key", "w", "--worker-urls", s.url, lost, "--health-check-interval", "0.1") as r:
                wait_for(lambda: r.get("/readiness").json()["healthy_workers"] == 1)
                ask = lambda path, key, method="GET": r.client.request(method, path, headers=bearer(key), timeout=LIMIT,
                                                                       **({"json": SHORT} if method in ("POST", "PUT") else {}))  # fmt: skip
                assert [p for p in listing if not names(ask(p, knows))] == []
                if not strange:
                    continue
                calls = [(path, method.upper()) for path, of in r.get("/openapi.json").json()["paths"].items() for method in of]
                assert len(calls) > 80
                replies = {(p, m): ask(p.replace("{model}", "x").replace("{id}", "1"), strange, m) for p, m in calls}
                assert [c for c, reply in replies.items() if names(reply)] == []
                assert all(replies[p, "GET"].status_code in (200, 207) for p in listing)
                (load,) = replies["/get_load", "GET"].json()
                assert load["worker"] in {w["id"] for w in replies["/is_paused", "GET"].json()["workers"]}


def test_an_error_names_no_worker_to_clients():
    """Neither one that is lost nor one that says too much; the log and those who command have the address."""
    def fail(handler, body):
        if b"large" in body:
            handler.reply(200, b"x" * 100_000)
        else:
            raise ConnectionError
        return True

    def generates(handler, body):
        return handler.path == "/generate" and fail(handler, body)

    for words, strange, knows in ((("--api-key", "k", "--admin-api-key", "boss"), "k", "boss"), (("--api-key", "k"), None, "k")):
        with workers(1, generates) as (w,), program("clime-router", *words, "--max-payload-size", "50k", "--max-retries", 0, "--health-failure-threshold", 1000,
                                                    "--worker-urls", w.url) as r:  # fmt: skip
            for text, status in (("large", 502), ("lost", 502)):
                said = lambda key: web.post(r.url + "/generate", json={"text": text}, headers=bearer(key), timeout=LIMIT)
                if strange:
                    reply = said(strange)
                    assert reply.status_code == status and str(w.port) not in reply.text, reply.text
                assert str(w.port) in said(knows).text
            assert r.log().count(w.url) > 1


def test_an_open_address_without_a_key_is_warned_about(tmp_path):
    word = "needs no key"
    for words, warns in [(("--host", "0.0.0.0"), True), ((), False), (("--host", "0.0.0.0", "--api-key", "k"), False)]:
        with program("clime-router", *words) as r:
            assert (word in r.log()) == warns, words
    tiny_model(tmp_path / "init")
    assert run("clime-train", "task", tmp_path / "task", "--kind", "add", "--num-warmup", 4, "--num-heldout", 4)[0] == 0
    words = rl(tmp_path, tmp_path / "run", "--environment", "--environment-host", "0.0.0.0", rm_type=None, num_rollout=1, rollout_max_context_len=64,
               rollout_request_timeout=1)[1:]  # fmt: skip
    assert word in run("clime-train", *words)[2]


# ---- addresses -------------------------------------------------------------------------------------------------------


def test_a_url_is_told_without_its_secrets(tmp_path):
    """User, password and query of any URL stay out of log, ledger, alarms and the files of the run."""
    tiny_model(tmp_path / "init")
    assert run("clime-train", "task", tmp_path / "task", "--kind", "add", "--num-warmup", 4, "--num-heldout", 4)[0] == 0
    with workers(1) as (hook,):
        secret = lambda at: f"http://user:SECRET@{at}/path?key=SECRET"
        words = rl(tmp_path, tmp_path / "run", "--rm-url", secret("127.0.0.1:9"), "--rm-timeout", 1, "--alarm-url",
                   secret(f"127.0.0.1:{hook.port}"), "--mlflow-url", "http://user:SECRET@127.0.0.1:9",
                   rm_type="remote_rm", num_rollout=1)[1:]  # fmt: skip
        status, out, err = run("clime-train", *words)
        assert status == 1 and "http://127.0.0.1:9/path" in err and hook.calls()
        told = [out, err, *(str(body) for *_, body in hook.calls())]
        at = f"127.0.0.1:{hook.port}"  # which is no router
        words = rl(tmp_path, tmp_path / "other", "--router-url", f"http://user:SECRET@{at}", server_threads=None)[1:]
        status, out, err = run("clime-train", *words)
        assert status == 1 and f"http://{at}/workers lists no workers" in err
        told += [out, err]
    told += [p.read_text(errors="replace") for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert not [t[max(t.find("SECRET") - 200, 0) :][:300] for t in told if "SECRET" in t]


# ---- files -----------------------------------------------------------------------------------------------------------


def test_files_that_requests_may_name(tmp_path):
    """With --files-under nothing outside is read or written, whichever way a path says it."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "model").symlink_to(STORIES)
    with server("--files-under", inside, "--files-under", STORIES) as s:
        update = lambda path: s.post("/update_weights_from_disk", {"model_path": str(path)})
        for path in (outside, "/etc", inside / ".." / "out", inside / "link", "/nowhere", f"{inside}x", "/proc/self/cwd"):
            reply = update(path)
            assert reply.status_code == 400 and "--files-under" in reply.json()["message"], path
            if path != "/nowhere":
                profile = s.post("/start_profile", {"output_dir": str(path)})
                assert profile.status_code == 400 and "--files-under" in profile.json()["message"], path
        assert update(STORIES).status_code == 200 and update(inside / "model").status_code == 200
        assert s.post("/start_profile", {"output_dir": str(inside)}).status_code == 200
        assert s.json("/generate", SHORT)["output_ids"]
        assert s.post("/stop_profile").status_code == 200
        assert [p.name for p in inside.glob("*.json")] and not list(outside.iterdir())


# ---- TLS -------------------------------------------------------------------------------------------------------------


def test_a_worker_behind_tls(certificate, tmp_path):  # noqa: F811
    """A router trusts the workers that its --ca-certificate vouches for, and no others."""
    with server("--tls-certificate", certificate) as s:
        url = f"https://127.0.0.1:{s.port}"
        with router_to([url], "--ca-certificate", certificate) as r:
            assert r.json("/generate", SHORT)["output_ids"]
        with program("clime-router", "--worker-urls", url, "--health-check-interval", "0.1") as r:
            wait_for(lambda: "certificate" in r.log())
            assert r.post("/generate", SHORT).status_code == 503
    status, _, err = run("clime-router", "--port", 0, "--ca-certificate", tmp_path / "none")
    assert status == 1 and "--ca-certificate" in err


def test_a_server_registers_over_tls(certificate):  # noqa: F811
    with program("clime-router", "--tls-certificate", certificate) as r, \
         server("--router", f"https://127.0.0.1:{r.port}", "--ca-certificate", certificate) as s:  # fmt: skip
        trust = ssl.create_default_context(cafile=certificate)
        with httpx.Client(base_url=f"https://127.0.0.1:{r.port}", verify=trust, timeout=LIMIT) as client:
            wait_for(lambda: client.get("/readiness").status_code == 200)
            assert client.get("/list_workers").json()["urls"] == [s.url]
            assert client.post("/generate", json=SHORT).status_code == 200


def test_a_trainer_over_tls(certificate, tmp_path):  # noqa: F811
    """Its router and the servers that it gives weights to, all behind TLS: with who vouches for them it trains, else it says why not."""
    tiny_model(tmp_path / "init")
    assert run("clime-train", "task", tmp_path / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 20, "--num-heldout", 8)[0] == 0
    trust = ssl.create_default_context(cafile=certificate)
    with program("clime-server", "--model-path", tmp_path / "init", "--tls-certificate", certificate) as s, \
         program("clime-router", "--tls-certificate", certificate, "--ca-certificate", certificate,
                 "--worker-urls", f"https://127.0.0.1:{s.port}") as r:  # fmt: skip
        url = f"https://127.0.0.1:{r.port}"
        wait_for(lambda: httpx.get(f"{url}/health", verify=trust, timeout=LIMIT).status_code == 200)
        words = lambda name, *more: rl(tmp_path, tmp_path / name, *more, router_url=url, server_threads=None)[1:]  # noqa: E731
        status, _, err = run("clime-train", *words("stranger"))
        assert status == 1 and "certificate" in err
        status, out, err = run("clime-train", *words("known", "--ca-certificate", certificate))
        assert status == 0 and "done " in out + err, err[-2000:]


def test_clients_that_do_not_shake_hands(certificate):  # noqa: F811
    """They hold every thread of a TLS port, silent or with half a greeting: others are let in as soon as that is noticed, not when
    the threads give up after 30 s."""
    with program("clime-router", "--http-threads", "8", "--tls-certificate", certificate) as r:
        idle = [dial(r, b"\x16\x03\x01\x02\x00\x01"[: 6 * (i % 2)]) for i in range(40)]
        begun = time.monotonic()
        trust = ssl.create_default_context(cafile=certificate)
        for _ in range(3):
            while True:  # one that waits with them may be ended with them
                with contextlib.suppress(httpx.TransportError):
                    assert httpx.get(f"https://127.0.0.1:{r.port}/metrics", verify=trust, timeout=LIMIT).status_code == 200
                    break
        took = time.monotonic() - begun
        print(f"three answers beside 40 clients that do not shake hands: {took:.2f} s")
        for c in idle:
            c.close()
        assert took < 20 * SLOW


# ---- clients that are in the way -------------------------------------------------------------------------------------

POST = b"POST /generate HTTP/1.1\r\nHost: localhost\r\n"
HIDDEN = b"POST /flush_cache HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"


def all_of(c):
    """Until the end, which may be a reset."""
    data = b""
    with contextlib.suppress(OSError):
        while piece := c.recv(65536):
            data += piece
    return data


@pytest.mark.parametrize("head", [
    b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n",
    b"Content-Length: 5\r\nContent-Length: %d\r\n", b"Content-Length: 5, %d\r\n", b"Content-Length: +%d\r\n",
    b"Content-Length : %d\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked, identity\r\nX: %d\r\n",
    b"Transfer-Encoding: xchunked\r\nX: %d\r\n", b"Transfer-Encoding:\x0bchunked\r\nX: %d\r\n",
    b" X: y\r\nContent-Length: %d\r\n", b": y\r\nContent-Length: %d\r\n", b"X: y\nContent-Length: %d\r\n",
])  # fmt: skip
def test_nothing_is_smuggled_through_the_router(head):
    """A body of which one side might think that it ends earlier: it is refused, the connection closed, and no worker sees it."""
    body = b"0\r\n\r\n" + HIDDEN
    with workers(1) as (w,), router_to([w.url], "--worker-api-key", "admin") as router:
        with dial(router, POST + head % len(body) + b"\r\n" + body) as c:
            said = all_of(c)
        assert said.startswith(b"HTTP/1.1 400 ") and said.count(b"HTTP/1.1") == 1, said
        assert w.calls() == []
        assert router.post("/generate", SHORT).status_code == 200 and len(w.calls()) == 1


def test_a_head_says_once_whom_it_asks():
    """A request for two hosts, or for another one than its Host, might be another one's: it is refused, with words."""
    with program("clime-router") as r:
        own, other = f"127.0.0.1:{r.port}", f"127.0.0.1:{r.port ^ 1}"
        for target, lines, words in [
            ("/liveness", [f"Host: {own}", f"Host: {own}"], "more than one Host"),
            (f"http://{own}/liveness", ["Host: localhost"], "another host than its Host"),
            (f"http://localhost:{r.port}/liveness", [f"Host: {own}"], "another host than its Host"),
            (f"http://{other}/liveness", [f"Host: {other}"], "no resource of this server"),
            ("*", [f"Host: {own}"], "no resource of this server"),
            ("http://a:99999/liveness", [f"Host: {own}"], "Invalid URI"),
            ("/liveness", [f"Host: {own}", "X:\ty"], "a tab"),
        ]:
            head = "\r\n".join([f"GET {target} HTTP/1.1", *lines, "", ""])
            with dial(r, head.encode()) as c:
                said = all_of(c).decode()
            assert said.startswith("HTTP/1.1 400 ") and said.count("HTTP/1.1") == 1 and words in said, (target, lines, said)
        with dial(r, f"GET http://{own}/liveness HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n".encode()) as c:
            assert all_of(c).startswith(b"HTTP/1.1 200 ")


def test_heads_without_an_end():
    """64 MiB of headers, in lines and in one: the end comes after what one head may have, and what lies in sockets."""
    with program("clime-router", "--http-threads", "8") as router:
        for line in (b"X-Many: " + b"a" * 1000 + b"\r\n", b"a" * 65536):
            with dial(router, POST + (b"" if line.endswith(b"\n") else b"X-Long: ")) as c:
                sent = 0
                with pytest.raises(OSError):
                    while sent < 64 << 20:
                        sent += c.send(line)
                assert sent < 32 << 20
        assert router.get("/metrics").status_code == 200


@pytest.mark.parametrize("inside", ["[", '{"a":', '{"sampling_params":', '[{"x":['])
def test_json_without_a_bottom(well, inside):
    """Depth costs nothing: such a body is refused where it passes the limit, on every endpoint that reads one."""
    s, router = well
    text = inside * ((1 << 20) // len(inside))
    for to, path in [(s, "/generate"), (s, "/v1/chat/completions"), (s, "/v1/responses"), (s, "/v1/messages"), (s, "/tokenize"),
                     (s, "/start_profile"), (s, "/update_weights_from_disk"), (router, "/workers"), (router, "/generate")]:  # fmt: skip
        for body in (text, f'{{"messages": {text}', f'{{"url": {text}'):
            reply = to.client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert reply.status_code == 400, (path, body[:20])
    assert router.json("/generate", SHORT)["output_ids"]


@pytest.fixture(scope="module")
def well():
    with server() as s, router_to([s.url]) as router:
        wait_for(lambda: router.get("/health").status_code == 200)
        yield s, router


def test_half_closed_connections(well):
    """They ask, close their half and never read: that is leaving, their work ends, and others do not notice."""
    s, router = well
    body = json.dumps({"input_ids": [1], "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}).encode()
    assert s.post("/pause_generation", {"mode": "retract"}).status_code == 200
    left = [dial(router, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body) for _ in range(32)]
    wait_for(lambda: waiting(s) == 32)
    for c in left:
        c.shutdown(socket.SHUT_WR)
    wait_for(lambda: waiting(s) == 0)
    assert s.post("/continue_generation").status_code == 200
    assert router.json("/generate", SHORT)["output_ids"]
    for c in left:
        c.close()
