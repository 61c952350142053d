"""Weights as the peers' trainers send them: torch, rank 0 of its own NCCL group on GPU 1, and clime-server on GPU 0 that joins
over torch's TCPStore. The sequence of slime (SGLang's words; tensors one by one and as flattened buckets), then vLLM's
(PyNcclCommunicator's steps on libnccl itself), a sender that stops, and one that is killed; torch on the server's own GPU that
sends handles of its memory; sleep and wake. Weights are compared by their checksum and by the bits of log-probabilities with
those of the same files loaded from disk.

    python3 tests/gpu/torch_sender.py [BUILD]
    TP=2: a server over both GPUs, which takes handles of its first one's memory and no torch group; on one GPU too

Needs two GPUs otherwise, torch and safetensors. Exit status 1 when something is wrong.
"""

import ctypes
import datetime
import json
import multiprocessing
import os
import pathlib
import signal
import sys
import threading
import time
import traceback
import urllib.request

import handover
from shared import check, checks, failures, own_gpus

SENDER = "cuda:1"
GROUP = "slime-pp_0"
SHARED = int(os.environ.get("TP", 1)) > 1


def beside(call):
    """Starts call in a thread; the function that is returned waits for its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(call()), daemon=True)
    thread.start()

    def wait():
        thread.join(60)
        return result[0] if result else (0, {"message": "no answer within 60 s"})

    return wait


def weights(folder, device=SENDER):
    from safetensors.torch import load_file

    return [(k, v.to(device)) for path in sorted(folder.glob("*.safetensors")) for k, v in load_file(path).items()]


def custom_group(port, world=2):
    """What slime's and SGLang's init_custom_process_group do at rank 0."""
    import torch.distributed.distributed_c10d as c10d

    timeout = datetime.timedelta(seconds=60)
    store, rank, world = next(c10d.rendezvous(f"tcp://127.0.0.1:{port}", 0, world, timeout=timeout))
    store.set_timeout(timeout)
    store = c10d.PrefixStore(GROUP, store)
    group, _ = c10d._new_process_group_helper(world, 0, [], c10d.Backend("nccl"), store, group_name=GROUP, timeout=timeout)
    c10d._world.pg_group_ranks[group] = {i: i for i in range(world)}
    return group


def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def torchs_nccl():
    """NCCL refuses ranks of different versions, so the server takes torch's."""
    import importlib.util

    spec = importlib.util.find_spec("nvidia.nccl")
    folders = [str(pathlib.Path(p) / "lib") for p in (spec.submodule_search_locations if spec else [])]
    return {"LD_LIBRARY_PATH": ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])}


class Server(handover.Server):
    def disk(self, folder):
        status, reply = self.post("/update_weights_from_disk", {"model_path": str(folder), "weight_version": "disk"})
        check(status == 200, f"from disk: {reply['message']}")
        return self.logp()

    def logp(self):
        """The checksum with them."""
        status, reply = self.post("/weights_checker", {"action": "checksum"})
        return [reply.get("per_engine_checksum") or reply.get("message"), super().logp()] if status == 200 else [status, super().logp()]

    def version(self):
        with urllib.request.urlopen(self.url + "/get_weight_version", timeout=20) as reply:
            return json.load(reply)["weight_version"]

    def text(self, path):
        with urllib.request.urlopen(self.url + path, timeout=20) as reply:
            return reply.status


def lists(some):
    return {"dtypes": [str(v.dtype) for _, v in some], "names": [k for k, _ in some], "shapes": [list(v.shape) for _, v in some]}


def join(s):
    port = free_port()
    wait = beside(lambda: s.post("/init_weights_update_group", {"master_address": "127.0.0.1", "master_port": port,
                  "rank_offset": 1, "world_size": 2, "group_name": GROUP, "backend": "nccl"}))  # fmt: skip
    group = custom_group(port)
    status, reply = wait()
    check(status == 200, f"the store is joined: {reply}")
    return group


def push(s, group, some, **more):
    import torch
    import torch.distributed as dist

    body = {**lists(some), "group_name": GROUP, "flush_cache": False, **more}
    body["dtypes"] = [d.removeprefix("torch.") for d in body["dtypes"]]
    t0 = time.time()
    wait = beside(lambda: s.post("/update_weights_from_distributed", body))
    if more.get("load_format") == "flattened_bucket":
        flat = torch.cat([v.contiguous().view(torch.uint8).view(-1) for _, v in some])
        handles = [dist.broadcast(flat, 0, group=group, async_op=True)]
    else:
        handles = [dist.broadcast(v, 0, group=group, async_op=True) for _, v in some]
    status, reply = wait()
    if status == 200:
        for handle in handles:
            handle.wait()
        torch.cuda.synchronize(1)
    return status, reply, time.time() - t0


