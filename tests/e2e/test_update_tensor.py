"""/update_weights_from_tensor: safetensors in base64, and SGLang's pickles of handles of memory, where this test writes the
pickle as torch's ForkingPickler does (tests/gpu has torch's own) and owns the memory: a memfd in place of a GPU's.
"""

import base64
import io
import os
import pickle
import random
import struct

import pytest
from programs import server
from test_handover import Owner, generate, tensors, version
from test_torch_store import from_disk, logprobs, model, other  # noqa: F401


class Global:
    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    """A value that the reader would make by calling something: REDUCE, and BUILD with a state."""

    def __init__(self, what, args, state=None):
        self.what, self.args, self.state = what, args, state


class Pickler(pickle._Pickler):
    def save_global_(self, obj):
        self.save(obj.module)
        self.save(obj.name)
        self.write(b"\x93")
        self.memoize(obj)

    def save_call(self, obj):
        self.save(obj.what)
        self.save(obj.args)
        self.write(b"R")
        self.memoize(obj)
        if obj.state is not None:
            self.save(obj.state)
            self.write(b"b")

    dispatch = {**pickle._Pickler.dispatch, Global: save_global_, Call: save_call}


def pickled(obj, protocol=4):
    out = io.BytesIO()
    Pickler(out, protocol).dump(obj)
    return out.getvalue()


class Memory(Owner):
    """What a trainer has on its device, and its counter of users."""

    def __init__(self, data, before=b"\7" * 24):
        super().__init__(len(before) + len(data))
        self.map[:] = before + data
        self.before, self.size = len(before), len(data)
        self.counter = f"/torch_{os.getpid()}_{random.randrange(1 << 40)}"
        with open("/dev/shm" + self.counter, "wb") as f:
            f.write(bytes(64) + struct.pack("<4q", 9, 1, 9, 9))

    def users(self):
        with open("/dev/shm" + self.counter, "rb") as f:
            return struct.unpack("<4q", f.read()[64:])

    def tensor(self, shape, dtype="bfloat16", offset=0, **change):
        stride = [1] * len(shape)
        for i in range(len(shape) - 2, -1, -1):
            stride[i] = stride[i + 1] * shape[i + 1]
        size = lambda t: Call(Global("torch", "Size"), (tuple(t),))
        args = {"cls": Global("torch", "Tensor"), "size": size(shape), "stride": tuple(stride), "offset": offset,
                "storage_cls": Global("torch.storage", "TypedStorage"), "dtype": Global("torch", dtype), "device": "cpu",
                "handle": b"\x02c" + bytes.fromhex(self.handle()), "storage_bytes": self.size, "storage_at": self.before,
                "requires_grad": False, "counter": self.counter.encode(), "counter_at": 1, "event": b"", "event_needed": False}  # fmt: skip
        how = change.pop("how", Global("sglang.srt.utils.patch_torch", "_rebuild_cuda_tensor_modified"))
        return Call(how, tuple((args | change).values()))

    def close(self):
        os.close(self.fd)
        os.unlink("/dev/shm" + self.counter)


@pytest.fixture
def memory():
    made = []

    def make(*args):
        made.append(Memory(*args))
        return made[-1]

    yield make
    for m in made:
        m.close()


@pytest.fixture(scope="module")
def shared(model):  # noqa: F811
    with server("--device", "cpu", "--dtype", "bfloat16", model=model) as s:
        yield s


def bucket(memory, some):
    """SGLang's FlattenedTensorBucket of (name, shape, bytes)."""
    data, rows = b"", []
    for name, shape, part in some:
        state = {"name": name, "shape": Call(Global("torch", "Size"), (tuple(shape),)), "dtype": Global("torch", "bfloat16"),
                 "start_idx": len(data), "end_idx": len(data) + len(part), "numel": len(part)}  # fmt: skip
        rows.append(Call(Global("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata"), (), state))
        data += part
    m = memory(data)
    return m, {"flattened_tensor": m.tensor([len(data)], "uint8"), "metadata": rows}


def send(s, data, status=200, **more):
    body = {"serialized_named_tensors": [base64.b64encode(data).decode()], "flush_cache": False, **more}
    return s.json("/update_weights_from_tensor", body, status)


def safetensors(some):
    import json

    header, at = {}, 0
    for name, shape, data in some:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in some)


