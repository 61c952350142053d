"""The page of a run: its server. What a browser makes of it is in test_page_browser.py."""

import array
import concurrent.futures
import contextlib
import json
import math
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time

import httpx
import pytest
import yaml
from programs import BUILD, LIMIT, ROOT, Program, to_schema_13

sys.path.insert(0, str(ROOT / "tests" / "conformance"))
from test_openapi import check_reply  # noqa: E402
from test_rl import command, make_model, model, run_whole  # noqa: E402, F401  a fixture


class Page(Program):
    """clime-train page, stopped by stop()."""

    def __init__(self, *runs, port=0):
        super().__init__("clime-train", *runs, "--page-port", port, first=["page"], port=("--page-port", "--page-port-file"))


def finish_run(d):
    make_model(d)
    run_whole(command(d, d / "paged", num_rollout=4, eval_interval=2), d / "paged.log")


@pytest.fixture(scope="module")
def run(once):
    """A finished run of 4 rollouts, to be read."""
    return once("finished-run", finish_run) / "paged"


@pytest.fixture(scope="module")
def page(run):
    p = Page(run)
    yield p
    status, log = p.stop()
    assert status == 0, log


@contextlib.contextmanager
def training(words):
    """The page's address of a run that trains; the run is killed at the end."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
        lines = []
        try:
            for line in p.stdout:
                lines.append(line)
                found = re.findall(r"^page +(http://127\.0\.0\.1:\d+/)$", line)
                if found:
                    yield found[0], p.stdout
                    return
            raise AssertionError("no page: " + "".join(lines))
        finally:
            p.kill()


def test_a_run_has_its_page_over_a_restart(model):  # noqa: F811
    """On by default: the address is printed, the port is in the run folder, and the ledger is read while it is written.
    The next start has the same address, for a page that stayed open."""
    run = model / "live"
    words = command(model, run, num_rollout=1000)
    urls = set()
    for _ in range(2):
        with training(words) as (url, output):
            assert next(line for line in output if line.startswith("rollout "))
            assert url == f"http://127.0.0.1:{(run / 'ports' / 'page').read_text().strip()}/"
            runs = httpx.get(url + "api/runs", timeout=LIMIT).json()["runs"]
            assert [(r["dir"], r["state"]) for r in runs] == [(str(run), "running")], runs
            assert 0 in {m["rollout"] for m in httpx.get(url + "api/runs/0/metrics", timeout=LIMIT).json()["lines"]}
            until = time.monotonic() + LIMIT
            while True:  # a server on a busy machine may not say its load in time; asked again it does
                now = httpx.get(url + "api/runs/0/now", timeout=LIMIT).json()
                if [bool(s["loads"] and s["version"]) for s in now["fleet"].get("servers", [])] == [True]:
                    assert now["fleet"]["servers"][0]["version"]["weight_version"].split("@")[0].isdigit()
                    break
                assert time.monotonic() < until, now
                time.sleep(0.1)
            assert now["fleet"]["servers"][0]["loads"]["loads"][0]["max_total_num_tokens"] > 0
            urls.add(url)
    assert len(urls) == 1, urls
    page = Page(run)
    assert page.get("/api/runs").json()["runs"][0]["state"] == "stopped"
    page.stop()


def test_servers_that_hang_do_not_hold_the_page(run, tmp_path):
    """The router of the record takes connections and never answers. The ledger says that the run trains."""
    shutil.copytree(run, tmp_path / "hung", ignore=shutil.ignore_patterns("checkpoints", "*.safetensors"))
    trainer = subprocess.Popen([BUILD / "clime-train", "page", run], stdout=subprocess.PIPE)  # a clime-train that lives
    with socket.create_server(("127.0.0.1", 0)) as router, contextlib.closing(sqlite3.connect(tmp_path / "hung" / "ledger.db")) as db:
        try:
            (tmp_path / "hung" / "ports" / "router").write_text(f"{router.getsockname()[1]}\n")
            db.execute("UPDATE incarnations SET pid = ?", (trainer.pid,))
            db.execute("DELETE FROM events WHERE kind = 'end'")
            db.commit()
            page = Page(tmp_path / "hung")
            with concurrent.futures.ThreadPoolExecutor(16) as pool:  # more than one browser opens
                several = list(pool.map(lambda _: httpx.get(page.url + "/api/runs/0/now", timeout=LIMIT).json(), range(16)))
            assert {n["state"] for n in several} == {"running"}
            assert any("router" in n["fleet"].get("error", "") or "workers" in n["fleet"].get("error", "") for n in several), several
            assert router.accept()[0].recv(1000).count(b"GET /workers") == 1
            page.stop()
        finally:
            trainer.kill()
            trainer.wait()


def test_a_run_of_the_schema_before(run, tmp_path):
    """An ended run is shown and reported as it is: nobody has to start it again first."""
    with contextlib.closing(sqlite3.connect(run / "ledger.db")) as db, contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as to:
        db.backup(to)
    to_schema_13(tmp_path / "ledger.db")
    before = (tmp_path / "ledger.db").read_bytes()
    page = Page(tmp_path)
    shown = page.get("/api/runs/0/sample?id=1").json()
    assert shown["streams"]["logp"]
    assert page.get("/api/runs/0/samples?text=1").json()["samples"] and page.get("/api/runs/0/times").json()["rollouts"]
    page.stop()
    done = subprocess.run([BUILD / "clime-train", "report", tmp_path], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ledger.db").read_bytes() == before


def test_every_answer_forbids_what_is_not_ours(page):
    for path in ("/", "/assets/main.js", "/api/runs", "/api/runs/0/events"):
        headers = page.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff", path
    assert page.post("/api/runs").status_code == 405
    assert page.get("/api/runs", headers={"Host": "evil.example"}).status_code == 403
    assert page.get("/assets/../../Makefile").status_code == 404
    assert page.get("/api/runs/7/events").status_code == 404
    assert page.get("/api/runs/0/events?before=x").status_code == 400


def test_metrics_are_the_runs(page, run):
    want = sorted(map(str.strip, open(run / "metrics.jsonl")))
    got = page.get("/api/runs/0/metrics").json()
    assert got["next"] is None and sorted(map(json.dumps, got["lines"])) == sorted(json.dumps(json.loads(s)) for s in want)
    assert {m["step"] for m in page.get("/api/runs/0/metrics?from=5").json()["lines"]} == {5, 6, 7, 8}


def test_entropy_of_tokens_is_the_steps(page, run):
    """A number for each token that a step trained on, and for no other; their mean is the step's figure."""
    with contextlib.closing(sqlite3.connect(run / "ledger.db")) as db:
        rows = db.execute("SELECT t.step, s.entropy, s.mask FROM step_samples t JOIN samples s ON s.id = t.sample_id").fetchall()
        figures = dict(db.execute("SELECT step, json_extract(stats, '$.train/entropy_loss') FROM steps"))
    assert len(figures) == 8
    for step, figure in figures.items():
        found = []
        for entropy, mask in ((e, m) for at, e, m in rows if at == step):
            values = array.array("f", entropy)
            assert [math.isnan(v) for v in values] == [not m for m in mask]
            found += [v for v in values if not math.isnan(v)]
        assert len(set(found)) > 10 and min(found) > 0 and sum(found) / len(found) == pytest.approx(figure, rel=1e-6)
    shown = page.get("/api/runs/0/sample?id=1").json()["streams"]
    assert len(shown["entropy"]) == len(shown["logp"])


