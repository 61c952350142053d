"""vLLM's words for weights by broadcast: groups in a torch store as its trainers make them, the four endpoints in the order of
new and of older trainers, packed chunks, and what is refused. Over sockets; NCCL in tests/gpu.
"""

import struct

import pytest
from programs import server
from test_handover import Sender, beside, generate, tensors, version
from test_torch_store import from_disk, logprobs, model, other  # noqa: F401
from torch_store import Rogue, Store, pickled


@pytest.fixture(scope="module")
def shared(model):  # noqa: F811
    with server("--device", "cpu", "--dtype", "bfloat16", model=model) as s:
        yield s


class Trainer:
    """Rank 0 of vLLM's StatelessProcessGroup and PyNcclCommunicator: the id in the store at once, then an all-reduce of one
    float."""

    def __init__(self, s):
        self.s, self.store, self.sender = s, Store(), Sender()
        self.store.set_object(pickled(bytes.fromhex(self.sender.id())))

        def greet():
            self.sender.accept()
            assert len(self.sender.peer.recv(4)) == 4
            self.sender.peer.sendall(struct.pack("=f", 0))

        said = beside(greet, lambda: s.json("/init_weight_transfer_engine", {"init_info": {
            "master_address": "127.0.0.1", "master_port": self.store.port, "rank_offset": 1, "world_size": 2}}))  # fmt: skip
        assert said["message"] == "Weight transfer initialized"

    def push(self, some, status=200, **more):
        info = {"names": [t[0] for t in some], "dtype_names": ["bfloat16"] * len(some), "shapes": [t[1] for t in some], **more}
        send = lambda: self.sender.peer.sendall(b"".join(t[2] for t in some))
        reply = beside(send, lambda: self.s.post("/update_weights", {"update_info": info}))
        assert reply.status_code == status, reply.text
        return reply.json()["message"]

    def close(self):
        self.store.close()
        self.sender.close()


def test_the_four_in_their_order(shared, model, other):  # noqa: F811
    s = shared
    want, before = from_disk(s, other), from_disk(s, model)
    trainer = Trainer(s)
    all_of = tensors(other)[::-1]
    assert s.json("/start_weight_update", {"is_checkpoint_format": True})["message"] == "Weight update started"
    assert trainer.push(all_of[:7]) == "Weights updated"
    trainer.push(all_of[7:], packed=True, packed_buffer_size_bytes=3000, packed_num_buffers=2)  # chunks of some tensors
    assert logprobs(s) == before and version(s) == "disk"  # all are here, and wait
    s.json("/continue_generation", {})
    assert logprobs(s) == before
    assert s.json("/finish_weight_update", {"weight_version": "7"})["message"] == "Weight update finished"
    assert logprobs(s) == want and version(s) == "7"
    assert "no tensor has come" in s.json("/finish_weight_update", {}, 400)["message"]
    s.json("/start_weight_update", {})  # a part
    trainer.push([t for t in tensors(model) if "down_proj" in t[0]])
    s.json("/finish_weight_update", {"weight_version": "8"})
    assert logprobs(s) not in (want, before) and version(s) == "8"
    trainer.close()
    again = Trainer(s)  # the trainer was started again
    again.push(tensors(model), packed=True)  # one of before there was start and finish
    assert logprobs(s) == before
    again.close()


def test_a_failed_part_fails_the_update(shared, model, other):  # noqa: F811
    s = shared
    before = from_disk(s, model)
    trainer = Trainer(s)
    all_of = tensors(other)
    s.json("/start_weight_update", {})
    trainer.push(all_of[:3])
    bad = s.json("/update_weights", {"update_info": {"names": ["x"], "dtype_names": ["bfloat16"], "shapes": [[1]]}}, 400)
    assert "not part of" in bad["message"]
    of_no_use, wide = "a.rotary_emb.inv_freq", (1 << 61) - 1  # two of 2^63 - 4 bytes and one of 16: 8 bytes, if sums wrapped
    for shapes, says in ([[0]], "has no numbers"), ([[wide], [wide], [4]], "too large"):
        info = {"names": [of_no_use] * len(shapes), "dtype_names": ["float32"] * len(shapes), "shapes": shapes}
        assert says in s.json("/update_weights", {"update_info": info}, 400)["message"]
    trainer.push(all_of[3:])
    assert "send all of it again" in s.json("/finish_weight_update", {}, 400)["message"]
    assert logprobs(s) == before and version(s) == "disk"
    trainer.sender.close()
    info = {"names": [all_of[0][0]], "dtype_names": ["bfloat16"], "shapes": [all_of[0][1]]}
    gone = s.json("/update_weights", {"update_info": info}, 503)
    assert "a peer is gone" in gone["message"]
    assert "comes first" in s.json("/update_weights", {"update_info": info}, 400)["message"]
    assert logprobs(s) == before
    trainer.store.close()


def test_what_is_refused(shared):
    s = shared
    init = lambda status, **change: s.json("/init_weight_transfer_engine", {"timeout": 0.3, "init_info": {
        "master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2, **change}}, status)["message"]  # fmt: skip
    assert "Connection refused" in init(503)
    for change in ({"master_address": None}, {"master_port": None}, {"world_size": None}, {"rank_offset": 2}):
        assert "init_info needs" in init(400, **change)
    rogue = Rogue(struct.pack("=q", 2), b"\0", struct.pack("=Q", 40) + b"C\x80".ljust(40, b"x"))
    assert "holds no id" in init(503, master_port=rogue.port)
    rogue.close()
    assert "init_info needs" in s.json("/init_weight_transfer_engine", {}, 400)["message"]
    assert "ipc_handles" in s.json("/update_weights", {"update_info": {"ipc_handles": [1]}}, 400)["message"]
    generate(s)
