"""Weight updates in the long run and under bad senders: memory, files that are none, numbers that are none, groups that
nobody destroyed, and what health says meanwhile.
"""

import hashlib
import json
import os
import re
import struct
import time

import pytest
from programs import LIMIT, SLOW, server, tiny_model, web
from test_bad_folders import pack, read_tensors
from test_handover import (  # noqa: F401
    GROUP,
    Owner,
    Sender,
    beside,
    checksum,
    generate,
    group,
    ipc,
    lists,
    model,
    pair,
    tensors,
    version,
)


def resident(s):
    text = open(f"/proc/{s.process.pid}/status").read()
    return int(re.search(r"RssAnon:\s+(\d+) kB", text).group(1)) * 1024


def put(s, label, body):
    # a connection of its own each time: another thread of the server serves it
    sha = hashlib.sha256(body).hexdigest()
    reply = web.put(f"{s.url}/weights/{label}", content=body, headers={"X-Clime-SHA256": sha})
    assert reply.status_code == 200, reply.text


def sha_of_weights(folder):
    """As the ledger has it: names, types, shapes and the SHA-256 of each 2 MiB of bytes, in name order."""
    header, data = read_tensors(folder)
    sha = hashlib.sha256()
    for name in sorted(header.keys() - {"__metadata__"}):
        t = header[name]
        sha.update(name.encode() + b"\0" + t["dtype"].encode() + b"\0" + struct.pack(f"<{len(t['shape'])}Q", *t["shape"]))
        for at in range(*t["data_offsets"], 2 << 20):
            sha.update(hashlib.sha256(data[at : min(at + (2 << 20), t["data_offsets"][1])]).digest())
    return sha.hexdigest()


def test_the_weights_own_hash(tmp_path):
    """The other hash that a body may come with, which all cores make: of what it holds, in whatever order its tensors stand."""
    shape = {"hidden-size": 512, "intermediate-size": 2304, "num-hidden-layers": 2}
    old, new = (tiny_model(tmp_path / str(seed), **shape, seed=seed) for seed in (1, 2))
    header, data = read_tensors(new)
    assert max(t["data_offsets"][1] - t["data_offsets"][0] for name, t in header.items() if name != "__metadata__") > 2 << 20
    body, bad, good = (new / "model.safetensors").read_bytes(), sha_of_weights(old), sha_of_weights(new)
    turned, at = {}, 0
    for name in reversed([n for n in header if n != "__metadata__"]):
        begin, end = header[name]["data_offsets"]
        turned[name] = header[name] | {"data_offsets": [at, at + end - begin]}
        at += end - begin
    other = pack(turned, b"".join(data[slice(*header[name]["data_offsets"])] for name in turned))
    with server(model=old) as s:

        def drawn():
            return generate(s, return_logprob=True)["meta_info"]["output_token_logprobs"]

        def sent(content, **headers):
            reply = s.client.put("/weights/1", content=content, headers={k.replace("_", "-"): v for k, v in headers.items()})
            return reply.status_code, reply.json()["message"]

        before = drawn()
        status, says = sent(body, X_Clime_Weights_SHA256=bad)
        assert status == 400 and f"the weights' SHA-256 is {good}, the header says {bad}" in says
        status, says = sent(body, X_Clime_Weights_SHA256=good, X_Clime_SHA256=hashlib.sha256(body).hexdigest())
        assert status == 400 and "one is enough" in says
        assert drawn() == before and version(s) == "default"
        assert sent(other, X_Clime_Weights_SHA256=good.upper()) == (200, "Weights updated.")
        changed = drawn()
        assert changed != before
        assert sent(body, X_Clime_Weights_SHA256=good) == (200, "This version is already in force.")
        assert sent(body, X_Clime_SHA256=hashlib.sha256(body).hexdigest()) == (200, "Weights updated.")
        assert drawn() == changed


