"""Packets of weights (docs/protocol.md) as another program would write them, and sources that hand them on, well or badly."""

import contextlib
import functools
import hashlib
import http.server
import struct
import threading
from urllib.parse import parse_qs, urlsplit

BLOCK = 1 << 20
MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def turn(x, n):
    return (x << n | x >> 64 - n) & MASK


@functools.cache
def xxh64(data):
    """Of whole 8-byte words, 32 bytes at least."""
    lanes, n = [(P1 + P2) & MASK, P2, 0, -P1 & MASK], len(data)
    words = struct.unpack(f"<{n // 8}Q", data)
    for i in range(0, n // 32 * 4, 4):
        lanes = [turn(a + w * P2 & MASK, 31) * P1 & MASK for a, w in zip(lanes, words[i : i + 4])]
    h = sum(turn(a, k) for a, k in zip(lanes, (1, 7, 12, 18))) & MASK
    for a in lanes:
        h = ((h ^ turn(a * P2 & MASK, 31) * P1 & MASK) * P1 + P4) & MASK
    h = h + n & MASK
    for w in words[n // 32 * 4 :]:
        h = (turn(h ^ turn(w * P2 & MASK, 31) * P1 & MASK, 27) * P1 + P4) & MASK
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32


def stored(data):
    """A zstd frame that packs nothing."""
    out, most = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", len(data)), 1 << 17
    for at in range(0, len(data), most):
        piece = data[at : at + most]
        out += ((len(piece) << 3) + (at + most >= len(data))).to_bytes(3, "little") + piece
    return out


def delta(old, new):
    """(elements that change, their gaps and differences) of two lists of bf16."""
    gaps, differences, last = b"", [], -1
    places = (i for at in range(0, len(old), 512) if old[at : at + 512] != new[at : at + 512] for i in range(at, min(at + 512, len(old))))
    for i in places:
        a, b = old[i], new[i]
        if a == b:
            continue
        gap, last = i - last - 1, i
        while gap >= 128:
            gaps += bytes([gap & 127 | 128])
            gap >>= 7
        gaps += bytes([gap])
        d = (b - a + 0x8000) % 0x10000 - 0x8000
        differences.append(d * 2 if d >= 0 else -d * 2 - 1)
    return len(differences), gaps + bytes(d & 255 for d in differences) + bytes(d >> 8 for d in differences)


class Packet:
    """From `base` (None: from nothing) to `flat`, both arrays of bf16 bits ("H")."""

    def __init__(self, layout, version, flat, base_version=-1, base=None):
        rows, payload, changed = b"", b"", 0
        for at in range(0, len(flat), BLOCK):
            new, old = flat[at : at + BLOCK], base[at : at + BLOCK] if base is not None else None
            kind, packed, coded, n = 0, b"", b"", 0
            if old is None:
                raw = new.tobytes()
                kind, n, coded = 2, len(new), raw[::2] + raw[1::2]
            elif old != new:
                kind = 1
                n, coded = delta(old, new)
            packed = stored(coded) if kind else b""
            sums = (xxh64(old.tobytes()) if old is not None else 0, xxh64(new.tobytes()))
            rows += struct.pack("<IIIIQQ", kind, len(packed), len(coded), n, *sums) + hashlib.sha256(packed).digest()
            payload += packed
            changed += n
        head = struct.pack("<8sIIQQqqQQ", b"climewp1", 2, BLOCK, layout, len(flat), version, base_version, len(payload), changed)
        self.version, self.base = version, base_version
        self.bytes = head + rows + payload
        self.head = len(head) + len(rows)
        self.id = hashlib.sha256(head + rows).hexdigest()

    def named(self):
        return {"version": self.version, "base": self.base if self.base >= 0 else None, "id": self.id}


class Source:
    """Serves packets. fault: "" or "breaks" (the connection ends), "freezes" or "lies" (a wrong bit) after so many bytes of
    payload; "trickles": ten bytes a second from there; "babbles": it fails, and says why without end. asked: the paths of requests."""

    def __init__(self, *packets, fault="", after=0):
        self.packets = {p.id: p for p in packets}
        self.fault, self.after = fault, after
        self.asked, self.frozen, self.go_on = [], threading.Event(), threading.Event()
        source = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                source.answer(self)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def answer(self, rq):
        url = urlsplit(rq.path)
        query = parse_qs(url.query)
        p = self.packets.get(url.path.rsplit("/", 1)[1])
        self.asked.append(rq.path)
        if p is None:
            rq.send_error(404)
            return
        if self.fault == "babbles":
            rq.send_response(500)
            rq.end_headers()
            with contextlib.suppress(OSError):
                while not self.go_on.is_set():
                    rq.wfile.write(bytes(1 << 16))
            return
        at = int(query["at"][0])
        data = p.bytes[at : at + int(query["length"][0])]
        cut = max(0, p.head + self.after - at) if self.fault else len(data)
        if cut < len(data) and self.fault == "lies":
            data = data[:cut] + bytes([data[cut] ^ 1]) + data[cut + 1 :]
            cut = len(data)
        rq.send_response(200)
        rq.send_header("Content-Length", str(len(data)))
        rq.end_headers()
        with contextlib.suppress(OSError):
            rq.wfile.write(data[:cut])
            rq.wfile.flush()
            if cut < len(data) and self.fault == "freezes":
                self.frozen.set()
                self.go_on.wait()
            while cut < len(data) and self.fault == "trickles" and not self.go_on.wait(0.1):
                rq.wfile.write(data[cut : cut + 1])
                cut += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go_on.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()
