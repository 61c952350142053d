"""torch's TCPStore for tests: torch's own where torch is installed, else one written from its protocol (that of libtorch
2.1 to 2.11), and stores that misbehave.
"""

import socket
import struct
import threading

from programs import SLOW

SET, GET, ADD, WAIT, VALIDATE = 1, 3, 4, 6, 0


class Store:
    """The process of rank 0. keys: as they are on the wire."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.keys, self.changed, self.peers, self.asked = {}, threading.Condition(), [], []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            self.peers.append(peer)
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer):
        with peer, peer.makefile("rb") as f:
            number = lambda kind: struct.unpack(kind, f.read(struct.calcsize(kind)))[0]
            text = lambda: f.read(number("=Q"))
            try:
                assert f.read(1)[0] == VALIDATE and number("=I") == 0x3C85F7CE
                while query := f.read(1):
                    self.asked.append(query[0])
                    if query[0] == ADD:
                        key, n = text(), number("=q")
                        n += int(self.keys.get(key, b"0"))
                        self.set(key, str(n).encode())
                        peer.sendall(struct.pack("=q", n))
                    elif query[0] == WAIT:
                        keys = [text() for _ in range(number("=Q"))]
                        with self.changed:
                            self.changed.wait_for(lambda: all(k in self.keys for k in keys), 60 * SLOW)
                        peer.sendall(b"\0")
                    elif query[0] == GET:
                        value = self.keys[text()]
                        peer.sendall(struct.pack("=Q", len(value)) + value)
                    else:
                        raise AssertionError(f"query {query[0]}")
            except (OSError, struct.error):
                pass

    def set(self, key, value):
        with self.changed:
            self.keys[key] = value
            self.changed.notify_all()

    def set_id(self, group, value):
        """Where ProcessGroupNCCL's first communicator looks for it, in a group made as SGLang's clients make theirs."""
        self.set(f"/{group}/{group}//cuda//0".encode(), value)

    def set_object(self, value):
        """Where vLLM's StatelessProcessGroup puts rank 0's first object."""
        self.set(b"/broadcast_from/0/0", value)

    def wait_for_all(self, world):
        """Until world - 1 others have counted themselves in, as rank 0's constructor waits."""
        with self.changed:
            assert self.changed.wait_for(lambda: int(self.keys.get(b"init/", b"0")) >= world - 1, 60 * SLOW)

    def close(self):
        self.listener.close()
        for peer in self.peers:
            peer.close()


class TorchStore:
    """torch's."""

    def __init__(self, libuv):
        import torch.distributed

        self.module = torch.distributed
        self.store = torch.distributed.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False, use_libuv=libuv)
        self.port = self.store.port

    def set_id(self, group, value):
        prefix = self.module.PrefixStore  # the names of torch's init_process_group and _new_process_group_helper
        prefix("cuda/", prefix(f"{group}/", prefix(group, self.store))).set("0", value)

    def set_object(self, value):
        self.store.set("broadcast_from/0/0", value)

    def wait_for_all(self, world):
        pass

    def close(self):
        del self.store


class Rogue:
    """Answers a client's first query, and every one after it, as `answers` say: bytes to send, a number of seconds to wait
    between single bytes of the rest, or None to close."""

    def __init__(self, *answers, port=0):
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port = self.listener.getsockname()[1]
        self.ended = threading.Event()
        threading.Thread(target=self.run, args=(answers,), daemon=True).start()

    def run(self, answers):
        peer, _ = self.listener.accept()
        with peer:
            try:
                for answer in answers:
                    peer.recv(4096)
                    if answer is None:
                        return
                    pause, data = answer if isinstance(answer, tuple) else (0, answer)
                    for i in range(0, len(data), 1 if pause else max(1, len(data))):
                        peer.sendall(data[i : i + (1 if pause else len(data))])
                        if self.ended.wait(pause):
                            return
                self.ended.wait(60 * SLOW)
            except OSError:
                pass

    def close(self):
        self.ended.set()
        self.listener.close()


def pickled(group_id):
    """What vLLM's PyNcclCommunicator stores: the pickle of a ctypes structure of 128 bytes."""
    name = b"vllm.distributed.device_communicators.pynccl_wrapper"
    short = lambda s: b"\x8c" + bytes([len(s)]) + s + b"\x94"
    body = (short(b"_ctypes") + short(b"_unpickle") + b"\x93\x94" + short(name) + short(b"ncclUniqueId") + b"\x93\x94}\x94"
            + b"C" + bytes([len(group_id)]) + group_id + b"\x94\x86\x94\x86\x94R\x94.")  # fmt: skip
    return b"\x80\x04\x95" + struct.pack("<Q", len(body)) + body