@pytest.mark.skipif(SLOW > 1, reason="a sanitizer keeps what was freed")
def test_updates_leave_no_memory_behind(tmp_path):
    folder = tiny_model(tmp_path / "m", **{"hidden-size": 512, "intermediate-size": 1536, "num-hidden-layers": 2})
    body = (folder / "model.safetensors").read_bytes()
    assert 5 << 20 < len(body) < 30 << 20  # below what malloc always gives back
    with server(model=folder) as s:
        before = resident(s)
        for i in range(24):
            put(s, f"v{i}", body + b"" if i % 2 else flipped(body))
        grown = resident(s) - before
        print(f"{len(body) >> 20} MiB of weights, 24 updates: {grown >> 20} MiB more")
        assert grown < 3 * len(body), f"{grown >> 20} MiB more after 24 updates of {len(body) >> 20} MiB"


@pytest.mark.skipif(SLOW > 1, reason="a sanitizer keeps what was freed")
def test_updates_between_requests_leave_no_memory_behind(tmp_path):
    """Of weights that are smaller than what malloc always gives back: what lies between two of them must not stop the third from
    taking the place of the first."""
    folder = tiny_model(tmp_path / "m", **{"hidden-size": 128, "intermediate-size": 384, "num-hidden-layers": 2})
    body = (folder / "model.safetensors").read_bytes()
    assert 512 << 10 < len(body) < 1 << 20
    with server(model=folder) as s:
        def updates(n):
            for i in range(n):
                put(s, f"v{i}", body)
                for k in range(4):
                    reply = web.post(f"{s.url}/generate", json={"input_ids": [1, 2, i, k], "sampling_params": {"max_new_tokens": 4}})
                    assert reply.status_code == 200, reply.text
            return resident(s)

        before = updates(12)
        grown = updates(40) - before
        print(f"{len(body) >> 10} KiB of weights, 40 updates: {grown >> 10} KiB more")
        assert grown < 12 * len(body), f"{grown >> 10} KiB more after 40 updates of {len(body) >> 10} KiB"


def flipped(body):
    return body[:-1] + bytes([body[-1] ^ 1])


def test_a_fifo_is_no_checkpoint(model, tmp_path):  # noqa: F811
    with server(model=model) as s:
        for name in ["model.safetensors", "model.safetensors.index.json"]:
            folder = tmp_path / name
            folder.mkdir()
            os.mkfifo(folder / name)
            reply = s.post("/update_weights_from_disk", {"model_path": str(folder)})
            assert reply.status_code == 400 and "regular file" in reply.json()["message"], reply.text
        put(s, "after", (model / "model.safetensors").read_bytes())  # nobody holds the lock
        assert version(s) == "after"


def poisoned(folder, value, tensor=3):
    """The weights with one number of one tensor replaced; the tensor's name."""
    data = bytearray((folder / "model.safetensors").read_bytes())
    name, _, _ = tensors(folder)[tensor]
    head = 8 + struct.unpack("<Q", data[:8])[0]
    at = head + int(re.search(rf'"{re.escape(name)}":{{[^}}]*"data_offsets":\[(\d+)'.encode(), bytes(data[8:head])).group(1))
    data[at + 10 : at + 12] = struct.pack("<H", value)
    return name, bytes(data)


def test_numbers_that_are_none_are_refused(model, tmp_path):  # noqa: F811
    with server("--weight-version", "good", model=model) as s:
        before = generate(s)
        for value in [0x7FC0, 0xFF80, 0x7F80]:  # NaN, -inf, inf
            name, body = poisoned(model, value)
            sha = hashlib.sha256(body).hexdigest()
            reply = s.client.put("/weights/bad", content=body, headers={"X-Clime-SHA256": sha})
            assert reply.status_code == 400 and name in reply.text and "finite" in reply.text, reply.text
            (tmp_path / "model.safetensors").write_bytes(body)
            disk = s.post("/update_weights_from_disk", {"model_path": str(tmp_path)})
            assert disk.status_code == 400 and name in disk.text and "finite" in disk.text, disk.text
        assert version(s) == "good" and generate(s)["output_ids"] == before["output_ids"]


