"""openapi/*.yaml as schemathesis reads it: requests that the contracts allow, and such that they don't, against the
running programs. Nothing may crash, and every answer must be one that the contract has.

Each run makes the same requests. CLIME_EXAMPLES=200 (so many random ones an operation, here it is 6, in the fast tier 2 and no bounds) makes a longer search, in which
the endpoints with all the sampling parameters also get every bound of each, which takes most of the time.
"""

import contextlib
import os
import pathlib
import re
import subprocess
import sys

import pytest
from programs import FULL, LIMIT, SLOW, chat_model, program, server, tiny_model
from test_environments import Run

EXAMPLES = int(os.environ.get("CLIME_EXAMPLES", 6 if FULL else 2))
CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance,ignored_auth,refusals"
KEYS = ["--api-key", "user", "--admin-api-key", "boss"]
# What stops or changes a server for all others: tried on one of its own, where nobody generates.
CONTROL = (r"/(abort_request|(pause|continue)_generation|pause|resume|sleep|wake_up|flush_cache|reset_prefix_cache|(release|resume)_memory_occupation"
           r"|start_profile|stop_profile|configure_logging|get_weights_by_name|weights_checker|weights/.*|update_weight.*|init_weight.*|destroy_weight.*|start_weight.*"
           r"|start_draft_weight.*|finish_weight.*|abort_requests|collective_rpc)$")  # fmt: skip


GENERATING = r"/(generate|v1/(completions|chat/completions|responses|messages))$"
BOUNDS, RANDOM = "coverage", "examples,fuzzing"
PHASES = f"{BOUNDS},{RANDOM}" if FULL or "CLIME_EXAMPLES" in os.environ else RANDOM  # bounds take three quarters of the time


def search(url, tmp_path, *options, phases=PHASES, key="boss", session=""):
    """Runs schemathesis over what url serves; returns how many requests were made."""
    tool = pathlib.Path(sys.executable).with_name("schemathesis")
    here = pathlib.Path(__file__).parent
    done = subprocess.run(
        [tool, "run", f"{url}/openapi.json", "--phases", phases, "--max-examples", str(EXAMPLES),
         "--checks", CHECKS, "--generation-deterministic", "--continue-on-failure", "--no-color",
         "--request-timeout", str(LIMIT), "--warnings", "off", "--suppress-health-check", "all",
         *(["-H", f"Authorization: Bearer {key}"] if key else []), *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=(300 + 60 * EXAMPLES) * SLOW,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(here), "CLIME_SESSION": session})  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-4000:]
    return int(re.search(r"(\d+) generated", done.stdout)[1])


@contextlib.contextmanager
def small_server(tmp_path):
    """Replies are short, so that there can be many. It runs where odd names that requests give to files are out of the way."""
    with server(*KEYS, "--context-length", "48", model=chat_model(tmp_path), cwd=tmp_path) as s:
        yield s


def test_server(tmp_path):
    with small_server(tmp_path) as s:
        if "CLIME_EXAMPLES" in os.environ:
            n = search(s.url, tmp_path, "--exclude-path-regex", CONTROL)
        else:
            n = search(s.url, tmp_path, "--include-path-regex", GENERATING, phases=RANDOM)
            n += search(s.url, tmp_path, "--exclude-path-regex", f"{CONTROL}|{GENERATING}")
        print(f"{n} requests")
        assert n > (300 if BOUNDS in PHASES else 100)


@pytest.mark.full
def test_control_of_a_server(tmp_path):
    with small_server(tmp_path) as s:
        n = search(s.url, tmp_path, "--include-path-regex", CONTROL)
        print(f"{n} requests")
        assert n > 100


def test_router(tmp_path):
    with small_server(tmp_path) as s, program("clime-router", *KEYS, "--worker-api-key", "boss", "--worker-urls", s.url) as r:
        n = search(r.url, tmp_path, "--exclude-path-regex", f"{CONTROL}|^/sessions", phases=RANDOM)
        print(f"{n} requests")
        assert n > 50
        assert s.json("/v1/completions", {"prompt": "a", "max_tokens": 1}, 401)  # it is there, and has its keys


@pytest.mark.full
def test_control_of_a_router(tmp_path):
    with small_server(tmp_path) as s, program("clime-router", *KEYS, "--worker-api-key", "boss", "--worker-urls", s.url) as r:
        n = search(r.url, tmp_path, "--include-path-regex", rf"{CONTROL}|^/workers|_worker")
        print(f"{n} requests")
        assert n > 100


def test_gateway_and_page(tmp_path):
    """The trainer's two: a run that waits for its environment."""
    tiny_model(tmp_path / "tiny")
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1", "label": "2"}\n' * 4)
    run = Run(tmp_path, "run", "--environment-api-key", "secret", model="tiny")
    try:
        run.http.headers["Authorization"] = "Bearer secret"
        task = run.lease()
        n = search(str(run.http.base_url).rstrip("/"), tmp_path, key="secret", session=task["session"].rsplit("/", 1)[1])
        page = (run.dir / "ports" / "page").read_text().strip()
        m = search(f"http://127.0.0.1:{page}", tmp_path, key=None)
        print(f"{n} + {m} requests")
        assert run.process.poll() is None and min(n, m) > (100 if BOUNDS in PHASES else 25)
    finally:
        run.stop()
