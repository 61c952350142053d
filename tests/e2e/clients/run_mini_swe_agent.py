"""A task to its submission: a command, and then the one that submits."""

import os

os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
from asked import MODEL, QUESTION, place  # noqa: E402
from minisweagent.agents.default import DefaultAgent  # noqa: E402
from minisweagent.environments.local import LocalEnvironment  # noqa: E402
from minisweagent.models.litellm_model import LitellmModel  # noqa: E402

url, _, where = place()
model = LitellmModel(model_name=f"openai/{MODEL}", cost_tracking="ignore_errors",
                     model_kwargs={"api_base": url + "/v1", "api_key": "none", "temperature": 0, "max_tokens": 200})  # fmt: skip
agent = DefaultAgent(model, LocalEnvironment(), system_template="Add.", instance_template="{{task}}", step_limit=4)
info = agent.run(QUESTION)
assert info["exit_status"] == "Submitted" and agent.n_calls == 2, (info, agent.messages)
