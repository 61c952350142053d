"""One message, streamed and not."""

import os
import pathlib
import subprocess
import sys

from asked import ANSWER, MODEL, QUESTION, place

url, _, where = place()
aider = pathlib.Path(sys.executable).parent / "aider"
env = {**os.environ, "OPENAI_API_BASE": url + "/v1", "OPENAI_API_KEY": "none"}
for more in (["--stream"], ["--no-stream"]):
    done = subprocess.run([aider, "--model", f"openai/{MODEL}", "--no-git", "--yes-always", "--no-show-model-warnings", "--no-check-update",
                           "--analytics-disable", "--map-tokens", "0", "--no-pretty", "--chat-mode", "ask", *more, "--message", QUESTION],
                          capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 0 and ANSWER in done.stdout, done
