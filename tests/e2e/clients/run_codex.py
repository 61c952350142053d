"""Codex, headless, over Responses: it runs a command as the policy says and ends with its answer."""

import json
import os
import pathlib
import subprocess

import codex_cli_bin
from asked import ANSWER, MODEL, QUESTION, place

url, _, where = place()
home = pathlib.Path(os.environ["HOME"]) / ".codex"
home.mkdir(parents=True)
(home / "config.toml").write_text(f"""model = "{MODEL}"
model_provider = "here"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.here]
name = "here"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
""")
codex = pathlib.Path(codex_cli_bin.__file__).parent / "bin/codex"
done = subprocess.run([codex, "exec", "--json", "--skip-git-repo-check", QUESTION], capture_output=True, text=True, timeout=240,
                      env={**os.environ, "CODEX_HOME": str(home)}, stdin=subprocess.DEVNULL)  # fmt: skip
events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
items = [e["item"] for e in events if e.get("type") == "item.completed"]
assert [i["text"] for i in items if i["type"] == "agent_message"] == [ANSWER], (done.stdout, done.stderr)
assert [i["exit_code"] for i in items if i["type"] == "command_execution"] == [0], items
