"""A run folder with a ledger of many samples, for looking at the page at size: a real run's record, and more of the same.

    build/venv/bin/python tests/bench/make_ledger.py RUN OUT [--samples 100000] [--tokens 1000]

RUN is a finished run, whose schema, options and tokenizer OUT gets; its samples are left out. Rewards rise and lengths
grow over 200 rollouts, each of two steps; texts are words, so that a search finds some of them often and some rarely.
"""

import argparse
import array
import json
import math
import pathlib
import random
import shutil
import sqlite3

WORDS = "the sum of two numbers is found by adding each digit first carry then next so answer we check again wait no".split()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("run", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--samples", type=int, default=100_000)
    p.add_argument("--tokens", type=int, default=1000)
    p.add_argument("--rollouts", type=int, default=200)
    p.add_argument("--members", type=int, default=8)
    o = p.parse_args()
    o.out.mkdir(parents=True)
    if (o.run / "hf").is_dir():
        shutil.copytree(o.run / "hf", o.out / "hf", ignore=shutil.ignore_patterns("*.safetensors"))
    with sqlite3.connect(o.run / "ledger.db") as source, sqlite3.connect(o.out / "ledger.db") as db:
        source.backup(db)
    db = sqlite3.connect(o.out / "ledger.db")
    db.executescript(
        "PRAGMA foreign_keys=OFF; PRAGMA synchronous=OFF; DELETE FROM step_samples; DELETE FROM sample_streams;"
        "DELETE FROM sample_rows; DELETE FROM groups; DELETE FROM steps; DELETE FROM metrics; DELETE FROM versions;"
        "DELETE FROM checkpoints; DELETE FROM events WHERE kind <> 'end';"
    )
    fill(db, o)
    db.commit()
    db.execute("PRAGMA journal_mode=WAL")
    db.close()


def fill(db, o):
    r = random.Random(1)
    t0, second = 1_760_000_000_000_000, 1_000_000
    per_rollout, sample, group, step = o.samples // o.rollouts, 0, 0, 0
    for rollout in range(o.rollouts):
        skill = 1 / (1 + math.exp(-(rollout - o.rollouts / 3) / (o.rollouts / 10)))
        begin = t0 + rollout * 60 * second
        chosen = []
        for i in range(per_rollout):
            member = i % o.members
            if member == 0:
                group += 1
                line = (group - 1) % 4000 + 1
                prompt = f"What is {line} + {line * 7 % 997}?"
                db.execute(
                    "INSERT INTO groups(id, rollout, epoch, line, prompt, label, state, ended_in, opened_us)"
                    " VALUES(?, ?, ?, ?, ?, ?, 'done', ?, ?)",
                    (group, rollout, (group - 1) // 4000, line, prompt,
                     json.dumps(str(line + line * 7 % 997)), rollout, begin))  # fmt: skip
            sample += 1
            n_prompt = len(prompt)
            n = max(1, int(r.gauss(0.4 + 0.6 * rollout / o.rollouts, 0.15) * 1.45 * o.tokens))
            n = min(n, 2 * o.tokens)
            status = "truncated" if n == 2 * o.tokens or r.random() < 0.03 else "failed" if r.random() < 0.002 else "completed"
            reward = None if status == "failed" else float(r.random() < skill)
            text = " ".join(r.choices(WORDS, k=n // 3 + 1))[:n].ljust(n)  # a byte is a token
            if r.random() < 0.001:
                text = text[: n // 2] + " eureka " + text[n // 2 + 8 :]
            n = len(text)
            rows(db, r, o, locals())
            if reward is not None:
                chosen.append(sample)
        for half in range(2):
            step += 1
            mine = chosen[half :: 2]
            at = begin + (40 + 8 * half) * second
            loss = r.gauss(0, 0.01)
            db.execute("INSERT INTO steps(step, rollout, global_batch, packing_first, packing_sample, chosen_us, done_us, loss,"
                       " grad_norm, stats) VALUES(?, ?, ?, x'', x'', ?, ?, ?, ?, '{}')",
                       (step, rollout, len(mine), at, at + 8 * second, loss, abs(r.gauss(1, 0.2))))  # fmt: skip
            db.executemany("INSERT INTO step_samples(step, position, sample_id, advantage) VALUES(?, ?, ?, ?)",
                           [(step, k, s, r.gauss(0, 1)) for k, s in enumerate(mine)])  # fmt: skip
            db.execute("INSERT INTO versions(version, sha256, made_us) VALUES(?, ?, ?)", (step, "0" * 64, at + 8 * second))
            lines(db, r, rollout, step, half, skill, loss, o)


def rows(db, r, o, v):
    n, n_prompt, sample, rollout = v["n"], v["n_prompt"], v["sample"], v["rollout"]
    db.execute(
        "INSERT INTO sample_rows(id, rollout, group_id, member, seed, status, attempt, n_prompt, n_response, versions, reward,"
        " submit_us, done_us, cached_tokens, device, finish, error) VALUES(?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, 0, 'cpu', ?, ?)",
        (sample, rollout, v["group"], v["member"], r.getrandbits(62), v["status"], n_prompt, n, json.dumps([[2 * rollout, n]]),
         v["reward"], v["begin"] + r.randrange(5_000_000), v["begin"] + r.randrange(5_000_000, 40_000_000),
         '{"type":"stop","matched":257}', "reward: the command has ended" if v["status"] == "failed" else None))  # fmt: skip
    ids = array.array("I", list((v["prompt"] + v["text"]).encode()))
    # The first letters of a word are the unlikely ones.
    likely = [0.0] + [-0.001 * x for x in range(1, 64)]
    logp = array.array("f", [-6 * r.random() if a == " " else likely[int(64 * r.random())] for a in " " + v["text"][:-1]])
    put = lambda name, kind, data: db.execute("INSERT INTO sample_streams VALUES(?, ?, ?, ?)", (sample, name, kind, data))
    put("ids", "u32", ids.tobytes())
    put("logp", "f32", logp.tobytes())
    put("mask", "u8", b"\1" * n)
    put("response", "text", v["text"])


def lines(db, r, rollout, step, half, skill, loss, o):
    put = lambda kind, line: db.execute("INSERT INTO metrics VALUES(?, ?, ?)", (kind, step, json.dumps(line)))
    base = {"rollout": rollout, "step": step}
    if half == 0:
        put("rollout", {"kind": "rollout", **base, "rollout/raw_reward": skill + r.gauss(0, 0.02), "rollout/truncated_ratio": 0.03,
                        "rollout/response_len/mean": o.tokens * (0.5 + 0.75 * rollout / o.rollouts), "rollout/response_len/max": 2 * o.tokens,
                        "rollout/staleness/mean": 0.0, "rollout/repetition_frac": abs(r.gauss(0, 0.01))})  # fmt: skip
    else:
        put("perf", {"kind": "perf", **base, "perf/rollout_time": 39 + r.random(), "perf/train_time": 16 + r.random(),
                     "perf/update_weights_time": 0.5, "perf/save_model_time": 0.1, "perf/step_time": 57 + 2 * r.random(),
                     "perf/tokens_per_gpu_per_sec": 9000 + r.random() * 500})  # fmt: skip
    put("train", {"kind": "train", **base, "train/loss": loss, "train/pg_loss": loss, "train/grad_norm": abs(r.gauss(1, 0.2)),
                  "train/entropy_loss": 1.2 - skill + r.gauss(0, 0.02), "train/pg_clipfrac": abs(r.gauss(0.01, 0.003)),
                  "train/ppo_kl": abs(r.gauss(0, 1e-3)), "train/train_rollout_logprob_abs_diff": 0.0, "train/lr-pg_0": 1e-6,
                  "perf/forward_time": 3.0, "perf/backward_time": 4.2, "perf/optimizer_time": 0.6})  # fmt: skip


if __name__ == "__main__":
    main()
