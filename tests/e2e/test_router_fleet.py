"""The router's fleet: sessions in path, header and body; labels and keys of workers; their capacity; discovery by a file and by
a name; the workers' metrics as one text. Workers are mocks."""

import concurrent.futures
import json
import os
import signal
import subprocess
import time
import urllib.parse

import pytest
from mocks import Worker, workers
from programs import BUILD, LIMIT, program, router_to, server
from test_router_faults import ask, fleet, states, urls, wait_for

QUICK = ("--health-check-interval", "0.1", "--discovery-interval", "0.05")


def where(router, path="/generate", headers=None, **body):
    reply = router.client.post(path, json={"text": "x"} | body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()["port"]


# ---- sessions ----


def test_a_session_is_named_by_path_header_or_body():
    with workers(4) as made, program("clime-router", "--policy", "round_robin", *urls(made)) as router:
        first = where(router, "/sessions/one/generate")
        for _ in range(3):
            assert where(router, "/sessions/one/v1/chat/completions") == first
            assert where(router, headers={"X-Session-ID": "one"}) == first
            assert where(router, headers={"X-SMG-Routing-Key": "one"}) == first
            assert where(router, session_id="one") == first
            assert where(router, session_params={"session_id": "one", "x": [1]}) == first
            assert where(router, session_id="two", headers={"X-Session-ID": "one"}) == first
        seen = {c[1] for w in made for c in w.calls()}
        assert seen == {"/generate", "/v1/chat/completions"}  # the session stays here
        assert first not in {where(router) for _ in range(6)}  # it has had more
        assert router.post("/finish_session?session_id=one").json() == {"finished": True}
        assert router.post("/finish_session", {"session_id": "one"}).json()["finished"] is False
        assert where(router, session_id="one") != first
        assert router.post("/finish_session").status_code == 400


def test_consistent_hashing_outlives_the_router():
    with workers(5) as made:
        def places(order):
            with program("clime-router", "--policy", "consistent_hashing", *urls(order)) as router:
                return [where(router, session_id=f"s{i}") for i in range(20)]

        first = places(made)
        assert len(set(first)) > 2
        assert places(made[::-1]) == first


def test_one_worker_is_asked_for_by_its_place_or_url():
    """As SGLang's gateway has it; another one is never asked in its place, and who waits for it holds up nobody else."""
    with workers(3) as made, program("clime-router", *QUICK, *urls(made)) as router:
        listed = list(fleet(router))
        for place, url in enumerate(listed):
            for name in str(place), url, url + "/":
                got = {where(router, headers={"X-SMG-Target-Worker": name}, session_id="s") for _ in range(3)}
                assert got == {int(url.rsplit(":")[-1])}
        made[0].healthy = False
        wait_for(lambda: fleet(router)[made[0].url]["status"] == "down")
        for name in made[0].url, "3", "-1", "00", "http://nowhere.test:1":
            reply = router.client.post("/generate", json={"text": "x"}, headers={"X-SMG-Target-Worker": name})
            assert reply.status_code == 503 and f"{name} (X-SMG-Target-Worker)" in reply.json()["message"]


# ---- what is said of a worker ----


def test_what_the_older_add_worker_says_of_a_key_holds():
    with workers(1) as (w,), program("clime-router", "--worker-api-key", "common", *QUICK) as router:
        assert router.post(f"/add_worker?url={w.url}&api_key=a%0d%0ab").status_code == 400
        assert router.post(f"/add_worker?url={w.url}&api_key={'k' * 300}").status_code == 400
        assert fleet(router) == {}
        assert router.post(f"/add_worker?url={w.url}&api_key=its+own").status_code == 200
        where(router)
        assert [c[2]["Authorization"] for c in w.calls("/generate")] == ["Bearer its own"]


def test_what_no_path_can_be_put_behind_is_no_workers_url():
    with workers(1) as (w,), program("clime-router", *QUICK) as router:
        for end in "?x", "/#f", "?":
            assert router.post("/workers", {"url": w.url + end}).status_code == 400
        for url in ("http://me:secret@127.0.0.1:1", "http://127.0.0.1:99999", "http://[::1:1", "http://:80", "http://", "http://127.0.0.1:8x",
                    "ftp://127.0.0.1", "127.0.0.1:8"):  # fmt: skip
            reply = router.post("/workers", {"url": url})
            assert reply.status_code == 400 and "http://host:port" in reply.json()["message"]
        assert fleet(router) == {}
        for url in f"http://localhost:{w.port}/below/it/", "https://[::1]:9", "http://no-such.test":
            assert router.post("/workers", {"url": url}).status_code == 202


def test_half_a_worker_is_none():
    with workers(1) as (w,), program("clime-router", *QUICK) as router:
        for kind in "prefill", "decode", 5:
            reply = router.post("/workers", {"url": w.url, "worker_type": kind, "bootstrap_port": 8998})
            assert reply.status_code == 400 and reply.json()["message"].startswith("worker_type")
        assert fleet(router) == {}
        assert router.post("/workers", {"url": w.url, "worker_type": "regular", "bootstrap_port": None}).status_code == 202
        assert fleet(router)[w.url]["worker_type"] == "regular"


def test_one_workers_metrics_spoil_no_others():
    good = b"# HELP a what \xc3\xa9\n# TYPE a counter\na 1\na{x=\"}\\\"\\n\\\\\",y=\"\",} 2.5e3 17\r\nb{ } +Inf\nc NaN\n"
    good += b'd{x="",worker="its"} 1'
    bad = [b"<html>", b"a", b"a{x=\"1 1", b"a{x=\"1\"", b"a{x=1} 1", b"a{1=\"\"} 1", b"a{x=\"\\q\"} 1", b"a{,} 1", b"a 1x", b"a 1 2 3", b"\xff 1",
           b"a{x=\"\xff\"} 1", b"# TYPE a thing", b"# HELP", b"# HELP \xff x", b"1a 1", b"a" * 100_000, b"a " + b"1" * 100,
           b'a{x="",x=""} 1', b'a{worker="",exported_worker=""} 1', b'a{x:y=""} 1', b'a{__name__="b"} 1', b"a 0x1", b"a nan(1)", b"a \v1",
           b"a 1 2.5", b"a{%s} 1" % b",".join(b'x%d=""' % i for i in range(65))]  # fmt: skip
    many = b"".join(b"m%d 1\n" % i for i in range(20_000))

    def answer(handler, body):
        if handler.path == "/metrics":
            lies = handler.server.worker is made[1]
            handler.reply(200, b"\n".join(bad) + b"\n" + many if lies else good, "text/plain")
        return handler.path == "/metrics"

    with workers(2, answer) as made, router_to([w.url for w in made]) as router:
        lines = router.get("/engine_metrics").content.split(b"\n")
        worker = b'worker="%s"' % made[0].url.encode()
        assert lines[:7] == [b"# HELP a what \xc3\xa9", b"# TYPE a counter", b"a{%s} 1" % worker,
                             b"a{%s,x=\"}\\\"\\n\\\\\",y=\"\",} 2.5e3 17" % worker, b"b{%s, } +Inf" % worker, b"c{%s} NaN" % worker,
                             b'd{%s,x="",exported_worker="its"} 1' % worker]  # fmt: skip
        assert all(line.startswith(b"m") and made[1].url.encode() in line for line in lines[7:-1]) and len(lines) == 4096 + 4


def test_the_list_of_a_full_fleet_is_whole(tmp_path):
    labels = {"note": '"' * 500}
    lines = [json.dumps({"url": f"http://127.0.0.1:1/{'x' * 200}{i}", "labels": labels}) for i in range(1024)]
    (tmp_path / "workers").write_text("\n".join(lines))
    with program("clime-router", "--worker-file", tmp_path / "workers", "--health-check-interval", "3600") as router:
        wait_for(lambda: len(router.get("/list_workers").json()["urls"]) == 1024)
        assert [w["labels"] for w in router.get("/workers").json()["workers"]] == [labels] * 1024


def test_labels_and_keys_of_workers():
    with workers(2) as (a, b), program("clime-router", "--worker-api-key", "common", *QUICK) as router:
        def one(method, body, path=""):
            reply = router.client.request(method, f"/workers/{ids[a.url]}{path}", json=body)
            return reply.json() if reply.status_code == 200 else (reply.status_code, reply.json()["message"])

        said = {"url": a.url, "labels": {"pool": "train", "zone": "é=1"}, "api_key": "own"}
        assert router.post("/workers", said).status_code == 202
        assert router.post("/workers", {"url": b.url, "priority": 3}).status_code == 202
        ids = {w["url"]: w["id"] for w in fleet(router).values()}
        for _ in range(3):
            assert where(router, headers={"X-Clime-Worker-Label": "pool=train"}) == a.port
        assert [c[2]["Authorization"] for c in a.calls("/generate")] == ["Bearer own"] * 3
        for _ in range(4):
            where(router)
        assert b.calls("/generate")[0][2]["Authorization"] == "Bearer common"
        assert {c[2]["Authorization"] for c in a.calls("/health")} == {"Bearer own"}
        reply = router.client.post("/generate", json={}, headers={"X-Clime-Worker-Label": "pool=eval"})
        assert reply.status_code == 503 and "pool=eval" in reply.json()["message"]
        assert fleet(router)[a.url]["labels"] == said["labels"] and fleet(router)[a.url]["has_api_key"]
        assert one("PATCH", {"labels": {"pool": "eval"}})["labels"] == {"pool": "eval"}
        assert one("PATCH", {})["has_api_key"] is True
        assert where(router, headers={"X-Clime-Worker-Label": "pool=eval"}) == a.port
        changed = one("PUT", {"labels": {"pool": "new"}})
        assert changed["has_api_key"] is False and changed["labels"] == {"pool": "new"} and "own" not in json.dumps(changed)
        where(router, headers={"X-Clime-Worker-Label": "pool=new"})
        assert a.calls("/generate")[-1][2]["Authorization"] == "Bearer common"
        for bad in ({"labels": {"a=b": "c"}}, {"labels": {"a": "b\n"}}, {"labels": {"a": 1}}, {"labels": {"a": "x" * 600}},
                    {"api_key": "x" * 300}, {"api_key": "a\r\nX: y"}, {"url": "http://other"}, {"health_port": 0}, []):  # fmt: skip
            assert one("PATCH", bad)[0] == 400, bad
        many = len(fleet(router))
        assert router.post("/workers", {"url": "http://127.0.0.1:1", "api_key": "x" * 300}).status_code == 400
        assert len(fleet(router)) == many  # refused whole
        assert router.client.put("/workers/999", json={}).status_code == 404
        assert fleet(router)[a.url]["labels"] == {"pool": "new"}


def loads(tokens):
    def answer(handler, body):
        if handler.path.startswith("/v1/loads"):
            handler.reply(200, {"loads": [{"dp_rank": 0, "max_total_num_tokens": tokens}]})
        return handler.path.startswith("/v1/loads")

    return answer


def test_a_full_fleet_says_so_with_its_numbers():
    with workers(2, loads(100)) as made, \
         program("clime-router", "--max-worker-load", "2", *QUICK, *urls(made)) as router:  # fmt: skip
        wait_for(lambda: [w["capacity"] for w in fleet(router).values()] == [100, 100])
        large = {"input_ids": [1] * 150, "sampling_params": {"max_new_tokens": 100}}
        hold = []

        def slow(handler, body):
            if handler.path == "/generate":
                wait_for(lambda: hold)
            return False

        for w in made:
            w.answer = slow
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(ask, router, large) for _ in range(2)]
            wait_for(lambda: [w["load"] for w in fleet(router).values()] == [1, 1])
            reply = ask(router, large)
            hold.append(True)
            assert reply.status_code == 429 and "retry-after" in reply.headers
            assert "502 tokens to do, and hold 200" in reply.json()["message"]
            assert [a.result().status_code for a in asked] == [200, 200]
        assert ask(router, large).status_code == 200


