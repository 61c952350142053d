"""Servers that misbehave on request, for tests of the router: cheap, and free of a model.

Worker is one in this process. `python mocks.py PORT_FILE` is one in a process of its own, to be stopped and killed.
"""

import contextlib
import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 20  # of an idle connection, as in servers

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", content_type="application/json", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def stream(self, events, pause=0.0):
        """Server-sent events, each a chunk; the connection breaks when events raises ConnectionError."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            piece = event if isinstance(event, bytes) else f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
            time.sleep(pause)
        self.wfile.write(b"0\r\n\r\n")

    def serve(self):
        worker = self.server.worker
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with worker.lock:
            worker.seen.append((self.command, self.path, dict(self.headers.items()), body))
        try:
            if worker.answer and worker.answer(self, body):
                return
            if self.path == "/health":
                self.reply(200 if worker.healthy else 503)
            elif self.path == "/get_weight_version":
                self.reply(200, {"weight_version": worker.version})
            else:
                self.reply(200, {"text": "ok", "port": self.server.server_port})
        except ConnectionError:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = serve


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    threads = None

    def limit_threads(self, n):
        """At most n connections are served at a time, idle ones for Handler.timeout; others wait."""
        self.threads = threading.Semaphore(n)

    def process_request_thread(self, request, client_address):
        with self.threads or contextlib.nullcontext():
            super().process_request_thread(request, client_address)

    def handle_error(self, *_):  # clients that left
        pass


class Worker:
    """answer(handler, body) replies and returns True, or returns False for the usual answer."""

    def __init__(self, answer=None, port=0):
        self.answer, self.healthy, self.version = answer, True, "default"
        self.seen, self.lock = [], threading.Lock()
        self.listener = Listener(("127.0.0.1", port), Handler)
        self.listener.worker = self
        self.port = self.listener.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.listener.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def stop(self):
        self.listener.shutdown()
        self.listener.server_close()

    def calls(self, path=None):
        """The requests so far, without the router's probes."""
        probes = ("/health", "/get_weight_version", "/v1/loads?include=core")
        with self.lock:
            return [c for c in self.seen if (c[1] == path if path else c[1] not in probes)]


@contextlib.contextmanager
def workers(n, answer=None):
    made = [Worker(answer) for _ in range(n)]
    try:
        yield made
    finally:
        for w in made:
            w.stop()


class Process:
    """A mock in a process of its own. It answers at once, but: {"stream": N} gives N events, 0.05 s apart, and
    {"wait": S, "at": PORT} an answer after S seconds, where PORT is its own."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="mock-")
        port_file = pathlib.Path(self.folder.name) / "port"
        self.process = subprocess.Popen([sys.executable, __file__, str(port_file)])
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        self.port = int(port_file.read_text())
        self.url = f"http://127.0.0.1:{self.port}"

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self.folder.cleanup()


@contextlib.contextmanager
def processes(n):
    made = []
    try:
        for _ in range(n):
            made.append(Process())
        yield made
    finally:
        for p in made:
            p.kill()


def slow_answer(handler, body):
    asked = json.loads(body) if body.startswith(b"{") else {}
    if "stream" in asked:
        handler.stream((json.dumps({"n": i, "port": handler.server.server_port}) for i in range(asked["stream"])), 0.05)
        return True
    if asked.get("at", handler.server.server_port) == handler.server.server_port:
        time.sleep(asked.get("wait", 0))
    return False


if __name__ == "__main__":
    worker = Worker(slow_answer)
    path = pathlib.Path(sys.argv[1])
    path.with_suffix(".new").write_text(str(worker.port))
    os.replace(path.with_suffix(".new"), path)
    worker.thread.join()
