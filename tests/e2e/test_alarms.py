"""Alarms of real runs: each by what causes it, where they are told, and that a restart tells none twice.

A prompt's label says what the reward does with its answers, so which rollout goes wrong, and how, is in the data."""

import json
import re
import sqlite3
import sys

import pytest
from mocks import Worker
from programs import few_threads, run, tiny_model

REWARD = """
import json, sys, time, zlib
for line in sys.stdin:
    q = json.loads(line)
    how, answer = q["label"], {"id": q["id"]}
    luck = zlib.crc32(q["response"].encode()) / 2**32
    if how == "broken":
        answer["error"] = "the judge is not there"
    elif how == "slow":
        time.sleep(0.3)
    answer["reward"] = {"same": 1.0, "group": float(q["prompt"][-1] in "13579"), "wild": 1e5 * luck}.get(how, luck)
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("alarms") / "model")


def command(model, folder, labels, *more, **change):
    """Two prompts of two answers a rollout, one step each; the labels are those of the prompts, in their order."""
    (folder / "reward.py").write_text(REWARD)
    prompts = ({"input": str(i), "label": how} for i, how in enumerate(labels))
    (folder / "data.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))
    (folder / "zero.jsonl").write_text('{"input": "1+1=", "label": "no"}\n{"input": "1+2=", "label": "no"}\n')
    words = {"run": folder / "run", "hf-checkpoint": model, "prompt-data": folder / "data.jsonl", "label-key": "label",
             "num-rollout": len(labels) // 2, "rollout-batch-size": 2, "n-samples-per-prompt": 2, "lr": 1e-6,
             "rollout-max-response-len": 8, "max-tokens-per-gpu": 512, "rm-type": "command",
             "rm-command": f"{sys.executable} {folder / 'reward.py'}",
             **{k.replace("_", "-"): v for k, v in change.items()}}  # fmt: skip
    return few_threads(["rl", "--use-dynamic-batch-size", "--disable-grpo-std-normalization",
                        *(w for k, v in words.items() for w in (f"--{k}", v)), *more])  # fmt: skip


def events(folder):
    db = sqlite3.connect(folder / "run" / "ledger.db")
    found = [json.loads(d) for (d,) in db.execute("SELECT detail FROM events WHERE kind = 'alarm' ORDER BY id")]
    db.close()
    return found


def told(found):
    """{name: "+-"}: raised, then cleared."""
    out = {}
    for e in found:
        out[e["alarm"]] = out.get(e["alarm"], "") + {"raised": "+", "cleared": "-"}[e["state"]]
    return out


def at(found, name, state="raised"):
    return [e["rollout"] for e in found if (e["alarm"], e["state"]) == (name, state)]


FINE = ["fine"] * 2


def test_a_run_that_goes_wrong_in_every_way(model, tmp_path):
    """The run ends with an error in the middle; the same command goes on. Ledger, log, command and URL say the same."""
    labels = (FINE * 10 + ["wild"] * 2 + FINE * 6 + ["same"] * 2 + FINE * 3 + ["group"] * 6 + ["broken"] * 3 + FINE * 8)
    refused = []

    def once_busy(handler, body):  # the first try is refused
        if refused:
            return False
        refused.append(body)
        handler.reply(503)
        return True

    url = Worker(once_busy)
    words = command(model, tmp_path, labels, "--eval-prompt-data", "zero", tmp_path / "zero.jsonl", "--eval-rm-type",
                    "exact", "--alarm", "disk=1", "reward-slow=0", "entropy-collapse=5", "--alarm", "clipped=-1",
                    "truncation=0.5", "--alarm-command", f"cat >> {tmp_path}/told; echo >> {tmp_path}/told",
                    "--alarm-url", url.url, eval_interval=100, num_rollout=30)  # fmt: skip
    try:
        status, _, first = run("clime-train", *words)
        assert status == 1 and "3 groups of rollout 24 failed" in first, first
        before = events(tmp_path)
        status, _, second = run("clime-train", *words)
        assert status == 0, second
    finally:
        url.stop()
    found = events(tmp_path)
    assert told(before) == {"evaluation-zero": "+", "reward-slow": "+", "disk": "+", "truncation": "+",
                            "entropy-collapse": "+", "clipped": "+", "gradient-spike": "+-", "rewards-alike": "+-",
                            "groups-alike": "+", "reward-fails": "+", "ended": "+"}  # fmt: skip
    assert {n: t for n, t in told(found).items() if t != told(before)[n]} == {
        "groups-alike": "+-", "reward-fails": "+-", "ended": "+-"}  # fmt: skip
    # the first values of a window, or as many as it takes, and then at once
    assert at(found, "gradient-spike") == [10] and at(found, "gradient-spike", "cleared") == [15]
    assert at(found, "rewards-alike") == [17] and at(found, "rewards-alike", "cleared") == [20]
    assert at(found, "groups-alike") == [23] and at(found, "truncation")[0] >= 2 and at(found, "clipped") == [4]
    assert at(found, "entropy-collapse") == [12] and at(found, "reward-slow") == [1] and at(found, "disk") == [0]
    (fails,) = (e for e in found if e["alarm"] == "reward-fails" and e["state"] == "raised")
    assert "the judge is not there" in fails["cause"] and fails["value"] == 0.25 and fails["advice"]
    # everywhere the same
    said = re.findall(r" W train: alarm ([\w-]+): ", first + second)
    assert said == [e["alarm"] for e in found if e["state"] == "raised"]
    assert re.findall(r" I train: alarm ([\w-]+) is over", first + second) == [
        e["alarm"] for e in found if e["state"] == "cleared"]  # fmt: skip
    by_command = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    by_url = [json.loads(body) for method, _, _, body in url.calls("/") if method == "POST"]
    assert by_url[0] == by_url[1] == json.loads(refused[0])  # refused, and taken
    for messages in (by_command, by_url[1:]):  # a process that ends leaves some untold, where they are slow
        assert all(m.pop("folder") == str(tmp_path / "run") and m.pop("run") and m.pop("at") for m in messages)
        rest = iter(found)
        assert len(messages) >= 5 and all(m in rest for m in messages), messages  # each once, in their order


def test_starving_stale_and_stalled(model, tmp_path):
    """--async with slow rewards: the trainer waits, the servers too, tokens are a step old, and nothing comes for long."""
    words = command(model, tmp_path, ["slow"] * 14, "--async", "--alarm", "staleness=0.5", "stalled=0.15",
                    "trainer-starved=0", "servers-starved=-1", "truncation=off", "lengths=0.1", "samples-fail=0")  # fmt: skip
    status, _, err = run("clime-train", *words)
    assert status == 0, err
    found = events(tmp_path)
    for name in ("trainer-starved", "servers-starved", "staleness", "lengths", "stalled"):
        assert told(found).get(name, "")[:1] == "+", (name, err)
    assert "truncation" not in told(found) and told(found)["stalled"][-1] == "-"


def test_a_rate_that_is_far_too_high(model, tmp_path):
    """Sixteen steps a rollout on tokens that are sixteen steps old, with a learning rate of 0.1: they are stale, the loss
    clips most of them, and the policy ends with one answer. No limit is moved."""
    words = command(model, tmp_path, ["fine"] * 12, "--async", "--alarm", "disk=off", lr=0.1, lr_warmup_iters=20,
                    n_samples_per_prompt=16, num_steps_per_rollout=16)  # fmt: skip
    status, _, err = run("clime-train", *words)
    assert status == 0, err
    found = events(tmp_path)
    assert {"staleness", "clipped", "entropy-collapse"} <= set(told(found)), told(found)
    limits = {e["alarm"]: e["limit"] for e in found}
    assert (limits["staleness"], limits["clipped"]) == (8, 0.3) and 0.02 * 4 < limits["entropy-collapse"] < 0.02 * 7


def test_samples_that_fail(model, tmp_path):
    """A prompt that fills the context: its sample cannot be generated, and that is no fault of the reward."""
    words = command(model, tmp_path, ["fine"] * 8, "--alarm", "disk=off", rollout_max_context_len=16,
                    rollout_max_prompt_len=200, num_rollout=1)  # fmt: skip
    data = (tmp_path / "data.jsonl").read_text().splitlines()
    data[0] = json.dumps({"input": "x" * 40, "label": "fine"})
    (tmp_path / "data.jsonl").write_text("\n".join(data) + "\n")
    status, _, err = run("clime-train", *words)
    assert status == 0, err
    assert told(events(tmp_path)) == {"samples-fail": "+"}
    assert "fills the context" in events(tmp_path)[0]["cause"]


def test_words_that_are_no_alarm(model, tmp_path):
    for word, says in (("gapp=1", "no alarm is called gapp"), ("gap=much", "NAME=NUMBER")):
        status, _, err = run("clime-train", *command(model, tmp_path, FINE, "--alarm", word))
        assert status == 1 and says in err and len(err.splitlines()) == 1, err
