"""A reward over HTTP, right when nothing is done to it: 0 or 1 by the answer's text alone. On request the next calls fail, are
slow or are lied to: an error, a cut connection, no JSON, half of one, a reward that is no number."""

import collections
import http.server
import json
import random
import threading
import time
import zlib

LIES = [b"<html>reward</html>", b"[1", b"\"high\"", b"NaN", b"[]", b"", b"1 1"]  # an object would be a reward with parts

MOST = 4  # wrong answers in a row


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        right = b"%d" % (zlib.crc32(body["response"].encode()) % 2)
        fault = self.server.owner.next_fault()
        if fault == "slow":
            time.sleep(0.5)
        if fault == "failing":
            if self.server.owner.coin():
                return self.reply(500, b'{"error": "out of order"}')
            self.close_connection = True
            return self.connection.close()
        self.reply(200, self.server.owner.lie() if fault == "lying" else right)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, client_address):
        pass  # clients that are killed in the midst are the purpose


class Reward:
    def __init__(self, seed):
        self.rng, self.lock, self.faults = random.Random(seed), threading.Lock(), collections.deque()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.owner = self
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def next_fault(self):
        with self.lock:
            return self.faults.popleft() if self.faults else None

    def coin(self):
        with self.lock:
            return self.rng.random() < 0.5

    def lie(self):
        with self.lock:
            return self.rng.choice(LIES)

    def misbehave(self, how, n):
        """The next n calls, and no more than MOST in a row: the last sample of a rollout meets them all, and --rm-timeout drops
        a group whose reward is wrong for longer."""
        with self.lock:
            self.faults.extend([how] * min(n, MOST - len(self.faults)))

    def close(self):
        self.server.shutdown()
        self.server.server_close()