# ---- discovery ----


def test_workers_of_a_file_come_and_go(tmp_path):
    with workers(3) as (a, b, c):
        path = tmp_path / "workers"

        def write(text):
            path.with_suffix(".new").write_text(text)
            os.replace(path.with_suffix(".new"), path)

        write(f"# the fleet\n{a.url}\n\n" + json.dumps({"url": b.url, "labels": {"pool": "x"}, "api_key": "k"}) + "\n")
        with program("clime-router", *QUICK, "--worker-file", path, "--worker-urls", c.url) as router:
            assert set(fleet(router)) == {a.url, b.url, c.url}
            assert fleet(router)[b.url]["labels"] == {"pool": "x"} and fleet(router)[b.url]["has_api_key"]
            write(f"{b.url}\nhttp://half")  # and no line's end: it is read all the same
            wait_for(lambda: set(fleet(router)) == {b.url, c.url, "http://half"})
            assert fleet(router)[b.url]["labels"] == {}
            write("nonsense\n")
            wait_for(lambda: "line 1" in router.log())
            path.unlink()
            wait_for(lambda: "No such file" in router.log() or "line 1" in router.log())
            assert set(fleet(router)) == {b.url, c.url, "http://half"}
            write(f"{a.url}\n")
            wait_for(lambda: set(fleet(router)) == {a.url, c.url})
            wait_for(lambda: states(router) == ["ready", "ready"])


