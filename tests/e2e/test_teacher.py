"""On-policy distillation: a teacher server with other weights scores what the policy sampled.

Its numbers must be in the ledger as the teacher gives them, the advantages must follow from them, the policy must come
nearer to it, and the record alone must be enough afterwards. A teacher that fails is a failed sample.
"""

import contextlib
import http.server
import itertools
import sqlite3
import struct
import threading
import time
import urllib.error
import urllib.request

import pytest
from programs import run, server
from test_rl import LIMIT, command, fails, final_sha, metrics, model, run_whole, start  # noqa: F401


@pytest.fixture(scope="module")
def student(model):  # noqa: F811
    """A random policy that is sure of what it says; the teacher of all tests is not."""
    folder = model / "student"
    status, _, err = run(
        "clime-train", "init", folder, "--seed", 5, "--init-std", 0.2, "--hidden-size", 64, "--intermediate-size", 192,
        "--num-hidden-layers", 1, "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 64,
        "--max-position-embeddings", 256,
    )  # fmt: skip
    assert status == 0, err
    return folder


def teacher(model):  # noqa: F811
    return server("--device", "cpu", model=model / "init")


def words(model, name, url, *more):  # noqa: F811
    short = dict(hf_checkpoint=model / "student", num_rollout=8, num_steps_per_rollout=1, rollout_max_response_len=24,
                 lr=1e-2, rollout_batch_size=8)  # fmt: skip
    return [w for w in command(model, model / name, "--use-opd", "--opd-type", "sglang", "--opd-teacher-url", url, *more,
                               **short) if w not in ("--rm-type", "random")]  # fmt: skip


def samples(run_dir, more=""):
    db = sqlite3.connect(run_dir / "ledger.db")
    rows = db.execute("SELECT s.ids, s.n_prompt, s.n_response, s.logp, s.teacher_logp, s.reward, s.advantages, t.advantage"
                      f" FROM samples s JOIN step_samples t ON t.sample_id = s.id {more}").fetchall()  # fmt: skip
    floats = lambda blob, n: struct.unpack(f"<{n}f", blob)
    # a response of one token, or equal ones: the step's advantage is of all
    return [(list(struct.unpack(f"<{len(i) // 4}I", i)), p, floats(lp, n), floats(t, n), r, floats(a, n) if a else (one,) * n)
            for i, p, n, lp, t, r, a, one in rows]  # fmt: skip


def test_policy_comes_nearer_to_the_teacher(model, student):  # noqa: F811
    with teacher(model) as t:
        sha = run_whole(words(model, "opd", t.url, "--opd-kl-coef", "0.5"), model / "opd.log")
        rows = samples(model / "opd")
        assert len(rows) == 8 * 8 * 4
        for ids, n_prompt, *_, got, _, _ in rows[:6]:
            body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True,
                    "logprob_start_len": 0}  # fmt: skip
            reply = t.json("/generate", body)["meta_info"]["input_token_logprobs"]
            assert list(got) == [struct.unpack("<f", struct.pack("<f", x[0]))[0] for x in reply[n_prompt:]]
    for _, _, logp, teacher_logp, reward, advantages in rows:
        assert reward == 0  # no --rm-type: the teacher alone
        assert advantages == pytest.approx([-0.5 * (a - b) for a, b in zip(logp, teacher_logp)], rel=1e-6, abs=1e-6)
    kl = [m["rollout/opd_reverse_kl"] for m in metrics(model / "opd") if m["kind"] == "rollout"]
    assert kl[0] > 1 and kl[-1] < 0.8 * kl[0], kl
    # the teacher is gone: the record gives the same weights
    replay = words(model, "opd-replay", "http://127.0.0.1:9", "--opd-kl-coef", "0.5", "--replay", str(model / "opd"))
    assert run_whole(replay, model / "opd-replay.log") == sha


def test_killed_runs_end_the_same(model, student):  # noqa: F811
    """Killed in the middle and started again; and with groups left over from rollout to rollout, replayed."""
    killed = threading.Event()
    with teacher(model) as t, Faulty(503, 0, t.url, (6 * 32, killed)) as held:  # six of eight rollouts, and it is killed in them
        kill = words(model, "opd-kill", held.url, "--opd-kl-coef", "0.5")
        p = start(kill, model / "opd-kill.log")
        deadline = time.monotonic() + LIMIT
        while "\nrollout  3 " not in "\n" + open(model / "opd-kill.log").read():
            assert p.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        p.kill()
        p.wait()
        killed.set()
        assert run_whole(kill, model / "opd-kill.log") == final_sha(model / "opd.log")
        partial = ["--partial-rollout", "--over-sampling-batch-size", "12", "--server-max-running-requests", "5"]
        sha = run_whole(words(model, "opd-partial", t.url, *partial), model / "opd-partial.log")
    carried = [m["rollout/open_groups"] for m in metrics(model / "opd-partial") if m["kind"] == "rollout"]
    assert any(carried), carried
    replay = words(model, "opd-partial-2", "http://127.0.0.1:9", *partial, "--replay", str(model / "opd-partial"))
    assert run_whole(replay, model / "opd-partial-2.log") == sha


class Faulty:
    """Answers with `status` to the first `n` requests of each body, then asks the real teacher; held: (n, an event): to the n-th
    request (from 0) and all behind it it says nothing before the event."""

    def __init__(self, status, n, url=None, held=None):
        seen, order = {}, itertools.count()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                seen[body] = seen.get(body, 0) + 1
                if held and next(order) >= held[0]:
                    held[1].wait(LIMIT)
                code, reply = status, b'{"error": "the cat sat on it"}'
                if seen[body] > n:
                    request = urllib.request.Request(url + self.path, body, {"Content-Type": "application/json"})
                    code, reply = 200, urllib.request.urlopen(request).read()
                self.send_response(code)
                self.send_header("Content-Length", str(len(reply)))
                with contextlib.suppress(OSError):  # who asked may have been killed
                    self.end_headers()
                    self.wfile.write(reply)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_a_teacher_that_is_busy_is_asked_again(model, student):  # noqa: F811
    with teacher(model) as t, Faulty(503, 1, t.url) as f:
        run_whole(words(model, "busy", f.url + "/generate"), model / "busy.log")
    rows = samples(model / "busy", "WHERE t.step = 1")
    assert [r[:4] for r in rows] == [r[:4] for r in samples(model / "opd", "WHERE t.step = 1")]


@pytest.mark.parametrize("status, more", [(400, []), (503, ["--opd-teacher-timeout", "0.3"])])
def test_a_teacher_that_fails_is_no_advantage(model, student, status, more):  # noqa: F811
    name = f"teacher-{status}"
    with Faulty(status, 1 << 30) as f:
        log = fails(words(model, name, f.url, *more), model / f"{name}.log")
    assert "groups of rollout 0 failed" in log and "teacher: " in log and f"answers {status}" in log, log
    db = sqlite3.connect(model / name / "ledger.db")
    assert db.execute("SELECT count(*) FROM samples WHERE status = 'failed' AND error LIKE '%teacher: %'").fetchone()[0] > 0
    assert db.execute("SELECT count(*) FROM samples WHERE reward IS NOT NULL").fetchone()[0] == 0
    assert db.execute("SELECT count(*) FROM steps").fetchone()[0] == 0


def test_options(model, student):  # noqa: F811
    log = fails(command(model, model / "opd-bad", "--use-opd"), model / "opd-bad.log")
    assert "--use-opd and --opd-teacher-url go together" in log
    log = fails([*words(model, "opd-bad", "http://x"), "--opd-type", "megatron"], model / "opd-bad-2.log")
    assert "--opd-type" in log
