"""What every client asks, and gets: the conversation that the policy was taught (tool_user.py). Needs no package."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request

QUESTION, RESULT, ANSWER = "What is 17 and 25?", "42", "It is 42."
NAME, ARGUMENTS = "add", '{"a": 17, "b": 25}'
MODEL = "tool-user"


def place():
    """The base URL without /v1, the policy's folder, and server, router or session; for a run clime-train in the URL's place."""
    return sys.argv[1:4]


@contextlib.contextmanager
def serving(health, *command, **env):
    """A program that listens on a port of its own, {port} in its words ({other}: one more), once its path answers; gives its base URL."""
    with socket.create_server(("127.0.0.1", 0)) as s, socket.create_server(("127.0.0.1", 0)) as t:
        port, other = s.getsockname()[1], t.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with open("program.log", "wb") as log:
        process = subprocess.Popen([str(c).format(port=port, other=other) for c in command], stdout=log, stderr=log, env={**os.environ, **env})
    try:
        while True:
            assert process.poll() is None, open("program.log").read()[-4000:]
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url + health, timeout=5).close()
                break
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()
