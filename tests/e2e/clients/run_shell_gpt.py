"""One question by its command."""

import os
import pathlib
import subprocess
import sys

from asked import MODEL, QUESTION, place

url, _, where = place()
env = {**os.environ, "API_BASE_URL": url + "/v1", "OPENAI_API_KEY": "none", "DEFAULT_MODEL": MODEL, "OPENAI_USE_FUNCTIONS": "false",
       "PRETTIFY_MARKDOWN": "false", "USE_LITELLM": "false"}  # fmt: skip
sgpt = pathlib.Path(sys.executable).parent / "sgpt"
done = subprocess.run([sgpt, "--no-cache", "--no-functions", QUESTION], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
assert done.returncode == 0 and done.stdout.strip(), done