def test_workers_of_a_name():
    with workers(1) as (w,), program("clime-router", *QUICK, "--worker-dns", f"localhost:{w.port}",
                                     f"no-such-name.invalid:{w.port}") as router:  # fmt: skip
        wait_for(lambda: f"http://127.0.0.1:{w.port}" in fleet(router))
        wait_for(lambda: fleet(router)[f"http://127.0.0.1:{w.port}"]["status"] == "ready")
        assert "no-such-name.invalid" in router.log()


def test_a_worker_that_two_sources_name_stays_until_both_have_dropped_it(tmp_path):
    """And one that an option names is no file's to remove."""
    path = tmp_path / "workers"
    path.write_text("")
    with workers(3) as (a, b, c), program("clime-router", *QUICK, "--worker-file", path, "--worker-urls", a.url,
                                          "--worker-dns", f"127.0.0.1:{b.port}") as router:  # fmt: skip
        def write(*urls):
            path.with_suffix(".new").write_text("".join(f"{url}\n" for url in urls))
            os.replace(path.with_suffix(".new"), path)

        for _ in range(2):
            write(a.url, b.url, c.url, c.url + "/")
            wait_for(lambda: set(fleet(router)) == {a.url, b.url, c.url})
            write(a.url, b.url, c.url + "/")  # the same one
            time.sleep(0.2)
            wait_for(lambda: set(fleet(router)) == {a.url, b.url, c.url})
            write()
            wait_for(lambda: c.url not in fleet(router))
            assert set(fleet(router)) == {a.url, b.url}


