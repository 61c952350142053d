#!/usr/bin/env python3
"""A model as the judge, at any endpoint that speaks OpenAI's chat completions. No packages.

    clime-train rl --rm-type command --rm-workers 8 --rm-timeout 120 \\
        --rm-command "python3 examples/rewards/judge_reward.py --url http://127.0.0.1:8001/v1 --model default \\
                      --per-minute 600 --cache RUN/judge.db" ...

The judge is asked for a number from 0 to 10, which becomes a reward from 0 to 1. All processes of a run share the cache
file (SQLite): what was asked before, by the hash of the whole request, is not asked again, also after a restart; and they
share its rate limit, one call in each of --per-minute equal slots. The key is taken from $OPENAI_API_KEY.
"""

import argparse
import hashlib
import json
import os
import re
import sqlite3
import sys
import time
import urllib.error
import urllib.request

PROMPT = """Rate the answer to the question from 0 (useless or wrong) to 10 (right and complete).
Reply with the number alone.

Question:
{prompt}

Reference:
{label}

Answer:
{response}"""


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--url", required=True, help="up to /v1")
    p.add_argument("--model", default="default")
    p.add_argument("--cache", required=True, help="SQLite file, made if missing")
    p.add_argument("--per-minute", type=float, default=0, help="calls of all processes together; 0 = no limit")
    p.add_argument("--tries", type=int, default=5)
    return p.parse_args()


class Cache:
    """Answers by request, and the time of the next free slot, for all processes."""

    def __init__(self, path):
        self.db = sqlite3.connect(path, timeout=60, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("CREATE TABLE IF NOT EXISTS answers(request TEXT PRIMARY KEY, text TEXT NOT NULL, at REAL NOT NULL)")
        self.db.execute("CREATE TABLE IF NOT EXISTS slot(id INTEGER PRIMARY KEY CHECK(id = 1), next REAL NOT NULL)")
        self.db.execute("INSERT OR IGNORE INTO slot VALUES(1, 0)")

    def get(self, key):
        row = self.db.execute("SELECT text FROM answers WHERE request = ?", (key,)).fetchone()
        return row and row[0]

    def put(self, key, text):
        self.db.execute("INSERT OR REPLACE INTO answers VALUES(?, ?, ?)", (key, text, time.time()))

    def wait_for_slot(self, per_minute):
        if not per_minute:
            return
        self.db.execute("BEGIN IMMEDIATE")
        (slot,) = self.db.execute("SELECT next FROM slot").fetchone()
        slot = max(slot, time.time())
        self.db.execute("UPDATE slot SET next = ?", (slot + 60 / per_minute,))
        self.db.execute("COMMIT")
        time.sleep(max(0, slot - time.time()))


def ask(o, body):
    """The judge's text. A full or failing endpoint is asked again, after what it says or a pause that doubles."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"}
    for attempt in range(o.tries):
        try:
            request = urllib.request.Request(f"{o.url}/chat/completions", body, headers)
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as e:
            if (e.code != 429 and e.code < 500) or attempt + 1 == o.tries:
                raise RuntimeError(f"{e.code}: {e.read(300).decode(errors='replace')}") from None
            after = e.headers.get("Retry-After") or ""
            time.sleep(float(after) if after.isdigit() else 0.5 * 2**attempt)
        except OSError:
            if attempt + 1 == o.tries:
                raise
            time.sleep(0.5 * 2**attempt)


def judge(o, cache, q):
    message = PROMPT.format(prompt=q["prompt"], label=q["label"], response=q["response"])
    body = json.dumps({"model": o.model, "temperature": 0, "max_tokens": 8,
                       "messages": [{"role": "user", "content": message}]}).encode()  # fmt: skip
    key = hashlib.sha256(o.url.encode() + b"\0" + body).hexdigest()
    text = cache.get(key)
    if text is None:
        cache.wait_for_slot(o.per_minute)
        text = ask(o, body)
        cache.put(key, text)
    found = re.search(r"\d+(\.\d+)?", text or "")
    if not found:
        raise ValueError(f"the judge said no number: {text!r:.100}")
    return min(float(found.group()), 10) / 10


def main():
    o = options()
    cache = Cache(o.cache)
    for line in sys.stdin:
        q = json.loads(line)
        answer = {"id": q["id"]}
        try:
            answer["reward"] = judge(o, cache, q)
        except Exception as e:  # a failed sample, not a bad answer
            answer["error"] = f"{type(e).__name__}: {e}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