def test_a_ninth_group_says_whose_place_it_took(pair):  # noqa: F811
    s, _, _ = pair
    senders = []
    for i in range(9):
        senders.append(Sender())
        body = GROUP | {"group_name": f"g{i}", "nccl_id": senders[i].id()}
        reply = beside(senders[i].accept, lambda: s.json("/init_weights_update_group", body))
        assert reply["success"] and ('"g0"' in reply["message"]) == (i == 8), reply
    assert senders[0].peer.recv(1) == b""  # closed
    assert re.search(r"g0.*g8", s.log())
    gone = s.post("/update_weights_from_distributed", {"group_name": "g0", "names": [], "dtypes": [], "shapes": []})
    assert gone.status_code == 400 and "made room" in gone.json()["message"], gone.text
    for sender in senders:
        sender.close()


def test_health_while_the_owner_writes(pair):  # noqa: F811
    s, owner, same = pair
    ipc(s, mode="share", weight_version="1", handle=owner.handle(), **same)
    assert s.get("/health_generate").status_code == 200
    ipc(s, mode="writing", timeout=60)
    assert s.get("/health_generate").status_code == 200 and s.get("/health").status_code == 200
    ipc(s, mode="writing", timeout=0.2)
    deadline = time.monotonic() + LIMIT
    while s.get("/health_generate").status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert s.get("/health_generate").status_code == 503  # the owner is late
    ipc(s, mode="share", weight_version="2", handle=owner.handle(), **same)
    assert s.get("/health_generate").status_code == 200


def test_another_rotary_table_is_another_model(model, tmp_path):  # noqa: F811
    """The same tensors, and positions that turn otherwise: weights of one are not taken for the other."""
    other = tmp_path / "m"
    other.mkdir()
    for path in model.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    config = json.loads((other / "config.json").read_text())
    config["rope_theta"] = config["rope_theta"] * 2
    (other / "config.json").write_text(json.dumps(config))
    hashes = []
    for folder in [model, other]:
        with server("--load-format", "none", model=folder) as s:
            says = ipc(s, 400, mode="share", weight_version="1", layout="0" * 16, dtype="bf16")["message"]
            hashes.append(re.search(r"this one's is (\w{16})", says).group(1))
            assert s.get("/server_info").json()["layout"] == hashes[-1]
            if folder is other:
                says = ipc(s, 400, mode="share", weight_version="1", layout=hashes[0], dtype="bf16")["message"]
                assert "another model" in says
    assert hashes[0] != hashes[1]


def test_numbers_that_are_none_by_the_device(group):  # noqa: F811
    """A copy from another process, and a broadcast."""
    s, sender, all_of = group
    send = lambda some: sender.peer.sendall(b"".join(t[2] for t in some))
    update = lambda label: s.post("/update_weights_from_distributed", lists(all_of, weight_version=label))
    assert beside(lambda: send(all_of), lambda: update("1")).status_code == 200
    before = generate(s)["output_ids"]
    name, shape, data = all_of[2]
    bad = [*all_of[:2], (name, shape, data[:-2] + struct.pack("<H", 0x7F80)), *all_of[3:]]
    refused = beside(lambda: send(bad), lambda: update("2"))
    assert refused.status_code == 400 and name in refused.text and "finite" in refused.text, refused.text
    says = ipc(s, 400, mode="share", weight_version="1", layout="0" * 16, dtype="bf16")["message"]
    same = {"layout": re.search(r"this one's is (\w{16})", says).group(1), "dtype": "bf16"}
    says = ipc(s, 400, mode="share", weight_version="1", handle=Owner(64).handle(), **same)["message"]
    owner = Owner(int(re.search(r"of (\d+)$", says).group(1)))
    owner.fill(0xFFFF)
    copy = {"mode": "copy", "handle": owner.handle(), "checksum": checksum(bytes(owner.map)), **same}
    assert "finite" in ipc(s, 400, weight_version="2", **copy)["message"]
    assert version(s) == "1" and generate(s)["output_ids"] == before
