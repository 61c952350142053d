"""Weights from another process's memory (/update_weights_from_ipc), where this test is the owner of a memfd that a server
on the CPU maps or copies; from rank 0 of a group over sockets, which is this test too; and memory that a server lends. The protocol is that of a GPU, where tests/gpu/handover.py runs
it with the real trainer.
"""

import json
import mmap
import os
import re
import socket
import struct
import threading
import time

import pytest
from programs import SLOW, server, tiny_model

MASK = (1 << 64) - 1


def checksum(data):
    """The sum of clime_checksum_term (kernels/checksum.h) over 8-byte words."""
    data += bytes(-len(data) % 8)
    total = 0
    for i, (word,) in enumerate(struct.iter_unpack("<Q", data)):
        x = word ^ (i + 1) * 0x9E3779B97F4A7C15 & MASK
        x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 & MASK
        total = total + (x ^ x >> 32) & MASK
    return f"{total:016x}"


class Owner:
    """A buffer of bf16 weights, all of one value, as a trainer would export it."""

    def __init__(self, size):
        self.fd = os.memfd_create("weights")
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)

    def fill(self, bf16):
        self.map[:] = struct.pack("<H", bf16) * (len(self.map) // 2)

    def handle(self, size=None, magic=0x314D454D454D4C43):
        return struct.pack("<QQqq", magic, size or len(self.map), os.getpid(), self.fd).ljust(64, b"\0").hex()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("handover") / "m")


def ipc(s, status=200, **body):
    return s.json("/update_weights_from_ipc", body, status)


def generate(s, status=200, n=4, **more):
    body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": n, "temperature": 0, "ignore_eos": True}, **more}
    return s.json("/generate", body, status)


def version(s):
    return s.get("/get_weight_version").json()["weight_version"]


@pytest.fixture
def pair(model):
    """A server without weights, an owner of the right size, and the fields that every handover carries."""
    with server("--load-format", "none", "--device", "cpu", "--dtype", "bfloat16", model=model) as s:
        says = ipc(s, 400, mode="share", weight_version="1", layout="0" * 16, dtype="bf16")["message"]
        same = {"layout": re.search(r"this one's is (\w{16})", says).group(1), "dtype": "bf16"}
        small = Owner(64)
        says = ipc(s, 400, mode="share", weight_version="1", handle=small.handle(), **same)["message"]
        yield s, Owner(int(re.search(r"of (\d+)$", says).group(1))), same


def test_without_weights(model, pair):
    s, _, _ = pair
    assert s.get("/health").status_code == 200 and s.get("/health_generate").status_code == 503
    assert "waits for a full update" in generate(s, 503)["message"]
    assert "own" in ipc(s, 400, mode="writing")["message"]
    s.json("/update_weights_from_disk", {"model_path": str(model), "weight_version": "disk"})
    assert generate(s)["meta_info"]["weight_version"] == "disk"


