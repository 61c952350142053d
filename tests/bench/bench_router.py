"""clime-router beside sglang-router and nginx: the same mock workers (http_mock.c), the same loads, by turns.

    python tests/bench/bench_router.py [--seconds S] [--sglang PYTHON] [--nginx NGINX] [--workers N]

PYTHON is an interpreter that has sglang-router (pip install sglang-router), NGINX a binary; what is not given or not there
is left out. A row is a load: requests/s, added latency (p50 and p99 over the direct one's), CPU of the router a request,
memory. Each router runs alone while it is measured; the order changes from row to row."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from programs import BUILD  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")


def text(n):
    return {"text": ("The quick brown fox. " * (n // 21 + 1))[:n]}


def ids(n):
    return {"input_ids": [(i * 7919) % 150000 for i in range(n)]}


LOADS = [("200 B, 1 connection", text(200), 1), ("200 B, 64", text(200), 64), ("200 B, 1,024", text(200), 1024),
         ("16 KiB of text, 64", text(16 << 10), 64), ("1 MiB of text, 16", text(1 << 20), 16),
         ("16k ids, 16", ids(16_384), 16), ("131k ids, 16", ids(131_072), 16),
         ("stream of 64 events, 1", text(200) | {"stream": True}, 1),
         ("stream of 64 events, 64", text(200) | {"stream": True}, 64)]  # fmt: skip


def wait_for(url, limit=60):
    until = time.monotonic() + limit
    while True:
        try:
            return urllib.request.urlopen(url, timeout=5).read()
        except OSError:
            assert time.monotonic() < until, url
            time.sleep(0.1)


def tree(pid):
    """The process and its children."""
    kids = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid] + [p for k in kids for p in tree(int(k))]


def used(pid):
    """(CPU seconds, resident MiB) of the process and its children."""
    cpu = rss = 0
    for p in tree(pid):
        stat = pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
        cpu += int(stat[11]) + int(stat[12])
        rss += int(stat[21]) * os.sysconf("SC_PAGESIZE")
    return cpu / TICK, rss / 2**20


class Router:
    def __init__(self, name, port, command, log):
        self.name, self.port = name, port
        self.process = subprocess.Popen(command, stdout=log, stderr=log) if command else None

    def stop(self):
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()


def free_port():
    import socket  # noqa: PLC0415
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def nginx_config(folder, port, workers):
    lines = "\n".join(f"server 127.0.0.1:{w};" for w in workers)
    path = folder / "nginx.conf"
    path.write_text(f"""daemon off; worker_processes auto; pid {folder}/nginx.pid; error_log {folder}/error.log;
        events {{ worker_connections 8192; }}
        http {{ access_log off; client_max_body_size 512m; client_body_buffer_size 2m; client_body_temp_path {folder}/body;
        proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
        keepalive_requests 1000000000;
        upstream fleet {{ least_conn; keepalive 1024; keepalive_requests 1000000000; {lines} }}
        server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://fleet; proxy_http_version 1.1;
        proxy_set_header Connection ""; proxy_buffering off; }} }} }}""")
    return path


def load(mock, port, body, connections, seconds):
    words = [mock, "load", port, "/generate", body, connections, seconds]
    out = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=True, timeout=seconds + 120).stdout
    n, errors, took, mean, p50, p99, _ = (float(x) for x in out.split())
    return {"n": n, "errors": errors, "rate": n / took, "p50": p50, "p99": p99, "mean": mean}


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=3)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--sglang", default="")
    options.add_argument("--nginx", default="")
    o = options.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-router-"))
    mock = folder / "http_mock"
    subprocess.run(["cc", "-O2", "-o", mock, pathlib.Path(__file__).with_name("http_mock.c")], check=True)
    served = []
    for i in range(o.workers):
        served.append(subprocess.Popen([mock, "serve", folder / f"port-{i}", "64"]))
        while not (folder / f"port-{i}").exists() or not (folder / f"port-{i}").read_text():
            time.sleep(0.01)
    ports = [int((folder / f"port-{i}").read_text()) for i in range(o.workers)]
    urls = [f"http://127.0.0.1:{p}" for p in ports]
    log = open(folder / "log", "wb")
    routers = [Router("direct", ports[0], None, log)]
    try:
        for policy in "least_tokens", "prefix":
            port = free_port()
            routers.append(Router(f"clime, {policy}", port, [
                BUILD / "clime-router", "--port", str(port), "--policy", policy, "--max-concurrent-requests", "1100",
                "--max-body-memory", "8g", "--worker-urls", *urls], log))  # fmt: skip
        for policy in ("round_robin", "cache_aware") if o.sglang else ():
            port, metrics = free_port(), free_port()
            routers.append(Router(f"sglang-router, {policy}", port, [
                o.sglang, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port), "--policy", policy,
                "--prometheus-port", str(metrics), "--log-level", "error", "--worker-urls", *urls], log))  # fmt: skip
        if o.nginx:
            port = free_port()
            config = nginx_config(folder, port, ports)
            routers.append(Router("nginx", port, [o.nginx, "-p", folder, "-e", folder / "error.log", "-c", config], log))
        for r in routers[1:]:
            wait_for(f"http://127.0.0.1:{r.port}/health")
        time.sleep(3)
        print(f"{o.workers} workers, {o.seconds} s a cell, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}\n")
        print("| load | router | requests/s | p50 us, added | p99 us, added | router's CPU us a request | MiB |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for turn, (name, body, connections) in enumerate(LOADS):
            (folder / "request").write_text(json.dumps(body | {"sampling_params": {"max_new_tokens": 16}}))
            direct = load(mock, routers[0].port, folder / "request", connections, o.seconds)
            print(f"| {name} | direct | {direct['rate']:.0f} | {direct['p50']:.0f} | {direct['p99']:.0f} | | |", flush=True)
            order = routers[1:]
            for r in order[turn % len(order):] + order[: turn % len(order)]:
                before = used(r.process.pid)[0]
                x = load(mock, r.port, folder / "request", connections, o.seconds)
                cpu, rss = used(r.process.pid)
                failed = f" ({x['errors']:.0f} failed)" if x["errors"] else ""
                print(f"| {name} | {r.name} | {x['rate']:.0f}{failed} | {x['p50'] - direct['p50']:.0f} | "
                      f"{x['p99'] - direct['p99']:.0f} | {(cpu - before) * 1e6 / max(x['n'], 1):.0f} | {rss:.0f} |", flush=True)
    finally:
        for r in routers:
            r.stop()
        for p in served:
            p.kill()


if __name__ == "__main__":
    main()