def slime(s, a, b, bits):
    import torch

    group = join(s)
    check(s.logp() == bits["a"], "a joined store changes nothing")
    for step, (which, folder) in enumerate([("b", b), ("a", a), ("b", b)]):
        tensors = weights(folder)[:: -1 if step else 1]
        if step == 2:  # a part of them in fp32, as trainers keep norms
            tensors = [(k, v.float() if "norm" in k else v) for k, v in tensors]
        s.post("/pause_generation", {"mode": "retract"})
        check(s.text("/flush_cache") == 200, "flushed")
        n = len(tensors) // 3 + 1
        size = sum(v.numel() * v.element_size() for _, v in tensors)
        seconds = 0
        for i in range(0, len(tensors), n):
            more = {"load_format": "flattened_bucket"} if step == 1 else {}
            status, reply, took = push(s, group, tensors[i : i + n], weight_version=str(step), **more)
            seconds += took
            check(status == 200, f"step {step}, tensors {i} to {min(i + n, len(tensors)) - 1}: {reply}")
        check(s.version() == str(step), f"version {s.version()}")
        s.post("/continue_generation", {})
        check(s.logp() == bits[which], f"step {step}: the bits of {which} from disk")
        print(f"        {size / 1e6:.0f} MB in {len(tensors)} tensors, {seconds * 1e3:.1f} ms", flush=True)
    one = [t for t in weights(a) if t[0].endswith("layers.1.mlp.down_proj.weight")]
    s.post("/pause_generation", {"mode": "retract"})
    status, reply, _ = push(s, group, one, weight_version="part")
    check(status == 200 and s.version() == "2", f"a part waits: {reply}")
    s.post("/continue_generation", {})
    check(s.version() == "part" and s.logp() not in (bits["a"], bits["b"]), "a part is in force when generation goes on")
    status, reply = s.post("/destroy_weights_update_group", {"group_name": GROUP})
    check(status == 200, f"destroyed: {reply}")
    torch.cuda.synchronize(1)


# ---- vLLM --------------------------------------------------------------------------------------------------------


class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Nccl:
    """What vLLM's PyNcclCommunicator does at rank 0, on torch's libnccl."""

    def __init__(self, port):
        import pickle

        import torch

        self.lib = ctypes.CDLL("libnccl.so.2")
        store = torch.distributed.TCPStore("127.0.0.1", port, 2, True, datetime.timedelta(seconds=60))
        self.store, unique = store, Id()
        assert self.lib.ncclGetUniqueId(ctypes.byref(unique)) == 0
        store.set("broadcast_from/0/0", pickle.dumps(unique))
        torch.cuda.set_device(1)
        self.comm, self.stream = ctypes.c_void_p(), torch.cuda.Stream(SENDER)
        assert self.lib.ncclCommInitRank(ctypes.byref(self.comm), 2, unique, 0) == 0
        data = torch.zeros(1, device=SENDER)
        self.at = ctypes.c_void_p(self.stream.cuda_stream)
        assert self.lib.ncclAllReduce(self.p(data), self.p(data), ctypes.c_size_t(1), 7, 0, self.comm, self.at) == 0
        self.stream.synchronize()

    def p(self, tensor):
        return ctypes.c_void_p(tensor.data_ptr())

    def broadcast(self, tensor):
        import torch

        tensor = tensor.contiguous().view(torch.uint8)
        torch.cuda.synchronize(1)
        rc = self.lib.ncclBroadcast(self.p(tensor), self.p(tensor), ctypes.c_size_t(tensor.numel()), 1, 0, self.comm, self.at)
        assert rc == 0, rc
        return tensor


def chunks(tensors, limit):
    """vLLM's packing: whole tensors until the chunk has passed the limit."""
    chunk, size = [], 0
    for t in tensors:
        chunk.append(t)
        size += t.numel() * t.element_size()
        if size > limit:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def vllm(s, a, b, bits):
    import torch

    port = free_port()
    wait = beside(lambda: s.post("/init_weight_transfer_engine", {"init_info": {"master_address": "127.0.0.1",
                  "master_port": port, "rank_offset": 1, "world_size": 2}}))  # fmt: skip
    nccl = Nccl(port)
    status, reply = wait()
    check(status == 200, f"vLLM's group: {reply}")
    for which, folder, packed in (("a", a, False), ("b", b, True)):
        tensors = weights(folder)
        info = lists(tensors)
        info["dtype_names"] = [d.removeprefix("torch.") for d in info.pop("dtypes")]
        more = {"packed": True, "packed_buffer_size_bytes": 5 << 20, "packed_num_buffers": 2} if packed else {}
        check(s.post("/start_weight_update", {})[0] == 200, "started")
        wait = beside(lambda: s.post("/update_weights", {"update_info": {**info, **more}}))
        if packed:
            kept = [nccl.broadcast(torch.cat([t.contiguous().view(torch.uint8).view(-1) for t in chunk]))
                    for chunk in chunks([v for _, v in tensors], 5 << 20)]  # fmt: skip
        else:
            kept = [nccl.broadcast(v) for _, v in tensors]
        status, reply = wait()
        check(status == 200, f"vLLM's update of {len(kept)} broadcasts: {reply}")
        status, reply = s.post("/finish_weight_update", {"weight_version": f"vllm-{which}"})
        check(status == 200 and s.version() == f"vllm-{which}", f"finished: {reply}")
        check(s.logp() == bits[which], f"vLLM's way: the bits of {which} from disk")


