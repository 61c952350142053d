#!/usr/bin/env python3
"""What clients cost that want nothing but to be in the way, beside a client that wants an answer: for router and server before it,
the latency of a normal client alone and during each attack, memory, and how long the attackers are let stay.

    tests/bench/hostile_clients.py [--connections 10000]

CLIME_BUILD names the programs, CLIME_DATA the folder with stories260K. docs/security.md has figures.
"""

import argparse
import collections
import contextlib
import http.client
import pathlib
import resource
import selectors
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from programs import STORIES, program  # noqa: E402

BODY = '{"input_ids": [1], "sampling_params": {"temperature": 0, "max_new_tokens": 2}}'
GENERATE = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def memory(p):
    status = pathlib.Path(f"/proc/{p.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Normal(threading.Thread):
    """One client after another, each on a connection of its own."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.times, self.failed, self.ends = port, [], collections.Counter(), threading.Event()
        self.start()

    def run(self):
        while not self.ends.is_set():
            begun = time.monotonic()
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                c.request("POST", "/generate", BODY, {"Content-Type": "application/json"})
                status = c.getresponse().status
                self.failed.update([status] if status != 200 else [])
            except (OSError, http.client.HTTPException) as e:
                self.failed[type(e).__name__] += 1
            c.close()
            self.times.append(time.monotonic() - begun)
            self.ends.wait(0.005)

    def end(self):
        self.ends.set()
        self.join()
        times = sorted(self.times)
        return f"{len(times)} calls, p50 {times[len(times) // 2] * 1e3:.1f} ms, p99 {times[len(times) * 99 // 100] * 1e3:.1f} ms, " \
               f"slowest {times[-1] * 1e3:.0f} ms, {self.failed.total()} not answered {dict(self.failed) or ''}".rstrip()  # fmt: skip


def dial(port, say=b""):
    c = socket.create_connection(("127.0.0.1", port), timeout=60)
    with contextlib.suppress(OSError):
        c.sendall(say)
    return c


def watch(clients, drip, seconds):
    """Sends each a byte now and then; how long until half and all of them had an end."""
    begun, ends = time.monotonic(), []
    with selectors.DefaultSelector() as ready:
        for c in clients:
            c.setblocking(False)
            ready.register(c, selectors.EVENT_READ)
        next_drip = begun + 1
        while ready.get_map() and time.monotonic() < begun + seconds:
            for key, _ in ready.select(0.2):
                try:
                    more = key.fileobj.recv(65536)
                except OSError:
                    more = b""
                if not more:
                    ready.unregister(key.fileobj)
                    ends.append(time.monotonic() - begun)
            if drip and time.monotonic() > next_drip:
                next_drip += 1
                for key in list(ready.get_map().values()):
                    with contextlib.suppress(OSError):
                        key.fileobj.send(drip)
    for c in clients:
        c.close()
    return f"{len(ends)} of {len(clients)} ended by us" + (f", half of them after {ends[len(ends) // 2]:.1f} s" if ends else "")


def slowloris(port, n):
    return watch([dial(port, GENERATE + b"X-Slow: ") for _ in range(n)], b"a", 10)


def idle(port, n):
    return watch([dial(port) for _ in range(n)], b"", 10)


def slow_bodies(port, n):
    return watch([dial(port, GENERATE + b"Content-Length: 1000\r\n\r\n{") for _ in range(n)], b" ", 10)


def headers(port, _):
    """64 MiB of them, in lines and in one."""
    said = []
    for line in (b"X-Many: " + b"a" * 1000 + b"\r\n", b"a" * 65536):
        c, sent, begun = dial(port, GENERATE + (b"" if line.endswith(b"\n") else b"X-Long: ")), 0, time.monotonic()
        with contextlib.suppress(OSError):
            while sent < 64 << 20:
                sent += c.send(line)
        answer = b""
        with contextlib.suppress(OSError):
            answer = c.recv(4096)
        said.append(f"{answer[9:12].decode() or 'closed'} after {sent >> 10} KiB and {(time.monotonic() - begun) * 1e3:.0f} ms")
        c.close()
    return "; ".join(said)


def deep_json(port, _):
    """A body of 64 MiB of brackets, ten times."""
    body, said = b"[" * (64 << 20), []
    for _ in range(10):
        begun, c = time.monotonic(), dial(port)
        with contextlib.suppress(OSError):
            c.sendall(GENERATE + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        said.append((c.recv(4096)[9:12].decode(), time.monotonic() - begun))
        c.close()
    return f"{sorted(set(s for s, _ in said))}, slowest {max(t for _, t in said):.2f} s"


def half_closed(port, n):
    """They ask, close their half, and never read."""
    request = GENERATE + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY.encode())
    clients = [dial(port, request) for _ in range(n)]
    for c in clients:
        c.shutdown(socket.SHUT_WR)
    time.sleep(5)
    for c in clients:
        c.close()
    return f"{n} of them"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--connections", type=int, default=10000)
    n = p.parse_args().connections
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, n + 4096), hard))
    # As many threads as by default: a server that takes fewer requests than the attackers have refuses some of anybody's (429).
    with program("clime-server", "--model-path", STORIES) as s, program("clime-router", "--worker-urls", s.url) as r:
        Normal(r.port).end()
        alone = Normal(r.port)
        time.sleep(5)
        print(f"{'alone':>12}: {alone.end()}", flush=True)
        for name, attack, many in [("idle", idle, n), ("slow heads", slowloris, n), ("slow bodies", slow_bodies, n // 10),
                                   ("headers", headers, 0), ("deep JSON", deep_json, 0), ("half closed", half_closed, 500)]:  # fmt: skip
            before, normal = memory(r), Normal(r.port)
            said = attack(r.port, many)
            print(f"{name:>12}: {normal.end()}; {said}; memory {before:.0f} -> {memory(r):.0f} MB", flush=True)


if __name__ == "__main__":
    main()