def test_safetensors(shared, model, other):  # noqa: F811
    s = shared
    want, before = from_disk(s, other), from_disk(s, model)
    all_of = tensors(other)
    assert "5 of" in send(s, safetensors(all_of[:5]), load_format="direct")["message"]
    assert logprobs(s) == before
    assert send(s, safetensors(all_of[5:]), weight_version="2")["weight_version"] == "2"
    assert logprobs(s) == want
    body = safetensors(tensors(model))
    for data, says in [(body[:-2], "bytes of tensors"), (body[:30], "ends inside"), (b"abc", "no tensors"),
                       (safetensors([("x", [1], b"ab")]), "not part of")]:  # fmt: skip
        assert says in send(s, data, 400)["message"], says
    assert "over the limit" in send(s, b"\xff" * 40, 413)["message"]
    assert logprobs(s) == want and version(s) == "2"


def test_an_update_that_failed_is_over_when_generation_goes_on(shared, model, other):  # noqa: F811
    """What comes after it is another one: it may be of some tensors only."""
    s = shared
    want, before = from_disk(s, other), from_disk(s, model)
    all_of = tensors(other)
    s.json("/pause_generation", {"mode": "retract"})
    send(s, safetensors([("x", [1], b"ab")]), 400)
    s.json("/continue_generation", {})
    assert logprobs(s) == before
    for some in (all_of[:5], all_of[5:]):
        s.json("/pause_generation", {"mode": "retract"})
        send(s, safetensors(some))
        s.json("/continue_generation", {})
    assert logprobs(s) == want


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_named_memory(shared, model, other, memory, protocol):  # noqa: F811
    s = shared
    want = from_disk(s, other)
    before = from_disk(s, model)
    all_of = tensors(other)
    data = b"".join(t[2] for t in all_of)
    m, at, pairs = memory(data), 0, []
    for name, shape, part in all_of:
        pairs.append((name, m.tensor(shape, offset=at // 2)))
        at += len(part)
    send(s, pickled(pairs[:4], protocol))
    assert m.users() == (9, 1 - 4, 9, 9)  # each tensor was released
    assert logprobs(s) == before
    assert send(s, pickled(pairs[4:], protocol), weight_version="named")["weight_version"] == "named"
    assert logprobs(s) == want and m.users() == (9, 1 - len(pairs), 9, 9)
    back = tensors(model)[::-1]
    first, second = bucket(memory, back[:6]), bucket(memory, back[6:])
    s.json("/pause_generation", {"mode": "retract"})
    for _, root in (first, second):
        send(s, pickled(root, protocol), load_format="flattened_bucket", weight_version="bucket")
    s.json("/continue_generation", {})
    assert logprobs(s) == before and version(s) == "bucket"
    assert first[0].users() == second[0].users() == (9, 0, 9, 9)


def test_a_part_and_other_types(shared, model, other, memory):  # noqa: F811
    s = shared
    want = from_disk(s, other)
    before = from_disk(s, model)
    name, shape, part = next(t for t in tensors(other) if "down_proj" in t[0])
    wide = memory(b"".join(b"\0\0" + part[i : i + 2] for i in range(0, len(part), 2)))
    send(s, pickled([(name, wide.tensor(shape, "float32", how=Global("torch.multiprocessing.reductions", "rebuild_cuda_tensor")))]))
    s.json("/continue_generation", {})
    assert logprobs(s) not in (want, before)
    back = memory(next(t for t in tensors(model) if t[0] == name)[2])
    send(s, pickled([(name, back.tensor(shape))]))
    s.json("/continue_generation", {})
    assert logprobs(s) == before


def test_a_part_and_what_comes_after(shared, model, other):  # noqa: F811
    s = shared
    want, before = from_disk(s, other), from_disk(s, model)
    part = safetensors([t for t in tensors(other) if "down_proj" in t[0]])
    send(s, part)
    assert from_disk(s, other) == want
    assert from_disk(s, model) == before
    s.json("/continue_generation", {})
    assert logprobs(s) == before  # the part was older than the whole that came
    s.json("/sleep?level=1", {})
    s.json("/wake_up?tags=weights", {})
    send(s, part)
    s.json("/wake_up?tags=kv_cache", {})
    assert logprobs(s) not in (want, before)  # in force with the end of sleep, as with that of a pause


def test_what_is_refused(shared, model, memory):  # noqa: F811
    s = shared
    before = from_disk(s, model)
    name, shape, part = next(t for t in tensors(model) if "down_proj" in t[0])
    m = memory(part)
    handle = b"\x02c" + bytes.fromhex(m.handle())
    one = lambda **change: pickled([(name, m.tensor(shape, **change))])
    n = 1
    for data, says, released in [
        (one(how=Global("os", "system")), "made by os.system", 0),
        (one(device="GPU-7"), "lies on GPU-7", 1),
        (one(stride=(1, shape[0])), "not contiguous", 0),
        (one(dtype="int64"), "its type is none of", 0),
        (one(offset=1), "outside of its storage", 0),
        (one(offset=1 << 62), "", 0),
        (one(storage_bytes=1 << 50, offset=1 << 40), "maps", 1),
        (one(storage_at=1 << 40), "maps", 1),
        (one(handle=handle[:-1]), "none of CUDA's", 0),
        (one(handle=b"\x02e" + handle[2:] + b"abc"), "expandable segment", 0),
        (one(handle=b"\x02c" + bytes(64)), "handle", 1),
        (one(event_needed=True), "event has no handle", 0),
        (pickled([(name, "text")]), "it is none", 0),
        (pickled([("nonsense", m.tensor(shape))]), "not part of", 1),
        (pickled([(name, m.tensor([5]))]), "has shape", 1),
        (pickled({"a": 1}), "list of pairs", 0),
        (pickled([5]), "list of pairs", 0),
        (pickled([(name, m.tensor(shape))] * 2), "came twice", 2),
        (b"\x80\x04.", "stack is empty", 0),
        (b"\x80\x04c__builtin__\neval\n(tR.", "list of pairs", 0),
        (b"\x80\x04P....", "0x50", 0),
        (b"\x80\x04j\xff\xff\xff\xff....", "memo", 0),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b".", "more than there is", 0),
        (b"\x80\x04(((((((.......", "stack is empty", 0),
    ]:
        message = send(s, data + bytes(9), 400)["message"]  # what follows the end is not read
        assert says in message, (says, message)
        n -= released
        assert m.users()[1] == n, says
    _, root = bucket(memory, [(name, shape, part)])
    for change, says in [({"start_idx": -2}, "outside of the bucket"), ({"end_idx": len(part) + 2}, "outside of the bucket"),
                         ({"end_idx": len(part) - 2}, "bytes and needs"), ({"shape": None}, "no short tuple"), ({"name": 5}, "metadata needs"),
                         ({"dtype": Global("torch", "int8")}, "dtype must be")]:  # fmt: skip
        row = root["metadata"][0]
        bad = {**root, "metadata": [Call(row.what, (), row.state | change)]}
        assert says in send(s, pickled(bad), 400, load_format="flattened_bucket")["message"], change
    assert "flattened_bucket is a dict" in send(s, one(), 400, load_format="flattened_bucket")["message"]
    for body, says in [({}, "must be a list"), ({"serialized_named_tensors": []}, "must be a list"), ({"serialized_named_tensors": [5]}, "must be a list"),
                       ({"serialized_named_tensors": ["a b="]}, "no base64"), ({"serialized_named_tensors": ["abc"]}, "no base64"),
                       ({"serialized_named_tensors": ["YW=="], "load_format": "torch"}, "load_format")]:  # fmt: skip
        assert says in s.json("/update_weights_from_tensor", body, 400)["message"], body
    assert logprobs(s) == before and version(s) == "disk"


def test_pickles_that_are_broken(shared, model, memory):  # noqa: F811
    """Bytes changed, taken out and cut off at random, with a fixed seed: an answer each time, and the server lives."""
    s = shared
    before = from_disk(s, model)
    _, root = bucket(memory, tensors(model)[:4])
    good, rng = pickled(root), random.Random(5)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            what = rng.randrange(3)
            if what == 0:
                data[at] = rng.randrange(256)
            elif what == 1:
                del data[at : at + rng.randrange(1, 9)]
            else:
                data[at:at] = data[rng.randrange(len(data)) :][: rng.randrange(1, 40)]
        if rng.randrange(4) == 0:
            del data[rng.randrange(len(data)) :]
        body = {"serialized_named_tensors": [base64.b64encode(bytes(data)).decode()], "load_format": "flattened_bucket"}
        assert s.post("/update_weights_from_tensor", body).status_code in (200, 400, 413)
        s.post("/continue_generation")  # what came whole by chance is the model's own
    generate(s)
    assert len(before) == len(logprobs(s))
