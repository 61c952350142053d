"""The TensorBoard event file: what TensorBoard's own reader finds in it, and that it follows the ledger over crashes."""

import contextlib
import json
import struct
import subprocess

import pytest
from test_rl import command, metrics, model, run_whole, start  # noqa: F401  (model is a fixture)


def crc32c(data):
    c = 0xFFFFFFFF
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF


def masked(data):
    c = crc32c(data)
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """(number, value) of a protobuf message: integers, bytes of fixed and of counted fields."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        n = {1: 8, 5: 4}[tag & 7] if tag & 7 != 2 else varint()
        yield tag >> 3, data[at : at + n]
        at += n


def read(path):
    """[(wall time, step, {tag: value})] of an event file whose checksums must all be right."""
    data, events, at = path.read_bytes(), [], 0
    while at < len(data):
        (n,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
        event = data[at + 12 : at + 12 + n]
        assert struct.unpack_from("<I", data, at + 12 + n)[0] == masked(event)
        at += n + 16
        f = dict(fields(event))
        scalars = {}
        for _, value in fields(f.get(5, b"")):
            v = dict(fields(value))
            scalars[v[1].decode()] = struct.unpack("<f", v[2])[0]
        events.append((struct.unpack("<d", f[1])[0], f.get(2, 0), scalars))
        assert (3 in f) == (len(events) == 1) and f.get(3, b"brain.Event:2") == b"brain.Event:2"
    assert at == len(data)
    return events


def float32(v):
    return struct.unpack("<f", struct.pack("<f", v))[0]


def check(run_dir, path):
    lines, events = metrics(run_dir), read(path)[1:]
    assert len(events) == len(lines) > 0
    for line, (_, step, scalars) in zip(lines, events):
        assert step == line["step" if line["kind"] in ("train", "eval") else "rollout"]
        want = {k: float32(v) for k, v in line.items() if k not in ("kind", "rollout", "step") and not isinstance(v, str)}
        assert scalars == want
    return events


def test_events(model):  # noqa: F811
    """One event a line, in the run folder; ending the run in the middle leaves no event that counts twice."""
    words = command(model, model / "board", "--use-tensorboard", num_rollout=6)
    path = model / "board" / "tensorboard" / "events.out.tfevents.clime"
    for seconds in (1.0, 1.5, 2.0):
        p = start(words, model / "board.log")
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.wait(timeout=seconds)
        p.kill()
        p.wait()
    run_whole(words, model / "board.log")
    events = check(model / "board", path)
    assert [t for t, _, _ in events] == sorted(t for t, _, _ in events)
    before = path.read_bytes()
    run_whole(words, model / "board.log")  # nothing left to do: the same events, with their times
    assert path.read_bytes() == before


def test_a_cut_file_is_mended(model, tmp_path):  # noqa: F811
    """Project and experiment are folders; a file that was cut in the middle of an event is made whole."""
    more = ["--use-tensorboard", "--tb-dir", str(tmp_path), "--tb-project-name", "p", "--tb-experiment-name", "e"]
    words = command(model, model / "board-cut", *more, num_rollout=2)
    path = tmp_path / "p" / "e" / "events.out.tfevents.clime"
    run_whole(words, model / "board-cut.log")
    whole = read(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    run_whole(words, model / "board-cut.log")
    check(model / "board-cut", path)
    again = read(path)
    assert again[0] == whole[0] and again[1] == whole[1] and [e[1:] for e in again] == [e[1:] for e in whole]


def test_tensorboard_reads_it(model):  # noqa: F811
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    words = command(model, model / "board-read", "--use-tensorboard", num_rollout=2)
    run_whole(words, model / "board-read.log")
    board = accumulator.EventAccumulator(str(model / "board-read" / "tensorboard"), {"scalars": 0})
    board.Reload()
    found = {(tag, e.step): e.value for tag in board.Tags()["scalars"] for e in board.Scalars(tag)}
    for line in metrics(model / "board-read"):
        step = line["step" if line["kind"] in ("train", "eval") else "rollout"]
        for name, value in line.items():
            if name not in ("kind", "rollout", "step") and not isinstance(value, str):
                assert found.pop((name, step)) == pytest.approx(value, rel=1e-6)
    assert not found
    assert json.dumps(board.Tags()["scalars"]).count("train/loss") >= 1
