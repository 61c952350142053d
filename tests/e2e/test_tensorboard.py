"""The TensorBoard event file: what TensorBoard's own reader finds in it, and that it follows the ledger over crashes."""

import contextlib
import json
import sqlite3
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


def packed(data):
    return struct.unpack(f"<{len(data) // 8}d", data)


def values(event):
    """{tag: fields of its value} of an event's summary."""
    found = [dict(fields(v)) for number, v in fields(dict(fields(event)).get(5, b"")) if number == 1]
    return {v[1].decode(): v for v in found}


def records(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        (n,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 12 + n)[0] == masked(data[at + 12 : at + 12 + n])
        yield data[at + 12 : at + 12 + n]
        at += n + 16


def check_samples(run_dir, path):
    """An event a rollout: histograms of what the ledger holds, and its best and worst answer as text."""
    first, *events = records(path)
    assert dict(fields(first))[3] == b"brain.Event:2"
    db = sqlite3.connect(run_dir / "ledger.db")
    for rollout, event in enumerate(events):
        assert dict(fields(event)).get(2, 0) == rollout
        rows = db.execute(
            "SELECT s.reward, s.n_response, t.advantage, s.response, g.prompt FROM step_samples t JOIN samples s "
            "ON s.id = t.sample_id JOIN groups g ON g.id = s.group_id WHERE t.step IN (?, ?)",
            (2 * rollout + 1, 2 * rollout + 2)).fetchall()  # fmt: skip
        found = values(event)
        for column, tag in enumerate(("samples/reward", "samples/response_len", "samples/advantage")):
            want = [float(r[column]) for r in rows if r[column] is not None]
            h = dict(fields(found[tag][5]))
            low, high, n, total, squares = (struct.unpack("<d", h[i])[0] for i in range(1, 6))
            assert (low, high, n) == (min(want), max(want), len(want))
            assert total == pytest.approx(sum(want)) and squares == pytest.approx(sum(v * v for v in want))
            limits, counts = packed(h[6]), packed(h[7])
            assert sum(counts) == n and list(limits) == sorted(limits) and len(limits) == len(counts)
            at_or_below = [sum(v < limit for v in want) for limit in limits[:-1]]
            assert all(abs(sum(counts[: i + 1]) - k) <= len(want) * 0.2 for i, k in enumerate(at_or_below))
        for tag, pick in (("samples/best", max), ("samples/worst", min)):
            assert dict(fields(dict(fields(found[tag][9]))[1]))[1] == b"text"
            tensor = dict(fields(found[tag][8]))
            text = tensor[8].decode()
            assert tensor[1] == 7 and text.startswith(f"reward {pick(r[0] for r in rows):g}\n\n    ")
            indented = lambda s: s.replace("\n", "\n    ")  # noqa: E731
            assert any(indented(r[4]) in text and text.endswith("answers\n\n    " + indented(r[3])) for r in rows)
    db.close()
    return len(events)


def test_samples(model):  # noqa: F811
    """Each rollout has one event, also after an end in the middle of one."""
    run_dir = model / "board-samples"
    words = command(model, run_dir, "--use-tensorboard", num_rollout=3)
    path = run_dir / "tensorboard" / "samples" / "events.out.tfevents.clime"
    run_whole(words, model / "board-samples.log")
    assert check_samples(run_dir, path) == 3
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    words[words.index("--num-rollout") + 1] = "5"
    run_whole(words, model / "board-samples.log")
    assert path.read_bytes().startswith(whole[: len(whole) // 2]) and check_samples(run_dir, path) == 5