def test_shared_in_place(model, pair):
    s, owner, same = pair
    owner.fill(0x3C00)
    share = {"mode": "share", "handle": owner.handle(), **same}
    assert ipc(s, weight_version="1", **share)["weight_version"] == "1"
    before = generate(s, return_logprob=True)
    assert before["meta_info"]["weight_version"] == "1"
    ipc(s, mode="writing")
    assert "being rewritten" in generate(s, 503)["message"]
    owner.fill(0x3C00)
    ipc(s, weight_version="2", **share)
    again = generate(s, return_logprob=True)
    assert again["meta_info"]["weight_version"] == "2"
    logp = lambda r: r["meta_info"]["output_token_logprobs"]
    assert logp(again) == logp(before)
    # another full update ends the sharing: the owner's memory is not written, and its rewriting changes nothing
    ipc(s, mode="writing")
    s.json("/update_weights_from_disk", {"model_path": str(model), "weight_version": "disk"})
    assert bytes(owner.map) == struct.pack("<H", 0x3C00) * (len(owner.map) // 2)
    disk = generate(s, return_logprob=True)
    owner.fill(0x7FC0)  # NaN
    assert logp(generate(s, return_logprob=True)) == logp(disk) != logp(before)
    assert "own" in ipc(s, 400, mode="writing")["message"]


def test_held_requests_go_on_or_end(pair):
    s, owner, same = pair
    owner.fill(0x3C00)
    share = {"mode": "share", "handle": owner.handle(), **same}
    ipc(s, weight_version="1", **share)
    replies = []

    def request():
        replies.append(s.post("/generate", {"input_ids": [5], "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}}))

    def begin(**more):
        """A request that waits in the engine while the owner writes."""
        s.post("/pause_generation", {"mode": "retract"})
        thread = threading.Thread(target=request)
        thread.start()
        deadline = time.monotonic() + 30 * SLOW
        while s.get("/v1/loads").json()["loads"][0]["num_waiting_uncached_tokens"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        ipc(s, mode="writing", **more)
        s.post("/continue_generation")
        return thread

    thread = begin()
    time.sleep(0.1)
    assert not replies
    ipc(s, weight_version="2", **share)
    thread.join(30 * SLOW)
    reply = replies.pop()
    assert reply.status_code == 200 and reply.json()["meta_info"]["token_versions"] == [["2", 20]]
    thread = begin(timeout=0.2)  # an owner that does not come back
    thread.join(30 * SLOW)
    reply = replies.pop()
    assert reply.status_code == 503 and "not completed in time" in reply.text
    generate(s, 503)
    ipc(s, weight_version="3", **share)
    assert generate(s)["meta_info"]["weight_version"] == "3"


def test_copied(pair):
    s, owner, same = pair
    owner.fill(0x3C00)
    copy = {"mode": "copy", "handle": owner.handle(), **same}
    good = checksum(bytes(owner.map))
    ipc(s, weight_version="1", checksum=good, **copy)
    before = generate(s, return_logprob=True)["meta_info"]
    owner.fill(0x7FC0)  # what the owner does later does not matter
    assert generate(s, return_logprob=True)["meta_info"]["output_token_logprobs"] == before["output_token_logprobs"]
    assert "checksum is" in ipc(s, 400, weight_version="2", checksum=good, **copy)["message"]
    assert version(s) == "1" and generate(s)["meta_info"]["weight_version"] == "1"


def test_refusals_change_nothing(pair):
    s, owner, same = pair
    owner.fill(0x3C00)
    share = {"mode": "share", "weight_version": "1", "handle": owner.handle(), **same}
    ipc(s, **share)
    for change, says in [
        ({"mode": "borrow"}, "mode must be"),
        ({"mode": None}, "mode must be"),
        ({"mode": 7}, "string"),
        ({"handle": None}, "handle must be 128"),
        ({"handle": "zz" * 64}, "handle must be 128"),
        ({"handle": owner.handle()[:-2]}, "handle must be 128"),
        ({"handle": owner.handle(magic=1)}, "handle"),
        ({"handle": owner.handle(size=len(owner.map) * 2)}, "does not map"),
        ({"handle": owner.handle(size=64)}, "maps 64 bytes"),
        ({"layout": None}, "layout must be 16"),
        ({"layout": "0" * 16}, "another model's"),
        ({"dtype": "f32"}, "dtype must be"),
        ({"weight_version": ""}, "weight version"),
        ({"device_unit": "GPU-1"}, "this server computes on cpu"),
        ({"mode": "copy"}, "checksum must be 16"),
        ({"mode": "copy", "checksum": "0" * 16}, "checksum is"),
        ({"mode": "writing", "timeout": -1}, "timeout"),
        ({"zmq_handles": {"GPU-1": "ipc:///tmp/x"}}, "zmq_handles"),
    ]:
        assert says in ipc(s, 400, **share | {"weight_version": "2"} | change)["message"], change
    no_memory = struct.pack("<QQqq", 0x314D454D454D4C43, 1 << 20, os.getpid(), 0).ljust(64, b"\0").hex()
    assert "does not map" in ipc(s, 400, **share | {"handle": no_memory})["message"]
    assert version(s) == "1" and generate(s)["meta_info"]["weight_version"] == "1"


def test_needs_the_admin_key(model):
    with server("--admin-api-key", "boss", "--api-key", "user", model=model) as s:
        for key, status in [("user", 403), ("boss", 400)]:
            reply = s.post("/update_weights_from_ipc", {}, headers={"Authorization": f"Bearer {key}"})
            assert reply.status_code == status


class Sender:
    """Rank 0 of a group over sockets (kernels/cpu/cpu_comm.c)."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(30 * SLOW)
        self.secret = 0x1234567890ABCDEF

    def id(self, secret=None):
        port = socket.htons(self.listener.getsockname()[1])
        return struct.pack("<QiHH", secret or self.secret, 0, port, socket.AF_INET).ljust(128, b"\0").hex()

    def accept(self):
        self.peer, _ = self.listener.accept()
        hello = b""
        while len(hello) < 16:
            hello += self.peer.recv(16 - len(hello))
        assert struct.unpack("<Qq", hello) == (self.secret, 1)
        self.peer.sendall(b"\1")

    def close(self):
        self.peer.close()


def beside(work, call):
    """What the call returns, made in a thread while work runs."""
    result = []
    thread = threading.Thread(target=lambda: result.append(call()))
    thread.start()
    work()
    thread.join(60 * SLOW)
    return result[0]


def tensors(folder):
    """(name, shape, bytes) of a safetensors folder, by name."""
    data = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    return [(k, v["shape"], data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]]) for k, v in sorted(header.items())]


GROUP = {"group_name": "g", "backend": "socket", "rank_offset": 1, "world_size": 2, "master_address": "x", "master_port": 1}


@pytest.fixture
def group(pair, model):
    """A server in a group whose rank 0 is this test, and the model's tensors."""
    s, _, _ = pair
    sender = Sender()
    reply = beside(sender.accept, lambda: s.json("/init_weights_update_group", GROUP | {"nccl_id": sender.id()}))
    assert reply["success"]
    yield s, sender, tensors(model)


def lists(some, **more):
    return {"names": [t[0] for t in some], "dtypes": ["bfloat16"] * len(some), "shapes": [t[1] for t in some],
            "group_name": "g", **more}  # fmt: skip


def test_broadcast_in_parts(group, model):
    s, sender, all_of = group
    send = lambda some: sender.peer.sendall(b"".join(t[2] for t in some))
    half = len(all_of) // 2
    update = lambda some, **more: s.json("/update_weights_from_distributed", lists(some, **more))
    reply = beside(lambda: send(all_of[:half]), lambda: update(all_of[:half]))
    assert f"{half} of {len(all_of)} tensors" in reply["message"]
    generate(s, 503)
    reply = beside(lambda: send(all_of[half:]), lambda: update(all_of[half:], weight_version="7"))
    assert reply["weight_version"] == "7"
    got = generate(s, return_logprob=True)["meta_info"]
    assert got["weight_version"] == "7"
    s.json("/update_weights_from_disk", {"model_path": str(model), "weight_version": "disk"})
    assert generate(s, return_logprob=True)["meta_info"]["output_token_logprobs"] == got["output_token_logprobs"]
    assert s.json("/destroy_weights_update_group", {"group_name": "g"})["success"]
    assert sender.peer.recv(1) == b""
    assert "no group" in s.json("/destroy_weights_update_group", {"group_name": "g"}, 400)["message"]
    assert "no group" in s.json("/update_weights_from_distributed", lists(all_of), 400)["message"]


def test_lost_sender(group, model):
    s, sender, all_of = group
    s.json("/update_weights_from_disk", {"model_path": str(model), "weight_version": "disk"})
    call = lambda **more: s.post("/update_weights_from_distributed", lists(all_of, weight_version="8", **more))
    late = call(timeout=0.3)
    assert late.status_code == 504 and "time limit" in late.json()["message"]
    assert version(s) == "disk" and generate(s)["meta_info"]["weight_version"] == "disk"
    again = Sender()
    s_init = lambda: s.json("/init_weights_update_group", GROUP | {"nccl_id": again.id()})  # the old one was closed
    beside(again.accept, s_init)
    gone = beside(lambda: (again.peer.sendall(b"abc"), again.close()), call)
    assert gone.status_code == 503 and "a peer is gone" in gone.json()["message"]
    assert version(s) == "disk" and generate(s)["meta_info"]["weight_version"] == "disk"


def test_refused_broadcasts(group, model):
    s, sender, all_of = group
    post = lambda body, status=400: s.json("/update_weights_from_distributed", body, status)["message"]
    one = all_of[:1]
    for change, says in [
        ({"names": ["nonsense"]}, "not part of this model"),
        ({"names": None}, "are required"),
        ({"names": []}, "differ in length"),
        ({"names": [5]}, "string"),
        ({"names": "x"}, "array"),
        ({"dtypes": ["int8"]}, "dtype must be bfloat16"),
        ({"dtypes": []}, "differ in length"),
        ({"shapes": [[1, 2, 3]]}, "has shape [1, 2, ...]"),
        ({"shapes": [[-1]]}, "shape"),
        ({"load_format": "torch"}, "load_format"),
        ({"timeout": 0}, "timeout"),
        ({"group_name": "other"}, "no group"),
        ({"group_name": ""}, "group_name"),
        ({"weight_version": "\n"}, "weight version"),
        ({"names": [one[0][0]] * 2, "dtypes": ["bfloat16"] * 2, "shapes": [one[0][1]] * 2}, "came twice"),
    ]:
        message = post(lists(one) | change)
        assert says in message or says == "shape", (change, message)
    assert "checksum" in beside(
        lambda: sender.peer.sendall(b"".join(t[2] for t in all_of)),
        lambda: post(lists(all_of, checksum="0" * 16)))  # fmt: skip
    generate(s, 503)
    init = lambda status, **change: s.json("/init_weights_update_group", GROUP | {"nccl_id": Sender().id()} | change, status)["message"]
    assert "already" in init(400)
    assert "backend" in init(501, backend="nccl", group_name="h")
    assert "nccl_id" in init(400, nccl_id=None, master_port=None, group_name="h")
    assert "gloo is not spoken" in init(501, backend="gloo", group_name="h")
    assert "nccl_id must be" in init(400, nccl_id="12", group_name="h")
    assert "sockets" in init(400, nccl_id="0" * 256, group_name="h")
    assert "rank_offset" in init(400, rank_offset=2, group_name="h")
    init(400, rank_offset=0, group_name="h")
    init(400, world_size=1, group_name="h")
    quiet = Sender()  # its port takes connections, nobody says go
    assert "time limit" in init(504, timeout=0.2, group_name="h", nccl_id=quiet.id())


def resident(s):
    """Bytes of the server's anonymous memory."""
    text = open(f"/proc/{s.process.pid}/status").read()
    return int(re.search(r"RssAnon:\s+(\d+) kB", text).group(1)) * 1024


def test_release_and_resume(model):
    with server("--max-total-tokens", "65536", "--device", "cpu", model=model) as s:
        prompt = {"input_ids": list(range(5, 205)), "return_logprob": True,
                  "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}}  # fmt: skip
        before = s.json("/generate", prompt)["meta_info"]
        for _ in range(2):
            held = resident(s)
            kv = s.json("/release_memory_occupation", {"tags": ["kv_cache"]})
            assert kv["kv_cache_bytes"] > 8 << 20 and kv["weights_bytes"] == 0
            assert resident(s) < held
            assert "KV memory is released" in generate(s, 503)["message"]
            assert s.json("/release_memory_occupation", {"tags": ["kv_cache"]})["kv_cache_bytes"] == 0
            again = s.json("/resume_memory_occupation", {"tags": ["kv_cache"]})
            assert again["kv_cache_bytes"] == kv["kv_cache_bytes"]
            after = s.json("/generate", prompt)["meta_info"]
            assert after["output_token_logprobs"] == before["output_token_logprobs"] and after["cached_tokens"] == 0
        gone = s.json("/release_memory_occupation", {"tags": ["weights", "cuda_graph"]})
        assert gone["weights_bytes"] > 0 and gone["kv_cache_bytes"] == 0
        assert "waits for a full update" in generate(s, 503)["message"]
        back = s.json("/resume_memory_occupation", {"tags": ["weights"]})
        assert back["weights_bytes"] == gone["weights_bytes"]
        assert "waits for a full update" in generate(s, 503)["message"]  # memory, but not the weights in it
        s.json("/update_weights_from_disk", {"model_path": str(model)})
        after = s.json("/generate", prompt)["meta_info"]
        assert after["output_token_logprobs"] == before["output_token_logprobs"]
        # all at once, and an update that takes the memory of the weights itself
        gone = s.json("/release_memory_occupation", {})
        assert gone["weights_bytes"] > 0 and gone["kv_cache_bytes"] > 0
        s.json("/update_weights_from_disk", {"model_path": str(model)})
        generate(s, 503)
        assert s.json("/resume_memory_occupation", {"tags": []})["kv_cache_bytes"] == gone["kv_cache_bytes"]
        after = s.json("/generate", prompt)["meta_info"]
        assert after["output_token_logprobs"] == before["output_token_logprobs"]
        for body in ({"tags": ["everything"]}, {"tags": "kv_cache"}, {"tags": [5]}):
            s.json("/release_memory_occupation", body, 400)


def test_release_waits_for_nobody(model):
    with server("--device", "cpu", model=model) as s:
        s.post("/pause_generation", {"mode": "retract"})
        replies = []
        thread = threading.Thread(target=lambda: replies.append(s.post("/generate", {"input_ids": [5]})))
        thread.start()
        deadline = time.monotonic() + 30 * SLOW
        while s.get("/v1/loads").json()["loads"][0]["num_waiting_uncached_tokens"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert "in flight" in s.json("/release_memory_occupation", {}, 429)["message"]
        s.post("/continue_generation")
        thread.join(30 * SLOW)
        assert replies[0].status_code == 200
        s.json("/release_memory_occupation", {})
        assert s.json("/resume_memory_occupation", {})["success"]


def test_shared_weights_are_not_the_servers_to_release(pair):
    s, owner, same = pair
    owner.fill(0x3C00)
    ipc(s, mode="share", weight_version="1", handle=owner.handle(), **same)
    assert s.json("/release_memory_occupation", {"tags": ["weights"]})["weights_bytes"] == 0
    assert generate(s)["meta_info"]["weight_version"] == "1"
