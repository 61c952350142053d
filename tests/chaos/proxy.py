"""A TCP proxy that does to connections what networks do: cuts them, holds them up, closes one half, takes none.

One thread of its own; each fault is a method that any thread may call and that says whether it met anything. A peer sees a
cut as RST in the midst of whatever it was at.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading

RST = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST


class Connection:
    def __init__(self, client, server):
        self.writers = [client, server]

    def cut(self):
        for w in self.writers:
            with contextlib.suppress(OSError, AttributeError):
                w.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
            w.transport.abort()

    def half_close(self, side):
        """One of the two hears that nothing more comes, and may still send."""
        with contextlib.suppress(OSError, RuntimeError):
            self.writers[side].write_eof()


class Proxy:
    """Listens on a port of its own for as long as it lives; leads to port `to`, which may be gone and come back."""

    def __init__(self, to, seed):
        self.to, self.rng = to, random.Random(seed)
        self.connections, self.open_at, self.refuses = set(), 0.0, False
        self.loop = asyncio.new_event_loop()
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.run, args=(listening,), daemon=True)
        self.thread.start()

    def run(self, listening):
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(asyncio.start_server(self.serve, sock=listening))
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()

    def close(self):
        def end():
            for c in list(self.connections):
                c.cut()
            self.loop.stop()

        self.loop.call_soon_threadsafe(end)
        self.thread.join()

    async def serve(self, reader, writer):
        if self.refuses:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
            writer.transport.abort()
            return
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            return
        c = Connection(writer, to_writer)
        self.connections.add(c)
        with contextlib.suppress(asyncio.CancelledError):  # by close
            await asyncio.gather(self.pump(reader, to_writer), self.pump(to_reader, writer))
        self.connections.discard(c)
        for w in c.writers:
            w.close()

    async def pump(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                wait = self.open_at - self.loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except (OSError, RuntimeError):  # one side was reset: so is the other, which would wait for ever
            writer.transport.abort()

    def call(self, what):
        """Runs it on the proxy's own thread; its result."""

        async def on_the_loop():
            return what()

        return asyncio.run_coroutine_threadsafe(on_the_loop(), self.loop).result(10)

    def some(self):
        live = sorted(self.connections, key=id)
        return self.rng.sample(live, self.rng.randint(1, len(live))) if live else []

    def cut(self):
        return self.call(lambda: len([c.cut() for c in self.some()]))

    def half_close(self):
        return self.call(lambda: len([c.half_close(self.rng.randint(0, 1)) for c in self.some()]))

    def hold(self, seconds):
        """Nothing passes for so long; nothing is lost."""

        def begin():
            self.open_at = self.loop.time() + seconds
            return len(self.connections)

        return self.call(begin)

    def refuse(self, seconds):
        """New connections are reset for so long."""

        def begin():
            self.refuses = True
            self.loop.call_later(seconds, setattr, self, "refuses", False)
            return 1

        return self.call(begin)
