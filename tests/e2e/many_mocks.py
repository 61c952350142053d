"""Hundreds of servers in one process, each on a port of its own: they answer /generate after random times and keep the label of
the weights they were given, and are free of a model. For the trainer's fleet (test_many_servers.py, tests/bench/bench_fleet.py)."""

import asyncio
import hashlib
import json
import random
import struct
import threading

TOKENS = 8


class Mock:
    def __init__(self):
        self.port, self.version, self.listener = 0, "initial", None
        self.connections, self.n_generated, self.n_behind = set(), 0, 0
        self.generating = 0
        self.held = None  # an asyncio.Event: no push but the first version's is taken before it is set
        self.stuck = False  # the next pull but the first version's does not end; and that was ended by who asked for it
        self.keeps, self.sources = True, []  # whether it hands on what it pulled; the sources that it was told of
        self.packets, self.n_packets, self.n_sent = set(), 0, 0  # names of those it has; pulled; bytes handed on

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def number(self):
        """Of its version, a label "N@RUN"; None before the first."""
        return int(self.version.split("@")[0]) if "@" in self.version else None


def tokens_of(body):
    """What a server with these weights and this seed would say: the same, whoever is asked."""
    random_ids = random.Random(body["sampling_params"]["sampling_seed"])
    return [random_ids.randrange(3, 200) for _ in range(min(TOKENS, body["sampling_params"]["max_new_tokens"]))]


async def fetch(url, path):
    """The body of an answer, or None."""
    host, port = url.rsplit("/", 1)[1].split(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), -1)
        data = await (reader.read() if length < 0 else reader.readexactly(length))
        writer.close()
        return data if " 200 " in head.split("\r\n")[0] else None
    except (OSError, asyncio.IncompleteReadError):
        return None


class Many:
    """on_answer(n) is called in the mocks' own thread when the n-th answer of /generate goes out."""

    def __init__(self, n, longest_s=0.02, on_answer=None, longest_push_s=0):
        self.longest_push_s = longest_push_s
        self.longest_s, self.on_answer, self.n_answers, self.newest = longest_s, on_answer, 0, "initial"
        self.mocks, self.loop = [], asyncio.new_event_loop()
        self.packets = {}  # bytes by name: what several mocks have pulled is kept once
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        for _ in range(n):
            self.call(self.start())

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    async def start(self, port=0):
        mock = Mock()
        mock.listener = await asyncio.start_server(lambda r, w: self.serve(mock, r, w), "127.0.0.1", port, backlog=1024)
        mock.port = mock.listener.sockets[0].getsockname()[1]
        self.mocks.append(mock)
        return mock

    def kill(self, mock):
        """As a process that dies: nobody listens, and all its connections break. In the mocks' thread."""
        mock.listener.close()
        for writer in list(mock.connections):
            writer.transport.abort()

    def close(self):
        def end():
            for mock in self.mocks:
                self.kill(mock)
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_soon(self.loop.stop)

        self.loop.call_soon_threadsafe(end)
        self.thread.join(60)

    async def serve(self, mock, reader, writer):
        mock.connections.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                length = next((int(h[15:]) for h in head if h.lower().startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                reply = await self.answer(mock, path.split("?")[0], body, reader)
                status, reply = (404, b"") if reply is None else (200, reply if isinstance(reply, bytes) else json.dumps(reply).encode())
                writer.write(b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(reply)) + reply)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            mock.connections.discard(writer)
            writer.close()

    async def pull(self, mock, ask, reader):
        """Fetches the chain from its version, else a whole one and what follows, and checks the names."""
        mock.sources.append(ask["sources"])
        if mock.stuck and ask["version"] > 0:
            await reader.read(1)  # it has sent all: this is its end
            mock.stuck = False
            raise ConnectionResetError
        by_base, way = {p.get("base"): p for p in ask["packets"]}, []
        at = mock.number
        if at not in by_base and at != ask["version"]:
            at = None
        while at != ask["version"]:
            way.append(by_base[at])
            at = by_base[at]["version"]
        for p in way:
            for source in ask["sources"]:
                if data := await fetch(source, f"/weight_packets/{p['id']}"):
                    break
            else:
                raise ConnectionResetError  # as a server that is killed: the trainer asks again
            block, n = struct.unpack_from("<I", data, 12)[0], struct.unpack_from("<Q", data, 24)[0]
            assert hashlib.sha256(data[: 64 + 64 * -(-n // block)]).hexdigest() == p["id"]
            self.packets.setdefault(p["id"], data)
            mock.packets |= {p["id"]} if mock.keeps else set()
            mock.n_packets += 1
        self.newest = mock.version = ask["weight_version"]
        return {"success": True, "packets": len(way), "relays": mock.keeps}

    async def answer(self, mock, path, body, reader):
        if path == "/get_weight_version":
            return {"weight_version": mock.version}
        if path.startswith("/weights/"):
            version = path.rsplit("/", 1)[1]
            await asyncio.sleep(random.uniform(0, self.longest_push_s))
            if mock.held and not version.startswith("0@"):
                await mock.held.wait()
                if reader.at_eof():  # who pushed it has another one
                    raise ConnectionResetError
            self.newest = mock.version = version
            return {"success": True}
        if path == "/pull_weights":
            return await self.pull(mock, json.loads(body), reader)
        if path.startswith("/weight_packets/"):
            name = path.rsplit("/", 1)[1]
            mock.n_sent += len(self.packets[name]) if name in mock.packets else 0
            return self.packets[name] if name in mock.packets else None
        if path != "/generate":
            return {}
        request = json.loads(body)
        mock.n_behind += mock.version != self.newest
        mock.generating += 1
        await asyncio.sleep(random.uniform(0, self.longest_s))
        mock.generating -= 1
        ids = tokens_of(request)
        self.n_answers += 1
        mock.n_generated += 1
        if self.on_answer:
            await self.on_answer(self.n_answers)
        return {"text": "", "output_ids": ids, "meta_info": {
            "id": request["rid"], "finish_reason": {"type": "length", "length": len(ids)}, "prompt_tokens": len(request["input_ids"]),
            "completion_tokens": len(ids), "cached_tokens": 0, "weight_version": mock.version,
            "token_versions": [[mock.version, len(ids)]], "output_token_logprobs": [[-1.5, i, None] for i in ids]}}  # fmt: skip
