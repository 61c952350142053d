"""Its command: a question of a model that a file of its own names, streamed and not."""

import os
import pathlib
import subprocess
import sys

from asked import ANSWER, MODEL, QUESTION, place

url, _, where = place()
home = pathlib.Path(os.environ["HOME"]) / "llm"
home.mkdir()
(home / "extra-openai-models.yaml").write_text(
    f"- model_id: here\n  model_name: {MODEL}\n  api_base: {url}/v1\n  supports_tools: true\n  supports_schema: true\n"
)
code = "def add(a: int, b: int) -> int:\n    'Adds.'\n    return a + b\n"
for more in ([], ["--no-stream"]):
    done = subprocess.run([sys.executable, "-m", "llm", "-m", "here", "--key", "none", "-o", "temperature", "0", "-o", "max_tokens", "200",
                           "--functions", code, *more, QUESTION], capture_output=True, text=True,
                          env={**os.environ, "LLM_USER_PATH": str(home)}, stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip().endswith(ANSWER), done