@pytest.mark.parametrize("words, says", [
    (["--worker-dns", "localhost"], "NAME:PORT"),
    (["--worker-file", "/no/such/file"], "/no/such/file"),
    (["--worker-file", "HERE/pipe"], "is a pipe"),
])  # fmt: skip
def test_what_is_no_source_is_said_at_start(words, says, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    words = [w.replace("HERE", str(tmp_path)) for w in words]
    done = subprocess.run([BUILD / "clime-router", *words], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode != 0 and done.stderr.count("\n") == 1 and says in done.stderr


# ---- metrics ----


# ---- gone for good ----


def test_a_worker_that_is_gone_for_good_makes_room(tmp_path):
    """Not one that an option or a file names."""
    names = tmp_path / "fleet"
    with workers(4) as (by_hand, by_option, by_file, well):
        names.write_text(by_file.url + "\n")
        with program("clime-router", *QUICK, *urls([by_option]), "--worker-file", names, "--evict-after", "0.5") as router:
            for w in well, by_hand:
                router.post("/workers", {"url": w.url})
            wait_for(lambda: states(router) == ["ready"] * 4)
            for w in by_option, by_file:
                w.stop()
            wait_for(lambda: sorted(states(router)) == ["down", "down", "ready", "ready"])
            by_hand.stop()
            wait_for(lambda: set(fleet(router)) == {by_option.url, by_file.url, well.url})
            assert "clime_router_evictions_total 1\n" in router.get("/metrics").text
            health = lambda w: router.get("/health?" + urllib.parse.urlencode({"worker": w.url})).json().get("evicted", False)
            assert [health(w) for w in (by_hand, by_option, well)] == [True, False, False]
            back = Worker(port=by_hand.port)
            router.post("/workers", {"url": back.url})
            wait_for(lambda: fleet(router)[back.url]["status"] == "ready")
            assert not health(back)
            back.stop()


def test_an_evicted_server_that_was_only_cut_off_comes_back():
    """It registered itself, does so again, and is none that an operator took out."""
    quick = ("--health-check-interval", "0.1", "--health-check-timeout", "0.5", "--evict-after", "1")
    with workers(1) as (well,), program("clime-router", *quick, *urls([well])) as router, \
         server("--router", router.url) as cut_off:  # fmt: skip
        wait_for(lambda: len(fleet(router)) == 2)
        cut_off.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: len(fleet(router)) == 1)
        cut_off.process.send_signal(signal.SIGCONT)
        wait_for(lambda: states(router) == ["ready", "ready"])


def test_the_metrics_of_all_workers_are_one_text():
    def metrics(handler, body):
        text = (f"# HELP a_total what\n# TYPE a_total counter\na_total {handler.server.server_port}\n"
                '# HELP h seconds\n# TYPE h histogram\nh_bucket{le="1"} 2\nh_bucket{le="+Inf"} 3\nh_sum 4\nh_count 3\n')  # fmt: skip
        if handler.path == "/metrics":
            handler.reply(200, text.encode(), "text/plain")
        return handler.path == "/metrics"

    with workers(2, metrics) as (a, b), program("clime-router", *urls([a, b])) as router:
        lines = router.get("/engine_metrics").text.splitlines()
        at = {w: f'worker="{w.url}"' for w in (a, b)}
        assert lines == [
            "# HELP a_total what", "# TYPE a_total counter", f"a_total{{{at[a]}}} {a.port}", f"a_total{{{at[b]}}} {b.port}",
            "# HELP h seconds", "# TYPE h histogram",
            *(line for w in (a, b) for line in (f'h_bucket{{{at[w]},le="1"}} 2', f'h_bucket{{{at[w]},le="+Inf"}} 3',
                                                f"h_sum{{{at[w]}}} 4", f"h_count{{{at[w]}}} 3"))]  # fmt: skip
    with program("clime-router") as router:
        assert router.get("/engine_metrics").status_code == 503
