"""An agent that calls a tool and ends with its answer."""

import autogen
from asked import ANSWER, MODEL, QUESTION, place

url, _, where = place()
ran = []


def add(a: int, b: int) -> str:
    """Adds."""
    ran.append((a, b))
    return str(a + b)


config = {"config_list": [{"model": MODEL, "base_url": url + "/v1", "api_key": "none", "price": [0, 0]}], "temperature": 0,
          "max_tokens": 200, "cache_seed": None}  # fmt: skip
agent = autogen.AssistantAgent("a", llm_config=config, system_message="Add.")
user = autogen.UserProxyAgent("u", human_input_mode="NEVER", code_execution_config=False, max_consecutive_auto_reply=1)
autogen.register_function(add, caller=agent, executor=user, description="adds")
got = user.initiate_chat(agent, message=QUESTION)
assert ran == [(17, 25)] and ANSWER in [m["content"] for m in got.chat_history], got.chat_history
