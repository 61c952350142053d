"""vLLM's words for weights by broadcast: groups in a torch store as its trainers make them, the four endpoints in the order of
new and of older trainers, packed chunks, and what is refused. Over sockets; NCCL in tests/gpu.
"""

import base64
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

    def __init__(self, s, by_id=False, **more):
        self.s, self.store, self.sender = s, Store(), Sender()
        id = bytes.fromhex(self.sender.id())
        self.store.set_object(pickled(id))
        where = {"master_address": "127.0.0.1", "master_port": self.store.port}
        if by_id:
            where = {"nccl_unique_id_b64": base64.b64encode(id).decode()}

        def greet():
            self.sender.accept()
            assert len(self.sender.peer.recv(4)) == 4
            self.sender.peer.sendall(struct.pack("=f", 0))

        init = {"init_info": {**where, "rank_offset": 1, "world_size": 2, **more}}
        said = beside(greet, lambda: s.json("/init_weight_transfer_engine", init))
        assert said["message"] == "Weight transfer initialized"

    def push(self, some, status=200, info=None, **more):
        if info is None:
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


@pytest.mark.parametrize("by_id", [False, True])
def test_packing_is_said_with_the_group(shared, model, other, by_id):  # noqa: F811
    """vLLM's since 0.28: packed in init_info, the tensors named in the first update alone, shutdown at the end."""
    s = shared
    want, before = from_disk(s, other), from_disk(s, model)
    trainer = Trainer(s, by_id=by_id, packed=True, packed_buffer_size_bytes=3000, packed_num_buffers=2)
    for weights, numbers, info in ((other, want, None), (model, before, {"names": [], "dtype_names": [], "shapes": []}), (other, want, {})):
        s.json("/start_weight_update", {})
        trainer.push(tensors(weights), info=info)
        s.json("/finish_weight_update", {})
        assert logprobs(s) == numbers
    s.json("/start_weight_update", {})
    trainer.push(tensors(model), info=[{}])
    s.json("/finish_weight_update", {})
    assert logprobs(s) == before
    assert "is unknown" not in s.log()
    assert "one entry" in s.json("/update_weights", {"update_info": [{}, {}]}, 400)["message"]
    assert s.json("/shutdown_weight_transfer_engine", {})["message"] == "Weight transfer engine shut down"
    assert trainer.sender.peer.recv(1) == b""  # the server has left the group
    assert "comes first" in s.json("/update_weights", {"update_info": {}}, 400)["message"]
    s.json("/shutdown_weight_transfer_engine", {})  # nothing is left to shut down
    trainer.close()


def test_an_update_of_no_tensors(shared, model):  # noqa: F811
    s = shared
    before = from_disk(s, model)
    s.json("/start_weight_update", {})
    assert s.json("/finish_weight_update", {"weight_version": "9"})["message"] == "Weight update finished"
    assert logprobs(s) == before and version(s) == "9"
    assert "no tensor has come" in s.json("/finish_weight_update", {}, 400)["message"]
    assert "draft" in s.json("/start_draft_weight_update", {}, 501)["message"]


def test_a_folder_in_prime_rls_words(shared, model, other):  # noqa: F811
    s = shared
    want, before = from_disk(s, other), from_disk(s, model)
    assert s.json("/pause?mode=keep&clear_cache=false", {}) == {"status": "paused"}
    assert s.json("/update_weights", {"weight_dir": str(other)})["message"] == "Weights updated"
    assert s.json("/resume", {}) == {"status": "resumed"}
    assert logprobs(s) == want and version(s) == "disk"
    s.json("/update_weights", {"weight_dir": str(model), "weight_version": "step_5"})
    assert logprobs(s) == before and version(s) == "step_5"
    assert "holds neither" in s.json("/update_weights", {"weight_dir": "/nowhere"}, 404)["message"]
    assert "one of" in s.json("/update_weights", {"weight_dir": str(model), "update_info": {}}, 400)["message"]


def test_checksums_in_vllms_words(shared, model, other):  # noqa: F811
    s = shared
    from_disk(s, model)
    sums = s.json("/weight_checker", {"action": "checksum"})["checksums"]
    assert sums == s.json("/weights_checker", {"action": "checksum"})["ranks"][0]["checksums"]
    compare = lambda baseline: s.json("/weight_checker", {"action": "compare", "baseline": baseline})
    assert compare(sums) == {"mismatches": [], "match": True}
    name = sorted(sums)[0]
    odd = {**sums, name: "0" * 64, "none.such": "1" * 64}
    odd.pop(sorted(sums)[1])
    assert sorted(compare(odd)["mismatches"]) == sorted([name, "none.such", sorted(sums)[1]])
    assert s.json("/weight_checker", {"action": "reset"}) == {"status": "reset"}
    assert sorted(compare(sums)["mismatches"]) == sorted(sums)
    from_disk(s, model)
    assert compare(sums)["match"]
    for body in ({}, {"action": "snapshot"}, {"action": "compare"}, {"action": "compare", "baseline": []}, {"action": "compare", "baseline": {"x": 1}}):
        s.json("/weight_checker", body, 400)


def test_the_options_in_vllms_words(shared):
    """What TRL reads before it begins: a transfer engine, the type of the weights, whose log-probabilities, how many ranks."""
    config = shared.get("/server_info?config_format=json").json()["vllm_config"]
    assert config["model_config"]["dtype"] == "torch.bfloat16" and config["model_config"]["logprobs_mode"] == "processed_logprobs"
    assert config["weight_transfer_config"] == {"backend": "socket"} and config["lora_config"] is None
    assert config["parallel_config"]["data_parallel_size"] * config["parallel_config"]["world_size"] == shared.get("/get_world_size").json()["world_size"]


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
