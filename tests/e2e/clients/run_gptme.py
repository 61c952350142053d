"""One message; its tools are text, which the policy does not write."""

import os
import pathlib
import subprocess
import sys

from asked import MODEL, QUESTION, place

url, _, where = place()
gptme = pathlib.Path(sys.executable).parent / "gptme"
done = subprocess.run([gptme, "--non-interactive", "--no-confirm", "-m", f"local/{MODEL}", "--tools", "none", QUESTION], capture_output=True,
                      text=True, timeout=240, env={**os.environ, "OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "none"},
                      stdin=subprocess.DEVNULL)  # fmt: skip
assert done.returncode == 0 and "@add(" in done.stdout, done
