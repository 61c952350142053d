"""Versions that servers pull (/pull_weights): whole, by a chain of deltas, from programs, folders and each other; what a
source may do wrong; and what is in force meanwhile and after.
"""

import array
import json
import os
import re
import signal
import socket
import threading
import time

import pytest
from packets import BLOCK, Packet, Source
from programs import LIMIT, Program, server, tiny_model
from test_handover import Owner, ipc, version

BF16 = ["--device", "cpu", "--dtype", "bfloat16"]


class Versions:
    """A model's buffer in four versions: [0] whole, then ever fewer changes; and what a push of each leaves on a server."""

    def __init__(self, folder):
        self.folder = folder
        with server("--load-format", "none", *BF16, model=folder) as s:
            says = s.json("/update_weights_from_ipc", {"mode": "share", "weight_version": "1", "layout": "0" * 16, "dtype": "bf16"}, 400)
            same = {"layout": re.search(r"this one's is (\w{16})", says["message"]).group(1), "dtype": "bf16"}
            says = ipc(s, 400, mode="share", weight_version="1", handle=Owner(64).handle(), **same)["message"]
            n = int(re.search(r"of (\d+)$", says).group(1)) // 2
            says = pull(s, [{"version": 1, "id": Source_of_nothing.id}], [Source_of_nothing.url], 1, 503)
            assert "refused" in says["message"] or "connect" in says["message"], says
            # the fingerprint of the layout alone: a packet of another model names it
            wrong = Packet(1, 1, array.array("H", [0]) * n)
            with Source(wrong) as source:
                says = pull(s, [wrong.named()], [source.url], 1, 400)["message"]
            self.layout = int(re.search(r"layout (\w{16})$", says).group(1), 16)
            self.flats = [array.array("H", (0x3C00 + (i * 2654435761 >> 25 & 127) for i in range(4096))) * (n // 4096 + 1)]
            del self.flats[0][n:]
            for places in (range(5000, 9000, 3), range(1, n, 50021), range(n - 1, 0, -70001)):
                flat = self.flats[-1][:]
                for i in places:
                    flat[i] += 1
                self.flats.append(flat)
            self.sums = []
            for i, flat in enumerate(self.flats):
                owner = Owner(2 * n)
                owner.map[:] = flat.tobytes()
                words = {"mode": "share", "weight_version": str(i), "handle": owner.handle(), **same}
                assert s.post("/update_weights_from_ipc", words).status_code == 200
                self.sums.append(checksum(s))
        assert len(set(self.sums)) == 4

    def whole(self, v):
        return Packet(self.layout, v, self.flats[v])

    def step(self, v):
        return Packet(self.layout, v, self.flats[v], v - 1, self.flats[v - 1])


class Source_of_nothing:
    id, url = "0" * 64, "http://127.0.0.1:9"


def pull(s, packets, sources, v, status=200, **more):
    body = {"version": v, "packets": packets, "sources": sources, **more}
    reply = s.post("/pull_weights", body)
    assert reply.status_code == status, (reply.status_code, reply.text)
    return reply.json()


def checksum(s):
    return s.json("/weights_checker", {"action": "checksum"})["per_engine_checksum"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """1.4 million elements: two blocks."""
    return Versions(tiny_model(tmp_path_factory.mktemp("pull") / "m", **{"hidden-size": 256, "intermediate-size": 1280, "num-hidden-layers": 1}))


@pytest.fixture(scope="module")
def packets(made):
    return [made.whole(0), *(made.step(v) for v in (1, 2, 3)), made.whole(3)]


def empty(made, *options):
    return server("--load-format", "none", *BF16, *options, model=made.folder)


def test_whole_then_deltas_then_a_chain(made, packets):
    assert len(made.flats[0]) > 1 << 20, "the model has one block: nothing is tested of the second"
    names = [p.named() for p in packets[:4]]
    with Source(*packets) as source, empty(made) as s:
        said = pull(s, names, [source.url], 0)
        assert (said["packets"], said["weight_version"], checksum(s)) == (1, "0", made.sums[0])
        said = pull(s, names, [source.url], 1)
        assert (said["packets"], version(s), checksum(s)) == (1, "1", made.sums[1])
        assert said["pulled_bytes"] == len(packets[1].bytes)
        said = pull(s, names, [source.url], 3)  # it missed version 2
        assert (said["packets"], version(s), checksum(s)) == (2, "3", made.sums[3])
        assert said["pulled_bytes"] == len(packets[2].bytes) + len(packets[3].bytes) < len(packets[0].bytes) / 100
        said = pull(s, names, [source.url], 3)  # again: nothing but a manifest moves
        assert (said["packets"], said["pulled_bytes"]) == (0, packets[3].head)


def test_another_base_takes_a_whole_version(made, packets):
    with Source(*packets) as source, empty(made) as s:
        pull(s, [packets[0].named()], [source.url], 0)
        s.json("/update_weight_version", {"new_version": "2"})  # it says so, and is not
        says = pull(s, [packets[3].named()], [source.url], 3, 400)["message"]
        assert 'no packets lead from what is in force ("2") to version 3' in says
        assert checksum(s) == made.sums[0]
        said = pull(s, [p.named() for p in packets], [source.url], 3)
        assert (said["packets"], version(s), checksum(s)) == (1, "3", made.sums[3])
        assert said["pulled_bytes"] == 2 * packets[3].head + len(packets[4].bytes)
        s.json("/update_weight_version", {"new_version": "0"})
        pull(s, [packets[0].named()], [source.url], 0)
        pull(s, [packets[1].named()], [source.url], 1)
        said = pull(s, [packets[0].named()], [source.url], 0)  # back: the second block is as it was, and is not fetched
        assert said["packets"] == 1 and said["pulled_bytes"] < 2 * packets[0].head + 2 * BLOCK + 1000, said
        assert checksum(s) == made.sums[0]


def test_a_source_that_fails_gives_way_to_the_next(made, packets):
    after = 1200000  # inside the first block of two
    names = [packets[0].named()]
    with (
        Source(*packets, fault="breaks", after=after) as breaks,
        Source(*packets, fault="freezes", after=2 * BLOCK + 20000) as freezes,
        Source(*packets, fault="lies", after=after) as lies,
        Source() as knows_nothing,
        Source(*packets) as good,
        empty(made) as s,
    ):
        bad = [Source_of_nothing.url, knows_nothing.url, breaks.url, lies.url, freezes.url]
        assert "lies" not in pull(s, names, bad[:4], 0, 503)["message"]
        assert s.get("/health_generate").status_code == 503, "half a version is in force"
        said = pull(s, names, [*bad, good.url], 0, stall_timeout=3)
        assert checksum(s) == made.sums[0] and said["sources_failed"] == 5
        assert freezes.frozen.is_set()
        blocks = [path for path in good.asked if "at=0" not in path]
        assert len(blocks) == 1 and f"at={packets[0].head}" not in blocks[0], "what the frozen one sent is fetched again"


def test_a_version_that_cannot_be_leaves_the_old_one(made, packets):
    nan = made.flats[1][:]
    nan[5] = 0x7FC0
    poisoned = Packet(made.layout, 2, nan, 1, made.flats[1])
    liar = made.step(2)  # its name is right, and it leads elsewhere than the request says
    with Source(*packets, poisoned, liar) as source, empty(made) as s:
        pull(s, [packets[0].named()], [source.url], 0)
        pull(s, [packets[1].named()], [source.url], 1)
        assert "finite" in pull(s, [poisoned.named()], [source.url], 2, 400)["message"].lower()
        assert "leads from" in pull(s, [{**liar.named(), "version": 7}], [source.url], 7, 400)["message"]
        for body in [{}, {"version": 1}, {"version": -1, "packets": [], "sources": []}, {"version": 1, "packets": [{"version": 1, "id": "x"}], "sources": ["http://a"]},
                     {"version": 1, "packets": names_of(packets), "sources": ["ftp://a"]}, {"version": 1, "packets": names_of(packets), "sources": ["../m"]},
                     {"version": 1, "packets": names_of(packets) * 100, "sources": ["http://a"]}, {"version": 1, "packets": names_of(packets), "sources": ["http://a"] * 17}]:  # fmt: skip
            assert s.post("/pull_weights", body).status_code == 400, body
        assert (version(s), checksum(s)) == ("1", made.sums[1])


def names_of(packets):
    return [p.named() for p in packets]


def test_servers_pull_from_servers(made, packets):
    names = names_of(packets[:2])
    with Source(*packets) as source, empty(made) as first, empty(made) as second, empty(made, "--weight-relay-memory", "0") as third:
        for v in (0, 1, 1):
            assert pull(first, names, [source.url], v)["relays"]
        for v in (0, 1):
            said = pull(second, names, [first.url, Source_of_nothing.url], v)
        assert said["sources_failed"] == 0 and said["relays"] and checksum(second) == made.sums[1]
        assert not pull(third, names, [second.url], 1)["relays"]
        assert checksum(third) == made.sums[1]
        assert third.get(f"/weight_packets/{names[0]['id']}").status_code == 404  # it keeps nothing for others
        got = second.get(f"/weight_packets/{names[1]['id']}").content
        assert got == packets[1].bytes
        assert second.get(f"/weight_packets/{names[1]['id']}?at=10&length=7").content == got[10:17]
        for path in ["..%2f..%2fetc%2fpasswd", "x", names[1]["id"] + "0", "0" * 64]:
            assert second.get(f"/weight_packets/{path}").status_code in (400, 404), path
        assert second.get(f"/weight_packets/{names[1]['id']}?at=-1").status_code == 400


def test_keys(made, packets):
    names = names_of(packets[:1])
    with Source(*packets) as source, empty(made, "--api-key", "k1", "--admin-api-key", "k2") as s:
        body = {"version": 0, "packets": names, "sources": [source.url]}
        for key, status in [("k1", 403), ("k2", 200)]:
            assert s.post("/pull_weights", body, headers={"Authorization": f"Bearer {key}"}).status_code == status
            path = f"/weight_packets/{names[0]['id']}"
            assert s.get(path, headers={"Authorization": f"Bearer {key}"}).status_code == status
        with empty(made, "--api-key", "k2") as other:  # it shows the key that it has itself
            assert other.post("/pull_weights", {**body, "sources": [s.url]}, headers={"Authorization": "Bearer k2"}).status_code == 200


def test_from_a_folder(made, packets, tmp_path):
    shared, private = tmp_path / "shared", tmp_path / "private"
    for folder in (shared, private):
        folder.mkdir()
        for p in packets:
            (folder / f"{p.id}.packet").write_bytes(p.bytes)
    (shared / "out").symlink_to(private)
    names = names_of(packets[:3])
    with empty(made, "--files-under", str(shared)) as s:
        for folder in (private, shared / "out", shared / ".." / "private", tmp_path / "absent"):
            says = pull(s, names, [str(folder)], 0, 400)["message"]
            assert "files-under" in says or "absent" in says, says
        for v in (0, 2):
            pull(s, names, [str(shared)], v)
        assert checksum(s) == made.sums[2]
        path = shared / f"{packets[3].id}.packet"
        path.write_bytes(path.read_bytes()[:-9])  # half written
        assert "ends too soon" in pull(s, [packets[3].named()], [str(shared)], 3, 503)["message"]
        assert (version(s), checksum(s)) == ("2", made.sums[2])


def test_a_source_that_fails_without_end(made, packets):
    with Source(*packets, fault="babbles") as babbles, Source(*packets) as good, empty(made) as s:
        said = pull(s, [packets[0].named()], [babbles.url, good.url], 0, timeout=3600)
        assert said["sources_failed"] == 1 and checksum(s) == made.sums[0]
        assert "answers 500" in pull(s, [packets[1].named()], [babbles.url], 1, 503, timeout=3600)["message"]


def test_a_folder_may_hold_anything(made, packets, tmp_path):
    names = names_of(packets[:1])
    pipe = tmp_path / f"{packets[0].id}.packet"
    with empty(made) as s:
        os.mkfifo(pipe)  # nobody ever writes into it
        assert "is no file" in pull(s, names, [str(tmp_path)], 0, 503)["message"]
        pipe.unlink()
        pipe.mkdir()
        assert pipe.name in pull(s, names, [str(tmp_path)], 0, 503)["message"]
        pipe.rmdir()
        for p in packets[:4]:  # a single one may be read within a millisecond
            (tmp_path / f"{p.id}.packet").write_bytes(p.bytes)
        assert "time is over" in pull(s, names_of(packets[:4]), [str(tmp_path)], 3, 504, timeout=0.001)["message"]
        pull(s, names, [str(tmp_path)], 0)
        assert checksum(s) == made.sums[0]


def test_packets_that_do_not_fit_together(made, packets):
    """The second one leaves a block as it is, which is another one than the first leads to."""
    other = made.flats[1][:]
    other[-1] += 1
    more = other[:]
    more[7] += 1
    torn = Packet(made.layout, 2, more, 1, other)
    with Source(*packets, torn) as source, empty(made) as s:
        pull(s, [packets[0].named()], [source.url], 0)
        says = pull(s, [packets[1].named(), torn.named()], [source.url], 2, 400)["message"]
        assert "version 1 is not what the packet before leads to" in says
        assert (version(s), checksum(s)) == ("0", made.sums[0])


def test_a_source_that_trickles_gives_way_to_the_next(made, packets):
    """It is never silent, and would take for ever."""
    with Source(*packets, fault="trickles", after=20000) as trickles, Source(*packets) as good, empty(made) as s:
        said = pull(s, [packets[0].named()], [trickles.url, good.url], 0, stall_timeout=3, timeout=86400)
        assert said["sources_failed"] == 1 and checksum(s) == made.sums[0]


def test_a_server_that_dies_in_the_middle_takes_it_anew(made, packets):
    names = names_of(packets[:2])
    with Source(*packets, fault="freezes", after=100000) as frozen, Source(*packets) as good:
        s = Program("clime-server", "--model-path", made.folder, "--load-format", "none", *BF16)
        body = {"version": 1, "packets": names, "sources": [frozen.url]}

        def ask():
            with pytest.raises(Exception):  # noqa: B017: whatever a broken connection is called
                s.post("/pull_weights", body)

        asking = threading.Thread(target=ask)
        asking.start()
        assert frozen.frozen.wait(LIMIT)
        os.kill(s.process.pid, signal.SIGKILL)
        asking.join()
        s.stop()
        with empty(made) as again:
            pull(again, names, [good.url], 1)
            assert checksum(again) == made.sums[1]


def test_nobody_waits_for_it_any_more(made, packets):
    """A trainer that dies takes its pull with it: the next one is not told that another update goes on."""
    with Source(*packets, fault="freezes", after=100000) as frozen, Source(*packets) as good, empty(made) as s:
        body = {"version": 0, "packets": names_of(packets[:1]), "sources": [frozen.url], "stall_timeout": 600}
        text = json.dumps(body)
        with socket.create_connection(("127.0.0.1", s.port)) as asking:
            asking.sendall(f"POST /pull_weights HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            assert frozen.frozen.wait(LIMIT)
        while (status := s.post("/pull_weights", {**body, "sources": [good.url]}).status_code) == 429:
            time.sleep(0.02)
        assert status == 200 and checksum(s) == made.sums[0]
