"""clime-train sft as a run: what it must not pass over."""

import contextlib
import hashlib
import json
import random
import signal
import sqlite3
import struct
import subprocess
import time

import pytest
from test_rl import LIMIT, TRAIN


def train(*words):
    return subprocess.run([str(TRAIN), *map(str, words)], capture_output=True, text=True, timeout=LIMIT)


def set_tensor(path, name, element):
    data = bytearray(path.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    begin, end = (8 + n + at for at in json.loads(data[8 : 8 + n])[name]["data_offsets"])
    data[begin:end] = element * ((end - begin) // len(element))
    path.write_bytes(data)


def test_a_run_without_an_update_fails(tmp_path):
    """Weights of which no gradient is finite: nothing was learned, and that is no success."""
    made = train("init", tmp_path / "init", "--family", "qwen3", "--hidden-size", 64, "--intermediate-size", 192,
                 "--num-hidden-layers", 2, "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 64,
                 "--max-position-embeddings", 256)  # fmt: skip
    assert made.returncode == 0, made.stderr
    set_tensor(tmp_path / "init" / "model.safetensors", "model.norm.weight", b"\x7f\x7f")  # 3.4e38: logits are infinite
    lines = [json.dumps({"prompt": f"{i} + 1 =", "response": str(i + 1)}) for i in range(8)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    p = train("sft", "--hf-checkpoint", tmp_path / "init", "--prompt-data", tmp_path / "data.jsonl", "--save-hf",
              tmp_path / "out", "--global-batch-size", 4)  # fmt: skip
    assert p.returncode == 1 and "no step changed the weights" in p.stderr, (p.returncode, p.stderr)
    assert not (tmp_path / "out").exists()
    # as a run: its alarms, in the ledger and to the command
    same = p.args + ["--run", str(tmp_path / "run"), "--alarm-command", f"cat >> {tmp_path}/told; echo >> {tmp_path}/told"]
    assert subprocess.run(same, capture_output=True, timeout=LIMIT).returncode == 1
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "ledger.db")) as db:
        alarms = [json.loads(x) for (x,) in db.execute("SELECT detail FROM events WHERE kind = 'alarm' ORDER BY id")]
    assert [(a["alarm"], a["state"]) for a in alarms] == [("gradient-not-finite", "raised"), ("ended", "raised")]
    told = [json.loads(line)["alarm"] for line in (tmp_path / "told").read_text().splitlines()]
    assert told and told == [a["alarm"] for a in alarms][: len(told)]  # a process that ends may leave some untold
    off = subprocess.run([*same, "--alarm", "gradient-not-finite=off"], capture_output=True, text=True, timeout=LIMIT)
    assert off.returncode == 1 and "W train: alarm ended" in off.stderr and "W train: alarm gradient" not in off.stderr  # may differ from start to start
    assert "alarms need --run" in subprocess.run(p.args + ["--alarm", "ended=off"], capture_output=True, text=True, timeout=LIMIT).stderr
    assert "no alarm is called gapp" in subprocess.run([*same, "--alarm", "gapp=1"], capture_output=True, text=True, timeout=LIMIT).stderr


@pytest.fixture(scope="module")
def d(tmp_path_factory):
    """A small model and 200 sums."""
    d = tmp_path_factory.mktemp("sft")
    made = train("init", d / "init", "--family", "qwen3", "--hidden-size", 64, "--intermediate-size", 192,
                 "--num-hidden-layers", 2, "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 64,
                 "--max-position-embeddings", 256)  # fmt: skip
    assert made.returncode == 0, made.stderr
    lines = [json.dumps({"prompt": f"{i} + {i + 1} =", "response": str(2 * i + 1)}) for i in range(200)]
    (d / "data.jsonl").write_text("\n".join(lines))
    return d


def words(d, name, *more, **change):
    options = {"hf-checkpoint": d / "init", "prompt-data": d / "data.jsonl", "save-hf": d / name / "hf", "run": d / name,
               "global-batch-size": 8, "num-epoch": 4, "lr": 1e-3, "save-interval": 10,
               **{k.replace("_", "-"): v for k, v in change.items()}}  # fmt: skip
    return ["sft", *[str(w) for k, v in options.items() for w in (f"--{k}", v)], *more]


def whole(d, name, *more, **change):
    done = train(*words(d, name, *more, **change))
    assert done.returncode == 0, done.stderr[-2000:]
    return hashlib.sha256((d / name / "hf" / "model.safetensors").read_bytes()).hexdigest()


def lines(d, name):
    return [{k: v for k, v in json.loads(line).items() if "time" not in k} for line in open(d / name / "metrics.jsonl")]


def test_killed_at_any_moment_the_weights_are_the_same(d):
    """The same command goes on from the newest checkpoint, and every step that it runs again has the recorded bits."""
    sha = whole(d, "undisturbed")
    assert all(0 < m["train/trained_tokens"] < m["train/tokens"] for m in lines(d, "undisturbed"))  # prompts are not trained
    without = d / "without"
    without.mkdir()
    options = words(d, "without")
    at = options.index("--run")
    assert train(*options[:at], *options[at + 2 :]).returncode == 0  # no record, the same bits
    assert hashlib.sha256((without / "hf" / "model.safetensors").read_bytes()).hexdigest() == sha
    rng = random.Random(3)
    for _ in range(4):
        p = subprocess.Popen([TRAIN, *words(d, "killed")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.2, 0.8))
        p.kill()
        p.wait()
    assert whole(d, "killed") == sha
    assert lines(d, "killed") == lines(d, "undisturbed") and len(lines(d, "killed")) == 100
    assert whole(d, "killed") == sha  # of a finished run: nothing is left to do
    report = train("report", d / "killed")
    assert report.returncode == 0 and "steps      100 done of 100 chosen" in report.stdout, report.stdout


def test_a_finished_run_can_be_made_longer(d):
    sha = whole(d, "long", num_epoch=2)
    assert whole(d, "long", num_epoch=4) == whole(d, "long-at-once") != sha


def test_what_decides_may_not_change(d):
    whole(d, "same", num_epoch=1)
    changed = d / "changed.jsonl"
    changed.write_text((d / "data.jsonl").read_text().replace("399", "398"))
    for change, says in [({"lr": 2e-3}, "--lr differs"), ({"prompt_data": changed}, "--prompt-data")]:
        done = train(*words(d, "same", **change))
        assert done.returncode == 1 and says in done.stderr, done.stderr[-1000:]


def test_a_damaged_checkpoint_is_passed_over(d):
    sha = whole(d, "damaged")
    newest = sorted((d / "damaged" / "checkpoints").iterdir())[-1]
    data = bytearray((newest / "moment2.f32").read_bytes())
    data[1000] ^= 4
    (newest / "moment2.f32").write_bytes(data)
    done = train(*words(d, "damaged"))
    assert done.returncode == 0 and "moment2.f32 is damaged" in done.stderr, done.stderr[-1000:]
    assert hashlib.sha256((d / "damaged" / "hf" / "model.safetensors").read_bytes()).hexdigest() == sha


def test_the_target_is_reached_at_the_same_step(d):
    more = {"target_loss": 2.5, "num_epoch": 40, "save_interval": 7}
    sha = whole(d, "target", **more)
    n = len(lines(d, "target"))
    assert 16 <= n < 1000
    killed_behind(d, "target-killed", 7, **more)
    assert whole(d, "target-killed", **more) == sha and len(lines(d, "target-killed")) == n


def killed_behind(d, name, step, *more, **change):
    """Killed when it has a checkpoint of that step or a later one; the older ones are deleted again."""
    p = subprocess.Popen([TRAIN, *words(d, name, *more, **change)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    there = lambda: max((int(c.name[5:]) for c in (d / name).glob("checkpoints/step_????????")), default=0) >= step
    while not there() and p.poll() is None:
        time.sleep(0.01)
    p.kill()
    p.wait()
    assert there()


def evals(folder):
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as db:
        return db.execute("SELECT e.step, e.score, s.prompt_index, s.response, s.ids FROM evals e JOIN eval_samples s"
                          " ON s.eval_id = e.id ORDER BY 1, 3").fetchall()  # fmt: skip


def test_it_evaluates_like_rl(d):
    """Every N steps, at the start and at the end, by servers with the weights of that step; the training is the same."""
    lines_of = [json.dumps({"prompt": f"{i} + {i + 1} =", "label": str(2 * i + 1)}) for i in range(0, 24, 3)]
    (d / "eval.jsonl").write_text("\n".join(lines_of))
    how = ["--eval-prompt-data", "sums", str(d / "eval.jsonl"), "--eval-max-response-len", "6", "--eval-label-key", "label",
           "--rm-type", "exact", "--eval-temperature", "0"]  # fmt: skip
    more = [*how, "--eval-interval", "40", "--num-servers", "1"]
    sha = whole(d, "unevaluated")
    assert whole(d, "evaluated", *more) == sha
    found = evals(d / "evaluated")
    assert {row[0] for row in found} == {0, 40, 80, 100} and len(found) == 4 * 8
    assert [m["eval/step"] for m in lines(d, "evaluated") if m["kind"] == "eval"] == [0, 40, 80, 100]
    killed_behind(d, "evaluated-killed", 50, *more)
    assert whole(d, "evaluated-killed", *more) == sha
    assert evals(d / "evaluated-killed") == found and lines(d, "evaluated-killed") == lines(d, "evaluated")
    done = train("eval", "--run", d / "alone", "--hf-checkpoint", d / "evaluated" / "hf", "--eval-input-key", "prompt", *how)
    assert done.returncode == 0, done.stderr[-1000:]
    assert [row[1:] for row in evals(d / "alone")] == [row[1:] for row in found if row[0] == 100]


def test_an_evaluation_needs_what_it_needs(d):
    options = words(d, "unready", "--eval-prompt-data", "sums", "nowhere.jsonl", "--eval-max-response-len", "6")
    at = options.index("--run")
    for line, says in [(options[:at] + options[at + 2 :], "an evaluation needs --run"), (options, "give --eval-interval"),
                       ([*options, "--eval-interval", "5"], "nowhere.jsonl")]:  # fmt: skip
        done = train(*line)
        assert done.returncode == 1 and says in done.stderr, done.stderr[-1000:]


def test_who_reads_the_progress_may_leave(d):
    """As `| head` does: the training goes on and its model is kept, as with rl."""
    at = (options := words(d, "unread", num_epoch=1)).index("--run")
    for kept in ([*options[:at], *options[at + 2 :]], options):
        p = subprocess.Popen([TRAIN, *kept], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        p.stdout.close()
        assert p.wait(LIMIT) == 0
        assert (d / "unread" / "hf" / "model.safetensors").exists()


def test_samples_that_fill_no_batch_are_told(d):
    """None of 200 is passed over in silence, and no more of them are said to be trained than were."""
    for change, more, says in [({"num_epoch": 1, "global_batch_size": 64}, [], "W train: 8 of 200 samples fill no batch of 64 and are not"),
                               ({"num_epoch": 2, "global_batch_size": 64}, ["--no-shuffle"], "W train: 8 of 200 samples fill no batch of 64 and are not"),
                               ({"num_epoch": 2, "global_batch_size": 64}, [], "8 of 200 samples fill no batch of 64 and are left out of an epoch"),
                               ({"num_epoch": 1, "global_batch_size": 500}, [], "W train: --global-batch-size 500: there are 200 samples")]:  # fmt: skip
        done = train(*words(d, f"rest-{change['num_epoch']}-{change['global_batch_size']}{more}", *more, **change))
        assert done.returncode == 0 and says in done.stderr, done.stderr[-1000:]
        steps = change["num_epoch"] * max(200 // change["global_batch_size"], 1)
        assert f"{steps} steps of {min(change['global_batch_size'], 200)} samples" in done.stdout
    assert "fill no batch" not in train(*words(d, "no-rest", num_epoch=1)).stderr


def test_what_is_read_is_not_written_over(d):
    """--metrics with the data's name would cut the data to nothing."""
    before = (d / "data.jsonl").read_bytes()
    done = train(*words(d, "over", prompt_data=f"{d / 'data.jsonl'}@[:100]", metrics=d / "init" / ".." / "data.jsonl"))
    assert done.returncode == 1 and "data.jsonl is read too" in done.stderr, done.stderr[-1000:]
    assert (d / "data.jsonl").read_bytes() == before
    done = train(*words(d, "over", messages_key="messages", ids_key="ids"))
    assert done.returncode == 1 and "--messages-key and --ids-key" in done.stderr, done.stderr[-1000:]


def test_interrupt_says_how_to_resume(d):
    """As rl does; only where there is a run to go on with."""
    for name, run, says in [("interrupted", True, True), ("alone-interrupted", False, False)]:
        options = words(d, name, num_epoch=100000)
        if not run:
            at = options.index("--run")
            del options[at : at + 2]
        heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  a shell's "&" has it ignored
        p = subprocess.Popen([TRAIN, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
        while line := p.stdout.readline():
            if line.startswith("step "):
                break
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=LIMIT)
        assert p.returncode == -signal.SIGINT
        assert ("the same command goes on" in err) == says, err


def test_a_row_that_a_weighted_source_draws_often_counts_each_time(d):
    """Nine draws of one row in a batch are nine samples, as in a file where the row stands nine times; of pairs too."""
    often, rest = d / "often.jsonl", d / "rest.jsonl"
    rows = [{"prompt": f"{i} + {i} =", "response": str(2 * i), "chosen": str(2 * i), "rejected": str(i)} for i in range(10)]
    often.write_text(json.dumps(rows[0]))
    rest.write_text("\n".join(map(json.dumps, rows[1:])))
    (d / "written.jsonl").write_text("\n".join(json.dumps(row) for row in [rows[0]] * 9 + [rows[1]]))
    batch = ["--global-batch-size", 10, "--num-epoch", 1, "--no-shuffle", "--hf-checkpoint", d / "init"]

    def first(name, kind, *data):
        done = train(kind, *batch, *data, "--run", d / name, "--save-hf", d / name / "hf")
        assert done.returncode == 0, done.stderr[-2000:]
        return lines(d, name)[0]

    for kind in ("sft", "dpo"):
        drawn = first(f"drawn-{kind}", kind, "--prompt-data", f"{often}@0.9", "--prompt-data", f"{rest}@0.1")
        written = first(f"written-{kind}", kind, "--prompt-data", d / "written.jsonl")
        for figure in ("train/loss", "train/grad_norm"):
            assert drawn[figure] == pytest.approx(written[figure], rel=1e-4), (kind, figure)


def test_the_optimizer_has_the_same_defaults_everywhere():
    """Those of Megatron, by which slime's recipes are read; learning rates are each method's own."""
    shared = ("min-lr", "lr-decay-style", "lr-warmup-iters", "weight-decay", "adam-beta1", "adam-beta2", "adam-eps", "clip-grad")

    def defaults(kind):
        rows = [line.split(" | ") for line in train(kind, "--help-markdown").stdout.replace("\\|", "/").splitlines()]
        return {row[0].strip("| `").split()[0].strip("`-"): row[1].strip() for row in rows if len(row) > 2 and "`--" in row[0]}

    rl = defaults("rl")
    assert rl["adam-beta2"] == "0.999"
    for kind in ("sft", "dpo"):
        own = defaults(kind)
        assert {k: own[k] for k in shared} == {k: rl[k] for k in shared}, kind


def test_the_first_update_of_a_warm_up_has_rate_0(d):
    """As Megatron counts: its scheduler has made no step when the first update is made."""
    whole(d, "warm", num_epoch=1, lr_warmup_iters=4)
    assert [m["train/lr-pg_0"] for m in lines(d, "warm")][:6] == pytest.approx([0, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3])
