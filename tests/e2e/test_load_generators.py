"""The load generators of vLLM and SGLang, by the requests that they send (scripts/bench-clients): at 16, 64 and 256 streams, on
server and router, every request succeeds and gets all its tokens. And what they ask besides."""

import json
import subprocess
import sys

import pytest
from programs import LIMIT, ROOT, chat_model, router_to, server
from test_front import wait_for


@pytest.fixture(scope="module", params=["server", "router"])
def both(request, tmp_path_factory):
    """(the server, whom one asks)"""
    options = ["--max-running-requests", "256", "--http-threads", "400", "--max-total-tokens", "65536"]
    with server(*options, model=chat_model(tmp_path_factory.mktemp("chat"))) as s:
        if request.param == "server":
            yield s, s
        else:
            with router_to([s.url], "--http-threads", "400") as router:
                yield s, router


def bench(to, *more):
    return subprocess.run([sys.executable, str(ROOT / "scripts/bench-clients"), to.url, *map(str, more)],
                          capture_output=True, text=True, timeout=4 * LIMIT)  # fmt: skip


def test_every_request_succeeds(both, tmp_path):
    _, to = both
    done = bench(to, "--input-len", 24, "--output-len", 32, "--json", tmp_path / "lines")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [(r["shape"], r["streams"], r["requests"], r["failures"]) for r in lines] == [
        (shape, n, 2 * n, 0) for shape in ("sglang", "vllm", "vllm-chat") for n in (16, 64, 256)]  # fmt: skip
    assert all(r["tokens_per_s"] > 0 and r["first_ms_p50"] > 0 and r["between_ms_p99"] > 0 for r in lines)


def test_a_failure_is_told(both):
    _, to = both
    done = bench(to, "--shapes", "sglang", "--concurrency", 2, "--input-len", 600)
    assert done.returncode == 1 and "  HTTP/1.1 400" in done.stdout and "512" in done.stdout, done.stdout + done.stderr
    broken = bench(to, "--shapes", "vllm", "--concurrency", 2, "--max-id", 100000)
    assert broken.returncode == 1 and "vocabulary" in broken.stdout


def test_what_they_ask_besides(both):
    """SGLang's before and after a run, vLLM's for its own counters."""
    s, to = both
    assert to.get("/v1/models").json()["data"][0]["id"]
    wait_for(lambda: s.post("/flush_cache").status_code == 200)  # what the one before left behind ends first
    info = s.get("/server_info").json()
    assert info["internal_states"][0]["last_gen_throughput"] >= 0 and s.get("/get_server_info").json().keys() == info.keys()
    assert s.get("/model_info").json()["model_path"]
    assert all(line.startswith("#") or " " in line for line in to.get("/metrics").text.splitlines() if line)