def test_memory_beside_its_plan(page, run):
    lines = [m for m in page.get("/api/runs/0/metrics").json()["lines"] if m["kind"] == "perf"]
    assert len(lines) == 4
    for m in lines:  # on CPUs what is in use is the process, which holds at least half of what was planned for it
        assert m["perf/memory_planned_bytes"] > 1 << 20 and "perf/memory_host_used_bytes" not in m
        assert m["perf/memory_planned_bytes"] / 2 < m["perf/memory_used_bytes"] < 1 << 34
    (event,) = page.get("/api/runs/0/events?kind=memory").json()["events"]
    assert event["detail"].startswith("weights ") and "GiB free" in event["detail"]
    assert event["detail"] in (run.parent / "paged.log").read_text()


def test_replies_are_the_specs(page):
    spec = yaml.safe_load((ROOT / "openapi" / "page.yaml").read_text())
    assert page.get("/openapi.json").json() == spec
    ask = {"/api/runs/{run}/sample": "id=1", "/api/runs/{run}/group": "id=0", "/api/runs/{run}/answers": "set=heldout&line=0"}
    for path, methods in spec["paths"].items():
        if path.startswith("/api/") and "get" in methods:
            check_reply(spec, path, "get", page.get(path.replace("{run}", "0") + "?" + ask.get(path, "")))
            if "{run}" in path:
                check_reply(spec, path, "get", page.get(path.replace("{run}", "9")))
    assert page.get("/api/runs/0/answers?set=heldout&line=0").json()["prompt"].startswith("<|user|>")


def refused(*words):
    p = subprocess.run([BUILD / "clime-train", *map(str, words)], capture_output=True, text=True, timeout=LIMIT)
    assert p.returncode == 1
    return p.stderr


def test_clear_words_for_what_cannot_be_shown(model, run, tmp_path):  # noqa: F811
    assert "no ledger at" in refused("page", tmp_path)
    (tmp_path / "ledger.db").write_bytes(b"no ledger at all" * 999)
    says = refused("page", run, tmp_path)
    assert str(tmp_path) in says and "not a database" in says, says
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use" in refused("page", run, "--page-port", port)
        words = command(model, model / "no-port", "--page-port", str(port))[1:]
        assert f"--page-port: port {port} of 127.0.0.1 is in use" in refused(*words)
        assert not os.path.exists(model / "no-port" / "ledger.db")  # said before anything is made
