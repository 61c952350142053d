"""Starting the programs under test and talking to them. Shared by the end-to-end tests.

Binaries are taken from $CLIME_BUILD (default: build), shared data from $CLIME_DATA (default: ../shared/data).
"""

import contextlib
import functools
import os
import pathlib
import random
import re
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
import types

import httpx
import pytest
import stand_in

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CLIME_BUILD", ROOT / "build"))
DATA = pathlib.Path(os.environ.get("CLIME_DATA", ROOT.parent / "shared" / "data"))
STORIES = DATA / "stories260K" if (DATA / "stories260K").is_dir() else stand_in.folder(BUILD)
FULL = os.environ.get("CLIME_FULL") == "1"  # scripts/test --full: what takes long, and more of what is random
SLOW = float(os.environ.get("CLIME_SLOW", 1))  # how much longer a sanitizer build may take
LIMIT = 60 * SLOW  # seconds that a short command may take on a busy machine


# httpx without what it prepares for TLS each time, which takes 25 ms, and with more patience than its 5 s
web = types.SimpleNamespace(**{name: functools.partial(getattr(httpx, name), verify=False, timeout=LIMIT)
                               for name in ("get", "post", "put", "stream", "Client", "AsyncClient")})  # fmt: skip


def free_port():
    """One for a program that is told its port, below those that the system gives to who asks for any: nobody else comes by it."""
    while True:
        port = random.randrange(15000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def partly(cases, each=2):
    """Cases of a test: --full has all, the fast tier the first of every so many."""
    return [c if i % each == 0 else pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=pytest.mark.full) for i, c in enumerate(cases)]


def few_threads(words):
    """A trainer's words: what it starts has 128 threads for connections. By default 1,088 are started at once, for a router and for
    each server: 0.3 s of a processor and a second of waiting in each of some 400 runs."""
    return words if "--router-url" in words else [*words, "--server-http-threads", "128", "--router-http-threads", "128"]


def wait_for(condition, seconds=LIMIT):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.005)


def to_schema_13(path):
    """Makes a ledger what programs before schema 14 wrote: the view `samples` has no sets of kept ids."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        view = db.execute("SELECT sql FROM sqlite_master WHERE name = 'samples'").fetchone()[0]
        older, n = re.subn(r", \(SELECT data [^)]*name = 'kept\w*'\) AS kept\w*", "", view)
        assert n == 3
        db.executescript(f"DROP VIEW samples; {older}; DELETE FROM sample_streams WHERE name LIKE 'kept%'; PRAGMA user_version = 13;")


def need(path):
    """Skips the test where this part of the shared data is absent."""
    if not path.exists():
        pytest.skip(f"shared data is absent: {path}")


# of tests of what the stories' model says: its stand-in says nothing in particular
needs_stories = pytest.mark.skipif(not (DATA / "stories260K").exists(), reason=f"shared data is absent: {DATA / 'stories260K'}")


class Program:
    """A running program with --port 0 and --port-file; stopped (and its exit status checked) by stop(). first: words
    before the options; port: the options' names where they are others; cwd: where it runs."""

    def __init__(self, name, *options, first=(), port=("--port", "--port-file"), cwd=None):
        self.folder = tempfile.TemporaryDirectory(prefix=f"{name}-")
        port_file = pathlib.Path(self.folder.name) / "port"
        if name in ("clime-router", "clime-server") and not {"--http-threads", "--max-concurrent-requests"} & {*options}:
            options += ("--http-threads", 80)  # 1,088 by default: all are started at once, 0.16 s of the system's time
        self.log_path = pathlib.Path(self.folder.name) / "log"
        command = [str(BUILD.absolute() / name), *first, port[0], "0", port[1], str(port_file), *map(str, options)]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=cwd)
        deadline = time.monotonic() + LIMIT
        while not port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start:\n{self.log()}")
            time.sleep(0.01)
        self.port = int(port_file.read_text())
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = web.Client(base_url=self.url, timeout=LIMIT)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def get(self, path, **kw):
        return self.client.get(path, **kw)

    def post(self, path, body=None, **kw):
        return self.client.post(path, json={} if body is None else body, **kw)

    def json(self, path, body, status=200):
        reply = self.post(path, body)
        assert reply.status_code == status, (reply.status_code, reply.text)
        return reply.json()

    def events(self, path, body):
        """The data of each server-sent event."""
        with self.client.stream("POST", path, json=body) as reply:
            assert reply.status_code == 200, reply.read()
            return [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]

    def stop(self, how=signal.SIGTERM):
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(LIMIT)
        log = self.log()
        self.folder.cleanup()
        return status, log


@contextlib.contextmanager
def program(name, *options, cwd=None):
    p = Program(name, *options, cwd=cwd)
    try:
        yield p
    finally:
        status, log = p.stop()
    assert status == 0, f"{name} ended with {status}:\n{log}"


def server(*options, model=STORIES, cwd=None):
    """A clime-server that recounts its pages after every step."""
    return program("clime-server", "--model-path", model, "--debug-checks", *options, cwd=cwd)


@contextlib.contextmanager
def router_to(urls, *options):
    """A clime-router that has found all its workers ready: on a busy machine that may take longer than its start waits."""
    with program("clime-router", *options, "--worker-urls", *urls) as r:
        deadline = time.monotonic() + LIMIT
        while r.get("/readiness").json()["healthy_workers"] < len(urls):
            assert time.monotonic() < deadline, r.log()
            time.sleep(0.02)
        yield r


def chat_model(folder):
    """stories260K with a chat template, as a folder of links."""
    for path in STORIES.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if tools %}{{ tools | length }} tools\n{% endif %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    return folder


def run(name, *words, stdin=b"", timeout=LIMIT):
    """Runs a program to its end: (status, output, errors). A crash or a sanitizer's report is a failure here already."""
    done = subprocess.run([BUILD / name, *map(str, words)], input=stdin, capture_output=True, timeout=timeout)
    err = done.stderr.decode(errors="replace")
    assert done.returncode >= 0 and "Sanitizer" not in err and "runtime error" not in err, (done.returncode, err)
    return done.returncode, done.stdout.decode(errors="replace"), err


def tiny_model(folder, **change):
    """A random policy with a byte tokenizer and a chat template."""
    sizes = {"hidden-size": 64, "intermediate-size": 192, "num-hidden-layers": 1, "num-attention-heads": 2,
             "num-key-value-heads": 1, "head-dim": 32, "max-position-embeddings": 256, **change}  # fmt: skip
    status, _, err = run("clime-train", "init", folder, *(w for k, v in sizes.items() for w in (f"--{k}", v)))
    assert status == 0, err
    return folder
