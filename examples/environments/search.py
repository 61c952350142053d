#!/usr/bin/env python3
"""Search over a small local corpus: the policy may ask several queries ("?words"), is given the best document each
time, and answers when it has found out; any message that is no query is the answer. Reward 1 when it is the label.

    clime-train rl ... --environment-command "python3 examples/environments/search.py CORPUS.jsonl"

A line of the corpus is {"text": "..."}. Needs httpx (pip install httpx).
"""

import collections
import json
import math
import os
import re
import sys
import time

import httpx

URL = os.environ["CLIME_URL"]
KEY = os.environ.get("CLIME_API_KEY", "none")
QUERIES = 6


class Corpus:
    """BM25 (Robertson & Zaragoza 2009) with k1 = 1.2, b = 0.75 over lower-case words."""

    def __init__(self, path):
        self.texts = [json.loads(line)["text"] for line in open(path)]
        self.words = [collections.Counter(self.split(t)) for t in self.texts]
        self.lengths = [sum(w.values()) for w in self.words]
        self.mean = sum(self.lengths) / len(self.lengths)
        self.having = collections.defaultdict(list)  # word -> documents
        for i, words in enumerate(self.words):
            for word in words:
                self.having[word].append(i)

    @staticmethod
    def split(text):
        return re.findall(r"\w+", text.lower())

    def best(self, query):
        """The text that fits best; None when no word of the query is known."""
        scores = collections.Counter()
        for word in set(self.split(query)):
            found = self.having.get(word, [])
            weight = math.log(1 + (len(self.texts) - len(found) + 0.5) / (len(found) + 0.5))
            for i in found:
                n = self.words[i][word]
                scores[i] += weight * n * 2.2 / (n + 1.2 * (0.25 + 0.75 * self.lengths[i] / self.mean))
        if not scores:
            return None
        return self.texts[min(scores, key=lambda i: (-scores[i], i))]


def act(http, corpus, task):
    """Plays one task; the body of its result, or None when the lease is over."""
    given = task["input"]
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    for _ in range(QUERIES + 1):
        reply = http.post(f"{task['session']}/v1/chat/completions", json={"messages": messages})
        if reply.status_code in (404, 503):
            return None
        used_up = reply.status_code == 400 and reply.json()["error"]["code"] == "context_length_exceeded"
        if used_up or reply.status_code == 413:  # tokens, or turns
            return {"reward": 0.0}
        if reply.status_code != 200:
            return {"error": reply.text[:300]}
        answer = reply.json()["choices"][0]["message"]["content"]
        if not answer.startswith("?"):
            return {"reward": 1.0 if answer.strip() == str(task["label"]) else 0.0}
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "tool", "content": corpus.best(answer[1:]) or "nothing found"})
    return {"reward": 0.0}


def main():
    corpus = Corpus(sys.argv[1])
    http = httpx.Client(base_url=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=600)
    while True:
        try:
            reply = http.post("/tasks/lease", json={"wait_s": 30})
            if reply.status_code != 200:
                time.sleep(reply.status_code != 204)  # 429: many wait already
                continue
            task = reply.json()
            result = act(http, corpus, task)
            if result:
                http.post(f"/tasks/{task['task']}", json=result)
        except httpx.TransportError:
            return  # the trainer is gone


if __name__ == "__main__":
    main()
