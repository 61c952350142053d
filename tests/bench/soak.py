#!/usr/bin/env python3
"""Mixed load for a long time on a router and two servers of the 260K-parameter model: do memory, threads and descriptors stay?

    tests/bench/soak.py [--minutes 60] [--speed 2]

Requests come when two recorded traces (Mooncake, Azure) say, faster by --speed; their lengths are scaled to the model's 512
positions, and what began alike there begins alike here. They are chats, completions and /generate, whole and as streams, some in
sessions, some aborted by name, some left by their client; every 20 s both servers take weights of a new version while they run.
First each thread of each program serves once: they take turns, and each has a stack that it then keeps. At the end of the warm-up (a
tenth of the time), in the middle and at the end the load rests until nothing is in flight. Prints each
process's figures there and the median of those taken every 10 s under the load around; the status says whether they are flat and
whether every request was answered. CLIME_BUILD names the programs, CLIME_DATA the folder with the model and the traces.
"""

import argparse
import asyncio
import collections
import contextlib
import csv
import datetime
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

import httpx

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from programs import DATA, chat_model, program  # noqa: E402

IN_FLIGHT, SAMPLE_S, UPDATE_S = 128, 10, 20
MORE_MB, MORE_PART, MORE_DESCRIPTORS = 4, 0.05, 4  # what may come and still be called flat: allocators and pools of connections
Figures = collections.namedtuple("Figures", "mb threads descriptors")


