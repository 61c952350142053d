"""Weights from a sender whose group is in a torch store: slime's sequence over sockets instead of NCCL (tests/gpu has NCCL),
parts of the tensors, tensors of other types, and stores that freeze, lie, close and drip.
"""

import socket
import struct
import threading
import time

import pytest
from programs import LIMIT, server, tiny_model
from test_handover import Sender, beside, generate, tensors, version
from torch_store import Rogue, Store, TorchStore


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("store") / "m", **{"num-hidden-layers": 2})


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Other weights of the same shapes."""
    return tiny_model(tmp_path_factory.mktemp("store") / "o", **{"num-hidden-layers": 2, "seed": 77})


@pytest.fixture(scope="module")
def shared(model):
    with server("--device", "cpu", "--dtype", "bfloat16", "--weight-version", "start", model=model) as s:
        yield s


def store_of(kind):
    if kind == "ours":
        return Store()
    pytest.importorskip("torch")
    return TorchStore(kind == "libuv")


def init(s, port, group="g", **more):
    return s.post("/init_weights_update_group", {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1,
                  "world_size": 2, "group_name": group, "backend": "socket", **more})  # fmt: skip


class Trainer:
    """Rank 0 in torch's manner: the group's id is in the store only when the first tensor is broadcast."""

    def __init__(self, s, kind="ours", group="g"):
        self.s, self.group, self.store, self.sender, self.joined = s, group, store_of(kind), Sender(), False
        reply = init(s, str(self.store.port), group)  # AReaL sends the port as text
        assert reply.status_code == 200 and reply.json()["success"], reply.text
        self.store.wait_for_all(2)

    def broadcast(self, data):
        if not self.joined:
            self.store.set_id(self.group, bytes.fromhex(self.sender.id()))
            self.sender.accept()
            self.joined = True
        self.sender.peer.sendall(data)

    def push(self, some, status=200, dtype="bfloat16", **more):
        body = {"names": [t[0] for t in some], "dtypes": [dtype] * len(some), "shapes": [t[1] for t in some],
                "group_name": self.group, "flush_cache": False, **more}  # fmt: skip
        send = lambda: self.broadcast(b"".join(t[2] for t in some))
        reply = beside(send, lambda: self.s.post("/update_weights_from_distributed", body))
        assert reply.status_code == status, reply.text
        return reply.json()

    def close(self):
        self.s.json("/destroy_weights_update_group", {"group_name": self.group})
        self.store.close()
        if self.joined:
            self.sender.close()


def logprobs(s):
    return generate(s, n=8, return_logprob=True)["meta_info"]["output_token_logprobs"]


def from_disk(s, folder):
    s.json("/update_weights_from_disk", {"model_path": str(folder), "weight_version": "disk"})
    return logprobs(s)


@pytest.mark.parametrize("kind", ["ours", "libuv", "older"])
def test_the_sequence_of_slime(shared, model, other, kind):
    s = shared
    want, before = from_disk(s, other), from_disk(s, model)
    assert want != before
    trainer = Trainer(s, kind, "slime-pp_0")
    assert logprobs(s) == before  # a joined store changes nothing
    for step in (1, 2):
        s.json("/pause_generation", {"mode": "retract"})
        assert s.get("/flush_cache").status_code == 200
        all_of = tensors(other if step == 1 else model)[::-1]  # in no order of ours, in several requests
        for i in range(0, len(all_of), 5):
            trainer.push(all_of[i : i + 5], weight_version=str(step), load_format="flattened_bucket" if step == 2 else None)
        assert version(s) == str(step)
        s.json("/continue_generation", {})
        assert logprobs(s) == (want if step == 1 else before)
        assert generate(s)["meta_info"]["weight_version"] == str(step)
    trainer.close()


def test_a_part_of_the_tensors(shared, model, other):
    s = shared
    before = from_disk(s, model)
    trainer = Trainer(s)
    norm = [t for t in tensors(other) if t[0] == "model.layers.0.mlp.down_proj.weight"]
    s.json("/pause_generation", {"mode": "retract"})
    assert "1 of" in trainer.push(norm, weight_version="part", abort_all_requests=False)["message"]
    assert version(s) == "disk"
    s.json("/continue_generation", {})
    assert version(s) == "part"
    part = logprobs(s)
    assert part != before
    back = [t for t in tensors(model) if t[0] == norm[0][0]]
    trainer.push(back)
    s.json("/continue_generation", {})  # without a pause as well
    assert logprobs(s) == before and version(s) == "part"
    trainer.push(norm)
    trainer.push([("nonsense", [1], b"")], 400)
    trainer = Trainer(s, group="again")
    trainer.close()
    s.json("/continue_generation", {})  # a new sender begins anew
    assert logprobs(s) == before
    s.json("/destroy_weights_update_group", {"group_name": "g"})


def test_what_follows_a_failed_part_is_not_in_force(shared, model, other):
    s = shared
    before = from_disk(s, model)
    trainer = Trainer(s)
    all_of = tensors(other)
    s.json("/pause_generation", {"mode": "retract"})
    trainer.push(all_of[:3])
    assert "not part of" in s.json("/update_weights_from_distributed", {"names": ["nonsense"], "dtypes": ["bfloat16"],
                                   "shapes": [[1]], "group_name": "g"}, 400)["message"]  # fmt: skip
    trainer.push(all_of[3:])
    says = s.json("/continue_generation", {}, 400)["message"]
    assert "send all of it again" in says
    s.json("/continue_generation", {})
    assert logprobs(s) == before and version(s) == "disk"
    trainer.push(all_of[:3])
    s.json("/update_weights_from_distributed", {"names": [], "dtypes": [], "shapes": [], "group_name": "g"}, 400)
    trainer.push(all_of, weight_version="whole")  # all of them are whole whatever failed before
    assert version(s) == "whole" and logprobs(s) == from_disk(s, other)
    trainer.close()


def widened(t):
    return (t[0], t[1], b"".join(b"\0\0" + t[2][i : i + 2] for i in range(0, len(t[2]), 2)))


def test_tensors_of_another_type_and_of_no_use(shared, model, other):
    s = shared
    want = from_disk(s, other)
    from_disk(s, model)
    trainer = Trainer(s)
    all_of = tensors(other)
    names = [t[0] for t in all_of]
    wide = [widened(t) for t in all_of[:4]]
    trainer.push(wide, dtype="torch.float32")
    rest = all_of[4:]
    if "lm_head.weight" not in names:  # a head that is the embedding comes all the same from some trainers
        embedding = next(t for t in all_of if t[0] == "model.embed_tokens.weight")
        rest = [("lm_head.weight", *embedding[1:]), *rest]
    trainer.push(rest, weight_version="types", load_format="flattened_bucket")
    assert version(s) == "types" and logprobs(s) == want
    trainer.close()


I64 = struct.Struct("=q")
COUNTED = I64.pack(2)


@pytest.mark.parametrize("answers, status, says", [
    ([], 504, "time limit"),  # frozen: it listens and that is all
    ([None], 503, "closed the connection"),
    ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], 503, "is no torch store"),
    ([I64.pack(-5)], 503, "is no torch store"),
    ([COUNTED[:3], None], 504, "time limit"),
    ([(0.1, COUNTED)], 504, "time limit"),  # it drips: a limit for all, not for each byte
], ids=["frozen", "closed", "other", "negative", "half", "drips"])  # fmt: skip
def test_stores_that_are_none(shared, answers, status, says):
    rogue = Rogue(*answers)
    reply = init(shared, rogue.port, timeout=0.3 if status == 504 else LIMIT)
    assert reply.status_code == status and says in reply.json()["message"], reply.text
    rogue.close()
    reply = shared.post("/destroy_weights_update_group", {"group_name": "g"})
    assert reply.status_code == 400 and "no group" in reply.text  # nothing is left of it, nor of the lock
    generate(shared)


@pytest.mark.parametrize("answers, status, says", [
    ([b"\7"], 503, "is no torch store"),
    ([b"\0", struct.pack("=Q", 1 << 62)], 503, "at most"),
    ([b"\0", struct.pack("=Q", 1 << 16)], 504, "time limit"),
    ([b"\0", struct.pack("=Q", 5) + b"abcde"], 503, "an id has 128"),
    ([b"\0", struct.pack("=Q", 128) + bytes(128)], 400, "none of a group"),
    ([b"\0", (0.05, struct.pack("=Q", 128))], 504, "time limit"),
    ([None], 503, "closed the connection"),
    ([b"\0", None], 503, "closed the connection"),
    ([], 504, "time limit"),
], ids=["refuses", "huge", "nothing-follows", "short", "zeros", "drips", "closed", "half", "never"])  # fmt: skip
def test_stores_that_lie_about_the_id(shared, model, answers, status, says):
    s = shared
    rogue = Rogue(COUNTED, *answers)
    reply = init(s, rogue.port)
    assert reply.status_code == 200, reply.text
    some = tensors(model)[:1]
    body = {"names": [some[0][0]], "dtypes": ["bfloat16"], "shapes": [some[0][1]], "group_name": "g",
            "timeout": 0.3 if status == 504 else LIMIT}
    before = logprobs(s)
    reply = s.post("/update_weights_from_distributed", body)
    assert reply.status_code == status and says in reply.json()["message"], reply.text
    assert logprobs(s) == before
    gone = s.post("/update_weights_from_distributed", body)
    assert gone.status_code == 400 and "no group" in gone.text  # it was closed
    rogue.close()


def test_a_store_that_comes_late_and_requests_that_name_none(shared):
    s = shared
    probe = socket.create_server(("127.0.0.1", 0))
    port = probe.getsockname()[1]
    probe.close()
    refused = init(s, port, timeout=0.5)
    assert refused.status_code == 503 and "Connection refused" in refused.text, refused.text
    replies = []
    thread = threading.Thread(target=lambda: replies.append(init(s, port)))
    thread.start()
    deadline = time.monotonic() + LIMIT
    while s.post("/destroy_weights_update_group", {"group_name": "none"}).status_code != 429:  # it holds the lock: it knocks
        assert time.monotonic() < deadline
    late = Rogue(COUNTED, port=port)
    thread.join(LIMIT)
    assert replies[0].status_code == 200, replies[0].text
    assert "already" in init(s, port).json()["message"]
    late.close()
    s.json("/destroy_weights_update_group", {"group_name": "g"})
    for change, status, says in [
        ({"master_address": None}, 400, "master_address"),
        ({"master_port": None}, 400, "master_port"),
        ({"master_port": 70000}, 400, "outside 0..65535"),
        ({"master_address": "no-such-host.invalid"}, 400, "not known"),
        ({"backend": "gloo"}, 501, "gloo is not spoken"),
        ({"backend": "nccl"}, 501, "backend"),
        ({"rank_offset": 2}, 400, "rank_offset"),
        ({"timeout": 0}, 400, "timeout"),
    ]:
        reply = init(s, port, **change)
        assert reply.status_code == status and says in reply.text, (change, reply.text)
