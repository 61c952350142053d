#!/usr/bin/env python3
"""A calculator as a tool: the policy may ask for one calculation a turn ("=27+35") and is given the result; any other
answer ends the task. Reward 1 when that answer is the label.

Started by `clime-train rl --environment-command "python3 examples/environments/calculator.py"`, which sets CLIME_URL;
or by hand beside a run with --environment. Talks to the policy with the openai package (pip install openai httpx).
"""

import json
import os
import re
import time

import httpx
import openai

URL = os.environ["CLIME_URL"]
KEY = os.environ.get("CLIME_API_KEY", "none")
TURNS = 4


def calculate(text):
    """The value of "=a+b", "=a-b" or "=a*b"; None when it is something else."""
    m = re.fullmatch(r"=([0-9]{1,9})([-+*])([0-9]{1,9})", text)
    if not m:
        return None
    a, b = int(m[1]), int(m[3])
    return {"+": a + b, "-": a - b, "*": a * b}[m[2]]


def messages_of(task):
    given = task["input"]
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given)


def act(client, task):
    """The conversation of one task; returns the reward."""
    messages = messages_of(task)
    for _ in range(TURNS):
        answer = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content
        messages.append({"role": "assistant", "content": answer})
        value = calculate(answer)
        if value is None:
            return 1.0 if answer == str(task["label"]) else 0.0
        messages.append({"role": "tool", "content": str(value)})
    return 0.0


def main(act):
    """Leases tasks and plays them with act(client, task), which returns the reward, for ever."""
    http = httpx.Client(base_url=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=120)
    connection = httpx.Client(timeout=600)  # one for all tasks: making a client costs more than a turn
    while True:
        try:
            reply = http.post("/tasks/lease", json={"wait_s": 30})
        except httpx.TransportError:
            return  # the trainer is gone
        if reply.status_code != 200:
            time.sleep(reply.status_code != 204)  # 429: many wait already
            continue
        task = reply.json()
        client = openai.OpenAI(base_url=f"{URL}{task['session']}/v1", api_key=KEY, max_retries=0, http_client=connection)
        try:
            result = {"reward": act(client, task)}
        except openai.APIStatusError as e:
            if e.status_code in (404, 503):  # the lease is over: somebody else's task now, or nobody's
                continue
            # A limit of the session (tokens, turns) is the policy's doing; everything else is an error.
            limit = e.code == "context_length_exceeded" or e.status_code == 413
            result = {"reward": 0.0} if limit else {"error": json.dumps(str(e))}
        http.post(f"/tasks/{task['task']}", json=result)


if __name__ == "__main__":
    main(act)