def mooncake():
    for line in open(DATA / "http" / "traces" / "mooncake_conversation.jsonl"):
        r = json.loads(line)
        ids = [b * 31 % 200 + 3 + k for b in r["hash_ids"] for k in range(16)][: max(1, r["input_length"] // 32)]
        yield r["timestamp"] / 1000, "ids", ids[:300], min(100, 1 + r["output_length"] // 8)


def azure():
    first = None
    for r in csv.DictReader(open(DATA / "http" / "traces" / "AzureLLMInferenceTrace_conv.csv")):
        at = datetime.datetime.fromisoformat(r["TIMESTAMP"][:26]).timestamp()
        first = at if first is None else first
        words = int(r["ContextTokens"]) // 50
        yield at - first, "text", "Once upon a time " + "there was a dog " * min(20, words), 1 + min(100, int(r["GeneratedTokens"]) // 4)


class Load:
    def __init__(self, router, servers, model, seed):
        self.router, self.servers, self.model, self.rng = router, servers, model, random.Random(seed)
        self.counts, self.wrong, self.running, self.n, self.version = collections.Counter(), 0, set(), 0, 0
        self.open_client()

    def open_client(self):
        self.client = httpx.AsyncClient(base_url=self.router.url, timeout=300, verify=False,
                                        limits=httpx.Limits(max_connections=IN_FLIGHT * 2, max_keepalive_connections=32))  # fmt: skip

    async def rest(self):
        """Until nothing is in flight and no connection of ours is open."""
        if self.running:
            await asyncio.wait(self.running)
        await self.client.aclose()
        self.open_client()

    def body(self, n, kind, prompt, length):
        """(what it is called, path, body, headers) of request n."""
        stream, session = self.rng.random() < 0.4, {}
        if kind == "ids":
            path = "/generate"
            body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": length, "temperature": 0.8}, "rid": f"r{n}",
                    "return_logprob": self.rng.random() < 0.5}  # fmt: skip
            if self.rng.random() < 0.4:
                session = {"X-Session-ID": f"s{n // 50}-{self.rng.randrange(5)}"}
        elif self.rng.random() < 0.5:
            path, body = "/v1/completions", {"prompt": prompt, "max_tokens": length}
        else:
            path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": length}
        return path + (" stream" if stream else "") + (" session" if session else ""), path, body | {"stream": stream}, session

    async def whole(self, path, body, headers):
        reply = await self.client.post(path, json=body, headers=headers)
        assert reply.status_code == 200, (reply.status_code, reply.text[:300])
        if headers and self.rng.random() < 0.2:  # the others' sessions are forgotten when they are old
            reply = await self.client.post("/finish_session", json={"session_id": headers["X-Session-ID"]})
            assert reply.status_code == 200, reply.text[:300]

    async def stream(self, path, body, headers, leave):
        last = None
        async with self.client.stream("POST", path, json=body, headers=headers) as reply:
            assert reply.status_code == 200, (reply.status_code, (await reply.aread())[:300])
            async for line in reply.aiter_lines():
                last = line or last
                if leave and line:
                    return
        assert last == "data: [DONE]", last

    async def abort(self, rid):
        reply = await self.client.post("/abort_request", json={"rid": rid})
        assert reply.status_code == 200, reply.text[:300]

    async def one(self, n, kind, prompt, length):
        name, path, body, headers = self.body(n, kind, prompt, length)
        fate = self.rng.choices(["", "left", "aborted"], [0.8, 0.1, 0.1 if kind == "ids" else 0])[0]
        if fate == "left" and not body["stream"]:
            fate = ""
        try:
            asked = self.stream(path, body, headers, fate == "left") if body["stream"] else self.whole(path, body, headers)
            await asyncio.gather(asked, *([self.abort(body["rid"])] if fate == "aborted" else []))
            self.counts[f"{name} {fate}".rstrip()] += 1
        except (AssertionError, httpx.HTTPError) as e:
            self.fail(f"{name} {fate}: {e!r}")

    def fail(self, why):
        self.wrong += 1
        print(f"{time.strftime('%H:%M:%S')} {why[:500]}", flush=True)

    def start(self, coroutine):
        task = asyncio.create_task(coroutine)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def request(self, kind, prompt, length):
        while len(self.running) >= IN_FLIGHT:
            await asyncio.wait(self.running, return_when=asyncio.FIRST_COMPLETED)
        self.n += 1
        self.start(self.one(self.n, kind, prompt, length))

    async def update(self):
        """A new version for each server while it runs, the running ones held or retracted."""
        self.version += 1
        mode = ("in_place", "retract")[self.version % 2]
        try:
            for s in self.servers:
                for path, body in (("/pause_generation", {"mode": mode}), ("/continue_generation", {}),
                                   ("/update_weights_from_disk", {"model_path": str(self.model), "weight_version": str(self.version),
                                                                  "flush_cache": mode == "retract"})):  # fmt: skip
                    reply = await self.client.post(s.url + path, json=body)
                    assert reply.status_code == 200, (path, reply.text[:300])
            self.counts["weight update"] += 1
        except (AssertionError, httpx.HTTPError) as e:
            self.fail(f"update: {e!r}")


def figures(p):
    proc = pathlib.Path(f"/proc/{p.process.pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return Figures(int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), len(os.listdir(proc / "fd")))


async def at_rest(load, programs):
    """The figures once they stay the same for five seconds."""
    await load.rest()
    begun, same, last = time.monotonic(), 0, None
    while same < 5:
        assert time.monotonic() < begun + 120, f"no rest: {last}"
        await asyncio.sleep(1)
        now = [figures(p) for p in programs.values()]
        same = same + 1 if last and [f[1:] for f in now] == [f[1:] for f in last] else 0
        last = now
    return last


async def play(load, programs, trace, speed, seconds):
    """The load for so long; the figures of each 10 s."""
    samples, begun = [], time.monotonic()
    due_sample, due_update = begun + SAMPLE_S, begun + UPDATE_S
    came_before = None
    for at, kind, prompt, length in trace:
        until = time.monotonic() + max(0, at - (at if came_before is None else came_before)) / speed
        came_before = at
        while True:
            now = time.monotonic()
            if now >= due_sample:
                samples.append([figures(p) for p in programs.values()])
                due_sample += SAMPLE_S
            if now >= due_update:
                load.start(load.update())
                due_update += UPDATE_S
            if now >= until:
                break
            await asyncio.sleep(max(0, min(until, due_sample, due_update) - now))
        if now > begun + seconds:
            return samples
        await load.request(kind, prompt, length)


def forever():
    """Both traces as one, in the order of time, again and again."""
    both = sorted([*mooncake(), *azure()], key=lambda r: r[0])
    while True:
        yield from both


def told(rest, under):
    return f"{rest.mb:6.1f} MB, {rest.threads} threads, {rest.descriptors} descriptors (under load {under.mb:.1f}, {under.threads}, {under.descriptors})"


def verdict(rests):
    a, _, c = rests
    return c.mb <= a.mb * (1 + MORE_PART) + MORE_MB and c.threads <= a.threads and c.descriptors <= a.descriptors + MORE_DESCRIPTORS


async def all_threads_serve(load, programs):
    """A connection for each thread, and some more: who has waited longest takes the next one."""
    once = httpx.Limits(max_connections=32, max_keepalive_connections=0)
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}, "return_logprob": True, "stream": True}
    for p in programs.values():
        async with httpx.AsyncClient(base_url=p.url, timeout=300, verify=False, limits=once) as client:
            for reply in await asyncio.gather(*(client.post("/generate", json=body) for _ in range(figures(p).threads * 6 // 5))):
                if reply.status_code != 200:
                    load.fail(f"at the start: {reply.status_code} {reply.text[:300]}")


async def soak(load, programs, speed, minutes):
    await all_threads_serve(load, programs)
    trace, points, flat = forever(), [], True
    for part in (0.1, 0.45, 0.45):
        samples = await play(load, programs, trace, speed, part * minutes * 60)
        tail = samples[-max(6, len(samples) // 4) :]
        under = [Figures(*map(statistics.median, zip(*of_one))) for of_one in zip(*tail)]
        points.append((await at_rest(load, programs), under))
        said = "; ".join(f"{name} {told(r, u)}" for name, r, u in zip(programs, *points[-1]))
        print(f"{time.strftime('%H:%M:%S')} {load.n} requests, {load.version} versions: {said}", flush=True)
    for i, name in enumerate(programs):
        good = verdict([rests[i] for rests, _ in points])
        flat = flat and good
        print(f"{name}: {'flat' if good else 'GROWS'}")
        for when, (rests, under) in zip(("start", "middle", "end"), points):
            print(f"  {when:>6}: {told(rests[i], under[i])}")
    for name, n in sorted(load.counts.items()):
        print(f"{n:7} {name}")
    print(f"{load.n} requests, {load.wrong} not answered rightly")
    return flat and load.wrong == 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--speed", type=float, default=2, help="of the traces; 1 is 9 requests a second")
    p.add_argument("--seed", default="1")
    o = p.parse_args()
    with contextlib.ExitStack() as stack:
        model = chat_model(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-"))))
        servers = [stack.enter_context(program("clime-server", "--model-path", model, "--http-threads", 300)) for _ in range(2)]
        urls = [s.url for s in servers]
        router = stack.enter_context(program("clime-router", "--policy", "prefix", "--session-ttl", 60, "--worker-urls", *urls))
        programs = {"router": router, "server 1": servers[0], "server 2": servers[1]}

        async def run():
            return await soak(Load(router, servers, model, o.seed), programs, o.speed, o.minutes)

        good = asyncio.run(run())
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
