"""GET /metrics of a run's page, read with a parser of the text format: while it trains, and of a run that ended."""

import json
import re
import sqlite3
import time

import httpx
from programs import BUILD, LIMIT, ROOT, tiny_model
from test_page import Page, training

NAME, LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r"[a-zA-Z_][a-zA-Z0-9_]*"
PAIR = rf'({LABEL})="((?:[^"\\\n]|\\[\\"n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{PAIR},?)*)\}})? (\S+)$")


def parse(text):
    """{name: {labels: value}} of exposition format 0.0.4; an AssertionError where it is not that."""
    assert text.endswith("\n")
    found, kinds, now = {}, {}, None
    for line in text.splitlines():
        if comment := re.match(rf"# (HELP|TYPE) ({NAME}) (.+)$", line):
            what, name, rest = comment.groups()
            assert (what == "HELP") == (name != now), line  # HELP opens a family, once
            assert name not in kinds and (what == "HELP" or rest in ("counter", "gauge", "histogram")), line
            now = name
            if what == "TYPE":
                kinds[name] = rest
            continue
        sample = SAMPLE.match(line)
        assert sample, line
        name = sample[1]
        assert name == now or kinds[now] == "histogram" and name.startswith(now), line
        labels = frozenset(re.findall(PAIR, sample[2] or ""))
        assert labels not in found.setdefault(name, {}), line
        found[name][labels] = float(sample[5])
    return found


def documented():
    return set(re.findall(r"^\| `(clime_train_\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.M))


def of(found, name, **labels):
    return found[name][frozenset(labels.items())]


def test_a_run_while_it_trains_and_after(tmp_path):
    model = tiny_model(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"input": str(i), "label": "x"}) + "\n" for i in range(64)))
    run = tmp_path / 'a "run"'
    words = {"run": run, "hf-checkpoint": model, "prompt-data": tmp_path / "data.jsonl", "label-key": "label",
             "num-rollout": 100000, "rollout-batch-size": 2, "n-samples-per-prompt": 2, "rollout-max-response-len": 8,
             "max-tokens-per-gpu": 512, "rm-type": "random", "eval-interval": 1, "eval-rm-type": "random",
             "save-interval": 1000}  # fmt: skip
    command = [str(BUILD / "clime-train"), "rl", "--use-dynamic-batch-size", "--eval-prompt-data", "sums",
               f"{tmp_path / 'data.jsonl'}@[0:2]", *(str(w) for k, v in words.items() for w in (f"--{k}", v))]  # fmt: skip
    label = {"run": str(run).replace('"', r"\"")}
    with training(command) as (url, _):
        deadline = time.monotonic() + LIMIT
        while True:
            now = parse(httpx.get(url + "metrics", timeout=LIMIT).text)
            if now.get("clime_train_rollout", {}).get(frozenset(label.items()), 0) >= 3:
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert of(now, "clime_train_rollouts_wanted") == 100000
        assert of(now, "clime_train_servers") == 1 and of(now, "clime_train_samples_in_flight") >= 0
        assert of(now, "clime_train_servers_serving") in (0, 1)
        assert of(now, "clime_train_gap_max", **label) == 0 and of(now, "clime_train_gap_tokens", **label) > 0
    page = Page(run)
    after = parse(page.get("/metrics").text)
    status, log = page.stop()
    assert status == 0, log
    db = sqlite3.connect(run / "ledger.db")  # of metrics.jsonl a killed run may lack the last line
    newest = {k: json.loads(line) for k, line in db.execute("SELECT kind, line FROM metrics ORDER BY step")}
    db.close()
    assert of(after, "clime_train_step", **label) >= of(now, "clime_train_step", **label)
    assert of(after, "clime_train_reward_mean", **label) == newest["rollout"]["rollout/raw_reward"]
    assert of(after, "clime_train_loss", **label) == newest["train"]["train/loss"]
    assert of(after, "clime_train_stage_seconds", stage="forward", **label) == newest["train"]["perf/forward_time"]
    assert of(after, "clime_train_eval_score", set="sums", **label) == newest["eval"]["eval/sums"]
    assert of(after, "clime_train_alarm", alarm="truncation", **label) == 1  # a random model never stops by itself
    assert of(after, "clime_train_alarm", alarm="gap", **label) == 0
    assert of(after, "clime_train_ledger_bytes", **label) >= (run / "ledger.db").stat().st_size
    said = {n for n in (*now, *after) if n.startswith("clime_train_")}
    rare = {"clime_train_kl_loss", "clime_train_staleness_steps_mean", "clime_train_staleness_steps_max",
            "clime_train_turns_extended", "clime_train_turns_branched"}  # fmt: skip
    assert said | rare == documented()
