"""An environment of two turns that uses nothing but Python's own library: started by chaos.py with CLIME_URL, killed at any time.
The reward is left to the run's own."""

import json
import os
import time
import urllib.error
import urllib.request

URL = os.environ["CLIME_URL"]


def post(path, body, timeout=60):
    with urllib.request.urlopen(urllib.request.Request(URL + path, json.dumps(body).encode()), timeout=timeout) as reply:
        return json.loads(reply.read() or b"null") if reply.status == 200 else None


def play(task):
    post(task["session"] + "/generate", {"sampling_params": {"max_new_tokens": 12}})
    post(task["session"] + "/generate", {"text": " and? ", "sampling_params": {"max_new_tokens": 12}})
    post(f"/tasks/{task['task']}", {"reward": None})


while True:
    try:
        task = post("/tasks/lease", {"wait_s": 5})
        if task:
            play(task)
    except urllib.error.HTTPError as e:  # a lease that is over is somebody else's task now
        time.sleep(0.02 if e.code in (404, 409, 413) else 0.2)
    except OSError:
        break  # the trainer is gone, or was frozen for long: whoever started this starts it again
