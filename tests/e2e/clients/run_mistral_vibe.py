"""Headless: it runs bash as the policy says and ends with its answer."""

import os
import pathlib
import subprocess
import sys

from asked import ANSWER, MODEL, QUESTION, place

url, _, where = place()
home = pathlib.Path(os.environ["HOME"]) / ".vibe"
home.mkdir()
(home / "config.toml").write_text(f"""active_model = "here"
enable_update_checks = false
enable_telemetry = false
[[providers]]
name = "here"
api_base = "{url}/v1"
api_key_env_var = ""
backend = "generic"
[[models]]
name = "{MODEL}"
provider = "here"
alias = "here"
temperature = 0.0
""")
vibe = pathlib.Path(sys.executable).parent / "vibe"
done = subprocess.run([vibe, "-p", QUESTION, "--max-turns", "4"], capture_output=True, text=True, timeout=240,
                      env={**os.environ, "VIBE_HOME": str(home)}, stdin=subprocess.DEVNULL)  # fmt: skip
assert done.returncode == 0 and done.stdout.strip().endswith(ANSWER), done