# ---- memory of the server's own GPU ------------------------------------------------------------------------------


def as_sglang_patches():
    """The GPU's UUID in place of its number, and the rebuilding function by SGLang's name."""
    import types

    import torch
    from torch.multiprocessing import reductions

    module = types.ModuleType("sglang.srt.utils.patch_torch")
    for name in ("sglang", "sglang.srt", "sglang.srt.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[module.__name__] = module
    original = reductions.reduce_tensor

    def _rebuild_cuda_tensor_modified(*args):
        raise AssertionError("it is the server that reads")

    _rebuild_cuda_tensor_modified.__module__, _rebuild_cuda_tensor_modified.__qualname__ = module.__name__, "_rebuild_cuda_tensor_modified"
    module._rebuild_cuda_tensor_modified = _rebuild_cuda_tensor_modified

    def reduce_tensor(tensor):
        _, args = original(tensor)
        return _rebuild_cuda_tensor_modified, (*args[:6], str(torch.cuda.get_device_properties(args[6]).uuid), *args[7:])

    reductions.reduce_tensor = reduce_tensor
    reductions.init_reductions()


def metadata_class():
    import dataclasses
    import types

    import torch

    module = types.ModuleType("sglang.srt.weight_sync.tensor_bucket")
    sys.modules["sglang.srt.weight_sync"] = types.ModuleType("sglang.srt.weight_sync")
    sys.modules[module.__name__] = module
    fields = [("name", str), ("shape", torch.Size), ("dtype", torch.dtype), ("start_idx", int), ("end_idx", int), ("numel", int)]
    made = dataclasses.make_dataclass("FlattenedTensorMetadata", fields)
    made.__module__ = module.__name__
    module.FlattenedTensorMetadata = made
    return made


def serialized(obj):
    import base64
    import io
    from multiprocessing.reduction import ForkingPickler

    out = io.BytesIO()
    ForkingPickler(out).dump(obj)
    return base64.b64encode(out.getvalue()).decode()


def named(s, a, b, bits):
    import torch
    import torch.multiprocessing  # noqa: F401  registers the reductions

    torch.cuda.set_device(0)
    before = torch.cuda.memory_allocated(0)
    tensors = weights(b, "cuda:0")
    status, reply = s.post("/update_weights_from_tensor", {"serialized_named_tensors": [serialized(tensors)], "weight_version": "list"})
    check(status == 200 and s.version() == "list", f"handles in a list: {reply}")
    check(s.logp() == bits["b"], "handles in a list: the bits of b from disk")
    as_sglang_patches()
    row = metadata_class()
    for which, folder in (("a", a), ("b", b)):
        tensors = weights(folder, "cuda:0")[::-1]
        took = 0
        for some in (tensors[:40], tensors[40:]):
            size = sum(v.numel() * v.element_size() for _, v in some)
            flat, at, rows = torch.zeros(size, dtype=torch.uint8, device="cuda:0"), 0, []
            torch.cuda._sleep(400_000_000)  # the content is there only after this: the event must be waited for
            for name, v in some:
                part = v.contiguous().view(torch.uint8).view(-1)
                flat[at : at + part.numel()] = part
                rows.append(row(name, v.shape, v.dtype, at, at + part.numel(), part.numel()))
                at += part.numel()
            t0 = time.time()
            body = {"serialized_named_tensors": [serialized({"flattened_tensor": flat, "metadata": rows})], "load_format": "flattened_bucket",
                    "flush_cache": False, "weight_version": f"bucket-{which}"}  # fmt: skip
            status, reply = s.post("/update_weights_from_tensor", body)
            took += time.time() - t0
            check(status == 200, f"a bucket of handles: {reply}")
        check(s.version() == f"bucket-{which}" and s.logp() == bits[which], f"buckets of handles: the bits of {which} from disk")
        print(f"        {took * 1e3:.1f} ms, the sender's kernels among them", flush=True)
    del tensors, some, flat, v, part
    torch.cuda.synchronize(0)
    torch.cuda.ipc_collect()
    left = torch.cuda.memory_allocated(0) - before
    check(left == 0, f"the sender's memory is free again: {left} bytes are not")


def sleeps(s, bits):
    for level in (1, 2):
        for path in (f"/sleep?level={level}", "/wake_up?tags=weights", "/wake_up"):
            status, reply = s.post(path, {})
            check(status == 200, f"{path}: {reply}")
        if level == 2:
            status, reply = s.post("/generate", {"input_ids": [5]})
            check(status == 503, f"no weights after level 2: {status}")
            s.disk(bits["folder_a"])
        check(s.logp() == bits["a"], f"the same bits after sleep at level {level}")


# ---- senders that are lost ---------------------------------------------------------------------------------------


def stops(s, bits, killed):
    """A sender that has joined, sent one tensor and then nothing; or died."""
    try:
        group = join(s)
        tensors = weights(pathlib.Path(bits["folder"]))
        check(push(s, group, tensors[:1])[0] == 200, "one tensor")
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        t0 = time.time()
        status, reply = s.post("/update_weights_from_distributed", {**lists(tensors[1:]), "group_name": GROUP, "timeout": 3})
        check(status == 504 and time.time() - t0 < 20, f"a sender that stops: {status} after {time.time() - t0:.1f} s: {reply}")
    except Exception:
        check(False, traceback.format_exc())
    os._exit(len(failures))


def run_apart(what, *args):
    p = multiprocessing.get_context("spawn").Process(target=what, args=args)
    p.start()
    p.join(100)
    if p.is_alive():
        p.kill()
        p.join()
        check(False, f"{what.__name__} did not end")
    return p.exitcode


def lost(s, bits):
    code = run_apart(stopping, s.url, bits, False)
    check(code == 0, f"a sender that stops: {code} failed")
    check(s.logp() == bits["a"], "the old version serves on")
    code = run_apart(stopping, s.url, bits, True)
    check(code == -signal.SIGKILL, f"killed: {code}")
    t0 = time.time()
    one = {"names": ["model.norm.weight"], "dtypes": ["bfloat16"], "shapes": [[1024]], "group_name": GROUP, "timeout": 3}
    status, reply = s.post("/update_weights_from_distributed", one)
    check(status in (503, 504), f"a killed sender: {status} after {time.time() - t0:.1f} s: {reply}")
    check(s.logp() == bits["a"], "the old version serves on")


class Remote(Server):
    """A server that another process has started."""

    def __init__(self, url):
        self.url = url


def sender(url, parts, a, b, bits):
    for part in parts:
        try:
            {"slime": slime, "vllm": vllm, "named": named}[part](Remote(url), a, b, bits)
        except Exception:
            check(False, traceback.format_exc())
            Remote(url).post("/continue_generation", {})  # for those behind it
    sys.stdout.flush()
    os._exit(len(failures))


def stopping(url, bits, killed):
    stops(Remote(url), bits, killed)


def main():
    own_gpus(2)
    s = None
    with checks("torch-sender") as root:
        try:
            for name, seed in (("a", 1), ("b", 2)):
                handover.init(root / name, 1024, 8, 3072, vocab=("--seed", seed))
            s = Server(root, root / "a", "--gpu", "0", "--max-total-tokens", "65536", *(["--tp-size", os.environ["TP"]] if SHARED else []),
                       environment=torchs_nccl())  # fmt: skip
            bits = {"b": s.disk(root / "b"), "a": s.disk(root / "a"), "folder": str(root / "b"), "folder_a": str(root / "a")}
            check(bits["a"] != bits["b"] and bits["a"][1] != 503, f"two policies: {bits['a'][0]}, {bits['b'][0]}")
            if SHARED:
                status, reply = s.post("/init_weights_update_group", {"master_address": "127.0.0.1", "master_port": free_port(),
                                       "rank_offset": 1, "world_size": 3, "group_name": GROUP, "backend": "nccl"})  # fmt: skip
                check(status == 400 and "join by nccl_id as one" in reply["message"], f"a torch group: {reply}")
            for part in ("named",) if SHARED else ("slime", "vllm", "named"):
                code = run_apart(sender, s.url, [part], root / "a", root / "b", bits)
                check(code == 0, f"{part}'s sequence: {code} failed")
            s.disk(root / "a")
            if not SHARED:
                lost(s, bits)
            sleeps(s, bits)
            s.stop()
        except Exception:
            check(False, traceback.format_exc())
        finally:
            if s and failures:
                print("== server\n" + s.log.read_text()[-4000:])
            if s and s.process.poll() is None:
                s.process.kill()


if __name__ == "__main__":
    main()
